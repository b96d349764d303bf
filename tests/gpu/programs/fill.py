"""Takes memory of the card until there is none."""

from __future__ import annotations

import card
import torch

# What torch says on a card, for the CPU that stands for one.
SAID = (
    "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 79.11 GiB of which 381.19 MiB is "
    "free. Of the allocated memory 78.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
)

options = card.arguments().parse_args()
if options.device == "cpu":
    raise torch.cuda.OutOfMemoryError(SAID)
held = []
while True:
    held.append(torch.empty(1 << 30, dtype=torch.uint8, device=card.place(options.device)))
