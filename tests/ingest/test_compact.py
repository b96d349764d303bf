"""Small files become large ones, with the same rows in the same order, and the listing that the next ingest needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.core.data import CARRIED

pytestmark = [pytest.mark.slow, pytest.mark.data]

ROOT = Path(__file__).parents[2]
LISTING = ".muster-ingest.jsonl"
STREAM = {
    "format": 1,
    "source": {"url": "kafka://broker/clicks"},
    "stream": {"topic": "clicks", "offsets": {"0": 4, "1": 4}, "rows": 8},
}
QUERY = {"format": 1, "source": {"url": "sql://shop", "watermark": "id", "query": "sha256:0"}, "high": 9}

Drive = Callable[..., Any]


@pytest.fixture
def drive(python: Path, tmp_path: Path) -> Drive:
    """Run one call of ``drive_compact.py`` in the image."""

    def run(what: str, folder: str, *words: Any) -> Any:
        given = [word if isinstance(word, str) else json.dumps(word) for word in words]
        ended = subprocess.run(
            [python, ROOT / "tests" / "ingest" / "drive_compact.py", what, str(tmp_path / folder), *given],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "images" / "ingest")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        counts = re.findall(r"^muster: files=(\d+)/(\d+)$", ended.stdout, re.MULTILINE)
        assert not counts or counts[-1][0] == counts[-1][1], "the last count is the whole"
        return json.loads(ended.stdout.splitlines()[-1])

    return run


def messages(*offsets: tuple[int, int], **more: Any) -> list[dict[str, Any]]:
    """Rows of a stream, by partition and offset."""
    return [{"n": n, "_partition": partition, "_offset": n, **more} for partition, n in offsets]


def seen(row: dict[str, Any]) -> dict[str, Any]:
    """The nested column as it is with all fields."""
    return {"seen": [{"y": None} | each for each in row["seen"]]} if "seen" in row else {}


NOTE = """
import json, sys
import pyarrow.parquet as pq
for path, said in json.loads(sys.argv[1]).items():
    pq.write_table(pq.read_table(path).replace_schema_metadata(said), path)
"""
NOTES = """
import json, sys
import pyarrow.parquet as pq
said = pq.read_schema(sys.argv[1]).metadata or {}
print(json.dumps({key.decode(): value.decode() for key, value in said.items()}))
"""


def noted(python: Path, folder: Path, notes: dict[str, dict[str, str]]) -> None:
    """Give files the metadata of a schema."""
    given = json.dumps({str(folder / path): said for path, said in notes.items()})
    subprocess.run([python, "-c", NOTE, given], check=True, timeout=300)


def notes_of(python: Path, file: Path) -> Any:
    """Return the metadata of a file's schema."""
    ended = subprocess.run([python, "-c", NOTES, file], check=True, timeout=300, capture_output=True)
    return json.loads(ended.stdout)


def committed(before: Path, target: Path, carried: list[str]) -> None:
    """Do what the commit does with what is taken over."""
    for path in carried:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(before / path, target / path)
    (target / CARRIED).unlink()


def test_a_stream_keeps_its_order_offsets_and_columns(drive: Drive, tmp_path: Path) -> None:
    files = {
        "part-00000.parquet": messages((0, 0), (1, 0), (0, 1), seen=[{"x": 1}], size=1),
        "part-00001.parquet": messages((1, 1), (0, 2), seen=[{"x": 2, "y": "a"}], size=1.5),
        "part-00003.parquet": messages((1, 2), (0, 3), (1, 3), place="JFK"),
        "_unreadable/part-00000.parquet": [{"_partition": 0, "_offset": 9}],
    }
    drive(
        "make", "before", {"files": files, "first": STREAM, "types": {"part-00000.parquet": {"n": "int32"}}}
    )
    told = drive("compact", "before", str(tmp_path / "after"), "1024")
    assert (told["files_before"], told["files"], told["rows"]) == (3, 1, 8)
    assert told["carried"] == ["_unreadable/part-00000.parquet"]
    committed(tmp_path / "before", tmp_path / "after", told["carried"])
    found = drive("rows", "after")
    assert list(found) == ["part-00000.parquet", "_unreadable/part-00000.parquet"]
    rows = [row for path in list(files)[:3] for row in files[path]]
    assert found["part-00000.parquet"] == [
        {"seen": None, "size": None, "place": None} | row | seen(row) for row in rows
    ]
    first = (tmp_path / "after" / LISTING).read_text().splitlines()[0]
    assert json.loads(first) == STREAM
    assert drive("compact", "after", str(tmp_path / "again"), "1024")["here"] == [], "nothing is left to join"


def test_large_files_stay_and_neighbours_are_joined(drive: Drive, tmp_path: Path) -> None:
    small = [{"id": n} for n in range(5)]
    large = [{"id": n, "text": os.urandom(400).hex()} for n in range(30)]
    files = {f"part-{n:05}.parquet": large if n == 2 else small for n in range(5)}
    drive("make", "before", {"files": files, "first": QUERY})
    told = drive("compact", "before", str(tmp_path / "after"), "16")
    assert told["carried"] == ["part-00002.parquet"]
    assert told["here"] == [CARRIED, LISTING, "part-00000.parquet", "part-00003.parquet"]
    committed(tmp_path / "before", tmp_path / "after", told["carried"])
    assert [row["id"] for rows in drive("rows", "after").values() for row in rows] == [
        row["id"] for rows in files.values() for row in rows
    ]


def test_files_of_a_job_are_joined_folder_by_folder(drive: Drive, tmp_path: Path) -> None:
    files = {f"day={day}/{name}.parquet": [{"x": name + day}] for day in "12" for name in "ab"}
    drive("make", "before", {"files": files})
    (tmp_path / "before" / "README").write_text("of ours")
    told = drive("compact", "before", str(tmp_path / "after"), "64")
    assert told["carried"] == ["README"]
    assert told["here"] == [CARRIED, "day=1/a.parquet", "day=2/a.parquet"]


def test_only_what_is_joined_needs_common_columns(drive: Drive, tmp_path: Path) -> None:
    large = [{"x": 1, "text": os.urandom(400).hex()} for _ in range(30)]
    files = {
        **{f"train/{name}.parquet": [{"x": 1}] for name in "ab"},
        **{f"labels/{name}.parquet": [{"x": {"y": 1}, "label": "cat"}] for name in "ab"},
        "rest/a.parquet": [{"x": 1}],
        "rest/b.parquet": [{"z": 1}],
        "rest/c.parquet": large,
        "rest/d.parquet": [{"x": {"y": 1}}],
        "rest/e.parquet": [{"x": {"y": 2}}],
    }
    drive("make", "before", {"files": files})
    told = drive("compact", "before", str(tmp_path / "after"), "16")
    assert (told.get("message"), told["carried"]) == (None, ["rest/c.parquet"])
    assert drive("rows", "after") == {
        "labels/a.parquet": [{"x": {"y": 1}, "label": "cat"}] * 2,
        "rest/a.parquet": [{"x": 1, "z": None}, {"x": None, "z": 1}],
        "rest/d.parquet": [{"x": {"y": 1}}, {"x": {"y": 2}}],
        "train/a.parquet": [{"x": 1}] * 2,
    }


def test_what_all_files_note_stays_and_other_geometries_stay_apart(
    drive: Drive, python: Path, tmp_path: Path
) -> None:
    pandas, here, there = (
        json.dumps(each) for each in ({"index_columns": ["time"]}, {"bbox": [0, 1]}, {"bbox": [1, 2]})
    )
    files = {f"{folder}/{name}.parquet": [{"time": 1}] for folder in ("geo", "pandas") for name in "abcd"}
    drive("make", "before", {"files": files})
    noted(
        python,
        tmp_path / "before",
        {f"pandas/{name}.parquet": {"pandas": pandas, "job": name} for name in "abcd"}
        | {f"geo/{name}.parquet": {"geo": here if name in "ab" else there} for name in "abc"},
    )
    told = drive("compact", "before", str(tmp_path / "after"), "64")
    assert (told["files_before"], told["files"]) == (8, 4)
    assert told["carried"] == ["geo/c.parquet", "geo/d.parquet"]
    assert notes_of(python, tmp_path / "after" / "pandas" / "a.parquet") == {"pandas": pandas}
    assert notes_of(python, tmp_path / "after" / "geo" / "a.parquet") == {"geo": here}


def test_a_jobs_table_that_keeps_the_columns_of_a_stream_is_a_table(drive: Drive, tmp_path: Path) -> None:
    files = {"a.parquet": messages((0, 5), (0, 5)), "b.parquet": messages((0, 1))}
    drive("make", "own", {"files": files})
    told = drive("compact", "own", str(tmp_path / "joined"), "64")
    assert (told.get("message"), told["files"], told["rows"]) == (None, 1, 3)
    drive("make", "query", {"files": files, "first": QUERY})
    assert drive("compact", "query", str(tmp_path / "queried"), "64")["rows"] == 3


def test_what_cannot_be_joined_is_named(drive: Drive, tmp_path: Path) -> None:
    drive("make", "types", {"files": {"a.parquet": [{"x": 1}], "b.parquet": [{"x": {"y": 1}}]}})
    assert (
        "'b.parquet' cannot become one file with those before it"
        in drive("compact", "types", str(tmp_path / "1"), "64")["message"]
    )
    twice = {"a.parquet": messages((0, 0), (0, 1)), "b.parquet": messages((0, 1), (0, 2))}
    drive("make", "twice", {"files": twice, "first": STREAM})
    assert "a message is there twice" in drive("compact", "twice", str(tmp_path / "2"), "64")["message"]
    drive("make", "objects", {"files": twice, "first": {"format": 1, "source": {"url": "s3://lake/x"}}})
    assert "s3://lake/x stay as they are" in drive("compact", "objects", str(tmp_path / "3"), "64")["message"]
    drive("make", "torn", {"files": twice})
    (tmp_path / "torn" / "b.parquet").write_bytes(b"PAR1 torn")
    assert "'b.parquet' is no Parquet file" in drive("compact", "torn", str(tmp_path / "4"), "64")["message"]


def test_memory_is_bounded(drive: Drive, tmp_path: Path) -> None:
    drive("many", "before", "40", "6000")
    told = drive("compact", "before", str(tmp_path / "after"), str(1 << 20))
    assert (told["files"], told["rows"]) == (1, 240_000)
    assert told["memory_mib"] < 230, (
        "240 MB of text would not fit; three times as many files took 27 MiB more"
    )


def test_memory_grows_with_the_number_of_files_and_not_with_its_square(drive: Drive, tmp_path: Path) -> None:
    drive("many", "before", "3000", "1")
    told = drive("compact", "before", str(tmp_path / "after"), str(1 << 20))
    assert (told["files_before"], told["files"], told["rows"]) == (3_000, 1, 3_000)
    assert told["memory_mib"] < 70, "it took 36 MiB; a tuple of all files for each of them took 70 MiB more"


def test_a_query_goes_on_above_its_watermark(ingest: Any, drive: Drive, tmp_path: Path) -> None:
    database = tmp_path / "shop.db"

    def insert(*numbers: int) -> None:
        with sqlite3.connect(database) as opened:
            opened.execute("create table if not exists orders (id integer, name text)")
            opened.executemany("insert into orders values (?, 'a')", [(number,) for number in numbers])
        opened.close()

    def read(target: str, before: str = "") -> Any:
        what = {"query": "select * from orders", "connection": "shop", "kind": "sqlite", "watermark": "id"}
        told = ingest(target, "sql://shop", before=before, fields={"host": str(database)}, **what)
        carried = tmp_path / target / CARRIED
        if carried.exists():
            committed(tmp_path / before, tmp_path / target, carried.read_text().split("\n")[:-1])
        return told

    before = ""
    for number in range(3):
        insert(2 * number, 2 * number + 1)
        read(f"v{number}", before)
        before = f"v{number}"
    told = drive("compact", "v2", str(tmp_path / "joined"), "64")
    assert (told["files_before"], told["files"]) == (3, 1)
    committed(tmp_path / "v2", tmp_path / "joined", told["carried"])
    assert read("same", "joined")["fetched"] == 0
    assert list((tmp_path / "same").iterdir()) == []
    insert(6, 7)
    assert read("next", "joined")["rows"] == 2
    found = drive("rows", "next")
    assert [row["id"] for rows in found.values() for row in rows] == list(range(8))
    assert len(found) == 2
