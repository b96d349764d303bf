"""Where the tests of GPUs run: on the cards of this machine, or on what stands for them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a test of GPUs needs to know of where it runs.

    :param python: the interpreter with torch; the image's lock is not used.
    :param device: ``cuda``, or ``cpu`` where that stands for a card.
    :param cards: as CUDA_VISIBLE_DEVICES names them.
    :param collective: how ranks on two cards add up: ``nccl``, ``gloo`` on CPUs.
    :param memory_gib: of the host, for each replica.
    :param checkpoint_bytes: what is on the card, is saved and comes back.
    :param width: of the matrices.
    :param train_seconds: of each training that is compared; `pairs` of them are.
    :param least_ratio: of muster's throughput to torchrun's; 0 where it is not the card that is measured.
    :param hang_seconds: of silence that are a hang; a first import of torch says nothing for a while.
    :param use_points: how many looks at a card's use are waited for.
    """

    python: Path
    device: str
    cards: tuple[str, ...]
    collective: str
    memory_gib: float
    checkpoint_bytes: int
    width: int
    train_seconds: float
    pairs: int
    least_ratio: float
    hang_seconds: float
    use_points: int


def on_cards(python: Path, cards: tuple[str, ...]) -> Place:
    """Return the place with this machine's cards. :param python: has torch for CUDA."""
    return Place(
        python=python,
        device="cuda",
        cards=cards,
        collective="nccl",
        memory_gib=8.0,
        checkpoint_bytes=int(os.environ.get("MUSTER_TEST_CHECKPOINT_GB", "10")) * 10**9,
        width=4096,
        train_seconds=10.0,
        pairs=5,
        least_ratio=0.98,
        hang_seconds=20.0,
        use_points=3,
    )


def standing_in(python: Path) -> Place:
    """Return the place where CPUs stand for two cards. :param python: has torch."""
    return Place(
        python=python,
        device="cpu",
        cards=("0", "1"),
        collective="gloo",
        memory_gib=1.0,
        checkpoint_bytes=10**6,
        width=64,
        train_seconds=0.2,
        pairs=1,
        least_ratio=0.0,
        hang_seconds=30.0,
        use_points=1,
    )
