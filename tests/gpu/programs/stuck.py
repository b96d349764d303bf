"""Asks the card for a kernel that does not end within hours, and waits for it."""

from __future__ import annotations

import ctypes

import card
import torch

options = card.arguments().parse_args()
print("begins", flush=True)
if options.device == "cpu":
    ctypes.PyDLL(None).sleep(
        36_000
    )  # it holds the interpreter's lock, so that no Python code of this process runs
spin = vars(torch.cuda)["_sleep"]  # a kernel that counts the card's clock
spin(1 << 55)
torch.cuda.synchronize()
