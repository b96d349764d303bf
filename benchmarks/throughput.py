"""Rows a second of one DDP script on two gloo ranks: started by torchrun by hand, and by GangOperator.

``python -m benchmarks.throughput [--pairs N] [--json]``. The script measures itself, without
start-up: the ratio shows how much throughput is left while logs are tagged, memory is watched and Airflow waits.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.ports import free_port

from benchmarks.pairs import Ratio, compare, ratio, show
from muster.core.settings import Settings
from muster.images.environment import Environments
from muster.images.folders import find_image, image_folders, put_image
from muster.volumes.folder import FolderStore

MUSTER = Path(sys.executable).with_name("muster")
SCRIPT = """\
import os
import sys
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BATCH, STEPS, WARM = 2048, 300, 50
torch.manual_seed(7)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1),
))
optimizer = torch.optim.AdamW(model.parameters())
rows, wanted = torch.randn(BATCH, 64), torch.rand(BATCH, 1)
for step in range(WARM + STEPS):
    if step == WARM:
        began = time.monotonic()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(rows), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 and dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
if dist.get_rank() == 0:
    print(f"rows a second: {STEPS * BATCH * dist.get_world_size() / (time.monotonic() - began):.1f}", flush=True)
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # torch 2.15 now and then aborts while the interpreter ends, under torchrun by hand as well
"""
DAG = """\
from airflow.sdk import dag

from muster.airflow import GangOperator, Resources


@dag
def training():
    GangOperator(
        task_id="train", image="train", command=["python", "ddp.py"], replicas=1, ranks=2, resources=Resources(cpus=2)
    )


training()
"""


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if the promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        ratios = measure(Path(folder), pairs=options.pairs)
    return show("one DDP training on two gloo ranks", ratios, as_json=options.json)


def measure(root: Path, *, pairs: int) -> list[Ratio]:
    """Return the ratio of rows a second."""
    folder = root / "dags" / "training"
    folder.mkdir(parents=True)
    (folder / "dag.py").write_text(DAG)
    (folder / "ddp.py").write_text(SCRIPT)
    torchrun = _python(root).with_name("torchrun")

    def by_hand() -> list[float]:
        command = [
            torchrun,
            "--nproc-per-node=2",
            "--master-addr=127.0.0.1",
            f"--master-port={free_port()}",
            folder / "ddp.py",
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return [_rows_a_second(ran.stdout)]

    def by_muster() -> list[float]:
        environment = {**os.environ, "MUSTER_HOME": str(root / ".muster")}
        run = [MUSTER, "run", "training", "--json"]
        ran = subprocess.run(run, cwd=root, env=environment, capture_output=True, text=True, check=True)
        job = json.loads(ran.stdout)["stages"][0]["job_id"]
        logs = [MUSTER, "jobs", "logs", job]
        return [
            _rows_a_second(
                subprocess.run(logs, env=environment, capture_output=True, text=True, check=True).stdout
            )
        ]

    [(base, ours)] = compare(by_hand, by_muster, pairs=pairs)
    return [ratio("rows a second", base, ours, unit="1/s", limit=0.95, at_least=True)]


def _python(root: Path) -> Path:
    settings = Settings.load()
    image = find_image("train", image_folders(settings))
    digest = put_image(FolderStore(root / "images"), image)
    return Environments(settings.cache).ensure(
        "train", image, digest, lambda line: print(line, file=sys.stderr)
    )


def _rows_a_second(text: str) -> float:
    found = re.search(r"rows a second: ([0-9.]+)", text)
    if found is None:
        raise RuntimeError(f"the script printed no figure:\n{text[-2000:]}")
    return float(found[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
