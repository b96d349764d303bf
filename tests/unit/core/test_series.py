from __future__ import annotations

import json
import random
import time
from itertools import pairwise

import pytest

from muster.core.progress import use_lines
from muster.core.series import (
    LINES_A_SECOND,
    MOST_NAMES,
    MOST_POINTS,
    MOST_POINTS_IN_ALL,
    MOST_SOURCES,
    Folding,
    Series,
    has_numbers,
    segments,
)
from muster.core.wire import dumps, loads


def tell(*lines, rank=0):
    return b"".join(b"[rank %d] muster: %s\n" % (rank, line.encode()) for line in lines)


def fold(*batches, every=1.0):
    folding = Folding(100.0)
    for number, lines in enumerate(batches):
        folding.take(lines, at=100.0 + every * number)
    return folding


def curve(folding, name, source="0"):
    (found,) = [each for each in folding.series().numbers if (each.name, each.source) == (name, source)]
    return found


def again(folding):
    """What another process makes of the snapshot in JSON."""
    return Folding.restored(json.loads(json.dumps(folding.snapshot(), allow_nan=False)))


def test_a_point_has_its_time_its_step_and_its_value():
    found = curve(fold(tell("epoch=1/3 loss=0.5"), tell("epoch=2/3 loss=0.25 rate=1e-3")), "loss")
    assert (found.seconds, found.steps, found.step_name, found.values) == (
        (0.0, 1.0),
        (1.0, 2.0),
        "epoch",
        (0.5, 0.25),
    )


@pytest.mark.parametrize(
    ("line", "step_name"),
    [
        ("loss=1 batch=7/100 epoch=3", "batch"),
        ("loss=1 epoch=3", "epoch"),
        ("loss=1 step=3 epoch=1", "step"),
        ("loss=1 rows=3", ""),
        ("loss=1 epoch=3/0", ""),
        ("loss=1 epoch=nan", ""),
    ],
)
def test_what_counts_the_steps(line, step_name):
    assert curve(fold(tell(line)), "loss").step_name == step_name


def test_a_number_that_is_not_finite_has_no_point_and_is_counted():
    found = curve(
        fold(tell("epoch=1/3 loss=nan", "epoch=2/3 loss=-inf", "epoch=3/3 loss=1e999", "loss=0.5")), "loss"
    )
    assert (found.values, found.told, found.not_finite) == ((0.5,), 1, 3)


def test_ranks_are_told_apart_and_nothing_but_ranks_and_workers_is_heard():
    folding = fold(
        tell("loss=1", rank=10) + tell("loss=2", rank=9) + b"muster: loss=3\n[muster] muster: loss=4\n"
        b"[rank 0] says [rank 1] muster: loss=5\n[rank 1234567] muster: loss=6\n[rank 1] muster: loss=x\n"
    )
    assert [(each.source, each.values) for each in folding.series().numbers] == [
        ("9", (2.0,)),
        ("10", (1.0,)),
    ]


def test_what_replicas_use_is_apart_from_what_ranks_tell():
    lines = use_lines("main-0", {"cpu_cores": 1.25, **{f"gpu{card}_share": 0.5 for card in range(8)}})
    series = fold((lines + "\n").encode() + tell("cpu_cores=9")).series()
    assert [(each.name, each.source, each.values) for each in series.use][:2] == [
        ("cpu_cores", "main-0", (1.25,)),
        ("gpu0_share", "main-0", (0.5,)),
    ]
    assert len(series.use) == 9
    assert [(each.name, each.source) for each in series.numbers] == [("cpu_cores", "0")]


def test_lines_about_use_are_cut_out_of_the_others():
    lines = b"a\n[use main-0] muster: x=1\n[use main-0] muster: y=1\nb [use z]\n[use main-1] muster: x=1\n"
    assert [(part, logged) for part, logged in segments(lines)] == [
        (b"a\n", True),
        (b"[use main-0] muster: x=1\n[use main-0] muster: y=1\n", False),
        (b"b [use z]\n", True),
        (b"[use main-1] muster: x=1\n", False),
    ]
    assert list(segments(b"a\n")) == [(b"a\n", True)]
    assert list(segments(b"")) == []
    assert not has_numbers(b"a\n[rank 0] muster\n")


def test_a_long_series_is_thinned_evenly_and_the_newest_is_there():
    count = 20_001
    folding = fold(*(tell(f"step={number} loss={number}") for number in range(count)))
    found = curve(folding, "loss")
    assert MOST_POINTS / 2 - 1 <= len(found.values) <= MOST_POINTS
    assert found.told == count
    assert found.values[-1] == count - 1
    gaps = {after - before for before, after in zip(found.steps, found.steps[1:-1], strict=False)}
    assert gaps == {16.0}
    assert found.steps == found.values


def test_ranks_share_the_points_of_a_name():
    batches = (
        b"".join(tell(f"step={number} loss={number}", rank=rank) for rank in range(8))
        for number in range(1500)
    )
    series = fold(*batches).series()
    losses = [each for each in series.numbers if each.name == "loss"]
    assert [each.source for each in losses] == [str(rank) for rank in range(8)]
    assert MOST_POINTS / 2 - 8 <= sum(len(each.values) for each in losses) <= MOST_POINTS
    assert len({each.steps for each in losses}) == 1


def test_names_ranks_and_points_in_all_are_bounded_and_the_rest_is_said():
    batches = [tell(*(f"n{number}=1" for number in range(500))) for _ in range(200)]
    batches += [tell("n1=2", rank=rank) for rank in range(100)]
    series = fold(*batches).series()
    assert len({each.name for each in series.numbers}) == MOST_NAMES
    assert sum(len(each.values) for each in series.numbers) <= MOST_POINTS_IN_ALL
    assert len([each for each in series.numbers if each.name == "n1"]) == MOST_SOURCES
    assert series.names_left_out == tuple(f"n{number}" for number in range(MOST_NAMES, MOST_NAMES + 100))
    assert series.numbers_left_out == 200 * (500 - MOST_NAMES) + 100 - MOST_SOURCES
    assert loads(Series, dumps(series)) == series


def test_of_a_flood_some_lines_are_read_and_they_lie_evenly():
    lines = tell(*(f"step={number} loss={number % 7}" for number in range(200_000)))
    folding = Folding(100.0)
    begun = time.process_time()
    folding.take(lines, at=101.0)
    took = time.process_time() - begun
    series = folding.series()
    steps = next(each for each in series.numbers if each.name == "step").values
    assert LINES_A_SECOND / 2 - 1 <= len(steps) <= LINES_A_SECOND
    assert steps[0] < 1000
    assert steps[-1] > 199_000
    assert max(after - before for before, after in pairwise(steps)) < 1000
    assert series.lines_left_out > 190_000
    assert took < 2.0  # a fifth of a second of such lines: read whole they would take some seconds
    folding.take(lines, at=101.0)
    assert folding.series().lines_left_out > 390_000


@pytest.mark.slow
def test_another_process_goes_on_as_if_it_were_the_same():
    choose = random.Random(1)
    batches = [
        b"".join(
            tell(
                f"epoch={number}/9 loss={choose.random():.4f} n{choose.randrange(400)}=nan",
                rank=choose.randrange(70),
            )
            for _ in range(choose.randrange(20))
        )
        for number in range(300)
    ]
    whole, pieces = Folding(100.0), Folding(100.0)
    for number, lines in enumerate(batches):
        whole.take(lines, at=100.0 + number)
        if number % 3:
            pieces.take(lines, at=100.0 + number)
        else:
            record = again(pieces).take(lines, at=100.0 + number)
            if record is not None:
                pieces.replay(json.loads(json.dumps(record, allow_nan=False)))
        if number % 50 == 0:
            pieces = again(pieces)
    assert pieces.series() == whole.series()
    assert whole.series().numbers_left_out


def test_times_never_fall():
    folding = Folding(100.0)
    for at in (90.0, 105.0, 103.0, 106.0):
        folding.take(tell("loss=1"), at=at)
    assert curve(folding, "loss").seconds == (0.0, 5.0, 5.0, 6.0)


def test_a_later_format_is_refused():
    with pytest.raises(ValueError, match="format 2"):
        Folding.restored({**Folding(1.0).snapshot(), "format": 2})
