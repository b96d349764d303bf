"""Suites of expectations: read from the Dag's folder, and their failures said in four lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from muster.airflow.authoring.code import DagFolder
from muster.core.errors import SpecError

SHOWN = 3
_NOISE = frozenset({"column", "batch_id"})


def read_suite(folder: DagFolder, name: str) -> dict[str, Any]:
    """Read a suite. :raises SpecError: it names the file, and the line where it does not parse."""
    text = folder.read(name, what="suite")
    try:
        suite = json.loads(text)
    except ValueError as error:
        raise SpecError(f"suite {name} is not JSON: {error}") from error
    expectations = suite.get("expectations") if isinstance(suite, dict) else None
    if not isinstance(expectations, list) or not expectations:
        raise SpecError(
            f'suite {name}: expected {{"expectations": [{{"type": …, "kwargs": {{…}}}}, …]}}, one or more'
        )
    for number, each in enumerate(expectations):
        if not isinstance(each, dict) or not isinstance(each.get("type"), str):
            raise SpecError(f"suite {name}: expectation {number + 1} has no type: found {each!r:.80}")
    return dict(suite)


def failure_text(
    document: Mapping[str, Any], *, suite: str, addresses: Sequence[str], result: str, retired: bool
) -> str:
    """Four lines: how many failed, the first of them with what was found, what to do, where the docs are."""
    results = document["results"]
    failed = [each for each in results if not each["success"]]
    shown = "; ".join(map(_shown, failed[:SHOWN])) + (
        f"; and {len(failed) - SHOWN} more" * (len(failed) > SHOWN)
    )
    what = f"{addresses[0]}" + (f" and {len(addresses) - 1} more" if len(addresses) > 1 else "")
    gone = "it is retired, so no selector finds it; " if retired else ""
    return (
        f"validation failed: {len(failed)} of {len(results)} expectations of {suite} on {what}\n"
        f"{shown}\n"
        f"{gone}mend the data or the suite and run again\n"
        f"result and Data Docs: muster volumes get {result} FOLDER"
    )


def _shown(each: Mapping[str, Any]) -> str:
    config = each.get("expectation_config", {})
    kwargs = config.get("kwargs", {})
    column = kwargs.get("column")
    bounds = ", ".join(f"{name}={value!r:.40}" for name, value in kwargs.items() if name not in _NOISE)
    return f"{config.get('type', 'an expectation')}{f' on {column}' if column else ''} ({bounds}): {_found(each)}"


def _found(each: Mapping[str, Any]) -> str:
    found = each.get("result") or {}
    if found.get("unexpected_count"):
        examples = ", ".join(
            f"{value!r:.30}" for value in (found.get("partial_unexpected_list") or [])[:SHOWN]
        )
        return f"{found['unexpected_count']} unexpected{f', such as {examples}' if examples else ''}"
    if found.get("observed_value") is not None:
        return f"found {found['observed_value']!r:.60}"
    return str((each.get("exception_info") or {}).get("exception_message") or "not met")[:120]
