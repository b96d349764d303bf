"""What this machine has to offer."""

from __future__ import annotations

import socket
import sys

import pytest

from muster.backends.choose import open_place
from muster.backends.local.machine import Machine, free_port
from muster.core.errors import SpecError


def test_this_machine_has_memory() -> None:
    assert 0.1 < Machine.here().memory_gib < 100_000


@pytest.mark.parametrize(
    ("variable", "cards"),
    [("", ()), ("-1", ()), ("0,1", ("0", "1")), (" GPU-5f , GPU-6a", ("GPU-5f", "GPU-6a"))],
)
def test_only_the_cards_that_the_caller_may_use_count(
    monkeypatch: pytest.MonkeyPatch, variable: str, cards: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert Machine.here().gpus == cards


def test_a_port_is_free_and_nobody_elses() -> None:
    first = free_port(())
    second = free_port({first})
    assert first != second
    with socket.create_server(("127.0.0.1", second)):
        assert free_port({first}) not in (first, second)


def test_another_system_is_refused_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SpecError, match=r"Linux.*darwin.*WSL2"):
        _ = open_place().runner
