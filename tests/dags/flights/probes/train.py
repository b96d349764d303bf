"""Runs in the image train: trains on made-up flights, serves what came of it, assesses what is known.

All of it in one process and its forks: to import torch takes longer than any of it.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from flights import assess, fit, table
from flights.train import train

DAYS = 30
PLAN = {"epochs": 4, "batch": 256, "rate": 0.01, "seed": 3}
RANKS = 2
FORK = multiprocessing.get_context("fork")


def flights(rows: int, *, seed: int, blind: bool = False) -> pa.Table:
    """Made-up flights: late ones follow the airport's delay and the carrier; or nothing at all, if `blind`."""
    draw = np.random.default_rng(seed)
    carrier = draw.choice(["AA", "UA", "9E"], rows)
    numbers = {name: draw.gamma(2.0, 5.0, rows).astype(np.float32) for name in table.NUMBERS}
    logit = (numbers["airport_delay"] - 10) / 5 + (carrier == "9E") - 1
    late = draw.random(rows) < (0.3 if blind else 1 / (1 + np.exp(-logit)))
    text = {"origin": "JFK", "dest": "BOS", "dest_timezone": "America/New_York", "engine": "Turbo-fan"}
    return pa.table(
        {
            "carrier": carrier,
            **{name: [value] * rows for name, value in text.items()},
            "weekday": draw.integers(0, 7, rows),
            "hour": draw.integers(0, 24, rows),
            **numbers,
            "late": late.astype(np.int64),
            "scheduled_departure": np.sort(draw.integers(0, DAYS * 24 * 60, rows)),
        }
    )


def written(folder: Path, name: str, made: pa.Table) -> list[Path]:
    (folder / name).mkdir(parents=True, exist_ok=True)
    pq.write_table(made, folder / name / "part-0.parquet")
    return [folder / name]


def run(folder: Path, *, blind: bool = False, die_after: int = 0) -> dict[str, Any]:
    """Train in `folder`; a second call there goes on from its checkpoint."""
    rank = os.environ.get("RANK", "0")
    data = folder / f"data-{rank}"
    months = written(data, "train", flights(4000, seed=1, blind=blind))
    tests = written(data, "test", flights(2000, seed=2, blind=blind))
    model = folder / "model" if rank == "0" else folder / f"unused-{rank}"
    for each in (model, folder / "checkpoints"):
        each.mkdir(parents=True, exist_ok=True)
    if die_after:
        _die_after(die_after)
    metrics = train(months, tests, model, folder / "checkpoints", **PLAN)  # type: ignore[arg-type]
    if rank != "0":
        return {}
    return {
        "metrics": metrics,
        "model": _digest(model / "model.onnx"),
        "files": sorted(each.name for each in model.iterdir()),
    }


def gang(folder: Path, *, die_after: int = 0) -> dict[str, Any]:
    """Train in `folder` on two ranks; return what rank 0 does, and the exit code of each."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    answers = FORK.SimpleQueue()
    ranks = [
        FORK.Process(target=_rank, args=(index, port, answers, folder, die_after)) for index in range(RANKS)
    ]
    for rank in ranks:
        rank.start()
    first, *others = ranks
    first.join()
    for other in others:
        if first.exitcode:
            other.kill()  # as a launcher does
        other.join()
    return (answers.get() if not first.exitcode else {}) | {"exits": [rank.exitcode for rank in ranks]}


def _rank(index: int, port: int, answers: Any, folder: Path, die_after: int) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
    os.environ |= {name: str(value) for name, value in {**where, "RANK": index, "LOCAL_RANK": index}.items()}
    answer = run(folder, die_after=die_after)
    if answer:
        answers.put(answer)


def _die_after(epochs: int) -> None:
    save = fit.State.save

    def save_and_die(state: fit.State, file: Path) -> None:
        save(state, file)
        if len(state.history) == epochs:
            os._exit(9)

    fit.State.save = save_and_die  # type: ignore[method-assign]


def serve(folder: Path) -> dict[str, Any]:
    """What the exported graph takes, and that it answers one row as it answers many."""
    import onnxruntime

    model = folder / "model"
    session = onnxruntime.InferenceSession(model / "model.onnx", providers=["CPUExecutionProvider"])
    signature = json.loads((model / "signature.json").read_text())
    made = flights(50, seed=9)
    strange = made.set_column(0, "carrier", pa.array(["ZZ"] * 50))
    alone = [float(assess.predict(model, made.slice(i, 1))[0]) for i in range(50)]
    return {
        "graph": {each.name: [each.type, each.shape] for each in session.get_inputs()},
        "signature": signature,
        "alone": alone,
        "together": assess.predict(model, made).tolist(),
        "strange": assess.predict(model, strange).tolist(),
        "score": assess.score(model, written(folder, "score", flights(2000, seed=2))),
    }


def known(_folder: Path) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    p, late = np.round(draw.random(400), 1), (draw.random(400) < 0.4).astype(float)
    pairs = [(a > b) + (a == b) / 2 for a in p[late > 0] for b in p[late == 0]]
    fair = draw.random(200_000)
    return {
        "auc": assess.auc(p, late),
        "auc_by_pairs": float(np.mean(pairs)),
        "fair": assess.assess(fair, (draw.random(200_000) < fair).astype(float)),
        "sure": assess.assess(np.array([0.0, 1.0]), np.array([0.0, 1.0])),
    }


def refused(folder: Path) -> dict[str, str]:
    return dict(_refusals(folder))


def _refusals(folder: Path) -> Iterator[tuple[str, str]]:
    whole = flights(500, seed=1)
    one_class = written(
        folder, "all-on-time", whole.set_column(whole.column_names.index("late"), "late", pa.array([0] * 500))
    )
    hollow = whole.set_column(whole.column_names.index("hour"), "hour", pa.array([None] * 500, pa.int64()))
    cases = {
        "nothing": lambda: table.read([]),
        "no file": lambda: table.read([folder / "nowhere"]),
        "no column": lambda: table.read(written(folder, "narrow", whole.drop_columns("hour"))),
        "a missing value": lambda: table.read(written(folder, "hollow", hollow)),
        "one class": lambda: assess.auc(np.ones(500), table.read(one_class)["late"].to_numpy()),
        "no epoch": lambda: fit.Plan(epochs=0, batch=1, rate=0.1, seed=1),
        "a batch too big": lambda: train(
            written(folder, "few", whole), one_class, folder, folder, epochs=1, batch=1000, rate=0.1, seed=1
        ),
    }
    for name, call in cases.items():
        try:
            call()
        except ValueError as error:
            yield name, str(error)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def disturbed(folder: Path) -> dict[str, Any]:
    """The gangs before all else: what was computed here already might not outlive a fork."""
    killed = folder / "killed"
    return {
        "undisturbed": gang(folder / "undisturbed"),
        "killed": gang(killed, die_after=2) | {"left": (killed / "model" / "model.onnx").exists()},
        "again": gang(killed),
        "blind": run(folder / "blind", blind=True),
    }


def learned(folder: Path) -> dict[str, Any]:
    undisturbed = folder / "undisturbed"
    return {
        "undisturbed": gang(undisturbed),  # before all else, too
        "served": serve(undisturbed),
        "known": known(folder),
        "refused": refused(folder),
    }


if __name__ == "__main__":
    case, where = sys.argv[1:]
    print(json.dumps({"run": run, "disturbed": disturbed, "learned": learned}[case](Path(where))))
