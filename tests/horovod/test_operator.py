"""A horovodrun script that knows nothing of muster, through the operator, and under horovodrun itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.e2e.author import Author

pytestmark = pytest.mark.horovod

DAG = """\
from airflow.sdk import dag

from muster.airflow import GangOperator, Resources


@dag
def plain():
    for name, shape in (("apart", {"replicas": 2}), ("together", {"ranks": 2})):
        GangOperator(
            task_id=name, image="horovod", launcher="horovod", resources=Resources(memory_gib=3),
            command=["python", "train.py", "--epochs", "{params.epochs}", "--out", "{outputs.model}/model.bin"],
            outputs={"model": f"plain/{name}"}, params={"epochs": 3}, **shape,
        )


plain()
"""
SCRIPT = '''\
"""Fits a line: horovodrun -np 2 python train.py --out FILE"""

import argparse

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--out", required=True)
arguments = parser.parse_args()

hvd.init()
torch.manual_seed(hvd.rank())
x = torch.linspace(0, 1, 400).unsqueeze(1)[hvd.rank() :: hvd.size()]
model = torch.nn.Linear(1, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.2), named_parameters=model.named_parameters()
)
for epoch in range(arguments.epochs):
    for rows in x.split(20):
        loss = torch.nn.functional.mse_loss(model(rows), 3 * rows + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} rank {hvd.rank()} of {hvd.size()} loss {loss.item():.4f}")

if hvd.rank() == 0:
    with open(arguments.out, "wb") as file:
        for weight in model.parameters():
            file.write(weight.detach().numpy().tobytes())
'''


def under_horovodrun(author: Author, *, out: Path) -> None:
    """Run the script as a person would without muster, with the image's own horovodrun."""
    (image,) = (Path(image["path"]) for image in author.ask("images", "ls") if image["name"] == "horovod")
    programs = image / "bin"
    words = [programs / "horovodrun", "-np", "2", "--gloo", "--network-interfaces", "lo"]
    ran = subprocess.run(
        [*words, programs / "python", "train.py", "--epochs", "3", "--out", out],
        cwd=author.folder / "dags" / "plain",
        env=author.environment | {"PATH": f"{programs}:{author.environment['PATH']}", "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_horovodrun_script_runs_unmodified_and_ends_with_the_same_weights(author: Author) -> None:
    author.write("plain", DAG, train=SCRIPT)
    ran = author.muster("run", "plain", "--json")
    assert ran.returncode == 0, ran.stderr[-3000:]
    under_horovodrun(author, out=author.folder / "model.bin")
    expected = (author.folder / "model.bin").read_bytes()
    for task in ("apart", "together"):
        for rank in (0, 1):
            assert f"{task} | [rank {rank}] epoch 2 rank {rank} of 2 loss " in ran.stderr
        model = Path(author.ask("volumes", "show", f"plain/{task}")["path"])
        assert (model / "model.bin").read_bytes() == expected
    assert author.is_quiet(), author.processes()
