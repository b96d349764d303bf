"""Scores the rows of Parquet and CSV files with a model as its endpoint does: the job of muster's ScoreOperator.

It runs in the image of what computes the predictions: the model server's for ONNX models, the author's, with pyarrow, for any other.

The rows, in the order of the files' names, are cut into shards. Each is one process and one output file, which is complete or not
there; a process that is killed is started again, alone. Finished shards lie in the job's checkpoints, so a job that is tried again
does only the others. A process holds one block of rows, whatever the size of the files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from muster_serving.process.start import THREADS, Setup

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "the image has no pyarrow, which reads and writes the rows: add it to its requirements, or name an image that has "
        "it and the model's libraries, image=…"
    ) from error

_TRIES = 4
LOOK_SECONDS = 0.05
BAD_ROWS = ".bad-rows.jsonl"
"""What the file of rows that were left out ends with."""
CSV = (".csv", ".csv.gz")
PARQUET = (".parquet",)


@dataclass(frozen=True, kw_only=True)
class RowRange:
    """Some rows of one file, from `begin` to before `end`; None is all of them, of a CSV file."""

    file: str
    begin: int = 0
    end: int | None = None


class ScoringError(Exception):
    """The rows cannot be scored with this model; the message says why."""

    muster_advice = "mend what the message names and run again; earlier stages are kept"


def score(
    model: Path,
    rows: list[Path],
    predictions: Path,
    checkpoints: Path,
    *,
    shards: int,
    processes: int,
    keep: list[str],
    rows_at_once: int | None,
    setup: Mapping[str, Any] | None = None,
    bad_rows: str = "fail",
) -> dict[str, float]:
    """Write ``part-00000.parquet`` and so on, one for each shard, with the columns of `keep` and the model's outputs.

    :param shards: at most this many parts. :param processes: how many run at once.
    :param rows_at_once: how many rows one call of the model gets; None: as many as its signature allows.
    :param setup: of a model that is no ONNX model, what :class:`Setup` its workers have, as far as answers depend on it.
    :param bad_rows: ``skip`` leaves out rows that the model refuses or fails on, and writes each as a line of JSON, with its file,
        number, error and values, beside the shard's part: ``part-00000.bad-rows.jsonl``.
    :return: the number of rows, of shards, of shards that had to be repeated, and, where they are skipped, of bad rows.
    :raises ScoringError: a row or a file cannot be scored.
    """
    runs, cut = Setup.parse(setup or {}), split(files(rows), shards)
    done = [checkpoints / f"part-{number:05}.parquet" for number in range(len(cut))]
    orders = {
        number: {
            "model": str(model),
            "pieces": [asdict(piece) for piece in pieces],
            "out": str(done[number]),
            "keep": keep,
            "rows_at_once": rows_at_once,
            "trusted": list(runs.trusted),
            "skip": bad_rows == "skip",
        }
        for number, pieces in enumerate(cut)
        if not done[number].exists()
    }
    with tempfile.TemporaryDirectory() as logs:
        repeated = _run(orders, processes, Path(logs), runs.threads)
    bad = 0
    for part in done:
        _move(part, predictions / part.name)
        if (left_out := part.with_suffix(BAD_ROWS)).exists():
            bad += left_out.read_bytes().count(b"\n")
            _move(left_out, predictions / left_out.name)
    counted = sum(pq.read_metadata(part).num_rows for part in predictions.glob("*.parquet"))
    skipped = {"bad_rows": bad} if bad_rows == "skip" else {}
    others = f", {bad:,} bad rows left out: *{BAD_ROWS}" if bad else ""
    print(  # noqa: T201 the job's log
        f"{counted:,} rows in {len(cut)} shards, {len(orders)} of them scored in this try{others}", flush=True
    )
    return {"rows": counted, "shards": len(cut), "repeated": repeated, **skipped}


def files(folders: Sequence[Path]) -> list[Path]:
    """Return the Parquet and CSV files below some folders, in their order. :raises ScoringError: there are none."""
    found = [
        file
        for folder in folders
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name.endswith(PARQUET + CSV)
    ]
    if not found:
        raise ScoringError(
            f"no Parquet or CSV file in {', '.join(folder.name for folder in folders)}: expected names that end in "
            f"{', '.join(PARQUET + CSV)}"
        )
    return found


def split(found: Sequence[Path], shards: int) -> list[list[RowRange]]:
    """Cut files into at most `shards` runs of about the same size; a CSV file is not cut.

    :raises ScoringError: a file cannot be read.
    """
    sizes = [
        _rows(file) if file.name.endswith(PARQUET) else max(file.stat().st_size // 64, 1) for file in found
    ]
    whole = sum(sizes)
    bounds = [whole * number // shards for number in range(shards + 1)]
    cut: list[list[RowRange]] = [[] for _ in range(shards)]
    at = 0
    for file, size in zip(found, sizes, strict=True):
        if file.name.endswith(CSV):
            number = next(n for n in range(shards) if at < bounds[n + 1])
            cut[number].append(RowRange(file=str(file)))
        else:
            for number in range(shards):
                begin, end = max(bounds[number], at) - at, min(bounds[number + 1], at + size) - at
                if begin < end:
                    cut[number].append(RowRange(file=str(file), begin=begin, end=end))
        at += size
    return [pieces for pieces in cut if pieces] or [[RowRange(file=str(found[0]), begin=0, end=0)]]


def _rows(file: Path) -> int:
    try:
        return int(pq.read_metadata(file).num_rows)
    except (OSError, pa.ArrowException) as error:
        raise ScoringError(f"{file.name} cannot be read: {error}") from error


def _run(orders: Mapping[int, Mapping[str, Any]], processes: int, logs: Path, threads: int) -> int:
    """Run every order, some at once; return how many had to be repeated. :raises ScoringError: one failed for good."""
    waiting, tries, repeated = list(orders), dict.fromkeys(orders, 0), 0
    running: dict[int, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                number = waiting.pop(0)
                tries[number] += 1
                running[number] = _start(orders[number], logs / f"{number}.log", threads)
            for number, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[number]
                said = (logs / f"{number}.log").read_text(errors="replace").strip()
                if process.returncode > 0:
                    raise ScoringError(said.splitlines()[-1] if said else f"shard {number} failed")
                if process.returncode < 0:
                    if tries[number] >= _TRIES:
                        raise ScoringError(
                            f"shard {number} was killed {_TRIES} times, last by signal {-process.returncode}; with "
                            "signal 9 the memory was used up: give the task more, or run fewer at once"
                        )
                    print(  # noqa: T201 the job's log
                        f"shard {number} was killed by signal {-process.returncode}; it is done again",
                        flush=True,
                    )
                    repeated += 1
                    waiting.insert(0, number)
            time.sleep(LOOK_SECONDS)  # the pace of looking for shards that have ended
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return repeated


def _start(order: Mapping[str, Any], log: Path, threads: int) -> subprocess.Popen[bytes]:
    code = str(Path(__file__).resolve().parent.parent)
    words = [sys.executable, "-P", "-m", "muster_serving.shard", json.dumps(order)]
    # as of a worker that serves: sums of floats depend on the number of threads
    libraries = dict.fromkeys(THREADS, str(threads))
    environment = {**os.environ, **libraries, "PYTHONPATH": code, "PYTHONSAFEPATH": "1"}
    with log.open("wb") as out:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=out, env=environment)


def _move(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)
