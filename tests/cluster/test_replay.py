"""What is wrong with a gang is noted, whichever way it comes about; needs no cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.cluster.replay import AdmissionSample, Held, PodSample, Replay, Sample, admissions, sample_of

LET_IN = AdmissionSample(version=1, at=0.0, gang="g", pods=2, finished=False)
FIRST = PodSample(
    version=2, at=0.0, gang="g", name="g-0", phase="Pending", room="", ran=(None, None), gone=False
)
SECOND = replace(FIRST, version=3, name="g-1")


def started(pod: PodSample, version: int, ran: tuple[float, float | None] = (10.0, None)) -> PodSample:
    return replace(pod, version=version, phase="Running", ran=ran)


WELL: list[Sample] = [
    LET_IN,
    FIRST,
    SECOND,
    started(FIRST, 4),
    started(SECOND, 5, (12.0, None)),
    replace(started(FIRST, 6, (10.0, 13.0)), phase="Succeeded"),
    replace(started(SECOND, 7, (12.0, 14.0)), phase="Succeeded"),
    replace(LET_IN, version=8, finished=True),
]


def replay(samples: list[Sample]) -> Replay:
    return Replay(sizes={"g": 2}, cards={"g": 4}).run(sorted(samples, key=lambda sample: sample.version))


def test_a_gang_that_is_whole() -> None:
    found = replay(WELL)
    gang = found.gangs["g"]
    assert (gang.admitted, gang.wrong, gang.together(), gang.spread_seconds()) == ([2], [], True, 2.0)
    assert (found.samples, found.most_gangs, found.most_cards) == (8, 1, 8)


@pytest.mark.parametrize(
    ("samples", "wrong"),
    [
        ([FIRST, replace(LET_IN, version=5)], "no room was set aside for its gang"),
        ([LET_IN, started(FIRST, 4), replace(SECOND, room="0/4 nodes")], "1 of 2 pods run"),
        ([LET_IN, started(FIRST, 4), replace(LET_IN, version=5, pods=0)], "its room was taken away"),
    ],
)
def test_a_gang_that_has_begun_and_cannot_go_on(samples: list[Sample], wrong: str) -> None:
    assert wrong in " ".join(replay(samples).gangs["g"].wrong)


def test_pods_that_never_ran_at_the_same_time() -> None:
    late = replace(started(SECOND, 9, (20.0, 21.0)), phase="Succeeded")
    assert not replay([*WELL, late]).gangs["g"].together()


def test_one_that_was_let_in_twice() -> None:
    again = [replace(LET_IN, version=9, pods=0), replace(LET_IN, version=10)]
    assert replay([LET_IN, *again]).gangs["g"].admitted == [2, 2]


def test_when_a_gang_that_is_put_back_had_its_cards() -> None:
    """By its Workload's own times: another kind of change does not begin another time, and its end is the first that is told."""

    def told(version: int, *conditions: tuple[str, str, int], gone: bool = False) -> Sample:
        part = {"count": 2, "resourceUsage": {"nvidia.com/gpu": "4"}}
        workload = {
            "kind": "Workload",
            "metadata": {"resourceVersion": str(version), "ownerReferences": [{"name": "g"}]},
            "status": {
                "admission": {"podSetAssignments": [part]},
                "conditions": [
                    {"type": name, "status": status, "lastTransitionTime": f"1970-01-01T00:00:{second:02}Z"}
                    for name, status, second in conditions
                ],
            },
        }
        found = sample_of(workload, gone=gone)
        assert found is not None
        return found

    samples = [
        told(1, ("Admitted", "False", 3)),
        told(2, ("Admitted", "True", 5)),
        told(3, ("Admitted", "True", 5), ("PodsReady", "True", 6)),
        told(4, ("Admitted", "True", 5), ("Evicted", "True", 8)),
        told(5, ("Admitted", "False", 9), ("Evicted", "True", 8)),
        told(6, ("Admitted", "True", 20)),
    ]
    again = [Held(5.0, 9.0, 4), Held(20.0, 33.0, 4)]
    assert admissions(samples, now=33.0) == {"g": again}
    finished = told(7, ("Admitted", "True", 20), ("Finished", "True", 30))
    assert admissions([*samples, finished, replace(finished, over=50.0)], now=99.0) == {
        "g": [again[0], Held(20.0, 30.0, 4)]
    }
    deleted = told(7, ("Admitted", "True", 20), gone=True)
    assert isinstance(deleted, AdmissionSample)
    assert deleted.over == deleted.at
