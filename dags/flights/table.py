"""The model's inputs: its columns, the codes of their text, and the vocabularies from the training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

UNKNOWN = "UNKNOWN"
"""Category 0 of every text column: what the training rows never showed."""

TEXT = ("carrier", "origin", "dest", "dest_timezone", "engine")
CYCLES = {"weekday": 7, "hour": 24}
"""Whole numbers that are categories all the same, and how many there are."""

SCOPES = ("airport", "airline", "destination", "plane")
RECENT = tuple(f"{scope}_{what}" for scope in SCOPES for what in ("departures", "delay", "overdue", "wait"))
SKEWED = (*RECENT, "precip", "number_flown", "route_flown", "distance")
"""Read on a logarithmic scale: their tails are long."""

PLAIN = (
    *("minute", "planned_traffic", "number_late", "route_late"),
    *("dewp", "humid", "wind_speed", "wind_gust", "visib", "seats", "plane_age"),
)
NUMBERS = (*SKEWED, *PLAIN)
TARGET = "late"
READ = (*TEXT, *CYCLES, *NUMBERS, TARGET, "scheduled_departure")

NOT_NEGATIVE = (
    *(name for name in SKEWED if not name.endswith("_delay")),
    *("planned_traffic", "wind_speed", "wind_gust", "visib", "seats"),
)
BOUNDS: dict[str, tuple[float, float | None]] = {
    **dict.fromkeys(NOT_NEGATIVE, (0, None)),
    "plane_age": (-1, None),
    "weekday": (0, 6),
    "hour": (0, 23),
    "minute": (0, 59),
    "number_late": (0, 1),
    "route_late": (0, 1),
    "humid": (0, 100),
}
"""What a request may hold at all: the least and the greatest value, None where there is no greatest."""


@dataclass(frozen=True)
class Rows:
    """Flights as arrays: `codes` (rows, categories) int64, `numbers` (rows, numbers) and `late` float32, `day` int64."""

    codes: np.ndarray
    numbers: np.ndarray
    late: np.ndarray
    day: np.ndarray

    def __len__(self) -> int:
        return len(self.late)

    def take(self, chosen: np.ndarray) -> Rows:
        """Return the rows that a mask or a list of positions chooses."""
        return Rows(self.codes[chosen], self.numbers[chosen], self.late[chosen], self.day[chosen])


def read(folders: Sequence[Path]) -> pa.Table:
    """Read every Parquet file of the folders, in their order, with the columns that the model needs.

    :raises ValueError: there is no folder or no row, or a column or a value is missing.
    """
    files = [file for folder in folders for file in sorted(folder.rglob("*.parquet"))]
    if not files:
        raise ValueError(f"no Parquet file in {', '.join(map(str, folders)) or 'an empty list of versions'}")
    table = pa.concat_tables(_read_file(file) for file in files)
    for name in table.column_names:
        if table[name].null_count:
            raise ValueError(
                f"column {name!r} has {table[name].null_count} missing values; the model takes none"
            )
    return table


def _read_file(path: Path) -> pa.Table:
    with pq.ParquetFile(path) as file:
        missing = [name for name in READ if name not in file.schema_arrow.names]
        if missing:
            raise ValueError(f"column {missing[0]!r} is missing in {path}: was it written by another etl.py?")
        return file.read(columns=list(READ))


def vocabularies(table: pa.Table) -> dict[str, list[str]]:
    """Return the categories of each text column in the rows, after :data:`UNKNOWN`."""
    return {name: [UNKNOWN, *sorted(set(table[name].unique().to_pylist()) - {UNKNOWN})] for name in TEXT}


def columns(table: pa.Table, categories: dict[str, list[str]]) -> dict[str, np.ndarray]:
    """Return the model's inputs by name, one array a column; text outside the vocabulary becomes 0."""
    text = {name: _index(table[name], categories[name]) for name in TEXT}
    cycles = {name: table[name].to_numpy().astype(np.int64) for name in CYCLES}
    return {**text, **cycles, **{name: table[name].to_numpy().astype(np.float32) for name in NUMBERS}}


def encode(table: pa.Table, categories: dict[str, list[str]]) -> Rows:
    """Turn a table into the arrays for training."""
    named = columns(table, categories)
    return Rows(
        codes=np.stack([named[name] for name in (*TEXT, *CYCLES)], axis=1),
        numbers=scaled(np.stack([named[name] for name in NUMBERS], axis=1)),
        late=table[TARGET].to_numpy().astype(np.float32),
        day=table["scheduled_departure"].to_numpy() // (24 * 60),
    )


def scaled(numbers: np.ndarray) -> np.ndarray:
    """Put the skewed columns, which come first, on a logarithmic scale that keeps the sign."""
    skewed = numbers[:, : len(SKEWED)]
    return np.concatenate([np.sign(skewed) * np.log1p(np.abs(skewed)), numbers[:, len(SKEWED) :]], axis=1)


def _index(column: pa.ChunkedArray, categories: list[str]) -> np.ndarray:
    found = pc.index_in(column, value_set=pa.array(categories, type=column.type))
    return pc.fill_null(found, 0).to_numpy().astype(np.int64)


def sizes(categories: dict[str, list[str]]) -> list[int]:
    """Return how many codes each category column has."""
    return [*(len(categories[name]) for name in TEXT), *CYCLES.values()]
