"""What one keyword of an operator may be, as far as the Dag file tells it. Nothing is read to find out.

A value that only a run will tell, Jinja or a reference to a task, is left to that run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk.definitions.xcom_arg import XComArg

from muster.airflow.authoring.references import VersionReference, is_known
from muster.core.address import Address
from muster.core.errors import SpecError
from muster.core.job import check_param
from muster.core.names import check_identifier, check_label
from muster.core.resources import Resources

_LONGEST = 255  # of a path of a file system's that holds one name


def check_image(value: Any) -> None:
    """Refuse what cannot be an image's name. :raises SpecError: it says what was found."""
    if value is None:
        raise SpecError(
            "none is given: name it here, or for all tasks in default_args={'muster': {'image': …}}"
        )
    if is_known(value):
        check_label("", value)


def optional(check: Callable[[Any], object]) -> Callable[[Any], None]:
    """The same rule, for a keyword that may be None."""

    def checked(value: Any) -> None:
        if value is not None:
            check(value)

    return checked


def if_known(check: Callable[[Any], object]) -> Callable[[Any], None]:
    """The same rule, for a keyword that may hold Jinja."""

    def checked(value: Any) -> None:
        if is_known(value):
            check(value)

    return checked


def check_name(value: Any) -> None:
    """Refuse what is no lower-case name of letters, digits and ``-``. :raises SpecError: it says what was found."""
    if is_known(value):
        check_label("", value)


def check_queue(value: Any) -> None:
    """Refuse what cannot be the name of a queue or a priority. :raises SpecError: it says what was found."""
    check_label("", value, length=63)


def check_input_name(value: Any) -> None:
    """Refuse what cannot be the name of an input. :raises SpecError: it says what was found."""
    check_identifier("", value)


def check_metric(value: Any) -> None:
    """Refuse what cannot be the name of a metric. :raises SpecError: it says what was found."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise SpecError(f"{_shown(value)}: expected the name of a metric, such as 'auc'")


def check_params(values: Mapping[str, Any]) -> None:
    """Refuse what is no JSON, as far as it is known. :raises SpecError: it names the param."""
    for name, value in values.items():
        check_identifier("param", name)
        check_param(name, value if is_known(value) else None)


def check_share(value: Any) -> None:
    """Refuse what is no number from 0 on. :raises SpecError: it says what was found."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise SpecError(f"{value!r:.40}: expected a number, 0 or more")


def check_count(value: Any) -> None:
    """Refuse what is no whole number from 1 on. :raises SpecError: it says what was found."""
    if is_known(value) and (type(value) is not int or value < 1):
        raise SpecError(f"{_shown(value)}: expected a whole number, 1 or more")


def check_steps(value: Any) -> None:
    """Refuse what is no list of percents; which ones, the plan of a release says. :raises SpecError: as above."""
    if is_known(value) and not isinstance(value, (list, tuple)):
        raise SpecError(f"{_shown(value)}: expected percents of the traffic, such as [5, 25, 100]")


def check_hold(value: Any) -> None:
    """Refuse what is no time to hold a step, nor one for each. :raises SpecError: it says what was found."""
    each = value if isinstance(value, (list, tuple)) else [value]
    if is_known(value) and not all(isinstance(one, timedelta) and one >= timedelta(0) for one in each):
        raise SpecError(
            f"{_shown(value)}: expected a timedelta from 0 on, such as timedelta(minutes=10), or one a step"
        )


def check_rules(value: Any) -> None:
    """Refuse what is no :class:`Rules`. :raises SpecError: it says what was found."""
    from muster.backends.releases.plan import Rules

    if is_known(value) and not isinstance(value, Rules):
        raise SpecError(f"expected Rules(max_error_share=…, max_p95_ratio=…), found {_shown(value)}")


def check_text(value: Any) -> None:
    """Refuse what is no line of text. :raises SpecError: it says what was found."""
    if not is_known(value):
        return
    if not isinstance(value, str) or not value or not value.isprintable() or len(value) > _LONGEST:
        raise SpecError(f"{_shown(value)}: expected one line of text, at most {_LONGEST} characters")


def check_flag(value: Any) -> None:
    """Refuse what is neither True nor False. :raises SpecError: it says what was found."""
    if not isinstance(value, bool):
        raise SpecError(f"{_shown(value)}: expected True or False")


def check_file(value: Any) -> None:
    """Refuse what cannot be a file of the Dag's folder. :raises SpecError: it says what was found."""
    check_path(value)
    if ".." in value.split("/"):
        raise SpecError(f"{_shown(value)} leaves the Dag's folder")


def check_path(value: Any) -> None:
    """Refuse what cannot be a path relative to the Dag's folder. :raises SpecError: it says what was found."""
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


def check_resources(value: Any) -> None:
    """Refuse what is no :class:`Resources`; None asks for the usual. :raises SpecError: it says what was found."""
    if value is not None and not isinstance(value, Resources):
        raise SpecError(f"expected Resources(cpus=…, memory_gib=…), found {_shown(value)}")


def check_span(value: Any) -> None:
    """Refuse what is no time to wait for. :raises SpecError: it says what was found."""
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise SpecError(f"{_shown(value)}: expected a timedelta above 0, such as timedelta(hours=2)")


def check_pause(value: Any) -> None:
    """Refuse what is no time, 0 included. :raises SpecError: it says what was found."""
    if not isinstance(value, timedelta) or value < timedelta(0):
        raise SpecError(f"{_shown(value)}: expected a timedelta from 0 on, such as timedelta(hours=2)")


def check_retries(value: Any) -> None:
    """Refuse what is no number of retries. :raises SpecError: it says what was found."""
    if type(value) is not int or value < 0:
        raise SpecError(f"{_shown(value)}: expected a whole number, 0 or more")


def check_delay(value: Any) -> None:
    """Refuse what is no pause before a retry. :raises SpecError: it says what was found."""
    seconds: Any = value.total_seconds() if isinstance(value, timedelta) else value
    if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
        raise SpecError(f"{_shown(value)}: expected a timedelta from 0 on")


def check_executor_queue(value: Any) -> None:
    """Refuse what cannot be the name of an executor's queue. :raises SpecError: it says what was found."""
    if not isinstance(value, str) or not value.isprintable() or len(value) not in range(1, 257):
        raise SpecError(f"{_shown(value)}: expected a name")


def check_days(value: Any) -> None:
    """Refuse what is no number of days. :raises SpecError: it says what was found."""
    if is_known(value) and (type(value) not in (int, float) or not 0 <= value < math.inf):
        raise SpecError(f"{value!r:.40}: expected a number of days, 0 or more")


def check_one(value: Any) -> None:
    """Refuse what cannot name one version. :raises SpecError: it says what was found."""
    if isinstance(value, (list, tuple)):
        raise SpecError(f"{_shown(value)}: expected one version, found a list")
    check_input(value)


def check_some(value: Any) -> None:
    """Refuse what cannot name one version or more. :raises SpecError: it says what was found."""
    if isinstance(value, (list, tuple)) and not value:
        raise SpecError(f"{_shown(value)}: expected a version, or a list of some")
    check_input(value)


def check_input(value: Any) -> None:
    """Refuse what cannot name versions. :raises SpecError: it says what was expected."""
    if isinstance(value, (list, tuple)):
        for item in value:
            check_input(item)
    elif isinstance(value, str):
        if is_known(value) and Address.parse(value).path:
            raise SpecError(f"{value!r:.120} names a file; an input is a whole version")
    elif is_known(value):
        raise SpecError(f"{_shown(value)}: expected an address, a list of them, or a task's .versions[…]")
    elif isinstance(value, XComArg) and not isinstance(value, VersionReference):
        _refuse_whole_result(value)


def _refuse_whole_result(value: XComArg) -> None:
    """What a task of Airflow's own returns may be an address; what one of muster's does, holds several."""
    for operator, _ in value.iter_references():
        if hasattr(operator, "versions"):
            names = ", ".join(f".versions[{name!r}]" for name in operator.versions) or "none"
            raise SpecError(f"a task, {operator.task_id!r}: expected one of its versions; it has {names}")


def _shown(value: Any) -> str:
    return f"{value!r:.60}"
