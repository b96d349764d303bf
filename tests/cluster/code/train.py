"""A small model, trained by every rank of a gang: the same weights come out, however often it began anew."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

WIDTH = 64


def train(model: Path, checkpoints: Path, *, steps: int, pause_seconds: float) -> dict[str, float]:
    """Train and write the weights, byte for byte."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights, first = _begin(checkpoints, rank)
    if rank == 0:
        print(f"begins at step {first}", flush=True)
    loss = 0.0
    for step in range(first, steps):
        loss = _step(weights, step, rank)
        time.sleep(pause_seconds)
        if rank == 0:
            _keep(checkpoints, weights, step + 1)
            print(f"muster: step={step + 1}/{steps}", flush=True)
    if rank == 0:
        (model / "weights").write_bytes(weights.numpy().tobytes())
    dist.barrier()
    dist.destroy_process_group()
    return {"loss": loss}


def _begin(checkpoints: Path, rank: int) -> tuple[torch.Tensor, int]:
    """Rank 0 reads the last checkpoint, and tells the others."""
    weights = torch.zeros(WIDTH, dtype=torch.float64)
    first = torch.zeros(1, dtype=torch.int64)
    kept = checkpoints / "last"
    if rank == 0 and kept.exists():
        data = kept.read_bytes()
        first[0] = int.from_bytes(data[:8], "big")
        weights = torch.frombuffer(bytearray(data[8:]), dtype=torch.float64)
    dist.broadcast(first, src=0)
    dist.broadcast(weights, src=0)
    return weights, int(first)


def _step(weights: torch.Tensor, step: int, rank: int) -> float:
    """One step of gradient descent on rows that this rank has for this step, and no other has."""
    rows = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(32, WIDTH, dtype=torch.float64, generator=rows)
    wrong = x @ weights - x.sum(dim=1)
    gradient = x.T @ wrong / len(x)
    dist.all_reduce(gradient)
    weights -= 0.05 * gradient / dist.get_world_size()
    return float((wrong**2).mean())


def _keep(checkpoints: Path, weights: torch.Tensor, step: int) -> None:
    written = checkpoints / "next"
    with written.open("wb") as file:
        file.write(step.to_bytes(8, "big") + weights.numpy().tobytes())
        file.flush()
        os.fsync(file.fileno())
    written.replace(checkpoints / "last")
