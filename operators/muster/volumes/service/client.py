"""The client of the store service: a Store and a Ledger like those of a folder, over HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from muster.core.address import Address
from muster.core.errors import SpecError
from muster.core.job import JobSpec, check_digest
from muster.core.names import check_job_id, check_partition, check_volume
from muster.core.replica import PartManifest
from muster.core.status import JobStatus
from muster.volumes.base import Record, Staging, Version
from muster.volumes.gather import sources
from muster.volumes.manifest import Entry
from muster.volumes.service.archives import Member, pack
from muster.volumes.service.connection import PATIENCE_SECONDS, Connection
from muster.volumes.service.downloads import Downloads
from muster.volumes.service.messages import (
    CURSOR,
    Answer,
    Begin,
    Committed,
    Count,
    Current,
    Lifetime,
    Names,
    NewJob,
    Order,
    Ownership,
    Parts,
    Place,
    Reading,
    Secret,
    Statuses,
    Versions,
    Why,
)


class ServiceLedger:
    """The job ledger behind a store service; see :class:`muster.volumes.base.Ledger`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, job_id: str, spec: JobSpec, *, owner: str | None = None) -> bool:
        """Enter a job; False where it was there already with the same spec.

        Where the service was away meanwhile, False may also mean that the first of several tries did it.
        """
        return self._connection.send("PUT", _job(job_id), Answer, NewJob(spec=spec, owner=owner)).yes

    def spec(self, job_id: str) -> JobSpec:
        """Return what was asked."""
        return self._connection.get(f"{_job(job_id)}/spec", JobSpec)

    def status(self, job_id: str) -> JobStatus:
        """Return what was last recorded."""
        return self._connection.get(f"{_job(job_id)}/status", JobStatus)

    def statuses(self, job_ids: Sequence[str]) -> list[JobStatus]:
        """Return what was last recorded of many jobs, in one request; those that gc took are left out."""
        names = Names(names=tuple(map(check_job_id, job_ids)))
        return list(self._connection.send("POST", "/v1/statuses", Statuses, names).statuses)

    def update(self, status: JobStatus) -> None:
        """Record a status; one that comes after the job's end, or after all replicas sealed, is dropped."""
        self._connection.tell("PUT", f"{_job(status.job_id)}/status", status)

    def own(self, job_id: str, *, owner: str, expected: str | None) -> bool:
        """Set the owner if it is `expected` now."""
        wanted = Ownership(owner=owner, expected=expected)
        if self._connection.send("POST", f"{_job(job_id)}/owner", Answer, wanted).yes:
            return True
        # An answer that was lost may have been a yes: then a second try finds us the owner.
        return owner != expected and self.status(job_id).owner == owner

    def append(self, job_id: str, data: bytes) -> None:
        """Add whole lines to the log, once, however often it has to be sent."""
        path = f"{_job(job_id)}/log"
        if data:
            self._connection.request("POST", path, query={"request": _request()}, content=data)

    def read(self, job_id: str, *, after: int = 0, limit_bytes: int = 1 << 20) -> tuple[bytes, int]:
        """Return whole lines from offset `after`, and the offset after them."""
        query = {"after": after, "limit_bytes": limit_bytes}
        answer = self._connection.request("GET", f"{_job(job_id)}/log", query=query)
        return answer.content, int(answer.headers[CURSOR])

    def log_bytes(self, job_id: str) -> int:
        """How long the log is now."""
        return self._connection.get(f"{_job(job_id)}/log/bytes", Count).count

    def jobs(self) -> list[str]:
        """Every job_id, oldest first."""
        return list(self._connection.get("/v1/jobs", Names).names)


class ServiceStore:
    """Volumes, code snapshots and the ledger behind a store service; see :class:`muster.volumes.base.Store`.

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
        if not self._connection.get(f"/v1/code/{digest}/held", Answer).yes:
            content = lambda: self._downloads.packed(digest)  # noqa: E731 - one for each time it is sent
            self._connection.request("PUT", f"/v1/code/{digest}", content=content, slow=True)
        return digest

    def code(self, digest: str) -> Path:
        """Return the folder of a code snapshot, fetched, unpacked and read-only."""
        return self._downloads.code(check_digest("code snapshot", digest))

    def stage(self, job_id: str) -> Staging:
        """Begin a new attempt; its root is where the service sees it."""
        begin = Begin(request=_request())
        return _staging(self._connection.send("POST", f"{_job(job_id)}/attempts", Place, begin, slow=True))

    def staging(self, job_id: str) -> Staging | None:
        """Return the current attempt's staging, or None before the first."""
        place = self._connection.get(f"{_job(job_id)}/attempts/current", Current).place
        return None if place is None else _staging(place)

    def equip(self, job_id: str, *, worker: bytes) -> None:
        """Keep the worker's zipapp for a job: its pods get it with their bundle."""
        self._connection.request("PUT", f"{_job(job_id)}/worker", content=worker)

    def token(self, job_id: str, *, attempt: int, lifetime_seconds: float) -> str:
        """Return a token for the pods of one attempt, the current one."""
        path = f"{_job(job_id)}/attempts/{attempt}/token"
        return self._connection.send("POST", path, Secret, Lifetime(seconds=lifetime_seconds)).token

    def sealed(self, job_id: str) -> tuple[PartManifest, ...] | None:
        """Return the part-manifests of the current attempt if all replicas have sealed, else None."""
        return self._connection.get(f"{_job(job_id)}/sealed", Parts).parts

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
            self._connection.send("POST", f"{_job(job_id)}/commit", Committed, order, slow=True).outputs
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
            f"/v1/uploads/{_request()}",
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

    def _change(self, what: str, address: str, reason: str) -> Version:
        Address.parse(address)
        return self._connection.send("POST", f"/v1/{what}", Version, Why(address=address, reason=reason))


def _job(job_id: str) -> str:
    return f"/v1/jobs/{check_job_id(job_id)}"


def _request() -> str:
    """A name for one call: sent again, the service knows it by it."""
    return os.urandom(8).hex()


def _staging(place: Place) -> Staging:
    return Staging(job_id=place.job_id, attempt=place.attempt, root=Path(place.root))
