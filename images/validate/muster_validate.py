"""Validates data by a suite of Great Expectations; writes the result, and Data Docs that need no network.

ValidateOperator runs this as a job in this image. A failed expectation is a result, not an error: the
operator reads ``success`` in ``result.json`` and decides.
"""

from __future__ import annotations

import atexit
import enum
import gc
import html
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb

os.environ["GX_ANALYTICS_ENABLED"] = "False"  # Great Expectations reads it at its import


@contextmanager
def _later(*names: str) -> Iterator[None]:
    """Leave modules to those that use them, and collect no garbage, in the block: imports then take two thirds of the time."""

    def stand_in(name: str) -> ModuleType:
        module: Any = ModuleType(name)
        module.__getattr__ = lambda attribute: getattr(import_module(name), attribute)
        return module  # type: ignore[no-any-return]

    left = {name: stand_in(name) for name in names if name not in sys.modules}
    sys.modules.update(left)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        for name in left:
            del sys.modules[name]


with _later("altair", "scipy.stats"):  # for expectations of distributions, and their pictures
    import great_expectations as gx
    from great_expectations.exceptions import GreatExpectationsError
    from great_expectations.execution_engine import sqlalchemy_execution_engine as engine
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
    from great_expectations.expectations.registry import (
        get_expectation_impl,
        list_registered_expectation_implementations,
    )
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
    from great_expectations.render.view import DefaultJinjaPageView

TABLE = "data"


@atexit.register
def _close_stderr() -> None:
    """Keep the job's last lines clean: when Python ends, DuckDB's bindings print the objects that are left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def validate(data: list[Path], result: Path, *, suite: dict[str, Any]) -> dict[str, float]:
    """Check the Parquet and CSV files of all `data` folders, as one table, against `suite`.

    Writes ``result.json`` (Great Expectations' own form: success, statistics and a result for each
    expectation) and ``docs/index.html`` into `result`.

    Without data, or with data or an expectation that cannot be read, ``result.json`` holds only ``success``, which is
    false, and ``error`` with the reason: then the suite or the data needs a change, not this code.

    :param suite: a suite in the form of Great Expectations 1.x: name, expectations, perhaps meta.
    :return: the numbers of expectations, of failed ones, and of rows.
    """
    try:
        expectations = read_suite(suite)
        with database(data) as (connection_string, rows, columns):
            outcome = _batch(connection_string).validate(expectations, result_format="SUMMARY")
    except SuiteError as error:
        print(error, flush=True)
        (result / "result.json").write_text(
            json.dumps({"success": False, "error": str(error)}) + "\n", encoding="utf-8"
        )
        return {}
    document = {**outcome.to_json_dict(), "columns": columns}
    document["results"] = [_plain(each) for each in document["results"]]
    (result / "result.json").write_text(
        json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8"
    )
    (result / "docs").mkdir()
    page = offline(DefaultJinjaPageView().render(ValidationResultsPageRenderer().render(outcome)))
    (result / "docs" / "index.html").write_text(failed_first(page, document), encoding="utf-8")
    failed = [each for each in document["results"] if not each["success"]]
    for each in failed:
        print(f"failed: {each['expectation_config']['type']} {_kwargs(each)}", flush=True)
    print(
        f"{len(document['results']) - len(failed)} of {len(document['results'])} expectations hold on {rows:,} rows"
    )
    return {"expectations": len(document["results"]), "failed": len(failed), "rows": rows}


class SuiteError(ValueError):
    """The suite or the data cannot be used; the message says why."""

    muster_advice = "mend what the message names and run again; earlier stages are kept"


def read_suite(suite: Mapping[str, Any]) -> gx.ExpectationSuite:
    """Build the suite, one expectation after the other. :raises SuiteError: names the wrong one."""
    listed = suite.get("expectations")
    if not isinstance(listed, list) or not listed:
        raise SuiteError("the suite holds no list of expectations: need one or more under 'expectations'")
    built = [_expectation(number, each) for number, each in enumerate(listed, 1)]
    return gx.ExpectationSuite(
        name=str(suite.get("name") or "suite"), expectations=built, meta=suite.get("meta")
    )


def _expectation(number: int, entry: Any) -> Any:
    where = f"expectation {number} of the suite"
    if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
        raise SuiteError(f"{where} is {entry!r:.80}: need an object with type and kwargs")
    known = {key: entry[key] for key in ("type", "kwargs", "meta", "severity", "description") if key in entry}
    try:
        return ExpectationConfiguration(**{"kwargs": {}, **known}).to_domain_obj()
    except (GreatExpectationsError, ValueError, TypeError) as error:
        first = " ".join(str(error).split())
        raise SuiteError(f"{where}, {entry['type']}, cannot be understood: {first:.300}") from error


def catalogue() -> dict[str, Any]:
    """Return every installed expectation, with its keywords and whether each is required.

    Keywords of all expectations are listed once, under ``common``. ``catalogue.json`` beside this module is the result,
    with which a suite is checked where Great Expectations is not installed; ``python muster_validate.py`` writes it.
    """
    fields = {
        name: {field: model.required for field, model in get_expectation_impl(name).__fields__.items()}
        for name in sorted(list_registered_expectation_implementations())
    }
    common = sorted(set.intersection(*map(set, fields.values())))
    return {
        "great_expectations": gx.__version__,
        "common": common,
        "expectations": {
            name: {field: needed for field, needed in sorted(each.items()) if field not in common}
            for name, each in fields.items()
        },
    }


@contextmanager
def database(folders: list[Path]) -> Iterator[tuple[str, int, list[str]]]:
    """Make one view of all Parquet and CSV files below `folders`; yield its DuckDB file, its rows and its columns.

    Columns are matched by name; a column that a file lacks is null.
    """
    found = {kind: _files(folders, endings) for kind, endings in _ENDINGS.items()}
    if not any(found.values()):
        raise SuiteError(
            f"no Parquet or CSV file in {', '.join(map(str, folders)) or 'an empty list of versions'}: "
            f"expected names that end in {', '.join(ending for each in _ENDINGS.values() for ending in each)}"
        )
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "data.duckdb"
        with duckdb.connect(str(path)) as connection:
            try:
                rows, columns = _show(connection, found)
            except duckdb.Error as error:
                raise SuiteError(f"the data cannot be read: {' '.join(str(error).split()):.600}") from error
        yield f"duckdb:///{path}", rows, columns


def _show(connection: duckdb.DuckDBPyConnection, found: Mapping[str, list[str]]) -> tuple[int, list[str]]:
    if found["parquet"]:
        connection.read_parquet(found["parquet"], union_by_name=True).create_view("parquet")
    if found["csv"]:
        connection.read_csv(found["csv"], union_by_name=True).create_view("csv")
    parts = " union all by name ".join(f"from {kind}" for kind, files in found.items() if files)
    connection.execute(f"create view {TABLE} as {parts}")
    table = connection.table(TABLE)
    ((rows,),) = table.count("*").fetchall()
    return rows, table.columns


_ENDINGS = {"parquet": (".parquet",), "csv": (".csv", ".csv.gz")}


def _files(folders: list[Path], endings: tuple[str, ...]) -> list[str]:
    return [
        str(file)
        for folder in folders
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name.endswith(endings)
    ]


class _Dialect(str, enum.Enum):
    DUCKDB = "duckdb"


def _batch(connection_string: str) -> Any:
    # Unless the dialect is in this list, Great Expectations looks for its temporary tables on a new connection;
    # with DuckDB, which it does not list, every expectation then ends in an IndexError.
    if _Dialect.DUCKDB not in engine._PERSISTED_CONNECTION_DIALECTS:
        engine._PERSISTED_CONNECTION_DIALECTS += (_Dialect.DUCKDB,)  # type: ignore[assignment]
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_sql(
        "duckdb", connection_string=connection_string, create_temp_table=False
    )
    asset = source.add_table_asset(TABLE, table_name=TABLE)
    return asset.add_batch_definition_whole_table("whole").get_batch()


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    """Reduce the raised errors to one message: the original has one traceback for each metric."""
    info = entry.get("exception_info") or {}
    raised = [info] if "raised_exception" in info else list(info.values())
    messages = [each["exception_message"] for each in raised if each.get("raised_exception")]
    return {
        **entry,
        "exception_info": {
            "raised_exception": bool(messages),
            "exception_message": messages[0] if messages else None,
        },
    }


def _kwargs(entry: Mapping[str, Any]) -> str:
    kwargs = entry["expectation_config"]["kwargs"]
    return ", ".join(f"{name}={value!r:.60}" for name, value in kwargs.items() if name != "batch_id")


_ALONE = (
    (re.compile(r"<script\b.*?</script\s*>", re.DOTALL | re.IGNORECASE), ""),
    (re.compile(r"<(?:link|img)\b[^>]*>", re.IGNORECASE), ""),
    (re.compile(r"url\(\s*['\"]?(?:https?:)?//[^)]*\)", re.IGNORECASE), "none"),
    (
        re.compile(r"<a\b[^>]*\bdata-toggle\s*=[^>]*>.*?</a\s*>", re.DOTALL | re.IGNORECASE),
        "",
    ),  # needs a script
    (re.compile(r"<a\b[^>]*\bhref\s*=\s*(?!['\"]?#)[^>]*>(.*?)</a\s*>", re.DOTALL | re.IGNORECASE), r"\1"),
    (re.compile(r"<p>\s*Stay current on.*?</p>", re.DOTALL), ""),
)
_STYLE = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 100rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
td, th { border-bottom: 1px solid #8884; padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top;
  overflow-wrap: anywhere; }
td:first-child { min-width: 4.5rem; }
.table-responsive, .show-scrollbars { overflow-x: auto; }
.badge { border-radius: .2rem; background: #8883; padding: 0 .3rem; }
.text-success { color: light-dark(#1a7f37, #4ac26b); } .text-danger { color: light-dark(#cf222e, #ff7b72); }
.fa-check-circle::before { content: "\\2713 "; } .fa-times::before { content: "\\2717 "; }
.fa-exclamation-triangle::before { content: "! "; }
i { font-style: normal; font-weight: 600; } h5 { font-size: 1.1rem; margin: 1rem 0 .3rem; }
nav, footer, .navbar, .sticky, .collapse { display: none; }
@media (prefers-color-scheme: dark) { .table { background: none !important; } }
</style>
</head>"""


def offline(page: str) -> str:
    """Remove from a Data Docs page what needs other hosts, pages or scripts, and add a plain style."""
    for pattern, kept in _ALONE:
        page = pattern.sub(kept, page)
    return page.replace("</head>", _STYLE, 1)


def failed_first(page: str, document: Mapping[str, Any]) -> str:
    """Put the failed expectations first: their number, their names and the values found."""
    results = document["results"]
    failed = [each for each in results if not each["success"]]
    if failed:
        head = f"{len(failed)} of {len(results)} expectations failed"
    else:
        head = f"all {len(results)} expectations hold"
    rows = "".join(
        f'<tr><td class="text-danger"><i class="fas fa-times"></i>Failed</td>'
        f"<td>{html.escape(each['expectation_config']['type'])}<br>{html.escape(_kwargs(each))}</td>"
        f"<td>{html.escape(_found(each))}</td></tr>"
        for each in failed
    )
    table = (
        f"<table><tr><th>Status</th><th>Expectation</th><th>Found</th></tr>{rows}</table>" if failed else ""
    )
    return re.sub(r"<body[^>]*>", lambda match: f"{match[0]}<h1>{head}</h1>{table}", page, count=1)


def _found(entry: Mapping[str, Any]) -> str:
    result = entry["result"]
    if entry["exception_info"]["raised_exception"]:
        return str(entry["exception_info"]["exception_message"])
    if "unexpected_count" in result:
        some = ", ".join(
            dict.fromkeys(f"{value!r:.40}" for value in result.get("partial_unexpected_list", []))
        )
        share = f"{result['unexpected_count']:,} of {result.get('element_count', 0):,} values"
        return f"{share} unexpected" + (f", such as {some:.200}" if some else "")
    return f"{result['observed_value']!r:.200}" if "observed_value" in result else ""


if __name__ == "__main__":
    Path(__file__).with_name("catalogue.json").write_text(
        json.dumps(catalogue(), indent=1) + "\n", encoding="utf-8"
    )
