"""Saves what it has on the card, is killed, and goes on from what it saved."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import card
import torch

parser = card.arguments()
parser.add_argument("--bytes", type=int, required=True)
parser.add_argument("--into", type=Path, required=True)
options = parser.parse_args()
where, saved = card.place(options.device), options.into / "state.pt"


def tell(what: str, began: float, weights: torch.Tensor) -> None:
    """Say what was done, how long it took and what the weights add up to."""
    card.wait(options.device)
    seconds = time.perf_counter() - began
    print(
        f"{what} {weights.numel()} bytes in {seconds:.3f} s, sum {weights.sum(dtype=torch.int64)}", flush=True
    )


if not saved.exists():
    random = torch.Generator(device=where).manual_seed(7)
    weights = torch.randint(0, 256, (options.bytes,), dtype=torch.uint8, device=where, generator=random)
    card.wait(options.device)
    began = time.perf_counter()
    torch.save({"weights": weights}, options.into / "state.part")
    (options.into / "state.part").replace(saved)
    tell("saved", began, weights)
    os.kill(os.getpid(), signal.SIGKILL)
began = time.perf_counter()
weights = torch.load(saved, map_location=where, mmap=True, weights_only=True)["weights"]
tell("loaded", began, weights)
