"""Scores rows by hand and by muster, in turns, in the image ``serve``: prints the CPU seconds of each round.

``predictions_by_hand.py MODEL FOLDER ROUNDS ROWS``. By hand is what an author would write: pyarrow's batches of the same size, cast to the
graph's types, one session with one thread, outputs to a Parquet file. Nothing is checked there. Each way is a new process, whose start
counts; muster's has a second one for its shard. The first round of each is not counted.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - it runs in the image
import onnxruntime as ort
import pyarrow as pa
import pyarrow.parquet as pq

from muster_serving import scoring

BATCH = 4096


def write_rows(file: Path, signature: dict[str, Any], rows: int) -> None:
    made = np.random.default_rng(3)
    columns = {
        column["name"]: made.integers(column["min"], column["max"] + 1, rows)
        if column["datatype"] == "INT64"
        else made.normal(0, 1, rows)
        for column in signature["inputs"]
    }
    pq.write_table(pa.table(columns), file)


def by_hand(model: Path, rows: Path, out: Path) -> None:
    signature = json.loads((model / "signature.json").read_text())
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(model / "model.onnx"), options, providers=["CPUExecutionProvider"])
    types = {c["name"]: np.int64 if c["datatype"] == "INT64" else np.float32 for c in signature["inputs"]}
    names = [c["name"] for c in signature["outputs"]]
    writer = None
    for batch in pq.ParquetFile(rows / "rows.parquet").iter_batches(
        BATCH, columns=list(types), use_threads=False
    ):
        feeds = {
            name: batch.column(name).to_numpy(zero_copy_only=False).astype(kind)
            for name, kind in types.items()
        }
        table = pa.table(dict(zip(names, session.run(names, feeds), strict=True)))
        writer = writer or pq.ParquetWriter(out, table.schema, compression="zstd")
        writer.write_table(table)
    assert writer is not None
    writer.close()


def ours(model: Path, rows: Path, place: Path) -> None:
    for name in ("out", "checkpoints"):
        (place / name).mkdir(parents=True)
    scoring.score(
        model,
        [rows],
        place / "out",
        place / "checkpoints",
        shards=1,
        processes=1,
        keep=[],
        rows_at_once=None,
    )


WAYS = {"by_hand": by_hand, "ours": ours}


def cpu(way: str, model: Path, rows: Path, out: Path) -> float:
    """The CPU seconds of a process that scores one way, from its start, and of its own children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, __file__, way, model, rows, out], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    if sys.argv[1] in WAYS:
        WAYS[sys.argv[1]](*map(Path, sys.argv[2:]))
        return
    model, folder, rounds, rows = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    (folder / "rows").mkdir(parents=True)
    write_rows(folder / "rows" / "rows.parquet", json.loads((model / "signature.json").read_text()), rows)
    seen: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(rounds + 1):
        for way in WAYS:
            seconds = cpu(way, model, folder / "rows", folder / f"{way}-{turn}")
            if turn:
                seen[way].append(seconds)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
