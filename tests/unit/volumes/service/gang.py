"""A gang without a cluster: its pods ask as theirs do, and write where theirs would be mounted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import httpx
from tests.unit.volumes.service.process import DAY_SECONDS, Service
from tests.waiting import GUARD_SECONDS

from muster.core.data import OutputTarget
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.replica import PartManifest, Report
from muster.core.verdict import ExitCode
from muster.core.wire import dumps, loads
from muster.volumes.service.calls import Count

IMAGE = "b3:" + "0" * 64
WORKER = b"PK\x05\x06" + b"\0" * 18


def make_spec(
    *, replicas: int = 1, code: str | None = None, outputs: Mapping[str, str] | None = None
) -> JobSpec:
    volumes = {"out": "flights/features"} if outputs is None else outputs
    return JobSpec(
        name="flights.features",
        image="etl",
        image_digest=IMAGE,
        code=code,
        roles=(Role(replicas=replicas, entrypoint="etl:features"),),
        outputs={name: OutputTarget(volume=volume) for name, volume in volumes.items()},
        origin=Origin(dag_id="flights", run_id="manual__1", task_id="features"),
    )


class Gang:
    """One job as it was submitted, and its pods."""

    def __init__(self, service: Service, job_id: str, spec: JobSpec) -> None:
        self.service, self.job_id, self.spec = service, job_id, spec
        with service.client(patience_seconds=GUARD_SECONDS) as store:
            store.ledger.create(job_id, spec)
            self.submitted = self.attempt = store.stage(job_id).attempt
            store.equip(job_id, worker=WORKER)
            token = store.token(job_id, attempt=self.attempt, lifetime_seconds=DAY_SECONDS)
        self.pods = service.asking(token)

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        self.pods.close()

    def bundle(self, index: int = 0, *, restart: str = "0", pod: str = "") -> httpx.Response:
        query = {
            "attempt": self.submitted,
            "restart": restart,
            "role": "main",
            "index": index,
            "pod": pod or f"pod-{index}-{restart}",
        }
        answer = self.pods.get(f"/v1/jobs/{self.job_id}/bundle", params=query)
        if answer.is_success:
            self.attempt = int(answer.headers["muster-attempt"])
        return answer

    def path(self, index: int = 0, *, attempt: int | None = None) -> str:
        return f"/v1/jobs/{self.job_id}/attempts/{attempt or self.attempt}/replicas/main/{index}"

    def lines(self, data: bytes, *, offset: int = 0, index: int = 0) -> int:
        answer = self.pods.post(f"{self.path(index)}/lines", params={"offset": offset}, content=data)
        answer.raise_for_status()
        return loads(Count, answer.content).count

    def root(self, restart: str = "0") -> Path:
        """What a pod's folders are mounted from."""
        return self.service.claim / "staging" / self.job_id / f"{self.submitted}.{restart}"

    def write(self, files: Mapping[str, bytes], *, index: int = 0, restart: str = "0") -> None:
        for path, data in files.items():
            target = self.root(restart) / f"main-{index}" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    def sealing(
        self, files: Mapping[str, bytes], *, index: int = 0, metrics: Mapping[str, float] | None = None
    ) -> bytes:
        """The body of a seal."""
        sizes: dict[str, dict[str, int]] = {name: {} for name in self.spec.outputs}
        for path, data in files.items():
            output, _, inner = path.partition("/")
            sizes[output][inner] = len(data)
        part = PartManifest(job_id=self.job_id, attempt=self.attempt, role="main", index=index, files=sizes)
        report = Report(exit_code=ExitCode.SEALED, metrics=metrics or {}, modules=("etl.py",))
        return f"{dumps(report)}\n{dumps(part)}".encode()

    def seal(self, body: bytes, *, index: int = 0) -> httpx.Response:
        return self.pods.put(f"{self.path(index)}/seal", content=body)

    def finish(self, files: Mapping[str, bytes], *, index: int = 0) -> None:
        """Do all that a replica does."""
        self.bundle(index).raise_for_status()
        self.finish_started(files, index=index)

    def finish_started(self, files: Mapping[str, bytes], *, index: int = 0, restart: str = "0") -> None:
        """Do all that a replica does which has its bundle."""
        self.write(files, index=index, restart=restart)
        self.seal(self.sealing(files, index=index), index=index).raise_for_status()
