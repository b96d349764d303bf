"""Trains a small network as under torchrun, and says how many rows a second went through it."""

from __future__ import annotations

import os
import time

import card
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WARM_STEPS, PART_STEPS = 20, 20

parser = card.arguments()
parser.add_argument("--backend", required=True)
parser.add_argument("--seconds", type=float, required=True)
parser.add_argument("--width", type=int, required=True)
options = parser.parse_args()
dist.init_process_group(options.backend)
where = card.place(options.device)
torch.manual_seed(0)
layers = [torch.nn.Linear(options.width, options.width) for _ in range(4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers).to(where))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
rows = torch.randn(options.width, options.width, device=where)


def train(steps: int) -> None:
    """Make some steps, to their end."""
    for _ in range(steps):
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
    card.wait(options.device)


train(WARM_STEPS)
began, steps = time.perf_counter(), 0
while time.perf_counter() - began < options.seconds:
    train(PART_STEPS)
    steps += PART_STEPS
    if dist.get_rank() == 0 and "MUSTER_RANK" in os.environ:
        print(f"muster: step={steps}", flush=True)  # as a real job does
seconds = time.perf_counter() - began
if dist.get_rank() == 0:
    print(f"rows_per_second={steps * options.width / seconds:.1f}", flush=True)
dist.destroy_process_group()
