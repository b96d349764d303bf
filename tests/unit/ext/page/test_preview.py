"""The first rows of what people look into: bounded, and harmless to show."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.volumes.test_parquet import wide

from muster.core.errors import MusterError, SpecError
from muster.ext.page.routes_volumes import ANSWER, CELL, ROWS, markdown, preview
from muster.volumes.parquet import MOST_COLUMNS


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_csv_file_has_its_header_and_its_first_rows(tmp_path: Path) -> None:
    lines = "".join(f'{n},"a, ""b"""\n' for n in range(50))
    found = preview(written(tmp_path, "x.csv", "n,words\n" + lines))
    assert [each["name"] for each in found["columns"]] == ["n", "words"]
    assert found["rows"][:2] == [["0", 'a, "b"'], ["1", 'a, "b"']]
    assert len(found["rows"]) == ROWS


def test_a_cell_is_short_and_steers_nothing(tmp_path: Path) -> None:
    found = preview(written(tmp_path, "x.tsv", f"a\tb\n{'x' * 5000}\t\x1b[31mred\n"))
    ((long, red),) = found["rows"]
    assert (len(long), red) == (CELL, "red")


def test_json_lines_have_every_name_that_comes_up(tmp_path: Path) -> None:
    found = preview(written(tmp_path, "x.jsonl", '{"a": 1}\n{"b": [2]}\n3\n'))
    assert [each["name"] for each in found["columns"]] == ["a", "b", "value"]
    assert found["rows"] == [["1", "", ""], ["", "[2]", ""], ["", "", "3"]]


def test_an_empty_file_has_no_columns(tmp_path: Path) -> None:
    assert preview(written(tmp_path, "x.csv", ""))["columns"] == []


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [("x.bin", "", SpecError), ("x.jsonl", "{", MusterError), ("x.parquet", "", MusterError)],
)
def test_what_cannot_be_shown_says_why(tmp_path: Path, name: str, text: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=name):
        preview(written(tmp_path, name, text))


def test_a_parquet_file_has_its_first_rows_and_a_nested_column_is_one(tmp_path: Path) -> None:
    import duckdb

    path = tmp_path / "part[0]*.parquet"
    asked = "SELECT range AS n, {'a': range, 'b': 'x'} AS pair FROM range(50)"
    duckdb.sql(f"COPY ({asked}) TO '{tmp_path}/x.parquet'")
    (tmp_path / "x.parquet").rename(path)
    found = preview(path)
    assert ([each["name"] for each in found["columns"]], found["total"]) == (["n", "pair"], 50)
    assert (len(found["rows"]), found["rows"][1][0], found["note"]) == (ROWS, "1", "")


def test_markdown_is_a_document_in_which_html_is_text(tmp_path: Path) -> None:
    text = "# Model <script>x</script>\n\n[a](javascript:x) [b](https://e.org)\n\n|a|b|\n|-|-|\n|1|2|\n"
    shown = markdown(written(tmp_path, "<b>.md", text))
    assert "<h1>Model &lt;script&gt;" in shown
    assert "<td>1</td>" in shown
    assert "&lt;b&gt;.md" in shown
    assert "<script" not in shown
    assert 'href="javascript' not in shown


def repeated(folder: Path) -> Path:
    """A string of 50 MB, once in the file and in every row."""
    import duckdb

    path = folder / "x.parquet"
    duckdb.sql(f"COPY (SELECT repeat('x', 50000000) AS a FROM range(20)) TO '{path}'")
    assert path.stat().st_size < 20_000_000
    return path


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda folder: wide(folder, group="A" * 20_000, columns=20_000), id="parquet-columns"),
        pytest.param(repeated, id="parquet-value"),
        pytest.param(lambda folder: written(folder, "x.csv", ("," * 999_999 + "\n") * 21), id="csv"),
        pytest.param(
            lambda folder: written(
                folder, "x.jsonl", ("{" + ",".join(f'"{n}":0' for n in range(80_000)) + "}\n") * 20
            ),
            id="json-keys",
        ),
        pytest.param(
            lambda folder: written(folder, "x.jsonl", ("[" + "[]," * 340_000 + "0]\n") * 20), id="json-lists"
        ),
    ],
)
def test_a_file_that_is_made_to_take_memory_takes_little_and_its_answer_is_short(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path)
    tracemalloc.start()
    try:
        found = preview(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 80 << 20
    assert len(found["columns"]) <= MOST_COLUMNS
    assert len(json.dumps(found)) < 2 * ANSWER
    if len(found["columns"]) == MOST_COLUMNS:
        assert "of which the first 2,000 are shown" in found["note"]


def test_what_is_read_before_a_row_that_cannot_be_is_shown_with_the_reason(tmp_path: Path) -> None:
    cell = preview(written(tmp_path, "x.csv", f"a,b\n1,2\n{'x' * 200_000},3\n"))
    assert (cell["rows"], cell["note"][:40]) == ([["1", "2"]], "row 3 cannot be read: field larger than ")
    deep = preview(written(tmp_path, "x.jsonl", '{"a": 1}\n' + "[" * 500_000))
    assert (deep["rows"], deep["note"][:22]) == ([["1"]], "row 2 cannot be read: ")
    with pytest.raises(MusterError, match=r"x\.jsonl is shown as lines of JSON, and row 1 cannot be read: "):
        preview(written(tmp_path, "x.jsonl", "[" * 500_000))


def test_a_row_that_is_longer_than_the_header_is_shown_whole(tmp_path: Path) -> None:
    assert preview(written(tmp_path, "x.csv", "title\n1,2\n"))["rows"] == [["1", "2"]]
