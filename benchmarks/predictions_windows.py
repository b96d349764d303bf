"""Judges windows with and without a shift in the image ``validate``: ``predictions_windows.py WINDOWS`` prints how many it got wrong.

The reference has 50,000 rows of eight columns: normal, skewed, uniform and heavy-tailed numbers, whole numbers with many and with few
values, texts with few and with thirty values of unequal shares. A window has 2,000 rows. The shifts are made in one column each: a mean by half a standard deviation,
a spread by half, an offset of one, a few values more often, a new category in 3 % of the rows, nulls in 3 %, half of a category gone to another.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import Any

import duckdb  # noqa: TID253 - it runs in the image
import muster_drift

ROWS, REFERENCE_ROWS = 2000, 50_000
LIMITS = {"psi": 0.1, "ks": 0.1, "unseen": 0.01, "nulls": 0.01, "false_alarms": 0.001, "fewest_rows": 500}
TEXTS = [f"v{i:02}" for i in range(30)]
WEIGHTS = [1 / (1 + i) for i in range(30)]

Column = Callable[[random.Random], Any]
COLUMNS: dict[str, tuple[str, Column]] = {
    "normal": ("FLOAT", lambda r: r.gauss(0, 1)),
    "skewed": ("FLOAT", lambda r: r.expovariate(1)),
    "uniform": ("FLOAT", lambda r: r.random()),
    "heavy": ("FLOAT", lambda r: r.gauss(0, 1) / max(abs(r.gauss(0, 1)), 1e-3)),
    "hour": ("INTEGER", lambda r: r.randrange(24)),
    "weekday": ("INTEGER", lambda r: r.randrange(7)),
    "kind": ("VARCHAR", lambda r: r.choice("abc")),
    "name": ("VARCHAR", lambda r: r.choices(TEXTS, WEIGHTS)[0]),
}
SHIFTS: dict[str, tuple[str, Callable[[random.Random, Any], Any]]] = {
    "a mean by half a deviation": ("normal", lambda _, v: v + 0.5),
    "a spread by a half": ("normal", lambda _, v: v * 1.5),
    "a longer tail": ("skewed", lambda _, v: v * 1.6),
    "a part of the range": ("uniform", lambda _, v: v * 0.8),
    "an offset": ("heavy", lambda _, v: v + 1),
    "hours of the day": ("hour", lambda r, v: v if v < 12 or r.random() < 0.5 else v - 12),
    "weekends": ("weekday", lambda r, v: v if r.random() < 0.7 else 6),
    "a new category": ("kind", lambda r, v: v if r.random() < 0.97 else "new"),
    "a category that goes": ("kind", lambda r, v: "b" if v == "a" and r.random() < 0.5 else v),
    "nulls": ("name", lambda r, v: v if r.random() < 0.97 else None),
}


def fill(
    connection: duckdb.DuckDBPyConnection, table: str, rows: int, made: random.Random, shift: str = ""
) -> None:
    columns = {name: [draw(made) for _ in range(rows)] for name, (_, draw) in COLUMNS.items()}
    if shift:
        name, change = SHIFTS[shift]
        columns[name] = [change(made, value) for value in columns[name]]
    types = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    connection.execute(f"create or replace table {table} ({types})")
    lists = ", ".join("unnest(?)" for _ in columns)
    connection.execute(f"insert into {table} select {lists}", list(columns.values()))


def main() -> None:
    windows = int(sys.argv[1])
    made = random.Random(11)
    missed: list[str] = []
    false_alarms = 0
    with duckdb.connect() as connection:
        connection.execute("set threads = 1")
        fill(connection, "r", REFERENCE_ROWS, made)

        def drifted() -> list[str]:
            return [
                each.name for each in muster_drift.judge(connection, list(COLUMNS), LIMITS) if each.drifted
            ]

        for _ in range(windows):
            fill(connection, "w", ROWS, made)
            false_alarms += bool(drifted())
        shifts = [list(SHIFTS)[i % len(SHIFTS)] for i in range(windows)]
        for shift in shifts:
            fill(connection, "w", ROWS, made, shift)
            if SHIFTS[shift][0] not in drifted():
                missed.append(shift)
    for shift in missed:
        print(f"not found: {shift}")
    print(
        json.dumps(
            {
                "windows": windows,
                "false_alarms": false_alarms,
                "shifts": len(shifts),
                "found": len(shifts) - len(missed),
            }
        )
    )


if __name__ == "__main__":
    main()
