"""A script that runs under horovodrun today, as a gang of two replicas, in the image built from its lock."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.ports import free_port

from muster.core.job import JobSpec, Launcher, Role
from muster.core.replica import Replica
from muster.core.settings import Settings
from muster.core.wire import dumps
from muster.images.environment import Environments
from muster.images.folders import find_image, image_folders, put_image
from muster.images.worker_archive import worker_folder
from muster.volumes.folder import FolderStore

pytestmark = pytest.mark.horovod

SCRIPT = """
import horovod.torch as hvd
import torch

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
for step in range(20):
    rows = torch.randn(64, 4)
    loss = ((model(rows) - rows.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weights = hvd.allgather(model.weight.data)
assert torch.equal(weights, weights[:1].repeat(hvd.size(), 1)), "the ranks' weights differ"
total = hvd.allreduce(torch.tensor(float(hvd.rank() + 1)), op=hvd.Sum)
print(f"rank {hvd.rank()}/{hvd.size()} local {hvd.local_rank()}/{hvd.local_size()} "
      f"cross {hvd.cross_rank()}/{hvd.cross_size()} sum {total:.0f}")
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's Python; the wheel of the first build stays in uv's cache."""
    settings = Settings.load()
    folder = find_image("horovod", image_folders(settings))
    store = FolderStore(tmp_path_factory.mktemp("store"))
    return Environments(settings.cache).ensure("horovod", folder, put_image(store, folder), print)


def replica(root: Path, role: Role, *, index: int, port: int) -> Replica:
    digest = "b3:" + "0" * 64
    spec = JobSpec(
        name="hvd",
        image="horovod",
        image_digest=digest,
        code=digest,
        roles=(role,),
        launcher=Launcher.HOROVOD,
    )
    for folder in ("code", "checkpoints", f"scratch-{index}", "sealed"):
        (root / folder).mkdir(exist_ok=True)
    return Replica(
        job_id="hvd-1",
        spec=spec,
        attempt=1,
        role=role.name,
        index=index,
        code=str(root / "code"),
        inputs={},
        staging={},
        checkpoints=str(root / "checkpoints"),
        scratch=str(root / f"scratch-{index}"),
        sealed=str(root / "sealed" / f"{index}.json"),
        report=str(root / f"report-{index}.json"),
        master_port=port,
    )


@pytest.mark.parametrize(("replicas", "ranks"), [(1, 2), (2, 1)])
def test_a_horovod_script_runs_unmodified(python: Path, tmp_path: Path, replicas: int, ranks: int) -> None:
    worker, port = worker_folder(tmp_path / "cache"), free_port()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    role = Role(replicas=replicas, ranks=ranks, command=("python", "train.py"))
    running = []
    for index in reversed(range(replicas)):  # rank 0's replica comes last: the others wait for it
        told = tmp_path / f"replica-{index}.json"
        told.write_text(dumps(replica(tmp_path, role, index=index, port=port)))
        running.append(
            subprocess.Popen(
                [python, worker, told], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    logs = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0] * replicas, "\n".join(logs)
    said = sorted(line for log in logs for line in log.splitlines() if "sum" in line)
    assert said == (
        [f"[rank {r}] rank {r}/2 local {r}/2 cross 0/1 sum 3" for r in range(2)]
        if ranks == 2
        else [f"[rank {r}] rank {r}/2 local 0/1 cross {r}/2 sum 3" for r in range(2)]
    )
    assert not any("left behind" in log for log in logs)
