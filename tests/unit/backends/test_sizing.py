"""How many replicas an elastic gang may have, and when it may grow."""

from __future__ import annotations

from typing import Any

import pytest

from muster.backends.forecast import Competition, Demand
from muster.backends.jobs.sizing import Growth, Sizing
from muster.backends.kubernetes.lifecycle.resizing import Checkpoints
from muster.volumes.base import Saved

GPU = "gpu"


def demand(gpus: float, *, job_id: str = "other", **more: Any) -> Demand:
    return Demand(name=job_id, job_id=job_id, choices=({GPU: gpus},), **more)


def sizing(*others: Demand, cards: float = 4) -> Sizing:
    """A gang of 2 to 4 replicas, of which each takes a card, and now has 4."""
    return Sizing(
        Competition(
            pools={GPU: cards},
            running=(demand(4, job_id="gang", started=1), *(each for each in others if each.started)),
            waiting=tuple(each for each in others if each.started is None),
            planned=tuple(demand(size, job_id="gang") for size in (2, 3, 4)),
        ),
        job_id="gang",
        least=2,
    )


@pytest.mark.parametrize(
    ("others", "most"),
    [
        ((), 4),
        ((demand(1, started=1),), 3),
        ((demand(3, started=1),), None),
        ((demand(1),), 3),
        ((demand(9),), None),
    ],
    ids=["alone", "beside what runs", "no room", "beside who waits", "all is kept for who waits"],
)
def test_it_may_have_what_no_other_job_has_or_needs(others: tuple[Demand, ...], most: int | None) -> None:
    assert sizing(*others).most() == most


@pytest.mark.parametrize(
    ("others", "cards", "let_in"),
    [
        ((), 4, None),
        ((demand(1),), 4, (3, "other")),
        ((demand(2),), 4, (2, "other")),
        ((demand(3),), 4, None),
        ((demand(1),), 5, None),
        ((demand(1, priority=-1),), 4, None),
        ((demand(9, job_id="huge"), demand(1)), 4, (3, "other")),
        ((demand(1), demand(1, job_id="second")), 4, (2, "other")),
        ((demand(3, job_id="first", since=1.0), demand(2, since=2.0)), 4, None),
    ],
    ids=[
        "nobody",
        "one",
        "two",
        "too much",
        "has room already",
        "low priority",
        "another that fits",
        "both",
        "the first would take its least",
    ],
)
def test_it_lets_in_who_waits_and_gives_no_more_than_must_be(
    others: tuple[Demand, ...], cards: float, let_in: tuple[int, str] | None
) -> None:
    found = sizing(*others, cards=cards).to_let_in(4)
    assert (found and (found[0], found[1].name)) == let_in


def test_a_gang_that_waits_itself_is_not_in_its_own_way() -> None:
    alone = Competition(
        pools={GPU: 4},
        waiting=(demand(4, job_id="gang"),),
        planned=(demand(2, job_id="gang"), demand(3, job_id="gang")),
    )
    assert Sizing(alone, job_id="gang", least=2).most() == 3


@pytest.mark.parametrize(
    ("looks", "whole"),
    [
        ([{"a": (1, 5)}, {"a": (1, 5)}, {"a": (1, 5)}], False),
        ([{}, {"a": (1, 5)}, {"a": (1, 9)}], False),
        ([{}, {"a": (1, 5)}, {"a": (1, 5)}], True),
        ([{"a": (1, 5)}, {"a": (2, 5)}, {"a": (3, 5)}], True),
        ([{"a": (1, 5)}, {"a": (1, 5), "b": (2, 1)}, {"a": (1, 5), "b": (2, 1), "c": (3, 1)}], True),
        ([{"a": (1, 5)}, {}, {}], False),
    ],
    ids=["an old one", "still being written", "a new one", "replaced all the time", "one beside", "deleted"],
)
def test_a_checkpoint_counts_once_it_is_new_and_whole(
    looks: list[dict[str, tuple[float, ...]]], whole: bool
) -> None:
    seen = iter(looks)
    growth = Growth(lambda: next(seen))
    assert [growth.due(room=True) for _ in looks][-1] is whole


def test_a_checkpoint_from_before_there_was_room_again_does_not_count() -> None:
    seen = iter([{"a": (each, 5.0)} for each in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)])
    growth = Growth(lambda: next(seen))
    looks = [growth.due(room=room) for room in (True, True, True, False, True, True, True)]
    assert looks == [False, False, True, False, False, False, True]


@pytest.mark.parametrize(
    ("looks", "whole"),
    [
        ([(1, 5, 1.0), (1, 5, 2.0), (1, 5, 3.0)], True),
        ([(1, 5, 1.0), (1, 7, 2.0), (1, 9, 3.0)], False),
        ([(1, 5, 1.0), (2, 9, 2.0), (2, 9, 2.0)], True),
        ([(1, 5, 1.0), (1, 5, 1.0), (1, 5, 1.0)], False),
        ([None, None, None], False),
    ],
    ids=["replaced at each look", "grows", "one more", "an old one", "none"],
)
def test_of_a_store_service_all_checkpoints_together_are_looked_at(
    looks: list[tuple[int, int, float] | None], whole: bool
) -> None:
    seen = iter(looks)

    def saved() -> Saved | None:
        each = next(seen)
        return None if each is None else Saved(job_id="a", files=each[0], size_bytes=each[1], newest=each[2])

    growth = Growth(Checkpoints(saved))
    assert [growth.due(room=True) for _ in looks][-1] is whole
