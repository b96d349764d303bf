"""What differs between two versions, or two stages of runs, and may explain a difference in their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from muster.core.wire import plain
from muster.volumes.base import Record

if TYPE_CHECKING:
    from muster.volumes.runs import Run, RunStage

DIGITS = len("b3:") + 8  # of an input's digest: as many as people are shown
_ENDING = ("state", "says")


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One fact that differs: its name, such as ``params.epochs``, and both values; None where there is none."""

    name: str
    old: Any
    new: Any


@dataclass(frozen=True, kw_only=True)
class StageDifference:
    """One stage of two runs. Where only one of them has it, `only` is ``old`` or ``new``, and no facts are given.

    :param seconds: what its newest job took in both runs; None where that is not known.
    """

    task_id: str
    map_index: int
    only: str = ""
    facts: tuple[Fact, ...] = ()
    seconds: tuple[float | None, float | None] = (None, None)


def facts(old: Record | RunStage, new: Record | RunStage) -> tuple[Fact, ...]:
    """Return which of code, environment, params, metrics and inputs (by digest) differ, by name.

    Of stages how they ended comes first: ``state``, and ``says``, why they failed or what a task without a job says.
    """
    before, after = _flat(old), _flat(new)
    names = before.keys() | after.keys()
    return tuple(
        Fact(name=name, old=before.get(name), new=after.get(name))
        for name in [*(name for name in _ENDING if name in names), *sorted(names - {*_ENDING})]
        if before.get(name) != after.get(name)
    )


def stages(old: Run, new: Run) -> Iterator[StageDifference]:
    """Yield every stage of two runs with what differs, in the order of the new run, then what only the old one has."""
    before, after = _stages(old), _stages(new)
    for key in [*after, *(key for key in before if key not in after)]:
        was, now = before.get(key), after.get(key)
        if was is None or now is None:
            yield StageDifference(task_id=key[0], map_index=key[1], only="old" if now is None else "new")
        else:
            took = (was.seconds, now.seconds)
            yield StageDifference(task_id=key[0], map_index=key[1], facts=facts(was, now), seconds=took)


def _stages(run: Run) -> Mapping[tuple[str, int], RunStage]:
    return {(stage.task_id, stage.map_index): stage for stage in run.stages}


def _flat(made: Record | RunStage) -> dict[str, Any]:
    flat: dict[str, Any] = {name: getattr(made, name) for name in ("code", "entrypoint", "image_digest")}
    flat |= {"interpreter": str(made.interpreter)} if made.interpreter else {}
    if not isinstance(made, Record):
        flat |= {"state": made.state.value, "says": made.verdict or made.line or None}
    for kind in ("params", "metrics"):
        flat |= {f"{kind}.{name}": plain(value) for name, value in getattr(made, kind).items()}
    for name, versions in made.inputs.items():
        flat[f"inputs.{name}"] = " ".join(version.digest[:DIGITS] for version in versions)
    return flat
