"""Runs one rank of an entrypoint: imports the function, checks what it takes, calls it, writes how it ended.

This is a process of its own, ``python WORKER --rank CALL.json OUTCOME.json``. Nothing of muster is
left on the import path when the author's code is imported.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from muster.core.errors import SpecError

USER_ERROR, SPEC_ERROR = 64, 65  # muster.core.verdict.ExitCode, whose import would cost each rank


def run(call_file: str, outcome_file: str) -> int:
    """Run the call that the worker wrote; return the rank's exit status."""
    with open(call_file, encoding="utf-8") as file:
        call = json.load(file)
    sys.argv = [call["entrypoint"]]
    sys.path[0] = call["code"] or call["scratch"]
    try:
        outcome = {"kind": "done", **_call(call)}
    except SpecError as error:
        outcome = {"kind": "spec error", "message": str(error), "traceback": []}
    except BaseException as error:  # whatever it is, it becomes the rank's last word
        outcome = _failure(error, call)
    _write(outcome_file, {"at": time.time(), **outcome})
    return {"done": 0, "spec error": SPEC_ERROR}.get(str(outcome["kind"]), USER_ERROR)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    from muster.worker.signature import arguments

    sys.dont_write_bytecode = True  # the code snapshot is shared and never changes
    function = load(call["entrypoint"])
    given = arguments(function, call)
    try:
        returned = function(**given)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
        returned = None
    return {"metrics": _metrics(returned), "modules": modules_below(call["code"])}


def load(entrypoint: str) -> Callable[..., Any]:
    """Import ``package.module:function``.

    :raises SpecError: no such module or function. What the module itself raises goes through.
    """
    import importlib

    module_name, _, name = entrypoint.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise SpecError(
            f"entrypoint {entrypoint!r}: no module {error.name!r} in the code that travels with the job "
            f"({_listed(sys.path[0])}) nor in the image; name the module as it is imported from there"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise SpecError(
            f"entrypoint {entrypoint!r}: {module_name} ({module.__file__}) has no function {name!r}; "
            f"it has {', '.join(_functions(module)) or 'none'}"
        )
    return function  # type: ignore[no-any-return]  # whatever is callable


def modules_below(code: str | None) -> list[str]:
    """The author's modules that are imported now: paths below the code folder, sorted."""
    if code is None:
        return []
    root = code.rstrip("/") + "/"
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return sorted({file[len(root) :] for file in files if isinstance(file, str) and file.startswith(root)})


def _metrics(returned: object) -> dict[str, float]:
    if returned is None:
        return {}
    from muster.core.status import check_metrics

    try:
        return check_metrics(returned)
    except SpecError as error:
        raise MetricError(str(error)) from None


class MetricError(Exception):
    """What the entrypoint returned are not metrics: the author's code is at fault, not the spec."""


def _failure(error: BaseException, call: Mapping[str, Any]) -> dict[str, Any]:
    from muster.worker.tracebacks import describe

    if isinstance(error, MetricError):
        return {"kind": "user error", "message": str(error), "traceback": [], "where": call["entrypoint"]}
    return {"kind": "user error", **describe(error, code=call["code"])}


def _write(path: str, outcome: Mapping[str, Any]) -> None:
    with open(path + ".part", "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(outcome, file)
    os.replace(path + ".part", path)


def _functions(module: Any) -> list[str]:
    own = module.__name__
    return [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == own][:10]


def _listed(folder: str) -> str:
    names = sorted(os.listdir(folder))
    return ", ".join(names[:8]) + (" …" if len(names) > 8 else "") or "empty"
