"""The pauses of what is asked again."""

from __future__ import annotations

from muster.core.patience import Patience


def test_pauses_grow_to_the_longest_and_end_with_the_time() -> None:
    pauses: list[float] = []
    patience = Patience(10.0, first=1.0, longest=3.0, clock=lambda: sum(pauses), sleep=pauses.append)
    while patience.wait():
        pass
    assert all(0.7 * most <= pause <= most for pause, most in zip(pauses, [1, 2, 3, 3, 3, 3], strict=False))
    assert 7.0 < patience.waited <= patience.seconds


def test_no_time_is_no_pause() -> None:
    assert not Patience(0.0, first=0.1).wait()
