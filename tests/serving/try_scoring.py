"""Scores rows in the image of the server, beside a server that is asked the same: ``try_scoring.py ROOT PORT`` prints what came of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - it runs in the image
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from muster_serving import scoring
from muster_serving.scoring import ScoringError

ROWS = 10_000
SIZES = (1, 2, 3, 100, 500)


def rows_of(signature: dict[str, Any]) -> pa.Table:
    """Rows that the model of delays takes; whole numbers where it wants floats, too."""
    made = np.random.default_rng(7)
    columns: dict[str, Any] = {"key": np.arange(ROWS)}
    for column in signature["inputs"]:
        if column["datatype"] == "INT64":
            columns[column["name"]] = made.integers(column["min"], column["max"] + 1, ROWS)
        else:
            columns[column["name"]] = made.normal(0, 1, ROWS)
    columns["number_0"] = made.integers(-(2**40), 2**40, ROWS) / 2**40
    columns["number_1"] = made.integers(-5, 5, ROWS)
    return pa.table(columns)


def ask(
    connection: http.client.HTTPConnection, rows: pa.Table, signature: dict[str, Any], name: str = "delays"
) -> dict[str, list[Any]]:
    tensors = [
        {
            **{k: c[k] for k in ("name", "datatype")},
            "shape": [rows.num_rows],
            "data": rows[c["name"]].to_pylist(),
        }
        for c in signature["inputs"]
    ]
    connection.request("POST", f"/v2/models/{name}/infer", json.dumps({"inputs": tensors}))
    answer = json.loads(connection.getresponse().read())
    return {output["name"]: output["data"] for output in answer["outputs"]}


def asked_all(
    port: int,
    rows: pa.Table,
    signature: dict[str, Any],
    name: str = "delays",
    sizes: tuple[int, ...] = SIZES,
) -> dict[str, list[Any]]:
    """Ask for all rows, in requests of `sizes` rows in turn."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    found: dict[str, list[Any]] = {output["name"]: [] for output in signature["outputs"]}
    at, turn = 0, 0
    while at < rows.num_rows:
        size = sizes[turn % len(sizes)]
        for output, values in ask(connection, rows.slice(at, size), signature, name).items():
            found[output] += values
        at, turn = at + size, turn + 1
    return found


def score(model: Path, rows: Path, into: Path, **options: Any) -> dict[str, float]:
    for folder in (into / "out", into / "checkpoints"):
        folder.mkdir(parents=True, exist_ok=True)
    given = {"shards": 4, "processes": 2, "keep": [], "rows_at_once": None} | options
    return scoring.score(model, [rows], into / "out", into / "checkpoints", **given)


def parts(into: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(part) for part in sorted((into / "out").glob("*.parquet"))])


def refused(model: Path, rows: pa.Table, into: Path) -> str:
    folder = into / "rows"
    folder.mkdir(parents=True)
    pq.write_table(rows, folder / "rows.parquet")
    try:
        score(model, folder, into, shards=1)
    except ScoringError as error:
        return str(error)
    return ""


def kill_one(root: Path) -> None:
    """Kill the first process of a shard below `root` that is seen."""
    shard = str(root / "scored" / "checkpoints" / "part-00001.parquet")
    while True:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if b"muster_serving.shard" in words and shard in words[-2].decode():
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    return


def main() -> None:
    root, port = Path(sys.argv[1]), int(sys.argv[2])
    model = root / "model"
    signature = json.loads((model / "signature.json").read_text())
    rows = rows_of(signature)
    (root / "rows").mkdir()
    pq.write_table(rows.slice(0, 6000), root / "rows" / "a.parquet", row_group_size=1000)
    pq.write_table(rows.slice(6000, 2000), root / "rows" / "b.parquet")
    pyarrow.csv.write_csv(rows.slice(8000), root / "rows" / "c.csv")

    asked = asked_all(port, rows, signature)["probability"]
    threading.Thread(target=kill_one, args=(root,), daemon=True).start()
    metrics = score(model, root / "rows", root / "scored", keep=["key"])
    found = parts(root / "scored")
    same = np.array(asked, np.float32) == found["probability"].to_numpy()

    written = {
        part.name: part.stat().st_mtime_ns for part in (root / "scored" / "checkpoints").glob("*.parquet")
    }
    (root / "scored" / "checkpoints" / "part-00002.parquet").unlink()
    for part in (root / "scored" / "out").iterdir():
        part.unlink()
    score(model, root / "rows", root / "scored", keep=["key"])
    done_again = {
        part.name
        for part in (root / "scored" / "checkpoints").glob("*.parquet")
        if part.stat().st_mtime_ns != written[part.name]
    }

    few = rows.slice(0, 20)

    def changed(name: str, row: int, value: Any) -> pa.Table:
        values = few[name].to_pylist()
        values[row] = value
        return few.set_column(few.schema.get_field_index(name), name, pa.array(values))

    bad = changed("carrier", 7, 99).set_column(
        few.schema.get_field_index("number_2"),
        "number_2",
        pa.array([Decimal("0.25")] * 3 + [None] + [Decimal("0.25")] * 16, pa.decimal128(9, 2)),
    )
    numbers = [float("inf") if row == 7 else value for row, value in enumerate(few["number_3"].to_pylist())]
    bad = bad.set_column(few.schema.get_field_index("number_3"), "number_3", pa.array(numbers))
    (root / "bad" / "rows").mkdir(parents=True)
    pq.write_table(bad, root / "bad" / "rows" / "rows{}.parquet")
    counted = score(model, root / "bad" / "rows", root / "bad", shards=2, keep=["key"], bad_rows="skip")
    left_out = [
        json.loads(line)
        for file in sorted((root / "bad" / "out").glob("*.bad-rows.jsonl"))
        for line in file.read_text().splitlines()
    ]

    print(
        json.dumps(
            {
                "skipped": counted,
                "left_out": [(each["file"], each["row"], each["error"], each["values"]) for each in left_out],
                "left_keys": parts(root / "bad")["key"].to_pylist(),
                "rows": len(asked),
                "equal": int(same.sum()),
                "keys": found["key"].to_pylist() == list(range(ROWS)),
                "metrics": metrics,
                "done_again": sorted(done_again),
                "null": refused(model, changed("carrier", 7, None), root / "null"),
                "range": refused(model, changed("carrier", 7, 99), root / "range"),
                "nan": refused(model, changed("number_3", 4, float("nan")), root / "nan"),
                "type": refused(model, few.set_column(1, "carrier", pa.array([1.5] * 20)), root / "type"),
                "missing": refused(model, few.drop(["origin"]), root / "missing"),
                "clash": refused(
                    model, few.append_column("probability", pa.array([1.0] * 20)), root / "clash"
                ),
                "none": refused(model, few.slice(0, 0), root / "none"),
            }
        )
    )


if __name__ == "__main__":
    main()
