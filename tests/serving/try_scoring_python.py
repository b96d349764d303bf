"""Scores rows in an author's image, beside a server whose workers run in it and are asked the same.

``try_scoring_python.py FOLDER ROOT PORT TRUSTED…`` prints what came of it, for the version in FOLDER. Both sides compute the same
rows together: BLAS rounds a row of a matrix otherwise where others come with it.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - it runs in the image
import pyarrow as pa
import pyarrow.parquet as pq
import try_scoring  # the script beside this one

TOGETHER = 100


def rows_of(signature: dict[str, Any]) -> pa.Table:
    """Rows that the signature allows."""
    made, count = np.random.default_rng(7), try_scoring.ROWS
    columns: dict[str, Any] = {"key": np.arange(count)}
    for column in signature["inputs"]:
        if "categories" in column:
            columns[column["name"]] = made.choice(column["categories"], count).tolist()
        elif column["datatype"] == "BYTES":
            columns[column["name"]] = [chr(97 + n % 26) * (n % 7) + "ü" for n in range(count)]
        elif column["datatype"].startswith("INT"):
            columns[column["name"]] = made.integers(0, 23, count)
        else:
            columns[column["name"]] = made.normal(50, 5, count)
    return pa.table(columns)


def main() -> None:
    folder, root, port = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    signature = json.loads((folder / "signature.json").read_text())
    rows = rows_of(signature)
    (root / "rows").mkdir(parents=True)
    pq.write_table(rows.slice(0, 7000), root / "rows" / "a.parquet", row_group_size=1000)
    pq.write_table(rows.slice(7000), root / "rows" / "b.parquet")
    asked = try_scoring.asked_all(port, rows, signature, "model", (TOGETHER,))
    threading.Thread(target=try_scoring.kill_one, args=(root,), daemon=True).start()
    metrics = try_scoring.score(
        folder,
        root / "rows",
        root / "scored",
        keep=["key"],
        rows_at_once=TOGETHER,
        setup={"trusted": sys.argv[4:]},
    )
    found = try_scoring.parts(root / "scored")
    equal = {
        name: sum(a == b for a, b in zip(values, found[name].to_pylist(), strict=True))
        for name, values in asked.items()
    }
    keys = found["key"].to_pylist() == list(range(try_scoring.ROWS))
    print(json.dumps({"equal": equal, "keys": keys, "metrics": metrics}))


if __name__ == "__main__":
    main()
