"""Runs in the image validate: every expectation that Great Expectations has, on data that are good, bad, and impossible for it."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import duckdb
from muster_validate import catalogue, validate

ROWS = """
select range::bigint as n, range * 1.5 as f, 'k' || range as t, date '2026-01-01' + range::int as d,
    (range * 1.25)::decimal(12, 3) as m, range % 2 = 0 as b, case when range % 10 = 0 then null else range end as z,
    strftime(date '2026-01-01' + range::int, '%d/%m/%Y') as day, '{"a": ' || range || '}' as js,
    timestamp '2026-01-01' + interval (range) hour as "at", range // 50 as g, case when range = 50 then 'x' else 'k' || range end as odd
from range(100)
"""
HALVES = {"bins": [0, 50, 100], "weights": [0.5, 0.5]}
GONE = {"column": "gone"}
LISTS = {"column_list": ["n", "gone"]}
PAIR = {"column_A": "n", "column_B": "gone"}

Kwargs = dict[str, Any]
CASES: dict[str, tuple[Kwargs, Kwargs, Kwargs | None]] = {
    "expect_column_distinct_values_to_be_in_set": (
        {"column": "b", "value_set": [True, False]},
        {"column": "n", "value_set": [1]},
        {**GONE, "value_set": [1]},
    ),
    "expect_column_distinct_values_to_contain_set": (
        {"column": "n", "value_set": [1, 2]},
        {"column": "n", "value_set": [-1]},
        {**GONE, "value_set": [1]},
    ),
    "expect_column_distinct_values_to_equal_set": (
        {"column": "b", "value_set": [True, False]},
        {"column": "n", "value_set": [1]},
        {**GONE, "value_set": [1]},
    ),
    "expect_column_kl_divergence_to_be_less_than": (
        {"column": "n", "partition_object": HALVES, "threshold": 0.1},
        {"column": "n", "partition_object": {**HALVES, "weights": [0.99, 0.01]}, "threshold": 0.1},
        {**GONE, "partition_object": HALVES, "threshold": 0.1},
    ),
    "expect_column_max_to_be_between": (
        {"column": "n", "max_value": 99},
        {"column": "m", "max_value": 9},
        {"column": "t", "max_value": 9},
    ),
    "expect_column_mean_to_be_between": (
        {"column": "m", "min_value": 61, "max_value": 62},
        {"column": "n", "max_value": 1},
        {"column": "t", "max_value": 1},
    ),
    "expect_column_median_to_be_between": (
        {"column": "m", "min_value": 61, "max_value": 62},
        {"column": "n", "max_value": 1},
        {**GONE, "max_value": 1},
    ),
    "expect_column_min_to_be_between": (
        {"column": "n", "min_value": 0},
        {"column": "m", "min_value": 1},
        {**GONE, "min_value": 1},
    ),
    "expect_column_most_common_value_to_be_in_set": (
        {"column": "b", "value_set": [True], "ties_okay": True},
        {"column": "b", "value_set": [None]},
        {**GONE, "value_set": [True]},
    ),
    "expect_column_pair_values_a_to_be_greater_than_b": (
        {"column_A": "f", "column_B": "n", "or_equal": True},
        {"column_A": "n", "column_B": "f"},
        PAIR,
    ),
    "expect_column_pair_values_to_be_equal": (
        {"column_A": "n", "column_B": "n"},
        {"column_A": "n", "column_B": "z"},
        PAIR,
    ),
    "expect_column_pair_values_to_be_in_set": (
        {"column_A": "b", "column_B": "b", "value_pairs_set": [[True, True], [False, False]]},
        {"column_A": "b", "column_B": "b", "value_pairs_set": [[True, True]]},
        {**PAIR, "value_pairs_set": [[1, 1]]},
    ),
    "expect_column_proportion_of_non_null_values_to_be_between": (
        {"column": "z", "min_value": 0.9},
        {"column": "z", "min_value": 0.95},
        {**GONE, "min_value": 0.9},
    ),
    "expect_column_proportion_of_unique_values_to_be_between": (
        {"column": "n", "min_value": 1},
        {"column": "b", "min_value": 0.9},
        {**GONE, "min_value": 1},
    ),
    "expect_column_quantile_values_to_be_between": (
        {"column": "m", "quantile_ranges": {"quantiles": [0.25, 0.5], "value_ranges": [[29, 32], [60, 63]]}},
        {"column": "n", "quantile_ranges": {"quantiles": [0.25, 0.5], "value_ranges": [[0, 1], [40, None]]}},
        {**GONE, "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[0, 1]]}},
    ),
    "expect_column_stdev_to_be_between": (
        {"column": "n", "min_value": 29, "max_value": 30},
        {"column": "f", "max_value": 1},
        {"column": "t", "max_value": 1},
    ),
    "expect_column_sum_to_be_between": (
        {"column": "n", "min_value": 4950, "max_value": 4950},
        {"column": "m", "max_value": 1},
        {"column": "t", "max_value": 1},
    ),
    "expect_column_to_exist": ({"column": "n"}, GONE, None),
    "expect_column_type_to_be": (
        {"column": "m", "type_": "DECIMAL(12,3)"},
        {"column": "n", "type_": "VARCHAR"},
        {**GONE, "type_": "BIGINT"},
    ),
    "expect_column_unique_value_count_to_be_between": (
        {"column": "b", "max_value": 2},
        {"column": "n", "max_value": 2},
        {**GONE, "max_value": 2},
    ),
    "expect_column_value_lengths_to_be_between": (
        {"column": "t", "min_value": 2, "max_value": 3},
        {"column": "t", "max_value": 2},
        {"column": "n", "max_value": 2},
    ),
    "expect_column_value_lengths_to_equal": (
        {"column": "day", "value": 10},
        {"column": "t", "value": 2},
        {"column": "d", "value": 10},
    ),
    "expect_column_value_z_scores_to_be_less_than": (
        {"column": "n", "threshold": 2, "double_sided": True},
        {"column": "n", "threshold": 1, "double_sided": True},
        {"column": "t", "threshold": 1, "double_sided": True},
    ),
    "expect_column_values_to_be_between": (
        {"column": "at", "min_value": "2026-01-01", "max_value": "2026-02-01"},
        {"column": "m", "min_value": 1},
        {"column": "t", "min_value": "a", "max_value": "z"},
    ),
    "expect_column_values_to_be_dateutil_parseable": ({"column": "day"}, {"column": "odd"}, {"column": "d"}),
    "expect_column_values_to_be_decreasing": (
        {"column": "f", "mostly": 0.01},
        {"column": "z", "strictly": True},
        GONE,
    ),
    "expect_column_values_to_be_in_set": (
        {"column": "n", "value_set": list(range(100))},
        {"column": "t", "value_set": ["k1"]},
        {"column": "n", "value_set": ["a", "b"]},
    ),
    "expect_column_values_to_be_in_type_list": (
        {"column": "d", "type_list": ["DATE", "TIMESTAMP"]},
        {"column": "n", "type_list": ["VARCHAR"]},
        {**GONE, "type_list": ["VARCHAR"]},
    ),
    "expect_column_values_to_be_increasing": ({"column": "z", "strictly": True}, {"column": "b"}, GONE),
    "expect_column_values_to_be_json_parseable": ({"column": "js"}, {"column": "t"}, {"column": "n"}),
    "expect_column_values_to_be_null": ({"column": "z", "mostly": 0.05}, {"column": "n"}, GONE),
    "expect_column_values_to_be_of_type": (
        {"column": "t", "type_": "varchar"},
        {"column": "t", "type_": "DATE"},
        {**GONE, "type_": "DATE"},
    ),
    "expect_column_values_to_be_unique": ({"column": "n"}, {"column": "b"}, GONE),
    "expect_column_values_to_match_json_schema": (
        {"column": "js", "json_schema": {"type": "object", "required": ["a"]}},
        {"column": "js", "json_schema": {"type": "array"}},
        {"column": "js", "json_schema": {"type": "no such type"}},
    ),
    "expect_column_values_to_match_like_pattern": (
        {"column": "t", "like_pattern": "k%"},
        {"column": "odd", "like_pattern": "k%"},
        {"column": "n", "like_pattern": "k%"},
    ),
    "expect_column_values_to_match_like_pattern_list": (
        {"column": "odd", "like_pattern_list": ["k%", "x"]},
        {"column": "odd", "like_pattern_list": ["k%", "%5"], "match_on": "all"},
        {"column": "n", "like_pattern_list": ["k%"]},
    ),
    "expect_column_values_to_match_regex": (
        {"column": "t", "regex": r"^k(?!x)\d+$"},
        {"column": "odd", "regex": r"^k\d+$"},
        {"column": "t", "regex": "("},
    ),
    "expect_column_values_to_match_regex_list": (
        {"column": "odd", "regex_list": [r"\d", "x"]},
        {"column": "odd", "regex_list": [r"\d"]},
        {"column": "n", "regex_list": ["k"]},
    ),
    "expect_column_values_to_match_strftime_format": (
        {"column": "day", "strftime_format": "%d/%m/%Y"},
        {"column": "day", "strftime_format": "%m/%d/%Y"},
        {"column": "day", "strftime_format": "%Q"},
    ),
    "expect_column_values_to_not_be_in_set": (
        {"column": "n", "value_set": [-1]},
        {"column": "n", "value_set": [1]},
        {"column": "d", "value_set": ["no date"]},
    ),
    "expect_column_values_to_not_be_null": ({"column": "n"}, {"column": "z"}, GONE),
    "expect_column_values_to_not_be_outliers": (
        {"column": "n"},
        {"column": "n", "method": "std", "multiplier": 1},
        {"column": "t"},
    ),
    "expect_column_values_to_not_match_like_pattern": (
        {"column": "t", "like_pattern": "x%"},
        {"column": "odd", "like_pattern": "x%"},
        {"column": "n", "like_pattern": "x%"},
    ),
    "expect_column_values_to_not_match_like_pattern_list": (
        {"column": "t", "like_pattern_list": ["x%"]},
        {"column": "odd", "like_pattern_list": ["x%"]},
        {"column": "n", "like_pattern_list": ["x%"]},
    ),
    "expect_column_values_to_not_match_regex": (
        {"column": "t", "regex": "x"},
        {"column": "odd", "regex": "(?=x)x"},
        {"column": "n", "regex": "x"},
    ),
    "expect_column_values_to_not_match_regex_list": (
        {"column": "t", "regex_list": ["x"]},
        {"column": "odd", "regex_list": ["x"]},
        {"column": "n", "regex_list": ["x"]},
    ),
    "expect_compound_columns_to_be_unique": (
        {"column_list": ["n", "b"]},
        {"column_list": ["b", "g"]},
        LISTS,
    ),
    "expect_multicolumn_sum_to_equal": (
        {"column_list": ["n", "z"], "sum_total": 2, "mostly": 0.01},
        {"column_list": ["n", "f"], "sum_total": 4},
        {**LISTS, "sum_total": 4},
    ),
    "expect_multicolumn_values_to_be_equal": (
        {"column_list": ["n", "n"]},
        {"column_list": ["n", "f"]},
        LISTS,
    ),
    "expect_select_column_values_to_be_unique_within_record": (
        {"column_list": ["n", "f"], "mostly": 0.99},
        {"column_list": ["n", "z"]},
        LISTS,
    ),
    "expect_table_column_count_to_be_between": ({"min_value": 12}, {"max_value": 1}, None),
    "expect_table_column_count_to_equal": ({"value": 12}, {"value": 1}, None),
    "expect_table_columns_to_match_ordered_list": (
        {"column_list": ["n", "f", "t", "d", "m", "b", "z", "day", "js", "at", "g", "odd"]},
        {"column_list": ["n"]},
        None,
    ),
    "expect_table_columns_to_match_set": (
        {"column_set": ["n", "f"], "exact_match": False},
        {"column_set": ["n"]},
        None,
    ),
    "expect_table_row_count_to_be_between": (
        {"min_value": 1},
        {"max_value": 1},
        {"max_value": 1, "row_condition": 'col("gone") > 1', "condition_parser": "great_expectations"},
    ),
    "expect_table_row_count_to_equal": ({"value": 100}, {"value": 1}, None),
    "unexpected_rows_expectation": (
        {"unexpected_rows_query": "select * from {batch} where n < 0"},
        {"unexpected_rows_query": "select * from {batch} where n < 10"},
        {"unexpected_rows_query": "select * from {batch} where gone"},
    ),
}
"""Of each expectation: what holds, what does not, and what cannot be evaluated, if there is such a thing."""


def suite(place: int, kinds: list[str] | None = None) -> list[dict[str, Any]]:
    """The whole catalogue as one suite."""
    cases = {kind: CASES[kind][place] for kind in kinds or CASES}
    return [{"type": kind, "kwargs": kwargs} for kind, kwargs in cases.items() if kwargs is not None]


def told(folder: Path, data: Path, expectations: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """How each expectation ended: whether it held, and why it could not be evaluated."""
    folder.mkdir()
    with redirect_stdout(StringIO()) as said:
        metrics = validate([data], folder, suite={"name": "all", "expectations": expectations})
    assert "together they cannot be evaluated" not in said.getvalue()  # each by itself reads the data anew
    results = json.loads((folder / "result.json").read_text())["results"]
    assert metrics["failed"] == sum(not each["success"] for each in results)
    assert (folder / "docs" / "index.html").is_file()
    return {
        each["expectation_config"]["type"]: [each["success"], each["exception_info"]["exception_message"]]
        for each in results
    }


def main(folder: Path) -> dict[str, Any]:
    connection = duckdb.connect()
    for kind, write in (("parquet", "write_parquet"), ("csv", "write_csv")):
        (folder / kind).mkdir()
        getattr(connection.sql(ROWS), write)(str(folder / kind / f"a.{kind}"))
    known = [kind for kind in catalogue()["expectations"] if kind not in catalogue()["refused"]]
    texts = [kind for kind in CASES if "_match_" in kind or "_parseable" in kind or "_lengths_" in kind]
    parquet, csv = folder / "parquet", folder / "csv"
    of_csv = [each for each in suite(0, texts) if "strftime" not in each["type"]]
    # DuckDB reads it as a day, and finds a column in either case
    kwargs = {"column": "D", "strftime_format": "%Y-%m-%d"}
    of_csv.append({"type": "expect_column_values_to_match_strftime_format", "kwargs": kwargs})
    violated = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "n", "min_value": 1}}
    impossible = [each for each in suite(2) if each["type"] != violated["type"]]
    return {
        "known": known,
        "cases": list(CASES),
        "good": told(folder / "good", parquet, suite(0)),
        "bad": told(folder / "bad", parquet, suite(1)),
        "impossible": told(folder / "impossible", parquet, [*impossible[:20], violated, *impossible[20:]]),
        "good texts of csv": told(folder / "good-csv", csv, of_csv),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
