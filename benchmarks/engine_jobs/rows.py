"""Writes flights in any number, made from the real rows: ``python rows.py FOLDER ROWS``, in the image `etl`.

Each copy of the year is another New York: the three airports and all planes get the copy's number behind their names, with the
same weather and the same planes' data. So what the features look at (an airport's traffic, a plane's last departures) is as
dense in each copy as it is in the real year, all keys are as unique, and the work grows with the rows. Carriers, destinations
and times stay what they are. The last copy has the year's first flights, as many as are still wanted.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from flights.etl import read_raw

OWN = {"flights": ("origin", "tailnum"), "weather": ("origin",), "planes": ("tailnum",), "airports": ()}
"""The columns of each table that a copy has to itself."""


def main(folder: Path, rows: int) -> None:
    """Write ``FOLDER/TABLE/part-NNNN.parquet``, a file of each table for each copy; one file of the airports."""
    raw = read_raw()
    whole = raw["flights"].num_rows
    copies = -(-rows // whole)
    for copy in range(copies):
        for name, table in raw.items():
            if copy and not OWN[name]:
                continue
            part = table.slice(0, rows - copy * whole) if name == "flights" else table
            path = folder / name / f"part-{copy:04}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(another(part, OWN[name], copy), path, compression="zstd")
        print(f"muster: copy={copy + 1}/{copies}", flush=True)


def another(table: pa.Table, columns: tuple[str, ...], copy: int) -> pa.Table:
    """Return the table with the copy's number behind what these columns hold; the first copy is the real one."""
    for name in columns if copy else ():
        named = pc.binary_join_element_wise(table[name].cast(pa.string()), f"{copy:04}", "")
        table = table.set_column(table.column_names.index(name), name, named)
    return table


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
