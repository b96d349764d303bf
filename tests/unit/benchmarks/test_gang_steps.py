"""A gang's steps are read off the record, and what they are to each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.gang_steps import hand_overs, rows, steps_of
from tests.cluster.replay import AdmissionSample, PodSample, Sample

LOG = "[rank 1] rank began 10.75\n[rank 0] rank began 10.5\n[rank 0] rank ended 15.5\n[rank 1] rank ended 15.75\n"


def workload(gang: str, *, queued: float, admitted: float, finished: float) -> list[Sample]:
    first = AdmissionSample(version=1, at=queued, gang=gang, pods=0, finished=False)
    let_in = replace(first, at=admitted, pods=2)
    return [first, let_in, replace(let_in, at=finished, finished=True)]


def pod(gang: str, rank: int, *, late: float, running: float = 10.0) -> list[Sample]:
    """A pod whose steps are each so much later."""
    made = PodSample(
        version=1,
        at=3.0 + late,
        gang=gang,
        name=f"{gang}-main-0-{rank}-abcde",
        phase="Pending",
        room="",
        ran=(None, None),
        gone=False,
    )
    bound = replace(made, at=4.0 + late, conditions=frozenset({"PodScheduled"}))
    prepared = replace(
        bound,
        at=7.0 + late,
        prepared=(5.0, 6.0 + late),
        conditions=frozenset({"PodScheduled", "Initialized"}),
    )
    runs = replace(prepared, at=11.0 + late, phase="Running", ran=(running, None))
    return [
        made,
        bound,
        prepared,
        runs,
        replace(runs, at=17.0 + late, phase="Succeeded", ran=(running, 16.0)),
    ]


def record(
    gang: str = "g", *, queued: float = 1.0, admitted: float = 2.0, finished: float = 19.0
) -> list[Sample]:
    lives = [*pod(gang, 0, late=0.0), *pod(gang, 1, late=0.5, running=9.0)]
    return [*workload(gang, queued=queued, admitted=admitted, finished=finished), *lives]


def test_each_step_ends_with_its_last_pod() -> None:
    found = steps_of("g", record(), LOG)
    assert (found.queued, found.admitted, found.made, found.scheduled) == (1.0, 2.0, 3.5, 4.5)
    assert (found.prepared, found.began, found.ended) == (7.5, 10.75, 15.75)
    assert (found.stopped, found.finished) == (17.5, 19.0)


def test_whole_seconds_of_a_node_are_taken_for_their_middle_and_each_pod_has_its_own_rank() -> None:
    found = steps_of("g", record(), LOG)
    assert found.preparing == (1.0, 1.5)
    assert found.booting == (10.5 - 10.5, 10.75 - 9.5)
    assert found.sealing == (16.5 - 15.5, 16.5 - 15.75)


def test_a_pod_that_was_deleted_has_ended() -> None:
    told = [
        replace(sample, gone=True, phase="Running")
        if isinstance(sample, PodSample) and sample.phase == "Succeeded"
        else sample
        for sample in record()
    ]
    assert steps_of("g", told, LOG).stopped == 17.5


def test_other_gangs_do_not_count() -> None:
    assert steps_of("g", [*record("h", admitted=0.5), *record()], LOG) == steps_of("g", record(), LOG)


@pytest.mark.parametrize(
    ("told", "log", "message"),
    [
        (record()[1:3], LOG, "g has 0 pods, lines of 2 ranks that began and of 2 that ended"),
        (record(), LOG.replace("rank ended", "ended"), "g has 2 pods, lines of 2 ranks that began and of 0"),
        ([each for each in record() if isinstance(each, PodSample)], LOG, "no moment at which g is queued"),
        (
            [each for each in record() if not (isinstance(each, PodSample) and each.at > 15)],
            LOG,
            "no moment at which g-main-0-0-abcde has ended",
        ),
    ],
)
def test_a_record_that_lacks_something_is_refused(told: list[Sample], log: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        steps_of("g", told, log)


def test_the_hand_over_is_from_the_last_release_to_an_admission_that_waited_for_it() -> None:
    first = steps_of("g", record(finished=19.0), LOG)
    waited = steps_of("h", record("h", queued=5.0, admitted=20.5), LOG)
    came_later = steps_of("i", record("i", queued=19.5, admitted=20.0), LOG)
    assert hand_overs([first, waited, came_later]) == [1.5]


def test_the_steps_add_up_to_the_time_between_two_gangs() -> None:
    one, next_one = steps_of("g", record(), LOG), steps_of("h", record("h", queued=5.0, admitted=20.0), LOG)
    whole = [row for row in rows([one]) if not row.part and row.seconds]
    assert sum(sum(row.seconds) for row in whole) == pytest.approx(
        (one.finished - one.ended) + (one.began - one.admitted)
    )
    (hand_over,) = [row for row in rows([one, next_one]) if "next gang" in row.step]
    assert hand_over.seconds == (1.0,)
    assert "1.00    1.00" in str(hand_over)
