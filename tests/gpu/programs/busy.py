"""Keeps the card busy, and memory of it, until a file is there."""

from __future__ import annotations

from pathlib import Path

import card
import torch

parser = card.arguments()
parser.add_argument("--until", type=Path, required=True)
parser.add_argument("--side", type=int, required=True)
options = parser.parse_args()
where = card.place(options.device)
held = torch.zeros(2 << 30 if options.device == "cuda" else 1, dtype=torch.uint8, device=where)
matrix = torch.ones((options.side, options.side), device=where)
while not options.until.exists():
    for _ in range(50):
        matrix @ matrix
    card.wait(options.device)
