"""Where a program of these tests computes: on the card that its job was given, or on the CPU that stands for one."""

from __future__ import annotations

import argparse

import torch


def arguments() -> argparse.ArgumentParser:
    """Return a parser that knows where to compute."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    return parser


def place(device: str) -> torch.device:
    """Return the first card that this process may use, or the CPU."""
    return torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")


def wait(device: str) -> None:
    """Return once the card has done all that it was asked to."""
    if device == "cuda":
        torch.cuda.synchronize()
