"""Validates data by a suite of Great Expectations; writes the result, and Data Docs that need no network.

ValidateOperator runs this as a job in this image. A failed expectation is a result, not an error: the
operator reads ``success`` in ``result.json`` and decides.
"""

from __future__ import annotations

import atexit
import gc
import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from muster_validate.docs import failed_first, kwargs_text, offline
from muster_validate.reasons import SuiteError, reason
from muster_validate.table import TABLE, Table, table_of

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
    from great_expectations.core import ExpectationSuiteValidationResult, ExpectationValidationResult
    from great_expectations.exceptions import GreatExpectationsError
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
    from great_expectations.expectations.registry import (
        get_expectation_impl,
        list_registered_expectation_implementations,
    )
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
    from great_expectations.render.view import DefaultJinjaPageView
    from sqlalchemy.pool import StaticPool

    from muster_validate.dialect import SCHEME, add_functions

CRITICAL = "critical"
REFUSED = {
    "expect_query_results_to_match_comparison": "it compares with another data source, and a suite is held against the checked versions alone",
    "expect_table_row_count_to_equal_other_table": "it compares with another table, and the checked versions are one table",
}
"""What Great Expectations has and a suite of muster cannot use, with the reason."""
_LONGEST = 1_000
_NUMBER = "muster_number"  # in the meta of an expectation, while it is evaluated
_UNUSABLE = {"muster": "its keywords make no sense"}
_OF_TEXTS = ("_match_", "_value_lengths_", "_parseable")
"""What the types of expectations of texts have in their names."""


@atexit.register
def _close_stderr() -> None:
    """Keep the job's last lines clean: when Python ends, DuckDB's bindings print the objects that are left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def validate(
    data: list[Path], result: Path, *, suite: dict[str, Any], csv: dict[str, str] | None = None
) -> dict[str, float]:
    """Check the Parquet and CSV files of all `data` folders, as one table, against `suite`.

    Writes ``result.json`` (Great Expectations' own form: success, statistics and a result for each
    expectation) and ``docs/index.html`` into `result`. ``success`` is true where every expectation holds but those of severity
    ``warning`` or ``info``. One that cannot be evaluated does not hold; its ``exception_info`` says why.

    Without data, or with data or a suite that cannot be read, ``result.json`` holds only ``success``, which is
    false, and ``error`` with the reason: then the suite or the data needs a change, not this code.

    :param suite: a suite in the form of Great Expectations 1.x: name, expectations, perhaps meta.
    :param csv: how CSV files are written: ``encoding``, ``delimiter``, ``quote``; what is missing is seen from the files.
    :return: the numbers of expectations, of failed ones, of failed ones that only warn, and of rows.
    """
    logging.getLogger("great_expectations").setLevel(logging.CRITICAL)  # each error is told once, below
    try:
        entries = read_suite(suite)
        with table_of(data, csv=csv or {}, texts=_texts(entries)) as table:
            found = _evaluated(table, entries)
    except SuiteError as error:
        print(error, flush=True)
        (result / "result.json").write_text(
            json.dumps({"success": False, "error": str(error)}) + "\n", encoding="utf-8"
        )
        return {}
    name, meta = str(suite.get("name") or "suite"), dict(suite.get("meta") or {})
    document = _jsonable({**_together(name, meta, found).to_json_dict(), "columns": list(table.types)})
    document["results"] = [_plain(each, table) for each in document["results"]]
    failed = [each for each in document["results"] if not each["success"]]
    warned = [each for each in failed if severity(each) != CRITICAL]
    document["success"] = len(failed) == len(warned)
    (result / "result.json").write_text(
        json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8"
    )
    (result / "docs").mkdir()
    # The renderer builds each expectation again, which one of unusable keywords is not: failed_first() tells of it.
    shown = _together(name, meta, [each for each in found if each.meta != _UNUSABLE])
    page = offline(DefaultJinjaPageView().render(ValidationResultsPageRenderer().render(shown)))
    (result / "docs" / "index.html").write_text(failed_first(page, document), encoding="utf-8")
    for each in failed:
        kind = f"{each['expectation_config']['type']} {kwargs_text(each)}"
        why = each["exception_info"]["exception_message"]
        word = "failed" if severity(each) == CRITICAL else severity(each)
        print(f"{word}: {kind}" + (f" could not be evaluated: {why}" if why else ""), flush=True)
    total = len(document["results"])
    print(f"{total - len(failed)} of {total} expectations hold on {table.rows:,} rows")
    return {
        "expectations": total,
        "failed": len(failed) - len(warned),
        "warnings": len(warned),
        "rows": table.rows,
    }


def severity(entry: Mapping[str, Any]) -> str:
    """Return what a result's expectation says of a failure: ``critical``, ``warning`` or ``info``."""
    config = entry["expectation_config"]
    return str(config.get("severity") or config["kwargs"].get("severity") or CRITICAL)


def read_suite(suite: Mapping[str, Any]) -> list[ExpectationConfiguration]:
    """Read the expectations of a suite. :raises SuiteError: names the one that is none, or that cannot run here."""
    listed = suite.get("expectations")
    if not isinstance(listed, list) or not listed:
        raise SuiteError("the suite holds no list of expectations: need one or more under 'expectations'")
    return [_entry(number, each) for number, each in enumerate(listed, 1)]


def _entry(number: int, entry: Any) -> ExpectationConfiguration:
    where = f"expectation {number} of the suite"
    if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
        raise SuiteError(f"{where} is {entry!r:.80}: need an object with type and kwargs")
    if entry["type"] in REFUSED:
        raise SuiteError(f"{where}, {entry['type']}, cannot run here: {REFUSED[entry['type']]}")
    known = {key: entry[key] for key in ("type", "kwargs", "meta", "severity", "description") if key in entry}
    try:
        get_expectation_impl(entry["type"])
        return ExpectationConfiguration(
            **{"kwargs": {}, **known, "meta": {**(known.get("meta") or {}), _NUMBER: number}}
        )
    except (GreatExpectationsError, ValueError, TypeError) as error:
        raise SuiteError(f"{where}, {entry['type']}, cannot be understood: {reason(error)}") from error


def _texts(entries: Sequence[ExpectationConfiguration]) -> set[str]:
    """Return the columns, in lower case, of which a suite expects something that only texts have, such as a form."""
    return {
        str(each.kwargs.get("column")).casefold()
        for each in entries
        if each.type.startswith("expect_column_value") and any(part in each.type for part in _OF_TEXTS)
    }


def _evaluated(
    table: Table, entries: Sequence[ExpectationConfiguration]
) -> list[ExpectationValidationResult]:
    """Evaluate all together, which reads the data least often, and then each by itself that could not be."""
    add_functions(table.connection)
    batch = _batch(table)
    expectations, results = dict[int, Any](), dict[int, ExpectationValidationResult]()
    for number, each in enumerate(entries, 1):
        try:
            expectations[number] = each.to_domain_obj()
        except (GreatExpectationsError, ValueError, TypeError) as error:
            results[number] = _not_evaluated(each, error, meta=_UNUSABLE)
    try:
        suite = gx.ExpectationSuite(name="suite", expectations=list(expectations.values()))
        together = batch.validate(suite, result_format="SUMMARY").results if expectations else []
        # They come in another order, and each with the number that it was given.
        results |= {
            each.expectation_config.meta[_NUMBER]: each
            for each in together
            if not _messages(each.exception_info)
        }
    except Exception as error:  # what an expectation happens to raise ends no other: each is asked again
        print(f"together they cannot be evaluated, so each is by itself: {reason(error)}", flush=True)
    for number, each in enumerate(entries, 1):
        if number not in results:
            results[number] = _alone(batch, expectations[number], each)
    found = [results[number] for number in range(1, len(entries) + 1)]
    for result in found:
        result.result = _cut(result.result)
    return found


def _cut(value: Any) -> Any:
    """Return what was found with texts of a length that a page can show."""
    if isinstance(value, dict):
        return {key: _cut(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_cut(each) for each in value]
    if isinstance(value, str) and len(value) > _LONGEST:
        return f"{value[:_LONGEST]}… ({len(value):,} characters)"
    return value


def _alone(batch: Any, expectation: Any, entry: ExpectationConfiguration) -> ExpectationValidationResult:
    try:
        found: ExpectationValidationResult = batch.validate(expectation, result_format="SUMMARY")
    except Exception as error:
        return _not_evaluated(entry, error)
    return found


def _together(
    name: str, meta: dict[str, Any], found: Sequence[ExpectationValidationResult]
) -> ExpectationSuiteValidationResult:
    held = sum(bool(each.success) for each in found)
    return ExpectationSuiteValidationResult(
        success=held == len(found),
        results=list(found),
        suite_name=name,
        statistics={
            "evaluated_expectations": len(found),
            "successful_expectations": held,
            "unsuccessful_expectations": len(found) - held,
            "success_percent": 100.0 * held / len(found) if found else None,
        },
        meta=meta,
    )


def _not_evaluated(
    entry: ExpectationConfiguration, error: Exception, meta: Mapping[str, Any] | None = None
) -> ExpectationValidationResult:
    said = {"raised_exception": True, "exception_message": reason(error), "exception_traceback": ""}
    return ExpectationValidationResult(
        success=False, expectation_config=entry, result={}, meta=dict(meta or {}), exception_info=said
    )


def catalogue() -> dict[str, Any]:
    """Return every installed expectation, with its keywords and whether each is required.

    Keywords of all expectations are listed once, under ``common``, and what cannot run here under ``refused``. ``catalogue.json`` in the image
    is the result, with which a suite is checked where Great Expectations is not installed; ``python -m muster_validate`` writes it.
    """
    fields = {
        name: {field: model.required for field, model in get_expectation_impl(name).__fields__.items()}
        for name in sorted(list_registered_expectation_implementations())
    }
    common = sorted(set.intersection(*map(set, fields.values())))
    return {
        "great_expectations": gx.__version__,
        "common": common,
        "refused": REFUSED,
        "expectations": {
            name: {field: needed for field, needed in sorted(each.items()) if field not in common}
            for name, each in fields.items()
        },
    }


def _batch(table: Table) -> Any:
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_sql(
        "data",
        connection_string=f"{SCHEME}:///{table.path}",
        create_temp_table=False,
        kwargs={"poolclass": StaticPool},
    )
    asset = source.add_table_asset(TABLE, table_name=TABLE)
    return asset.add_batch_definition_whole_table("whole").get_batch()


def _messages(info: Any) -> list[str]:
    """Return the errors of a result: one, or one for each metric."""
    info = info or {}
    raised = [info] if "raised_exception" in info else list(info.values())
    return [str(each["exception_message"]) for each in raised if each.get("raised_exception")]


def _plain(entry: dict[str, Any], table: Table) -> dict[str, Any]:
    """Reduce the raised errors to one message: the original has one traceback for each metric."""
    config = {key: value for key, value in entry["expectation_config"].items() if key != "id"}
    config["meta"] = {key: value for key, value in (config.get("meta") or {}).items() if key != _NUMBER}
    messages = _messages(entry.get("exception_info"))
    said = _why(reason(messages[0]), config["kwargs"], table) if messages else None
    return {
        **entry,
        "expectation_config": config,
        "exception_info": {"raised_exception": bool(messages), "exception_message": said},
    }


def _why(said: str, kwargs: Mapping[str, Any], table: Table) -> str:
    """Return why an expectation cannot be evaluated, with the types of its columns; names are compared as DuckDB does."""
    known = {name.casefold(): kind for name, kind in table.types.items()}
    listed = kwargs.get("column_list") or ()
    columns = [
        *(kwargs.get(name) for name in ("column", "column_A", "column_B")),
        *(listed if isinstance(listed, list) else ()),
    ]
    named = [column for column in dict.fromkeys(columns) if isinstance(column, str)]
    for column in named:
        if column.casefold() not in known:
            return f"there is no column {column!r:.80}; the columns are {', '.join(table.types):.200}"
    types = ", ".join(
        f"column {column!r:.80} is of type {known[column.casefold()]:.80}" for column in named[:3]
    )
    return f"{said} ({types})" if types else said


def _jsonable(value: Any) -> Any:
    """Return a result as JSON can hold it: numpy's scalars become Python's, and what is no number of JSON a text."""
    if isinstance(value, dict):
        return {str(key): _jsonable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(each) for each in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
