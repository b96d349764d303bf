"""The client of the store service: a Store and a Ledger like those of a folder, over HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from muster.core.address import Address
from muster.core.errors import SpecError, Unavailable
from muster.core.job import JobSpec
from muster.core.names import check_digest, check_job_id, check_new_partition, check_request, check_volume
from muster.core.status import JobStatus
from muster.core.text import escaped
from muster.core.wire import dumps, loads
from muster.volumes import fsck
from muster.volumes.base import Record, Staging, Version
from muster.volumes.durability import translated
from muster.volumes.gather import check_path, sources
from muster.volumes.listing import Listing
from muster.volumes.protocols import (
    Attempts,
    EventLogs,
    Ledger,
    LocalStore,
    Makings,
    ServedStore,
    Snapshots,
    Upkeep,
    VersionStore,
)
from muster.volumes.service.archives import ArchiveMember, lengthen_all, pack, unpack
from muster.volumes.service.connection import PATIENCE_SECONDS, Connection
from muster.volumes.service.downloads import Downloads
from muster.volumes.service.persons import PersonTokens
from muster.volumes.service.refusals import read
from muster.volumes.service.table import CURSOR, MOST_RECORDS, MOST_SPECS, ROWS, Place, Recorded, Starting
from muster.volumes.tree import runs

P = ParamSpec("P")
T = TypeVar("T")


def remote(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Make a method of a protocol one that asks the service, as the table says."""
    row = ROWS[method]

    def ask(self: _Client, /, *arguments: P.args, **named: P.kwargs) -> T:
        path, query, body = row.request(arguments, named)
        answer = self._connection.request(
            row.verb, path, query=query, content=body, slow=row.turns != "quick"
        )
        returned: Any = None if row.sent is None else row.sent.unpack(loads(row.sent.kind, answer.content))
        return cast("T", returned)

    ask.__name__, ask.__doc__ = method.__name__, method.__doc__
    return ask


class _Client:
    _connection: Connection


class ServiceLedger(_Client):
    """The job ledger behind a store service; see :class:`muster.volumes.protocols.Ledger`.

    After the service was away, a False of `create` may also mean that an earlier try of this call did it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    create = remote(Ledger.create)
    spec = remote(Ledger.spec)
    status = remote(Ledger.status)
    statuses = remote(Ledger.statuses)
    tally = remote(Ledger.tally)
    note_tally = remote(Ledger.note_tally)
    log_bytes = remote(Ledger.log_bytes)
    jobs = remote(Ledger.jobs)
    _own = remote(Ledger.own)
    _specs = remote(Ledger.specs)
    log_times = remote(Ledger.log_times)
    series = remote(Ledger.series)
    origins = remote(Ledger.origins)
    end_task = remote(Ledger.end_task)
    task_ends = remote(Ledger.task_ends)
    note_run = remote(Ledger.note_run)
    run_notes = remote(Ledger.run_notes)

    def specs(self, job_ids: Sequence[str]) -> dict[str, JobSpec]:
        """Return the specs of many jobs, in a few requests."""
        found = dict[str, JobSpec]()
        for first in range(0, len(job_ids), MOST_SPECS):
            found |= self._specs(job_ids[first : first + MOST_SPECS])
        return found

    def update(self, status: JobStatus, *, owner: str | None = None) -> bool:
        """Record a status; after the job's end, or after all replicas have sealed, it is dropped."""
        path, query = f"{_job(status.job_id)}/status", {} if owner is None else {"owner": owner}
        answer = self._connection.request("PUT", path, query=query, content=dumps(status).encode())
        return not answer.content or loads(Recorded, answer.content).yes  # empty: no owner was compared

    def own(self, job_id: str, *, owner: str, expected: str | None) -> bool:
        """Set the owner if it is `expected` now."""
        if self._own(job_id, owner=owner, expected=expected):
            return True
        # A lost answer may have been True: then the second try finds this owner.
        return owner != expected and self.status(job_id).owner == owner

    def append(self, job_id: str, data: bytes, *, request: str | None = None) -> None:
        """Add whole lines to the log, once, however often they are sent.

        :param request: a name for these lines: a second caller that adds lines under it adds nothing.
        """
        path = f"{_job(job_id)}/log"
        if data:
            self._connection.request("POST", path, query={"request": request or _new_request()}, content=data)

    def read(self, job_id: str, *, after: int = 0, limit_bytes: int = 1 << 20) -> tuple[bytes, int]:
        """Return whole lines from offset `after`, and the offset after them."""
        query = {"after": after, "limit_bytes": limit_bytes}
        answer = self._connection.request("GET", f"{_job(job_id)}/log", query=query)
        return answer.content, int(answer.headers[CURSOR])


class ServiceStore(_Client):
    """Volumes, code snapshots and the ledger behind a store service; see :class:`muster.volumes.protocols.ServedStore`.

    Versions and code are fetched into `cache` once, and stay there.

    :param url: ``http://muster-store:8470``.
    :param token: an operator's token, or what returns it for each request.
    :param patience_seconds: how long the service may be away before a call fails.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | Callable[[], str],
        cache: Path,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._connection = Connection(url, token=token, patience_seconds=patience_seconds)
        self._downloads = Downloads(cache.absolute(), self._connection)
        self._ledger = ServiceLedger(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    @property
    def url(self) -> str:
        """The service's address."""
        return self._connection.url

    @property
    def connection(self) -> Connection:
        """The connection to the service."""
        return self._connection

    @property
    def ledger(self) -> ServiceLedger:
        """The job ledger of this store."""
        return self._ledger

    resolve = remote(VersionStore.resolve)
    volumes = remote(VersionStore.volumes)
    versions = remote(VersionStore.versions)
    newest = remote(VersionStore.newest)
    last = remote(VersionStore.last)
    count = remote(VersionStore.count)
    record = remote(VersionStore.record)
    pin = remote(VersionStore.pin)
    unpin = remote(VersionStore.unpin)
    lease = remote(VersionStore.lease)
    release = remote(VersionStore.release)
    copy = remote(VersionStore.copy)
    retire = remote(VersionStore.retire)
    reinstate = remote(VersionStore.reinstate)
    holds = remote(Snapshots.holds)
    use = remote(Makings.use)
    forget = remote(Makings.forget)
    saved = remote(Attempts.saved)
    sealed = remote(Attempts.sealed)
    held = remote(Attempts.held)
    let_go = remote(Attempts.let_go)
    begin_log = remote(EventLogs.begin_log)
    log_head = remote(EventLogs.log_head)
    logs = remote(EventLogs.logs)
    log_events = remote(EventLogs.log_events)
    append_events = remote(EventLogs.append_events)
    plan = remote(Upkeep.plan)
    collect = remote(Upkeep.collect)
    room = remote(Upkeep.room)
    note_gone = remote(LocalStore.note_gone)
    stop = remote(ServedStore.stop)
    token = remote(ServedStore.token)
    make_token = remote(PersonTokens.make)
    tokens = remote(PersonTokens.all)
    end_token = remote(PersonTokens.end)
    _records = remote(VersionStore.records)
    made = remote(Makings.made)
    used = remote(Makings.used)
    claim = remote(Makings.claim)
    upkept = remote(Upkeep.upkept)
    note_sweep = remote(Upkeep.note_sweep)
    commit = remote(Attempts.commit)
    _begun = remote(Starting.begun)
    _current = remote(Starting.current)

    def records(self, addresses: Sequence[str]) -> list[Record]:
        """Return the record of each address, in a few requests."""
        found = list[Record]()
        for first in range(0, len(addresses), MOST_RECORDS):
            some = addresses[first : first + MOST_RECORDS]
            found += self._records(some)
        return found

    def manifest(self, address: str) -> Listing:
        """Return every file of one version by path, with hash and size; also after gc. Of a large one pages are fetched."""
        return self._downloads.manifest(address, self.record(address).digest)

    def path(self, address: str) -> Path:
        """Return the folder of one version's data, or the file that the address names in it, fetched."""
        wanted = Address.parse(address)
        versions = self.resolve(address)
        if wanted.many:
            raise SpecError(f"{address} names several versions; name one, such as {versions[-1].address}")
        return self._downloads.version(versions[0], wanted.path)

    def put(self, root: Path, files: Sequence[str], *, texts: Mapping[str, str] | None = None) -> str:
        """Keep `files`, and `texts`, as a code snapshot; the same bytes are sent once."""
        digest = self._downloads.keep(root, files, texts)
        if not self.holds(digest):
            content = lambda: self._downloads.packed(digest)  # noqa: E731 - one for each time it is sent
            self._connection.request("PUT", f"/v1/code/{digest}", content=content, slow=True)
        return digest

    def code(self, digest: str) -> Path:
        """Return the folder of a code snapshot, fetched, unpacked and read-only."""
        return self._downloads.code(check_digest("code snapshot", digest))

    def stage(self, job_id: str) -> Staging:
        """Begin a new attempt; its root is a path on the service's side."""
        return _staging(self._begun(job_id, request=_new_request()))

    def staging(self, job_id: str) -> Staging | None:
        """Return the current attempt's staging, or None before the first."""
        place = self._current(job_id).place
        return None if place is None else _staging(place)

    def attempt(self, job_id: str) -> tuple[int, bool]:
        """Return the current attempt, 0 before the first, and whether a pod has asked for it."""
        found = self._current(job_id)
        return (0 if found.place is None else found.place.attempt), found.taken

    def size(self, job_id: str) -> int | None:
        """Return how many replicas the current attempt of an elastic gang has; None before the first, and of others."""
        place = self._current(job_id).place
        return None if place is None else place.replicas

    def begin(self, job_id: str, *, after: int, replicas: int | None = None) -> int:
        """Begin the attempt that follows `after`, which is over; calling it twice begins one."""
        return self._begun(job_id, request=f"after-{after}", replicas=replicas).attempt

    def equip(self, job_id: str, *, worker: bytes) -> None:
        """Store the worker's zipapp for a job: its pods get it with their bundle."""
        self._connection.request("PUT", f"{_job(job_id)}/worker", content=worker)

    def add(
        self,
        volume: str,
        source: Path,
        *,
        partition: str | None = None,
        note: str = "",
        request: str | None = None,
        checkpoints: Mapping[str, str] | None = None,
    ) -> Version:
        """Send a folder or file that becomes a new version, with checkpoints that the service has."""
        check_volume(volume)
        if partition is not None:
            check_new_partition(partition)
        files = [
            ArchiveMember(name=name, source=path, runs=runs(path.stat()))
            for name, path in sorted(sources(source, volume=volume).items())
        ]
        answer = self._connection.request(
            "PUT",
            f"/v1/uploads/{check_request(request or _new_request())}",
            query={
                "volume": volume,
                "partition": partition,
                "note": note,
                "checkpoints": json.dumps(dict(checkpoints), separators=(",", ":")) if checkpoints else None,
            },
            content=lambda: pack(files),
            slow=True,
        )
        return loads(Version, answer.content)

    def check(
        self, *, deep: bool = False, protect: bool = False, progress: fsck.Progress | None = None
    ) -> fsck.Report:
        """Check every committed version, where the store is; see :func:`muster.volumes.fsck.check`."""
        for line in self._connection.lines("POST", "/v1/fsck", deep=int(deep), protect=int(protect)):
            said = json.loads(line)
            if "error" in said:
                raise read(line, status=200, where=self.url)
            if said["kind"] == fsck.Report.__name__:
                return loads(fsck.Report, line)
            if progress is not None:
                progress(said["address"], said["done"], said["count"])
        raise Unavailable(f"the store service at {self.url} ended its check without a report: check again")

    def salvage(self, job_id: str, target: Path) -> int:
        """Fetch an ended job's uncommitted outputs below `target`."""
        with (
            translated(f"fetch what job {job_id} staged into {target}"),
            self._connection.stream(f"{_job(job_id)}/staged") as archive,
        ):
            # a name that is not UTF-8, for which it was refused, is shown as its escape
            return len(unpack(archive, target, check=lambda path: check_path(escaped(path), output=job_id)))

    def follow(self, job_id: str, target: Path, *, begins: str) -> int:
        """Fetch what a job has written so far below `target`; each call transfers the files whole."""
        with (
            translated(f"follow what job {job_id} writes into {target}"),
            self._connection.stream(f"{_job(job_id)}/written", query={"begins": begins}) as archive,
        ):
            return lengthen_all(archive, target, check=lambda path: check_path(path, output=job_id))


def _staging(place: Place) -> Staging:
    return Staging(job_id=place.job_id, attempt=place.attempt, root=Path(place.root))


def _job(job_id: str) -> str:
    """Return the path of a job's calls. :raises SpecError: it is no job_id."""
    return f"/v1/jobs/{check_job_id(job_id)}"


def _new_request() -> str:
    """Return a name for one call, by which the service recognizes a retry."""
    return os.urandom(8).hex()
