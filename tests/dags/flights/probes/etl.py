"""Runs in the image etl: what the features say of flights whose facts are known or tampered with."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from flights import etl

Tables = dict[str, pa.Table]

OUTCOME = ("late",)
DAYS_MINUTES = 48 * 60
"""After two days a flight that has not arrived is known to have been cancelled or diverted."""


def built(tables: Tables, since: str, month: str) -> list[dict[str, Any]]:
    """The features of made-up or tampered tables, in the order of their key."""
    with etl.database() as duckdb:
        raw = etl.Raw(**{name: duckdb.create_table(name, table) for name, table in tables.items()})
        rows = etl.build(raw, since, month, store=etl.stored)
        return rows.order_by(*etl.KEY).to_pyarrow().to_pylist()


def sample() -> Tables:
    """Ten stormy days of July, with their cancellations, and what was tampered with reaches back to."""
    tables = etl.read_raw()
    flights = tables["flights"]
    chosen = pc.and_(pc.equal(flights["month"], 7), pc.less_equal(flights["day"], 10))
    return {**tables, "flights": flights.filter(chosen)}


def clocks(flights: pa.Table) -> dict[str, np.ndarray]:
    """When each flight was due and when it left (never: the end of time), and when its outcome was known."""
    due = flights["time_hour"].cast(pa.timestamp("s")).cast(pa.int64()).to_numpy() // 60
    due = due + flights["minute"].to_numpy()
    left = np.nan_to_num(due + flights["dep_delay"].to_numpy(), nan=np.inf)
    landed = np.minimum(left + np.nan_to_num(flights["air_time"].to_numpy()), due + DAYS_MINUTES)
    return {"due": due, "left": left, "landed": landed}


def replaced(table: pa.Table, name: str, values: np.ndarray, where: np.ndarray) -> pa.Table:
    column = pc.if_else(
        pa.array(where),
        pa.array(values, mask=np.isnan(values)),
        table[name].combine_chunks().cast(pa.float64()),
    )
    return table.set_column(table.column_names.index(name), name, column.cast(table[name].type))


def tampered(tables: Tables, moment: int, *, after: bool) -> Tables:
    """Change all that became known after `moment` (or, the other way round, in the hours before it).

    Flights that had not left by then are cancelled, delayed more, or leave just after; who was not
    down yet comes early or very late; and the weather turns.
    """
    flights, weather = tables["flights"], tables["weather"]
    known, draw = clocks(flights), np.random.default_rng(moment)
    unknown = known["left"] > moment if after else (known["left"] <= moment) & (known["left"] > moment - 90)
    earliest = np.maximum(moment + 1 - known["due"], -40) if after else np.full(len(flights), 45)
    delay = (earliest + draw.integers(0, 400, len(flights))).astype(float)
    delay[draw.random(len(flights)) < 0.3] = np.nan
    if not after:
        delay = np.nan_to_num(delay, nan=44.0)
    flights = replaced(flights, "dep_delay", delay, unknown)
    outcome = known["landed"] > moment if after else np.zeros(len(flights), bool)
    flights = replaced(flights, "arr_delay", draw.integers(-60, 600, len(flights)).astype(float), outcome)
    stamped = weather["time_hour"].cast(pa.timestamp("s")).cast(pa.int64()).to_numpy() // 60
    turned = stamped + 60 > moment if after else (stamped + 60 <= moment) & (stamped + 60 > moment - 120)
    for name in ("dewp", "humid", "visib", "wind_speed"):
        weather = replaced(weather, name, draw.uniform(0, 10, len(weather)), turned)
    return {**tables, "flights": flights, "weather": weather}


def changed(before: list[dict[str, Any]], after: list[dict[str, Any]], *, until: int) -> list[str]:
    """Which features differ, of flights whose hour of notice began at `until` or sooner."""
    key = lambda row: tuple(row[name] for name in etl.KEY)  # noqa: E731
    then = {key(row): row for row in after}
    names: set[str] = set()
    for row in before:
        if row["scheduled_departure"] - 60 <= until and key(row) in then:
            names |= {name for name in row if name not in OUTCOME and row[name] != then[key(row)][name]}
    return sorted(names)


def future() -> dict[str, Any]:
    tables = sample()
    plain = built(tables, "2013-07", "2013-07")
    moments = [_minute(2013, 7, day, hour) for day, hour in ((3, 13), (7, 18), (8, 21), (10, 16))]
    honest = [
        changed(plain, built(tampered(tables, at, after=True), "2013-07", "2013-07"), until=at)
        for at in moments
    ]
    seen = sum(row["scheduled_departure"] - 60 <= moments[-1] for row in plain)
    past = tampered(tables, moments[1], after=False)
    before = changed(plain, built(past, "2013-07", "2013-07"), until=moments[1] + 60)
    etl.NOTICE_MINUTES = 0  # an ETL that looks up to the departure itself; nothing else comes after it
    leaky = built(tables, "2013-07", "2013-07")
    caught = changed(
        leaky, built(tampered(tables, moments[1], after=True), "2013-07", "2013-07"), until=moments[1]
    )
    return {"honest": honest, "seen": seen, "past": before, "leaky": caught}


def months() -> dict[str, Any]:
    found: dict[str, list[str]] = {}
    for since, month in (("2013-02", "2013-03"), ("2013-03", "2013-03"), ("2013-03", "2013-03")):
        with tempfile.TemporaryDirectory() as folder:
            metrics = etl.features(Path(folder), since=since, month=month)
            for file in sorted(Path(folder).rglob("*")):
                if file.is_file():
                    digest = hashlib.sha256(file.read_bytes()).hexdigest()
                    found.setdefault(str(file.relative_to(folder)), []).append(digest)
    return {"files": found, "metrics": metrics}


def rules() -> dict[str, Any]:
    flights = etl.read_raw()["flights"]
    aloft = [flights[name].to_numpy() for name in ("dep_delay", "air_time")]
    return {
        "flown": flights.num_rows - flights["arr_delay"].null_count,
        "longest": float(np.nanmax(aloft[0] + aloft[1])),
        "outcome_minutes": etl.OUTCOME_MINUTES,
    }


def by_hand() -> list[dict[str, Any]]:
    return built(_made_up(), "2013-11", "2013-11")


def refused() -> dict[str, str]:
    said = {}
    for since, month in (
        ("2013-1", "2013-12"),
        ("2013-13", "2013-12"),
        ("2013-05", "2013-04"),
        ("2014-01", "2014-01"),
        ("../x", "2013-01"),
    ):
        with tempfile.TemporaryDirectory() as folder:
            try:
                etl.features(Path(folder), since=since, month=month)
            except ValueError as error:
                said[f"{since} {month}"] = str(error)
    return said


def _made_up() -> Tables:
    """Five flights of one airport on the day the clocks went back; 13:00 local is 18:00 UTC."""
    rows = [
        # hour, minute, flight, tailnum, dest, dep_delay, arr_delay
        (10, 0, 1, "N1", "BOS", 120, 110),  # leaves at 12:00
        (11, 30, 2, "N2", "BOS", None, None),  # never leaves
        (11, 45, 3, "N3", "SJU", 200, None),  # leaves at 15:05 and is diverted
        (11, 50, 4, "N4", "BOS", 5, 15),  # leaves at 11:55
        (13, 0, 5, "N1", "BOS", 30, 16),  # asks at 12:00
    ]
    made = [
        {
            **dict(year=2013, month=11, day=3, hour=hour, minute=minute, carrier="AA", flight=flight),
            **dict(tailnum=tail, origin="LGA", dest=dest, dep_delay=dep, arr_delay=arr, distance=100),
            "time_hour": datetime(2013, 11, 3, hour + 5, tzinfo=timezone.utc),
        }
        for hour, minute, flight, tail, dest, dep, arr in rows
    ]
    reports = [
        {
            **dict(origin="LGA", temp=float(hour), dewp=0.0, humid=50.0, wind_speed=speed, wind_gust=None),
            **dict(precip=0.0, visib=10.0, time_hour=datetime(2013, 11, 3, hour + 5, tzinfo=timezone.utc)),
        }
        for hour, speed in ((3, 5.0), (9, 5.0), (10, 1048.0), (11, 7.0), (12, 9.0))
    ]
    numbers = pa.field("wind_gust", pa.float64())
    weather = pa.Table.from_pylist(reports)
    weather = weather.set_column(
        weather.schema.get_field_index("wind_gust"), numbers, weather["wind_gust"].cast(pa.float64())
    )
    planes = pa.Table.from_pylist([{"tailnum": "N1", "year": 2003, "seats": 150, "engine": "Turbo-fan"}])
    airports = pa.Table.from_pylist([{"faa": "BOS", "tzone": "America/New_York"}])
    return {"flights": pa.Table.from_pylist(made), "weather": weather, "planes": planes, "airports": airports}


def _minute(*when: int) -> int:
    return int(datetime(*when, tzinfo=timezone.utc).timestamp()) // 60  # type: ignore[misc]


if __name__ == "__main__":
    cases = {each.__name__: each for each in (by_hand, rules, refused, months, future)}
    print(json.dumps({name: cases[name]() for name in sys.argv[1:]}))
