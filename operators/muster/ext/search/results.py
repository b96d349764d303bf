"""What is kept of a search: a table of its trials, and their curves. A later search can begin with it.

::

    trials.json     the space, the rules and each trial: params, value, how it ended, its value at each rung, its jobs
    trials.csv      the same as a table
    curves.csv      trial, job, resource, value: what rank 0 told
    checkpoints/3/  the last checkpoints of trial 3, which the store adds
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.core import wire
from muster.core.data import CHECKPOINTS
from muster.core.errors import NotFound, SpecError

if TYPE_CHECKING:
    from muster.ext.search.sampling import Earlier
    from muster.ext.search.spec import Search, SearchSpec
    from muster.ext.search.state import SearchState, Trial
    from muster.volumes.manifest import Entry
    from muster.volumes.protocols import Ledger, LocalStore

TRIALS, TABLE, CURVES = "trials.json", "trials.csv", "curves.csv"


def write_results(folder: Path, search: Search, state: SearchState, ledger: Ledger) -> None:
    """Write the files of an ended search. The curves of jobs that gc deleted are left out."""
    spec = search.spec
    trials = [_trial(spec, each) for each in state.trials]
    document = {
        "best": state.closed.trial if state.closed else -1,
        "search": wire.plain(spec),
        "trials": trials,
    }
    (folder / TRIALS).write_text(json.dumps(document, indent=1))
    names = list(spec.space)
    rungs = [f"{rung:g}" for rung in spec.rungs]
    with (folder / TABLE).open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["trial", *names, spec.metric, "phase", *(f"{spec.metric} at {rung}" for rung in rungs)]
        )
        for each in trials:
            values = [each["values"].get(rung, "") for rung in rungs]
            params = [each["params"].get(name, "") for name in names]
            table.writerow([each["trial"], *params, each["value"], each["phase"], *values])
    with (folder / CURVES).open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["trial", "job", spec.resource or "resource", spec.metric])
        for trial in state.trials:
            for job_id in trial.jobs:
                table.writerows(
                    (trial.number, job_id, *point) for point in curve(ledger, job_id, spec.metric)
                )


def kept_checkpoints(state: SearchState, *, most: int) -> dict[str, str]:
    """Return the job whose checkpoints are kept by folder: those of the best trials, that with which the search ended first."""
    ended = state.closed.trial if state.closed is not None else -1
    known = [each for each in state.trials if each.jobs and (each.value is not None or each.number == ended)]
    known.sort(key=lambda each: (each.number != ended, state.spec.order(each.value), each.number))
    return {f"{CHECKPOINTS}/{each.number}": each.jobs[-1] for each in known[:most]}


def sizes_of_checkpoints(manifest: Mapping[str, Entry]) -> dict[int, int]:
    """Return the bytes of the checkpoints of each trial that the results hold, by its number."""
    sizes: dict[int, int] = {}
    for path, entry in manifest.items():
        top, _, below = path.partition("/")
        number = below.partition("/")[0]
        if top == CHECKPOINTS and number.isdecimal():
            sizes[int(number)] = sizes.get(int(number), 0) + entry.size_bytes
    return sizes


def curve(ledger: Ledger, job_id: str, metric: str) -> Iterator[tuple[float, float]]:
    """Yield how far rank 0 of a job was and the value that it told there, in the order of its lines."""
    with suppress(NotFound):
        for each in ledger.series(job_id).numbers:
            if each.name == metric and each.source == "0":
                yield from (
                    (step, value)
                    for step, value in zip(each.steps, each.values, strict=False)
                    if step is not None
                )


def earlier_of(store: LocalStore, spec: SearchSpec) -> Earlier:
    """Return params and values of the trials of earlier searches, whose results the spec names.

    :raises SpecError: a version holds no results of a search. :raises NotFound: gc has deleted one.
    """
    found = []
    for address in spec.earlier:
        try:
            document = json.loads((store.path(address) / TRIALS).read_text())
            told = [each for each in document["trials"] if each["values"]]
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise SpecError(f"earlier: {address} holds no results of a search ({TRIALS}: {error})") from error
        found += [(each["params"], each["value"]) for each in told]
    return found


def _trial(spec: SearchSpec, trial: Trial) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "params": dict(trial.params),
        "value": trial.value,
        "phase": trial.phase.value,
        "reason": trial.reason,
        "values": {f"{spec.rungs[rung]:g}": value for rung, value in sorted(trial.values.items())},
        "jobs": trial.jobs,
    }
