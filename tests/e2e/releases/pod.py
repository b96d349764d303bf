"""A gang on a store service, by either release: ``python pod.py URL TOKEN FOLDER ACT``; see act.py.

Its pods are processes of this machine that do what a pod's containers do: the init container's program fetches the
bundle and writes the orders, the worker of the bundle runs the rank, tells its lines and seals.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from both import Output, zipapp

from muster.backends.kubernetes.manifests import bootstrap
from muster.core.job import JobSpec, Role
from muster.core.replica import Replica
from muster.core.wire import dumps
from muster.volumes.service.client import ServiceStore

JOB_ID, REPLICAS = "gang-9", 2
CODE = """
import os, time
from pathlib import Path

def train(made: Path):
    print("up", os.environ["MUSTER_RANK"], flush=True)
    while not Path({go!r}).exists():
        time.sleep(0.05)
    (made / os.environ["MUSTER_RANK"]).write_text("rank " + os.environ["MUSTER_RANK"])
    print("done", os.environ["MUSTER_RANK"], flush=True)
    return {{"loss": 0.5}}
"""


def enter(store: ServiceStore, folder: Path) -> list[list[Any]]:
    """Enter a gang, as the backend of a cluster does; the commands of each of its pods, and their variables."""
    code = folder / "code"
    code.mkdir()
    (code / "steps.py").write_text(CODE.format(go=str(folder / "go")))
    spec = JobSpec(
        name="two.releases",
        image="python",
        image_digest=f"b3:{'0' * 64}",
        code=store.put(code, ["steps.py"]),
        roles=(Role(entrypoint="steps:train", replicas=REPLICAS),),
        outputs={"made": Output(volume="two/made")},
    )
    store.ledger.create(JOB_ID, spec, owner="try-1")
    attempt = store.stage(JOB_ID).attempt
    store.equip(JOB_ID, worker=zipapp())
    token = store.token(JOB_ID, attempt=attempt, lifetime_seconds=3600)
    return [_pod(store.url, spec, folder, token, attempt, index) for index in range(REPLICAS)]


def _pod(url: str, spec: JobSpec, folder: Path, token: str, attempt: int, index: int) -> list[Any]:
    own = folder / f"pod-{index}"
    (own / "scratch").mkdir(parents=True)
    (own / "bundle").mkdir()
    (own / "token").write_text(token)
    (own / "termination-log").touch()
    staged = folder / "store" / "staging" / JOB_ID / f"{attempt}.0"
    sealed = str(staged / "gang" / f"main-{index}.part-manifest")
    replica = Replica(
        job_id=JOB_ID,
        spec=spec,
        attempt=attempt,
        role="main",
        index=index,
        code=str(own / "bundle" / "code"),
        inputs={},
        staging={"made": str(staged / f"main-{index}" / "made")},
        checkpoints=str(staged / "checkpoints"),
        scratch=str(own / "scratch"),
        sealed=sealed,
        report=str(own / "scratch" / "report.json"),
    )
    (own / "orders.json").write_text(dumps(replica))
    place = f"attempt={attempt}&restart=0&role=main&index={index}&pod=pod-{index}"
    told = {
        "url": f"{url}/v1/jobs/{JOB_ID}/bundle?{place}",
        "token": str(own / "token"),
        "orders": str(own / "orders.json"),
        "role": "main",
        "index": index,
        "sealed": sealed,
        "gpus": 0,
        "folder": str(own / "bundle"),
        "patience_seconds": 60.0,
    }
    variables = {
        "MUSTER_STORE_URL": url,
        "MUSTER_TOKEN_FILE": str(own / "token"),
        "MUSTER_TERMINATION_LOG": str(own / "termination-log"),
    }
    first = [str(bootstrap.__file__), json.dumps(told)]
    return [first, [str(own / "bundle" / "worker.pyz"), str(own / "bundle" / "replica.json")], variables]


def log(store: ServiceStore, _: Path) -> list[str]:
    """Return the gang's lines."""
    data, _end = store.ledger.read(JOB_ID)
    return sorted(data.decode().splitlines())


def result(store: ServiceStore, _: Path) -> dict[str, Any]:
    """Return the gang's state, and what it made."""
    status = store.ledger.status(JOB_ID)
    if status.result is None:
        return {"state": status.state.value}
    (address,) = status.result.outputs["made"]
    files = sorted(path.name for path in store.path(address).iterdir())
    return {
        "state": status.state.value,
        "made": address,
        "files": files,
        "metrics": dict(status.result.metrics),
    }


ACTS = {each.__name__: each for each in (enter, log, result)}

if __name__ == "__main__":
    where, token, home, act = sys.argv[1:]
    with ServiceStore(where, token=token, cache=Path(home) / "fetched") as service:
        print(json.dumps(ACTS[act](service, Path(home))))  # type: ignore[operator]
