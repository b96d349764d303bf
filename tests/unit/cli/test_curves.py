from __future__ import annotations

import pytest

from muster.cli.curves import bars, drawn
from muster.core.series import Curve, Series


@pytest.mark.parametrize(
    ("values", "drawing"),
    [
        ((), ""),
        ((5.0,), "▁"),
        ((1.0, 1.0), "▁▁"),
        ((0.0, 7.0, 3.0), "▁█▄"),
        ((0.0, 0.0, 7.0, 7.0), "▁▁██"),
        ((-1.7e308, 1.7e308), "▁█"),
    ],
)
def test_bars_go_from_the_least_to_the_most(values, drawing):
    assert bars(values) == drawing


def test_many_values_become_as_many_bars_as_there_is_room_for():
    assert bars(tuple(range(80)), width=8) == "▁▂▃▄▅▆▇█"


def test_of_many_ranks_and_names_the_first_are_drawn_and_the_rest_is_counted():
    numbers = tuple(Curve(name="loss", source=str(rank), seconds=(1.0,), values=(0.5,)) for rank in range(6))
    numbers += tuple(Curve(name=f"n{n:02}", source="0", seconds=(1.0,), values=(2.0,)) for n in range(20))
    pictures = list(drawn(Series(numbers=numbers, names_left_out=("x",), lines_left_out=3)))
    assert pictures[:2] == [("loss, rank 0", "▁  0.5"), ("loss, rank 1", "▁  0.5")]
    assert pictures[4] == ("loss", "and of 2 more: --json has all")
    assert pictures[-3:] == [
        ("more", "5 names: --json has all"),
        ("left out", "names beyond the limit: x"),
        ("left out", "3 lines that came too fast; those that are drawn lie evenly"),
    ]
