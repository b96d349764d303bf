"""The trace that is replayed on the cluster; needs no cluster."""

from __future__ import annotations

import itertools

from benchmarks.cluster_arrivals import QUOTA, arrivals


def test_the_trace_is_the_one_that_was_asked_for() -> None:
    trace = arrivals(40)
    assert trace == arrivals(40)
    assert len({each.name for each in trace}) == 40
    assert {each.all_cards for each in trace} == {6, 8, 10, 12, 16}
    assert max(each.all_cards for each in trace) == QUOTA
    assert all(
        0 <= before.after_seconds <= each.after_seconds <= 160 for before, each in itertools.pairwise(trace)
    )
