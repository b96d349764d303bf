"""Compares made-up windows with a made-up reference in the image validate; prints what was found."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import duckdb
import muster_drift

LIMITS = {"psi": 0.1, "ks": 0.1, "unseen": 0.01, "nulls": 0.01, "false_alarms": 0.001, "fewest_rows": 500}
REFERENCE = """
select (random() * 100)::float8 as delay, (random() * 12)::int as month, ['AA', 'B6', 'UA'][1 + (random() * 2.999)::int % 3] as carrier
from range(20000)
"""


def window(
    root: Path,
    name: str,
    *,
    delay: str = "random() * 100",
    month: str = "random() * 12",
    carrier: str = "",
    rows: int = 2000,
) -> Path:
    folder = root / name
    folder.mkdir()
    carrier = carrier or "['AA', 'B6', 'UA'][1 + (random() * 2.999)::int % 3]"
    duckdb.sql(
        f"""
        copy (
            select 'id-' || i as id, 0::int as row, to_timestamp(1000 + i / 10) as time, if(i % 4 = 0, 'r2', 'r1') as revision,
                ({delay})::float4 as input_delay, ({month})::int as input_month, ({carrier})::varchar as input_carrier, 0.5 as output_p
            from range({rows}) t(i)
        ) to '{folder / "r1-001.parquet"}'
        """
    )
    return folder


def compare(root: Path, folder: Path, *, reference: str = "reference", **options: Any) -> dict[str, Any]:
    report = root / f"report-{folder.name}-{len(list(root.iterdir()))}"
    report.mkdir()
    given = {
        "title": "flights",
        "begin": 0.0,
        "end": 1e9,
        "revision": None,
        "columns": None,
        "limits": LIMITS,
    } | options
    said = StringIO()
    try:
        with redirect_stdout(said):
            metrics = muster_drift.compare([folder], [root / reference], report, **given)
    except muster_drift.DriftError as error:
        return {"error": str(error)}
    document = json.loads((report / "report.json").read_text())
    return {
        "metrics": metrics,
        "said": said.getvalue().splitlines()[-1],
        "drifted": {c["name"]: c["drifted"] for c in document["columns"] if c["drifted"]},
        "columns": [c["name"] for c in document["columns"]],
        "page": (report / "docs" / "index.html").read_text(),
    }


def main() -> None:
    root = Path(sys.argv[1])
    duckdb.sql("select setseed(0.3)")
    (root / "reference").mkdir()
    duckdb.sql(f"copy ({REFERENCE}) to '{root / 'reference' / 'part.parquet'}'")
    same = window(root, "same")
    (root / "bare").mkdir()
    duckdb.sql(
        f"copy (select * replace (null::double as delay) from ({REFERENCE})) to '{root / 'bare' / 'part.parquet'}'"
    )
    print(
        json.dumps(
            {
                "same": compare(root, same),
                "moved": compare(root, window(root, "moved", delay="random() * 100 + 20")),
                "unseen": compare(
                    root, window(root, "unseen", carrier="if(random() < 0.05, '<b>&new', 'AA')")
                ),
                "nulls": compare(
                    root, window(root, "nulls", month="if(random() < 0.1, null, random() * 12)")
                ),
                "few": compare(root, same, end=1010.0),
                "none": compare(root, same, begin=5000.0),
                "revision": compare(root, same, revision="r2", limits=LIMITS | {"fewest_rows": 100}),
                "no_revision": compare(root, same, revision="r9"),
                "columns": compare(root, same, columns=["carrier"]),
                "bare": compare(root, same, reference="bare"),
                "unknown": compare(root, same, columns=["elsewhere"]),
            }
        )
    )


if __name__ == "__main__":
    main()
