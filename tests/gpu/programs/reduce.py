"""Adds up numbers of all ranks, each on a card of its own, and says how fast."""

from __future__ import annotations

import time

import card
import torch
import torch.distributed as dist

ROUNDS = 20

parser = card.arguments()
parser.add_argument("--backend", required=True)
parser.add_argument("--bytes", type=int, required=True)
options = parser.parse_args()
dist.init_process_group(options.backend)
rank, size = dist.get_rank(), dist.get_world_size()
numbers = torch.full((options.bytes // 4,), float(rank + 1), device=card.place(options.device))
dist.all_reduce(numbers)
expected = sum(range(1, size + 1))
assert numbers.eq(expected).all(), f"{numbers[0]} is not {expected}"
card.wait(options.device)
began = time.perf_counter()
for _ in range(ROUNDS):
    dist.all_reduce(numbers)
card.wait(options.device)
seconds = (time.perf_counter() - began) / ROUNDS
moved = 2 * (size - 1) / size * options.bytes  # what nccl-tests calls the bus bandwidth
print(f"rank {rank} of {size}: gb_per_second={moved / seconds / 1e9:.2f}", flush=True)
dist.destroy_process_group()
