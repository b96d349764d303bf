"""Scripts that know nothing of muster: what runs under ``torchrun`` today runs as a gang, and to the same weights."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.e2e.author import Author

DAG = """\
from airflow.sdk import dag

from muster.airflow import GangOperator, JobOperator, Resources


@dag(params={"epochs": 3})
def plain():
    rows = JobOperator(
        task_id="rows", image="python", command=["sh", "-c", "seq 1 400 > {outputs.rows}/rows.txt"],
        outputs={"rows": "plain/rows"},
    )
    GangOperator(
        task_id="train", image="train", replicas=2, resources=Resources(memory_gib=2),
        command=[
            "python", "train.py", "{inputs.rows}/rows.txt", "--epochs", "{params.epochs}",
            "--out", "{outputs.model}/model.bin", "--note", "{braces} stay",
        ],
        inputs={"rows": rows.versions["rows"]}, outputs={"model": "plain/model"},
        params={"epochs": "{{ params.epochs }}"},
    )


plain()
"""
SCRIPT = '''\
"""Fits a line by DistributedDataParallel: torchrun --nproc-per-node 2 train.py ROWS --out FILE"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("rows")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--out", required=True)
parser.add_argument("--note", default="")
arguments = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

with open(arguments.rows) as lines:
    x = torch.tensor([float(line) for line in lines]).unsqueeze(1) / 400
data = TensorDataset(x, 3 * x + 1)
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=20, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

for epoch in range(arguments.epochs):
    sampler.set_epoch(epoch)
    for inputs, wanted in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} rank {rank} of {world} loss {loss.item():.4f} {arguments.note}")

if rank == 0:
    with open(arguments.out, "wb") as file:
        for weight in model.parameters():
            file.write(weight.detach().numpy().tobytes())
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # torch 2.15 now and then aborts while the interpreter ends, under torchrun by hand as well
'''


def under_torchrun(author: Author, rows: str, *, out: Path) -> None:
    """Run the script as a person would without muster, with the image's own torchrun."""
    (image,) = (Path(image["path"]) for image in author.ask("images", "ls") if image["name"] == "train")
    words = ["train.py", rows, "--epochs", "3", "--out", out]
    subprocess.run(
        [image / "bin" / "torchrun", "--nproc-per-node", "2", *words],
        cwd=author.folder / "dags" / "plain",
        env=author.environment | {"OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.data  # that a torchrun script runs unmodified is also the tutorial's, without a second run to compare with
def test_a_torchrun_script_runs_unmodified_and_ends_with_the_same_weights(author: Author) -> None:
    author.write("plain", DAG, train=SCRIPT)
    ran = author.muster("run", "plain", "--json")
    assert ran.returncode == 0, ran.stderr[-3000:]
    for rank in (0, 1):
        assert f"train | [rank {rank}] epoch 2 rank {rank} of 2 loss " in ran.stderr
    assert "{braces} stay" in ran.stderr
    model, rows = (author.ask("volumes", "show", f"plain/{name}")["path"] for name in ("model", "rows"))
    under_torchrun(author, f"{rows}/rows.txt", out=author.folder / "model.bin")
    assert (Path(model) / "model.bin").read_bytes() == (author.folder / "model.bin").read_bytes()
    assert author.is_quiet()
