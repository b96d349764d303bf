"""The first rows of what people look into: bounded, and harmless to show."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.airflow.plugin.preview import CELL, ROWS, markdown, preview
from muster.core.errors import MusterError, SpecError


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
