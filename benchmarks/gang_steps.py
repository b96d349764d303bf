"""Where the time goes from one gang's end to the next one's start, read off the watches' record and the ranks' lines."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.cluster.replay import AdmissionSample, PodSample, Sample

S = TypeVar("S", PodSample, AdmissionSample)

_BEGAN, _ENDED = (re.compile(rf"\[rank (\d+)\] rank {what} (\S+)") for what in ("began", "ended"))
_WHOLE_SECOND = 0.5  # a node leaves out what is below a second: half of one, on average


@dataclass(frozen=True, kw_only=True)
class Steps:
    """When a gang had each step behind it, seconds since the epoch; where each pod has one, when the last pod had.

    :param queued: its Workload was there. :param admitted: Kueue had set its room aside.
    :param made: its pods were there. :param scheduled: they had nodes. :param prepared: their init containers had ended.
    :param began: all ranks ran, as they say. :param ended: all ranks had ended, as they say.
    :param stopped: its pods had ended. :param finished: its Workload had, or was gone: its room was free. That may come first, since
        what waits for a job deletes its JobSet as soon as it is committed.
    :param preparing: seconds of each pod's init container. :param booting: seconds from each main container's start to
        its rank's first line. :param sealing: seconds from each rank's last line to its main container's end.
    """

    queued: float
    admitted: float
    made: float
    scheduled: float
    prepared: float
    began: float
    ended: float
    stopped: float
    finished: float
    preparing: tuple[float, ...]
    booting: tuple[float, ...]
    sealing: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One step of all gangs.

    :param of: whose work it is. :param part: whether it is a part of the row above it.
    """

    step: str
    of: str
    seconds: tuple[float, ...]
    part: bool = False

    def __str__(self) -> str:
        step = f"{'  ' if self.part else ''}{self.step}"
        if not self.seconds:
            return f"{step:38} {self.of:26}       -"
        mean, most = statistics.fmean(self.seconds), max(self.seconds)
        return f"{step:38} {self.of:26} {mean:7.2f} {most:7.2f}"


def steps_of(gang: str, samples: Iterable[Sample], log: str) -> Steps:
    """Read one gang's steps.

    :param samples: of any gangs, in their order. :param log: the gang's lines.
    :raises RuntimeError: the record lacks one of them.
    """
    of_gang = [sample for sample in samples if sample.gang == gang]
    workload = [sample for sample in of_gang if isinstance(sample, AdmissionSample)]
    pods: dict[str, list[PodSample]] = {}
    for sample in of_gang:
        if isinstance(sample, PodSample):
            pods.setdefault(sample.name, []).append(sample)
    began, ended = ({int(rank): float(at) for rank, at in each.findall(log)} for each in (_BEGAN, _ENDED))
    if not pods or not len(pods) == len(began) == len(ended):
        raise RuntimeError(
            f"{gang} has {len(pods)} pods, lines of {len(began)} ranks that began and of {len(ended)} that ended: expected "
            "one of each for each replica"
        )

    def last(what: str, holds: Callable[[PodSample], bool]) -> float:
        return max(_first(f"{name} {what}", each, holds) for name, each in pods.items())

    return Steps(
        queued=_first(f"{gang} is queued", workload, lambda _: True),
        admitted=_first(f"{gang} is admitted", workload, lambda sample: sample.pods > 0),
        made=last("is made", lambda _: True),
        scheduled=last("has a node", lambda pod: "PodScheduled" in pod.conditions),
        prepared=last("is prepared", lambda pod: "Initialized" in pod.conditions),
        began=max(began.values()),
        ended=max(ended.values()),
        stopped=last("has ended", lambda pod: pod.gone or pod.phase in ("Succeeded", "Failed")),
        finished=_first(f"{gang} is finished", workload, lambda sample: sample.finished),
        preparing=tuple(_differences((pod.prepared for pod in _lasts(pods)), 0.0)),
        booting=tuple(
            _differences(((pod.ran[0], began[_rank(pod)]) for pod in _lasts(pods)), -_WHOLE_SECOND)
        ),
        sealing=tuple(_differences(((ended[_rank(pod)], pod.ran[1]) for pod in _lasts(pods)), _WHOLE_SECOND)),
    )


def rows(gangs: Sequence[Steps]) -> list[Row]:
    """Return the steps from one gang's end to the next one's start, in their order."""
    return [
        _row("ranks' end to pods' end", "worker, kubelet", gangs, lambda gang: gang.stopped - gang.ended),
        _part("the worker, to its exit", "muster", (gang.sealing for gang in gangs)),
        _row("to the room's release", "muster, Kueue", gangs, lambda gang: gang.finished - gang.stopped),
        Row(step="to the next gang's admission", of="Kueue", seconds=tuple(hand_overs(gangs))),
        _row("to its pods", "Kueue, JobSet, Job", gangs, lambda gang: gang.made - gang.admitted),
        _row("to their nodes", "Kueue, scheduler", gangs, lambda gang: gang.scheduled - gang.made),
        _row(
            "to the init containers' end",
            "kubelet, init container",
            gangs,
            lambda gang: gang.prepared - gang.scheduled,
        ),
        _part("an init container", "muster", (gang.preparing for gang in gangs)),
        _row("to all ranks", "kubelet, worker", gangs, lambda gang: gang.began - gang.prepared),
        _part("the worker, from its start", "muster", (gang.booting for gang in gangs)),
    ]


def hand_overs(gangs: Iterable[Steps]) -> list[float]:
    """Return the seconds from the last release of room to the admission of each gang that waited for it by then."""
    known = list(gangs)
    found = []
    for gang in known:
        released = max(
            (other.finished for other in known if other.finished <= gang.admitted), default=gang.queued
        )
        if released > gang.queued:
            found.append(gang.admitted - released)
    return found


def _row(step: str, of: str, gangs: Sequence[Steps], seconds: Callable[[Steps], float]) -> Row:
    return Row(step=step, of=of, seconds=tuple(map(seconds, gangs)))


def _part(step: str, of: str, seconds: Iterable[Sequence[float]]) -> Row:
    return Row(step=step, of=of, seconds=tuple(each for of_gang in seconds for each in of_gang), part=True)


def _first(what: str, samples: Iterable[S], holds: Callable[[S], bool]) -> float:
    at = next((sample.at for sample in samples if holds(sample)), None)
    if at is None:
        raise RuntimeError(f"the record has no moment at which {what}")
    return at


def _lasts(pods: dict[str, list[PodSample]]) -> list[PodSample]:
    """Return how each pod was when it was last told of."""
    return [each[-1] for each in pods.values()]


def _rank(pod: PodSample) -> int:
    """Return a pod's rank, by its name: ``GANG-ROLE-0-RANK-abcde``."""
    return int(pod.name.split("-")[-2])


def _differences(times: Iterable[tuple[float | None, float | None]], more: float) -> list[float]:
    return [end - begin + more for begin, end in times if begin is not None and end is not None]
