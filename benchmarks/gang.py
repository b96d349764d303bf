"""Two gloo ranks, one all_reduce: torchrun against muster's worker, to rank 0's first line and to the end.

``python -m benchmarks.gang [--pairs N] [--json]``
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.ports import free_port

from benchmarks.pairs import Ratio, compare, ratio, show
from muster.core.job import JobSpec, Launcher, Role
from muster.core.replica import Replica
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.wire import dumps
from muster.images.environment import Environments
from muster.images.folders import find_image, image_folders, put_image
from muster.images.worker_archive import worker_folder
from muster.volumes.folder import FolderStore

DIGEST = "b3:" + "0" * 64
SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    print("first line", flush=True)
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == dist.get_world_size()
dist.destroy_process_group()
"""


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gang")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        ratios = measure(Path(folder), pairs=options.pairs)
    return show("two gloo ranks, one all_reduce", ratios, as_json=options.json)


def measure(root: Path, *, pairs: int) -> list[Ratio]:
    """Return the ratios of first line and whole run."""
    settings = Settings.load()
    image = find_image("train", image_folders(settings))
    digest = put_image(FolderStore(root / "store"), image)
    python = Environments(settings.cache).ensure("train", image, digest, print)
    worker = worker_folder(root / "cache")
    (root / "code").mkdir()
    (root / "code" / "gang.py").write_text(SCRIPT)
    runs = iter(range(10_000))
    first, whole = compare(
        lambda: timed(torchrun(root, python)),
        lambda: timed([python, worker, told(root, next(runs))]),
        pairs=pairs,
    )
    return [
        ratio("rank 0's first line", *first, unit="s", limit=0.6),
        ratio("the whole", *whole, unit="s", limit=1.0),
    ]


def timed(command: Sequence[str | Path]) -> tuple[float, float]:
    """Run to the end; return the seconds to rank 0's first line and to the end."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert process.stdout is not None
    first = 0.0
    for line in process.stdout:
        if "first line" in line:
            first = time.perf_counter() - began
    code = process.wait()
    whole = time.perf_counter() - began
    if code or not first:
        raise RuntimeError(f"{command} ended with {code} and {'no' if not first else 'a'} first line")
    return first, whole


def torchrun(root: Path, python: Path) -> list[str | Path]:
    return [
        *(python, "-m", "torch.distributed.run", "--nproc-per-node=2", "--nnodes=1", "--node-rank=0"),
        *("--master-addr=127.0.0.1", f"--master-port={free_port()}", root / "code" / "gang.py"),
    ]


def told(root: Path, run: int) -> Path:
    """Write the files that the worker of one run reads."""
    role = Role(ranks=2, command=("python", "gang.py"), resources=Resources(cpus=2))
    spec = JobSpec(
        name="gang",
        image="train",
        image_digest=DIGEST,
        code=DIGEST,
        roles=(role,),
        launcher=Launcher.TORCHRUN,
    )
    home = root / f"run-{run}"
    for folder in ("scratch", "checkpoints", "sealed"):
        (home / folder).mkdir(parents=True)
    replica = Replica(
        job_id=f"gang-{run}",
        spec=spec,
        attempt=1,
        role=role.name,
        index=0,
        code=str(root / "code"),
        inputs={},
        staging={},
        checkpoints=str(home / "checkpoints"),
        scratch=str(home / "scratch"),
        sealed=str(home / "sealed" / "main-0.json"),
        report=str(home / "report.json"),
        master_port=free_port(),
    )
    path = home / "replica.json"
    path.write_text(dumps(replica))
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
