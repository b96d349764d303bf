"""Who is asked, and by which process, as pure functions."""

from __future__ import annotations

import pytest

from muster.backends.local.serving.shares import front, in_force


@pytest.mark.parametrize(
    ("shares", "lead", "up", "waiting", "expected"),
    [
        ({"r1": 100}, "r1", {"r1"}, set(), {"r1": 100}),
        ({"r1": 80, "r2": 20}, "r1", {"r1", "r2", "r3"}, set(), {"r1": 80, "r2": 20}),
        ({"r1": 80, "r2": 20}, "r1", {"r1"}, set(), {"r1": 100}),
        ({"r1": 80, "r2": 20}, "r1", {"r1"}, {"r2"}, {"r1": 100}),
        ({"r1": 40, "r2": 60}, "r1", {"r1"}, {"r2"}, {"r1": 100}),
        ({"r1": 80, "r2": 20}, "r1", {"r2"}, {"r1"}, {}),  # its clients wait for it
        ({"r1": 40, "r2": 60}, "r1", {"r2"}, {"r1"}, {}),
        ({"r1": 80, "r2": 20}, "r1", {"r2"}, set(), {"r2": 100}),  # it will not come
        ({"r1": 80, "r2": 20}, "r1", set(), set(), {}),
        ({"r1": 50, "r2": 30, "r3": 20}, "r1", {"r1", "r3"}, set(), {"r1": 80, "r3": 20}),
        ({"r1": 50, "r2": 30, "r3": 20}, "r1", {"r2", "r3"}, set(), {"r2": 80, "r3": 20}),
        ({"r1": 100, "r2": 0}, "r1", {"r1", "r2"}, set(), {"r1": 100}),
        ({}, None, {"r1"}, set(), {}),
    ],
)
def test_what_is_not_up_leaves_its_share_to_the_one_that_leads(
    shares: dict[str, int], lead: str | None, up: set[str], waiting: set[str], expected: dict[str, int]
) -> None:
    assert in_force(shares, lead=lead, up=up, waiting=waiting) == expected


@pytest.mark.parametrize(
    ("shares", "lead", "now", "expected"),
    [
        ({"r1": 95, "r2": 5}, "r1", None, "a"),
        ({"r1": 40, "r2": 60}, "r1", "a", "a"),
        ({"r1": 40, "r2": 60}, "r2", "a", "b"),
        ({"r1": 50, "r2": 50}, "r1", "b", "a"),
        ({"r1": 50, "r2": 50}, "r3", "a", "a"),  # it is down
        ({"r1": 50, "r2": 50}, "r3", "b", "b"),
        ({"r2": 100}, "r2", "a", "b"),
    ],
)
def test_the_process_of_the_one_that_leads_accepts(
    shares: dict[str, int], lead: str, now: str | None, expected: str
) -> None:
    assert front(shares, {"r1": "a", "r2": "b"}, lead=lead, now=now) == expected
