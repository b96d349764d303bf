"""One client of a store service, of either release: ``python ask.py URL TOKEN FOLDER ACT``; see act.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from both import Output

from muster.core.errors import MusterError
from muster.core.job import JobSpec, Role
from muster.core.status import JobState, JobStatus
from muster.volumes.service.client import ServiceStore

DIGEST = f"b3:{'0' * 64}"
JOB = JobSpec(
    name="two.releases",
    image="python",
    image_digest=DIGEST,
    roles=(Role(command=("true",), replicas=2),),
    outputs={"made": Output(volume="two/made")},
    params={"epochs": 3},
)


def write(store: ServiceStore, folder: Path) -> str:
    """Commit a version, pin it, enter a job and begin its first attempt; the version's address."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / "rows.csv").write_text("rows")
    version = store.add("two/rows", source, partition="2013-01", note="by hand")
    store.pin(version.address, reason="in the paper")
    store.ledger.create("job-1", JOB, owner="try-1")
    store.ledger.append("job-1", b"a line\n")
    store.ledger.update(JobStatus(job_id="job-1", state=JobState.RUNNING, submitted=1.0))
    store.begin("job-1", after=0)
    return version.address


def read(store: ServiceStore, _: Path) -> dict[str, object]:
    """Return what `write` left."""
    (version,) = store.resolve("two/rows@latest")
    status, (log, _end) = store.ledger.status("job-1"), store.ledger.read("job-1")
    planned = store.plan(keep_last=1)
    return {
        "rows": (store.path(version.address) / "rows.csv").read_text(),
        "pins": list(version.pins),
        "partition": version.partition,
        "note": store.record(version.address).note,
        "spec": store.ledger.spec("job-1") == JOB,
        "state": status.state.value,
        "owner": status.owner,
        "log": log.decode(),
        "attempt": store.attempt("job-1")[0],
        "kept": sorted(planned.kept),
        "sound": store.check(deep=True).clean,
    }


ACTS = {"write": write, "read": read}

if __name__ == "__main__":
    url, token, folder, act = sys.argv[1:]
    try:
        with ServiceStore(url, token=token, cache=Path(folder) / "fetched") as service:
            answer: object = ACTS[act](service, Path(folder))
    except MusterError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))
