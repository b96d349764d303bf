"""Runs in the image validate: suites that hold, fail, and make no sense, on made-up tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import duckdb
from muster_validate import catalogue, validate

ROWS = "SELECT range % 24 AS hour, range AS key, 'https://a.example/' || range AS page FROM range(1000)"
HOLDS = [
    {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "hour", "min_value": 0, "max_value": 23},
    },
    {"type": "expect_compound_columns_to_be_unique", "kwargs": {"column_list": ["hour", "key"]}},
    {"type": "expect_table_row_count_to_equal", "kwargs": {"value": 1000}},
]
FAILS = [
    {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "hour", "min_value": 1, "max_value": 23},
    },
    {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "page", "value_set": ["none"]}},
    {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "minute"}},
]

# Of a distribution: altair draws it, and scipy computes it.
DISTRIBUTIONS = [
    {
        "type": "expect_column_kl_divergence_to_be_less_than",
        "kwargs": {
            "column": "hour",
            "partition_object": {"values": list(range(24)), "weights": [1 / 24] * 24},
            "threshold": 0.1,
        },
    },
]

WARNS = [
    {**FAILS[0], "severity": "warning"},
    {**HOLDS[0], "severity": "critical"},
]
LATE = [
    {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "n", "min_value": 0}},
    {"type": "expect_column_values_to_not_be_in_set", "kwargs": {"column": "n", "value_set": ["x"]}},
    {"type": "expect_column_value_lengths_to_be_between", "kwargs": {"column": "m", "max_value": 9}},
]
HEADER = [
    {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "n", "min_value": 0}},
    {"type": "expect_table_row_count_to_equal", "kwargs": {"value": 0}},
]
CSV = [
    {"type": "expect_table_row_count_to_equal", "kwargs": {"value": 12}},
    {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "hour", "min_value": 0, "max_value": 11},
    },
    {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "hour"}},
]


def csv_beside_parquet(folder: Path) -> list[Path]:
    """Three files of four rows each: Parquet, CSV and compressed CSV, with columns in another order."""
    (folder / "written-by-spark.csv").mkdir(parents=True)
    connection = duckdb.connect()
    rows = "SELECT range AS hour, 'k' AS key FROM range({}, {})"
    connection.sql(rows.format(0, 4)).write_parquet(str(folder / "a.parquet"))
    connection.sql(f"SELECT key, hour FROM ({rows.format(4, 8)})").write_csv(
        str(folder / "written-by-spark.csv" / "it's.csv")
    )
    connection.sql(rows.format(8, 12)).write_csv(str(folder / "c.csv.gz"), compression="gzip")
    return [folder]


def header_only(folder: Path) -> list[Path]:
    folder.mkdir()
    (folder / "a.csv").write_text("n,m\n")
    return [folder]


def encoded(folder: Path, encoding: str) -> list[Any]:
    """What a file in an encoding holds, with the task's keywords and without."""
    folder.mkdir()
    (folder / "a.csv").write_text("name;amount\n'Zo\u00eb; x';1\n", encoding=encoding)
    expectations = [
        {
            "type": "expect_column_values_to_be_in_set",
            "kwargs": {"column": "name", "value_set": ["Zo\u00eb; x"]},
        }
    ]
    found = []
    for csv in ({"encoding": encoding, "delimiter": ";", "quote": "'"}, {}):
        result = folder / f"result-{len(csv)}"
        result.mkdir()
        validate([folder], result, suite={"expectations": expectations}, csv=csv)
        document = json.loads((result / "result.json").read_text())
        found.append(document.get("error") or document["success"])
    return found


def data(folder: Path) -> list[Path]:
    """Two versions of 500 rows each; one lies in a folder of a folder, the other's name needs quoting."""
    connection = duckdb.connect()
    versions = [folder / "it's one" / "deep", folder / "two"]
    for number, version in enumerate(versions):
        version.mkdir(parents=True)
        half = f"SELECT * FROM ({ROWS}) WHERE key % 2 = {number}"
        connection.sql(half).write_parquet(str(version / "part-0.parquet"))
    return [folder / "it's one", folder / "two"]


def run(folder: Path, expectations: Any, name: str, read: Any = data) -> dict[str, Any]:
    result = folder / name
    result.mkdir()
    metrics = validate(
        read(folder / f"{name}-data"), result, suite={"name": name, "expectations": expectations}
    )
    return {
        "metrics": metrics,
        "result": json.loads((result / "result.json").read_text()),
        "docs": (result / "docs" / "index.html").read_text(),
        "files": sorted(str(each.relative_to(result)) for each in result.rglob("*") if each.is_file()),
    }


def main(folder: Path) -> dict[str, Any]:
    answers: dict[str, Any] = {
        "holds": run(folder, HOLDS, "holds"),
        "fails": run(folder, HOLDS + FAILS, "fails"),
        "distributions": run(folder, DISTRIBUTIONS, "distributions")["result"],
    }
    nonsense = {
        "no list": {},
        "no type": [{"kwargs": {}}],
        "unknown": [HOLDS[0], {"type": "expect_miracles", "kwargs": {}}],
    }
    for name, expectations in nonsense.items():
        (folder / name).mkdir()
        answers[name] = refusal(data(folder / f"{name}-data"), folder / name, expectations)
    answers["no data"] = refusal([folder / "nowhere"], folder, HOLDS)
    answers["severity"] = run(folder, WARNS, "severity")
    answers["encodings"] = {
        name: encoded(folder / f"csv {name}", name) for name in ("utf-8", "cp1252", "utf-16")
    }
    late = folder / "late"
    late.mkdir()
    numbers = "".join(f"{number},1\n" for number in range(150_000))
    (late / "a.csv").write_text(f"n,m\n{numbers}x,{'9' * 100_000}\n")
    answers["late"] = run(folder, LATE, "late-text", read=lambda _: [late])["result"]
    answers["header"] = run(folder, HEADER, "header-only", read=header_only)["result"]
    broken = folder / "broken"
    broken.mkdir()
    (broken / "half.parquet").write_bytes(b"PAR1 and no more")
    answers["broken data"] = refusal([broken], folder, HOLDS)
    answers["csv"] = run(folder, CSV, "csv", read=csv_beside_parquet)["result"]
    answers["catalogue"] = catalogue()
    return answers


def refusal(versions: list[Path], result: Path, expectations: Any) -> str:
    """What is said where nothing could be validated."""
    assert validate(versions, result, suite={"expectations": expectations}) == {}
    document = json.loads((result / "result.json").read_text())
    assert not document["success"]
    return str(document["error"])


def suite(folder: Path, file: Path) -> dict[str, list[str]]:
    """What fails of the pipeline's own suite, on every month, and on a month that was spoilt."""
    expectations = json.loads(file.read_text())
    months = sorted((folder / "features").iterdir())
    spoilt = folder / "spoilt"
    spoilt.mkdir()
    connection = duckdb.connect()
    july = connection.read_parquet(str(months[6] / "*.parquet"))
    wrong = "hour + 1 AS hour, nullif(temp, 77.0) AS temp, 1 - late AS late"
    july.project(f"* REPLACE ({wrong})").union(july.limit(10)).write_parquet(str(spoilt / "a.parquet"))
    cases = {month.name: [month] for month in months} | {"spoilt": [spoilt]}
    return {name: _failed(folder / f"result-{name}", data, expectations) for name, data in cases.items()}


def _failed(result: Path, folders: list[Path], expectations: Any) -> list[str]:
    result.mkdir()
    validate(folders, result, suite=expectations)
    entries = json.loads((result / "result.json").read_text())["results"]
    configs = [each["expectation_config"] for each in entries if not each["success"]]
    return [f"{each['type']} {each['kwargs'].get('column', '')}".strip() for each in configs]


if __name__ == "__main__":
    where, *files = map(Path, sys.argv[1:])
    print(json.dumps(suite(where, files[0]) if files else main(where)))
