"""Says which cards it sees, holds memory of its own, and ends when a file is there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import card
import torch

parser = card.arguments()
parser.add_argument("--until", type=Path)
options = parser.parse_args()
cards = torch.cuda.device_count()
held = torch.zeros(1 << 20, device=card.place(options.device)) if options.until else None
print(f"visible={os.environ['CUDA_VISIBLE_DEVICES']} cards={cards}", flush=True)
while held is not None and not options.until.exists():
    time.sleep(0.05)
