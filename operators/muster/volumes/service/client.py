"""The client of the store service: a Store and a Ledger like those of a folder, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from muster.core.address import Address
from muster.core.errors import SpecError, Unavailable
from muster.core.job import check_digest
from muster.core.names import check_job_id, check_partition, check_volume
from muster.core.replica import PartManifest
from muster.core.room import Room
from muster.core.wire import loads
from muster.volumes import fsck
from muster.volumes.base import Held, Record, Saved, Staging, Version
from muster.volumes.durability import translated
from muster.volumes.gather import check_path, sources
from muster.volumes.manifest import Entry
from muster.volumes.retention import Collected, Plan
from muster.volumes.service.archives import Member, pack, unpack
from muster.volumes.service.connection import PATIENCE_SECONDS, Connection
from muster.volumes.service.downloads import Downloads
from muster.volumes.service.ledger import ServiceLedger, job_path, new_request
from muster.volumes.service.messages import (
    Answer,
    Begin,
    Committed,
    Count,
    Current,
    Holding,
    Jobs,
    Left,
    Lifetime,
    Names,
    Order,
    Parts,
    Place,
    Reading,
    Rules,
    Secret,
    Swept,
    Versions,
    Why,
)
from muster.volumes.service.refusals import read


class ServiceStore:
    """Volumes, code snapshots and the ledger behind a store service; see :class:`muster.volumes.protocols.Store`.

    What it reads of versions and code is fetched into `cache`, once, and stays there.

    :param url: ``http://muster-store:8470``.
    :param token: an operator's.
    :param patience_seconds: how long the service may be away before a call fails.
    """

    def __init__(
        self, url: str, *, token: str, cache: Path, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._connection = Connection(url, token=token, patience_seconds=patience_seconds)
        self._downloads = Downloads(cache.absolute(), self._connection)
        self._ledger = ServiceLedger(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._connection.close()

    @property
    def url(self) -> str:
        """Where the service is."""
        return self._connection.url

    @property
    def ledger(self) -> ServiceLedger:
        """The job ledger of this store."""
        return self._ledger

    def resolve(self, address: str) -> tuple[Version, ...]:
        """Return what an address names now."""
        Address.parse(address)
        return self._connection.get("/v1/resolve", Versions, address=address).versions

    def volumes(self) -> list[str]:
        """Every volume's name, sorted."""
        return list(self._connection.get("/v1/volumes", Names).names)

    def versions(self, volume: str) -> list[Version]:
        """Every version of a volume that can be read, oldest first."""
        return list(self._connection.get("/v1/versions", Versions, volume=check_volume(volume)).versions)

    def newest(self, volume: str, *, limit: int, before: int | None = None) -> list[Version]:
        """The newest versions of a volume, newest first."""
        query = {"volume": check_volume(volume), "limit": limit, "before": before}
        return list(self._connection.get("/v1/versions", Versions, **query).versions)

    def count(self, volume: str) -> int:
        """How many versions of a volume can be read."""
        return self._connection.get("/v1/count", Count, volume=check_volume(volume)).count

    def record(self, address: str) -> Record:
        """Return where one version comes from; also of one whose data was deleted by gc."""
        Address.parse(address)
        return self._connection.get("/v1/record", Record, address=address)

    def manifest(self, address: str) -> Mapping[str, Entry]:
        """Return every file of one version by its path, with hash and size; also after gc."""
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
        """Begin a new attempt; its root is where the service sees it."""
        begin = Begin(request=new_request())
        return _staging(
            self._connection.send("POST", f"{job_path(job_id)}/attempts", Place, begin, slow=True)
        )

    def staging(self, job_id: str) -> Staging | None:
        """Return the current attempt's staging, or None before the first."""
        place = self._current(job_id).place
        return None if place is None else _staging(place)

    def attempt(self, job_id: str) -> tuple[int, bool]:
        """Return the current attempt, 0 before the first, and whether a pod has asked for it."""
        found = self._current(job_id)
        return (0 if found.place is None else found.place.attempt), found.taken

    def begin(self, job_id: str, *, after: int) -> int:
        """Begin the attempt that comes after one that is over, and return it; however many ask, it is one.

        :raises Conflict: another was begun since, or the job has sealed or ended.
        """
        begin = Begin(request=f"after-{after}")
        place = self._connection.send("POST", f"{job_path(job_id)}/attempts", Place, begin, slow=True)
        return place.attempt

    def equip(self, job_id: str, *, worker: bytes) -> None:
        """Keep the worker's zipapp for a job: its pods get it with their bundle."""
        self._connection.request("PUT", f"{job_path(job_id)}/worker", content=worker)

    def token(self, job_id: str, *, attempt: int, lifetime_seconds: float) -> str:
        """Return a token for the pods of one attempt, the current one."""
        path = f"{job_path(job_id)}/attempts/{attempt}/token"
        return self._connection.send("POST", path, Secret, Lifetime(seconds=lifetime_seconds)).token

    def holds(self, digest: str) -> bool:
        """Whether a code snapshot, or an image's lock, is in the store."""
        return self._connection.get(f"/v1/code/{check_digest('code snapshot', digest)}/held", Answer).yes

    def saved(self, job_id: str) -> Saved | None:
        """Return the checkpoints that a job left, or a job that it follows."""
        return self._connection.get(f"{job_path(job_id)}/saved", Left).saved

    def sealed(self, job_id: str) -> tuple[PartManifest, ...] | None:
        """Return the part-manifests of the current attempt if all replicas have sealed, else None."""
        return self._connection.get(f"{job_path(job_id)}/sealed", Parts).parts

    def commit(
        self,
        job_id: str,
        *,
        attempt: int,
        metrics: Mapping[str, float] | None = None,
        modules: Sequence[str] | None = None,
    ) -> dict[str, tuple[Version, ...]]:
        """Make what all replicas sealed into versions: every output or none, once per job_id."""
        known = None if modules is None else tuple(modules)
        order = Order(attempt=attempt, metrics=metrics or {}, modules=known)
        return dict(
            self._connection.send("POST", f"{job_path(job_id)}/commit", Committed, order, slow=True).outputs
        )

    def add(self, volume: str, source: Path, *, partition: str | None = None, note: str = "") -> Version:
        """Send a folder or file that becomes a new version."""
        check_volume(volume)
        if partition is not None:
            check_partition(partition)
        files = [
            Member(name=name, source=path) for name, path in sorted(sources(source, volume=volume).items())
        ]
        return self._connection.message(
            "PUT",
            f"/v1/uploads/{new_request()}",
            Version,
            query={"volume": volume, "partition": partition, "note": note},
            content=lambda: pack(files),
            slow=True,
        )

    def pin(self, address: str, *, reason: str) -> Version:
        """Keep a version from gc under a reason; idempotent."""
        return self._change("pin", address, reason)

    def unpin(self, address: str, *, reason: str) -> Version:
        """Take one reason away."""
        return self._change("unpin", address, reason)

    def retire(self, address: str, *, reason: str) -> Version:
        """Hide a version from every selector."""
        return self._change("retire", address, reason)

    def reinstate(self, address: str) -> Version:
        """Let selectors find a retired version again; idempotent."""
        return self._change("reinstate", address, "")

    def lease(self, addresses: Iterable[str], *, holder: str) -> None:
        """Keep versions from gc while `holder` reads them."""
        self._connection.tell(
            "PUT", f"/v1/leases/{check_job_id(holder)}", Reading(addresses=tuple(addresses))
        )

    def release(self, holder: str) -> None:
        """Give all leases of `holder` back."""
        self._connection.tell("DELETE", f"/v1/leases/{check_job_id(holder)}")

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

    def plan(
        self,
        *,
        volumes: Collection[str] = (),
        keep_last: int = 3,
        job_days: float = 30.0,
        young_days: float = 0.0,
        checkpoint_days: float = 7.0,
    ) -> Plan:
        """Say what :meth:`collect` would take away now."""
        rules = Rules(
            volumes=tuple(volumes),
            keep_last=keep_last,
            job_days=job_days,
            young_days=young_days,
            checkpoint_days=checkpoint_days,
        )
        return _plan(self._connection.send("POST", "/v1/gc/plan", Swept, rules, slow=True))

    def collect(
        self,
        *,
        volumes: Collection[str] = (),
        keep_last: int = 3,
        job_days: float = 30.0,
        young_days: float = 0.0,
        checkpoint_days: float = 7.0,
    ) -> Collected:
        """Take away what :meth:`plan` names."""
        rules = Rules(
            volumes=tuple(volumes),
            keep_last=keep_last,
            job_days=job_days,
            young_days=young_days,
            checkpoint_days=checkpoint_days,
        )
        done = self._connection.send("POST", "/v1/gc/collect", Swept, rules, slow=True)
        return Collected(plan=_plan(done), freed_bytes=done.freed_bytes, at_once=done.at_once)

    def room(self) -> Room:
        """Say how much room is left on the store's claim."""
        return self._connection.get("/v1/room", Room)

    def held(self) -> tuple[Held, ...]:
        """Say what jobs that have ended still hold of the claim, oldest first."""
        return self._connection.get("/v1/held", Holding).held

    def let_go(self, job_ids: Collection[str]) -> int:
        """Delete all that these ended jobs hold; return its size in bytes."""
        jobs = Jobs(job_ids=tuple(job_ids))
        return self._connection.send("POST", "/v1/held/let-go", Count, jobs, slow=True).count

    def salvage(self, job_id: str, target: Path) -> int:
        """Fetch what an ended job staged, and could not be committed, below `target`."""
        with (
            translated(f"fetch what job {job_id} staged into {target}"),
            self._connection.stream(f"{job_path(job_id)}/staged") as archive,
        ):
            return len(unpack(archive, target, check=lambda path: check_path(path, output=job_id)))

    def _current(self, job_id: str) -> Current:
        return self._connection.get(f"{job_path(job_id)}/attempts/current", Current)

    def _change(self, what: str, address: str, reason: str) -> Version:
        Address.parse(address)
        return self._connection.send("POST", f"/v1/{what}", Version, Why(address=address, reason=reason))


def _staging(place: Place) -> Staging:
    return Staging(job_id=place.job_id, attempt=place.attempt, root=Path(place.root))


def _plan(swept: Swept) -> Plan:
    said = {name: value for name, value in vars(swept).items() if name not in ("freed_bytes", "at_once")}
    return Plan(**{**said, "torn": tuple(map(Path, swept.torn))})
