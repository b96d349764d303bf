"""Suites of expectations: read from the Dag's folder, checked against their image, failures in four lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.airflow.authoring.code import DagFolder
from muster.core.errors import SpecError
from muster.core.names import nearest

_CATALOGUE = "catalogue.json"
SHOWN = 3
CRITICAL = "critical"
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


def check_suite(suite: Mapping[str, Any], image: Path, name: str) -> None:
    """Hold a suite against the expectations and keywords that the image's Great Expectations has.

    :param image: the image's folder; one without a ``catalogue.json`` says nothing of what it knows.
    :raises SpecError: it names the file, the expectation, and the nearest name.
    """
    file = image / _CATALOGUE
    if not file.is_file():
        return
    catalogue = json.loads(file.read_text(encoding="utf-8"))
    for number, each in enumerate(suite["expectations"], 1):
        kind, known = each["type"], catalogue["expectations"]
        where = f"suite {name}: expectation {number}"
        if why := catalogue.get("refused", {}).get(kind):
            raise SpecError(f"{where}, {kind}, cannot run here: {why}")
        if kind not in known:
            raise SpecError(f"{where} has the type {kind!r:.80}, which {_unknown(kind, known, image)}")
        _check_kwargs(f"{where}, {kind}", each.get("kwargs", {}), known[kind], catalogue["common"])


def _check_kwargs(where: str, kwargs: Any, known: Mapping[str, bool], common: Sequence[str]) -> None:
    """Refuse keywords that an expectation does not take, and the lack of one that it needs."""
    if not isinstance(kwargs, dict):
        raise SpecError(f"{where}: kwargs is {kwargs!r:.60}, expected an object of keywords")
    for word in kwargs:
        if word not in known and word not in common:
            near = nearest(word, known)
            advice = f"did you mean {near}?" if near else f"it takes {', '.join(sorted(known))}"
            raise SpecError(f"{where} takes no keyword {word!r:.60}; {advice}")
    missing = [word for word, needed in known.items() if needed and word not in kwargs]
    if missing:
        raise SpecError(
            f"{where} needs the keyword {', '.join(missing)}; found {', '.join(kwargs) or 'none'}"
        )


def _unknown(kind: str, known: Mapping[str, Any], image: Path) -> str:
    near = nearest(kind, known)
    return f"image {image.name!r} does not know; " + (
        f"did you mean {near}?" if near else f"it knows {len(known)}, listed in {image / _CATALOGUE}"
    )


def failure_text(
    document: Mapping[str, Any],
    *,
    suite: str,
    addresses: Sequence[str],
    result: str,
    retired: bool,
    then: str = "",
) -> str:
    """Four lines: how many failed, the first of them with what was found, what to do, where the docs are.

    :param then: how to make the data again once they are mended, and how to run a mended suite; empty where no task made them.

    What could not be evaluated comes first, since it may hide what is wrong; of the others at least one is shown.
    """
    results, columns = document["results"], document.get("columns", ())
    failed = [each for each in results if not each["success"] and severity(each) == CRITICAL]
    violated = [each for each in failed if is_violated(each)]
    unknown = [each for each in failed if not is_violated(each)]
    first = unknown[: SHOWN - min(1, len(violated))]
    listed = [*first, *violated[: SHOWN - len(first)]]
    shown = "; ".join(_shown(each, columns) for each in listed) + (
        f"; and {len(failed) - len(listed)} more" * (len(failed) > len(listed))
    )
    gone = f"no selector finds {_what(addresses)} any more (retired); " if retired else ""
    if not violated:
        gone = "nothing is retired, since none of these could be evaluated; "
    return (
        f"validation failed: {len(failed)} of {len(results)} expectations of {suite} on {_what(addresses)}"
        f"{f', {len(unknown)} of which could not be evaluated' if unknown and violated else ''}\n"
        f"{shown}\n"
        f"{gone}{f'mended data: {then}' if then else 'mend the data or the suite and run again'}\n"
        f"result and Data Docs: muster volumes get {result} FOLDER"
    )


def warning_text(document: Mapping[str, Any], *, suite: str) -> str:
    """Say what does not hold and only warns; empty where there is nothing."""
    results, columns = document.get("results", ()), document.get("columns", ())
    warned = [each for each in results if not each["success"] and severity(each) != CRITICAL]
    shown = "; ".join(_shown(each, columns) for each in warned[:SHOWN])
    more = f"; and {len(warned) - SHOWN} more" if len(warned) > SHOWN else ""
    return f"{suite} warns of {len(warned)} of {len(results)} expectations: {shown}{more}" if warned else ""


def unusable_text(error: str, *, suite: str, addresses: Sequence[str]) -> str:
    """Say that a suite could not be held against the data at all, why, and what to do."""
    return (
        f"suite {suite} cannot be held against {_what(addresses)}\n{error}\n"
        "mend it and run again; nothing is retired"
    )


def severity(each: Mapping[str, Any]) -> str:
    """Return what an expectation says of its failure: ``critical``, which fails the stage, ``warning`` or ``info``."""
    config = each.get("expectation_config", {})
    return str(config.get("severity") or config.get("kwargs", {}).get("severity") or CRITICAL)


def is_violated(each: Mapping[str, Any]) -> bool:
    """Whether a critical expectation failed on the data, and not because it could not be held against them."""
    raised = (each.get("exception_info") or {}).get("raised_exception")
    return not each["success"] and not raised and severity(each) == CRITICAL


def _what(addresses: Sequence[str]) -> str:
    return f"{addresses[0]}" + (f" and {len(addresses) - 1} more" if len(addresses) > 1 else "")


def _shown(each: Mapping[str, Any], columns: Sequence[str]) -> str:
    config = each.get("expectation_config", {})
    kwargs = config.get("kwargs", {})
    column = kwargs.get("column")
    bounds = ", ".join(f"{name}={value!r:.40}" for name, value in kwargs.items() if name not in _NOISE)
    return f"{config.get('type', 'an expectation')}{f' on {column}' if column else ''} ({bounds}): {_found(each, columns)}"


def _found(each: Mapping[str, Any], columns: Sequence[str]) -> str:
    found, column = (
        each.get("result") or {},
        each.get("expectation_config", {}).get("kwargs", {}).get("column"),
    )
    raised = (each.get("exception_info") or {}).get("raised_exception")
    if columns and isinstance(column, str) and column not in columns and raised:
        near = nearest(column, columns)
        advice = f"did you mean {near}?" if near else f"the columns are {', '.join(columns):.120}"
        return f"there is no column {column!r:.40}; {advice}"
    if found.get("unexpected_count"):
        different = dict.fromkeys(f"{value!r:.30}" for value in found.get("partial_unexpected_list") or [])
        examples = ", ".join(list(different)[:SHOWN])
        return f"{found['unexpected_count']} unexpected{f', such as {examples}' if examples else ''}"
    if found.get("observed_value") is not None:
        return f"found {found['observed_value']!r:.60}"
    if raised:
        return f"could not be evaluated: {(each.get('exception_info') or {}).get('exception_message')!s:.200}"
    return "not met"
