"""Ranks that share one card: each multiplies on it, and all add up what they found."""

from __future__ import annotations

import card
import torch
import torch.distributed as dist

SIDE = 256

options = card.arguments().parse_args()
dist.init_process_group("gloo")  # NCCL refuses two ranks on one card
rank, size = dist.get_rank(), dist.get_world_size()
matrix = torch.full((SIDE, SIDE), float(rank + 1), device=card.place(options.device))
total = (matrix @ matrix).sum().cpu()
dist.all_reduce(total)
expected = SIDE**3 * sum((each + 1) ** 2 for each in range(size))
assert total.item() == expected, f"{total.item()} is not {expected}"
print(f"rank {rank} of {size} added up to {total.item():.0f}")
dist.destroy_process_group()
