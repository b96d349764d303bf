"""Holds data against a suite of Great Expectations; leaves the result, and Data Docs that need no network.

ValidateOperator runs it as a job in this image. A failed expectation is an answer, not an error: the
operator reads ``success`` in ``result.json`` and decides.
"""

from __future__ import annotations

import atexit
import enum
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["GX_ANALYTICS_ENABLED"] = "False"  # read when Great Expectations is imported

import duckdb
import great_expectations as gx
from great_expectations.exceptions import GreatExpectationsError
from great_expectations.execution_engine import sqlalchemy_execution_engine as engine
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
from great_expectations.render.view import DefaultJinjaPageView

TABLE = "data"


@atexit.register
def _close_stderr() -> None:
    """Keep the job's last lines clean: when Python ends, DuckDB's bindings list what is still referred to."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def validate(data: list[Path], result: Path, *, suite: dict[str, Any]) -> dict[str, float]:
    """Check the Parquet files of all `data` folders, as one table, against `suite`.

    Writes ``result.json`` (Great Expectations' own form: success, statistics and a result for each
    expectation) and ``docs/index.html`` into `result`.

    :param suite: a suite as Great Expectations 1.x writes it: name, expectations, perhaps meta.
    :return: how many expectations there are, how many failed, and the rows that were looked at.
    :raises ValueError: there is no data, or the suite cannot be understood; it names the expectation.
    """
    expectations = read_suite(suite)
    with database(data) as (connection_string, rows):
        outcome = _batch(connection_string).validate(expectations, result_format="SUMMARY")
    document = outcome.to_json_dict()
    document["results"] = [_plain(each) for each in document["results"]]
    (result / "result.json").write_text(
        json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8"
    )
    (result / "docs").mkdir()
    page = DefaultJinjaPageView().render(ValidationResultsPageRenderer().render(outcome))
    (result / "docs" / "index.html").write_text(offline(page), encoding="utf-8")
    failed = [each for each in document["results"] if not each["success"]]
    for each in failed:
        print(f"failed: {each['expectation_config']['type']} {_kwargs(each)}", flush=True)
    print(
        f"{len(document['results']) - len(failed)} of {len(document['results'])} expectations hold on {rows:,} rows"
    )
    return {"expectations": len(document["results"]), "failed": len(failed), "rows": rows}


def read_suite(suite: Mapping[str, Any]) -> gx.ExpectationSuite:
    """Build the suite, one expectation after the other. :raises ValueError: it names the one that is wrong."""
    listed = suite.get("expectations")
    if not isinstance(listed, list) or not listed:
        raise ValueError("the suite holds no list of expectations: need one or more under 'expectations'")
    built = [_expectation(number, each) for number, each in enumerate(listed, 1)]
    return gx.ExpectationSuite(
        name=str(suite.get("name") or "suite"), expectations=built, meta=suite.get("meta")
    )


def _expectation(number: int, entry: Any) -> Any:
    where = f"expectation {number} of the suite"
    if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
        raise ValueError(f"{where} is {entry!r:.80}: need an object with type and kwargs")
    known = {key: entry[key] for key in ("type", "kwargs", "meta", "severity", "description") if key in entry}
    try:
        return ExpectationConfiguration(**{"kwargs": {}, **known}).to_domain_obj()
    except (GreatExpectationsError, ValueError, TypeError) as error:
        first = " ".join(str(error).split())
        raise ValueError(f"{where}, {entry['type']}, cannot be understood: {first:.300}") from error


@contextmanager
def database(folders: list[Path]) -> Iterator[tuple[str, int]]:
    """Show all Parquet files below `folders` as one table of a DuckDB file; yield where it is, and its rows."""
    files = [str(file) for folder in folders for file in sorted(folder.rglob("*.parquet"))]
    if not files:
        raise ValueError(f"no Parquet file in {', '.join(map(str, folders)) or 'an empty list of versions'}")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "data.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.read_parquet(files, union_by_name=True).create_view(TABLE)
            ((rows,),) = connection.table(TABLE).count("*").fetchall()
        yield f"duckdb:///{path}", rows


class _Dialect(str, enum.Enum):
    DUCKDB = "duckdb"


def _batch(connection_string: str) -> Any:
    # Great Expectations looks for its temporary tables on a new connection unless the dialect is
    # listed here; for DuckDB, which it does not know, every expectation then ends in an IndexError.
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
    """Reduce what was raised to one message: in the original it is keyed by metric, tracebacks and all."""
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
        re.compile(
            r"<a\b[^>]*\bhref\s*=\s*['\"]?(?:https?:)?//[^>]*>(.*?)</a\s*>", re.DOTALL | re.IGNORECASE
        ),
        r"\1",
    ),
    (re.compile(r"<p>\s*Stay current on.*?</p>", re.DOTALL), ""),
)
_STYLE = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
td, th { border-bottom: 1px solid #ddd; padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }
.badge { border-radius: .2rem; background: #eee; padding: 0 .3rem; }
.text-success { color: #1a7f37; } .text-danger { color: #cf222e; }
.sticky, .navbar { position: static; } .nav { list-style: none; padding: 0; }
</style>
</head>"""


def offline(page: str) -> str:
    """Take out of a Data Docs page all that other hosts would have to send, and give it a plain style."""
    for pattern, kept in _ALONE:
        page = pattern.sub(kept, page)
    return page.replace("</head>", _STYLE, 1)
