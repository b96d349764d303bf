"""The rules of single keywords, as far as the Dag file shows a value. No file is read.

Jinja and references to tasks are checked when the task runs. Every rule raises SpecError, with the value and what
was expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from airflow.sdk import XComArg

from muster.airflow.authoring.references import VersionReference, is_known
from muster.core.address import Address
from muster.core.deployment import Batch, RequestLimits, RequestLog, check_host
from muster.core.errors import SpecError
from muster.core.job import check_json
from muster.core.names import check_identifier, check_label, check_volume
from muster.core.resources import Resources
from muster.volumes.base import MOST_CHECKPOINTS

Check = Callable[[Any], object]

_LONGEST = 255  # characters of a file's name, on every common file system


def rule(holds: Callable[[Any], bool], expected: str) -> Check:
    """A check that refuses every value for which `holds` is false."""

    def check(value: Any) -> None:
        if not holds(value):
            raise SpecError(f"{_shown(value)}: expected {expected}")

    return check


def optional(check: Check) -> Check:
    """The same rule, for a keyword that may be None."""
    return lambda value: check(value) if value is not None else None


def if_known(check: Check) -> Check:
    """The same rule, for a keyword that may hold Jinja or a reference to a task."""
    return lambda value: check(value) if is_known(value) else None


def check_among(known: Sequence[str]) -> Check:
    """Return a check that passes these words alone."""
    return rule(lambda value: value in known, f"one of {', '.join(known)}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _is_span(value: Any) -> bool:
    return isinstance(value, timedelta) and value >= timedelta(0)


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and value.isprintable()


def _are_holds(value: Any) -> bool:
    return all(map(_is_span, value if isinstance(value, (list, tuple)) else [value]))


check_flag = rule(lambda value: isinstance(value, bool), "True or False")
check_share = rule(_is_number, "a number, 0 or more")
check_days = if_known(rule(_is_number, "a number of days, 0 or more"))
check_retries = rule(lambda value: type(value) is int and value >= 0, "a whole number, 0 or more")
check_count = if_known(rule(lambda value: type(value) is int and value >= 1, "a whole number, 1 or more"))
check_keep = if_known(rule(lambda value: type(value) is int and value >= 0, "a whole number, 0 or more"))
check_span = rule(
    lambda value: _is_span(value) and value > timedelta(0), "a timedelta above 0, such as timedelta(hours=2)"
)
check_pause = rule(_is_span, "a timedelta from 0 on, such as timedelta(hours=2)")
check_delay = rule(
    lambda value: _is_number(value.total_seconds() if isinstance(value, timedelta) else value),
    "a timedelta from 0 on",
)
check_hold = if_known(rule(_are_holds, "a timedelta from 0 on, such as timedelta(minutes=10), or one a step"))
check_steps = if_known(
    rule(lambda value: isinstance(value, (list, tuple)), "percents of the traffic, such as [5, 25, 100]")
)
check_metric = rule(_is_line, "the name of a metric, such as 'auc'")
check_line = rule(_is_line, "one line of text")
check_executor_queue = rule(lambda value: _is_line(value) and len(value) <= 256, "a name")
check_text = if_known(
    rule(
        lambda value: _is_line(value) and len(value) <= _LONGEST,
        f"one line of text, at most {_LONGEST} characters",
    )
)
check_batch = rule(lambda value: isinstance(value, Batch), "a Batch(most=64, wait_ms=5)")
check_log = rule(lambda value: isinstance(value, RequestLog), "RequestLog(share=…)")
check_limits = rule(
    lambda value: isinstance(value, RequestLimits), "RequestLimits(rate=…, burst=…, body_mib=…)"
)
check_kept = rule(
    lambda value: type(value) is int and 0 <= value <= MOST_CHECKPOINTS,
    f"a whole number from 0 to {MOST_CHECKPOINTS}, or None",
)
check_listened: Check = partial(check_host, tokens=True)  # who may reach it is seen with `tokens`
check_volume_name = if_known(check_volume)
check_name = if_known(partial(check_label, ""))
check_queue: Check = partial(check_label, "", length=63)  # or of a priority
check_input_name: Check = partial(check_identifier, "")


def _is_dotted(value: Any) -> bool:
    return _is_line(value) and all(part.isidentifier() for part in value.split("."))


check_trusted = rule(
    lambda value: isinstance(value, (list, tuple)) and all(map(_is_dotted, value)),
    "names, such as ['pickle'] or ['sklearn.tree.DecisionTreeClassifier']",
)


def check_image(value: Any) -> None:
    """Refuse what cannot be an image's name, and None."""
    if value is None:
        raise SpecError(
            "none is given: name it here, or for all tasks in default_args={'muster': {'image': …}}"
        )
    check_name(value)


def check_job_queue(value: Any) -> None:
    """Refuse what cannot be the name of a queue of jobs, and say which keyword names a queue of Airflow's workers."""
    try:
        check_queue(value)
    except SpecError as error:
        raise SpecError(
            f"{error}; it is the queue of the job: for the queue of Airflow's workers write airflow_queue={value!r:.60}"
        ) from None


def check_params(values: Mapping[str, Any]) -> None:
    """Refuse params that JSON cannot hold, as far as they are known."""
    for name, value in values.items():
        check_identifier("param", name)
        check_json(f"param {name!r}", value if is_known(value) else None)


def check_rules(value: Any) -> None:
    """Refuse all but :class:`~muster.backends.releases.plan.Rules`."""
    from muster.backends.releases.plan import Rules

    if is_known(value) and not isinstance(value, Rules):
        raise SpecError(f"expected Rules(max_error_share=…, max_p95_ratio=…), found {_shown(value)}")


def check_resources(value: Any) -> None:
    """Refuse all but :class:`Resources` and None, which asks for the usual."""
    if value is not None and not isinstance(value, Resources):
        raise SpecError(f"expected Resources(cpus=…, memory_gib=…), found {_shown(value)}")


def check_file(value: Any) -> None:
    """Refuse what cannot be a file of the Dag's folder."""
    check_path(value)
    if ".." in value.split("/"):
        raise SpecError(f"{_shown(value)} leaves the Dag's folder")


def check_path(value: Any) -> None:
    """Refuse what cannot be a path relative to the Dag's folder."""
    if not isinstance(value, str) or not value:
        raise SpecError(f"{_shown(value)}: expected the path of a file, relative to the Dag's folder")
    if not value.isprintable() or max(map(len, value.split("/"))) > _LONGEST:
        raise SpecError(f"{_shown(value)}: no file is called so")
    if value.startswith("/"):
        raise SpecError(
            f"{_shown(value)}: expected a path relative to the Dag's folder, found an absolute one"
        )


def check_paths(value: Any) -> tuple[str, ...]:
    """Return one path or several as a tuple. :raises SpecError: one is not relative, or none at all."""
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, Sequence):
        raise SpecError(f"{_shown(value)}: expected a path, or a list of them")
    for path in paths:
        check_path(path)
    return tuple(paths)


def check_one(value: Any) -> None:
    """Refuse what cannot name one version."""
    if isinstance(value, (list, tuple)):
        raise SpecError(f"{_shown(value)}: expected one version, found a list")
    check_input(value)


def check_some(value: Any) -> None:
    """Refuse what cannot name one version or more."""
    if isinstance(value, (list, tuple)) and not value:
        raise SpecError(f"{_shown(value)}: expected a version, or a list of some")
    check_input(value)


def check_input(value: Any) -> None:
    """Refuse what cannot name versions."""
    check_address(value)
    check_whole(value)


def check_whole(value: Any) -> None:
    """Refuse the address of a part of a version."""
    for item in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(item, str) and is_known(item) and Address.parse(item).path:
            raise SpecError(f"{item!r:.120} names a file; an input is a whole version")


def check_address(value: Any) -> None:
    """Refuse what cannot name versions, or a part of one."""
    if isinstance(value, (list, tuple)):
        for item in value:
            check_address(item)
    elif isinstance(value, str):
        if is_known(value):
            Address.parse(value)
    elif is_known(value):
        raise SpecError(f"{_shown(value)}: expected an address, a list of them, or a task's .versions[…]")
    elif isinstance(value, XComArg) and not isinstance(value, VersionReference):
        _refuse_whole_result(value)


def _refuse_whole_result(value: XComArg) -> None:
    """A task of Airflow's own may return an address; one of muster's returns a result that holds several."""
    for operator, _ in value.iter_references():
        if hasattr(operator, "versions"):
            names = ", ".join(f".versions[{name!r}]" for name in operator.versions) or "none"
            raise SpecError(f"a task, {operator.task_id!r}: expected one of its versions; it has {names}")


def _shown(value: Any) -> str:
    return f"{value!r:.60}"
