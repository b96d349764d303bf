"""Runs one rank of an entrypoint: imports the function, checks its parameters, calls it, writes its outcome.

This happens in a fork of the worker (:mod:`muster.worker.ranks`), before any thread was started.
Nothing of muster is left on the import path when the author's code is imported.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from muster.core.errors import SpecError
from muster.core.replica import Replica
from muster.core.verdict import ExitCode


def run(replica: Replica, *, outcome_file: str) -> int:
    """Run the replica's entrypoint as one rank; return the rank's exit status."""
    _prepare(replica)
    outcome: dict[str, Any]
    try:
        outcome, status = {"kind": "done", **_call(replica)}, ExitCode.SEALED
    except SpecError as error:
        outcome, status = {"kind": "spec error", "message": str(error)}, ExitCode.SPEC_ERROR
    except BaseException as error:  # any error becomes the rank's outcome
        outcome, status = {"kind": "user error", **_describe(error, replica)}, ExitCode.USER_ERROR
    _write(outcome_file, {"at": time.time(), **outcome})
    return status


def _prepare(replica: Replica) -> None:
    """Set up this fork of the worker as ``python script.py`` would be."""
    faulthandler.enable()  # the environment asks for it, but this interpreter started before it was set
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # always a TextIOWrapper
    sys.argv = [str(replica.job_role.entrypoint)]
    sys.path[0] = replica.code or replica.scratch
    gc.freeze()  # the worker's objects are neither walked nor, as pages, copied
    gc.enable()


def _call(replica: Replica) -> dict[str, Any]:
    from muster.worker.reads import Reads
    from muster.worker.signature import arguments

    reads = Reads(replica.code) if replica.code is not None else None
    if reads is not None:
        reads.begin()
    function = load(str(replica.job_role.entrypoint))
    given = arguments(function, replica)
    try:
        returned = function(**given)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
        returned = None
    for folder in replica.staging.values():
        _tell_of_code(folder)
    return {"metrics": _metrics(returned), "modules": [] if reads is None else reads.names()}


def _tell_of_code(folder: str) -> None:
    """Say what of a model's file a deployment has to trust: it would refuse it when the run is nearly over."""
    if os.path.exists(os.path.join(folder, "model.pt2")):
        print(  # noqa: T201 the job's log
            "model.pt2 can run code when it is loaded: deploy it with trusted=['torch.export']", flush=True
        )
    file = os.path.join(folder, "model.skops")
    skops = sys.modules.get("skops.io")  # what wrote the file; the worker imports nothing of the image
    if skops is None or not os.path.exists(file):
        return
    try:
        types = skops.get_untrusted_types(file=file)
    except Exception as error:  # it is the author's file, and the deployment's to refuse
        print(f"model.skops cannot be read: {error}", flush=True)  # noqa: T201 the job's log
        return
    if types:
        print(  # noqa: T201 the job's log
            f"model.skops holds types that may run code when they are loaded: deploy it with trusted={sorted(types)!r}",
            flush=True,
        )


def load(entrypoint: str) -> Callable[..., Any]:
    """Import ``package.module:function``.

    :raises SpecError: there is no such module or function. Errors of the module itself are not caught.
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
            f"({_listed(sys.path[0])}) nor in the image; name the module as it is imported from there, or the task's code= names the file that is missing"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        file = str(module.__file__).removeprefix(sys.path[0] + os.sep)
        raise SpecError(
            f"entrypoint {entrypoint!r}: {module_name} ({file}) has no function {name!r}; "
            f"it has {', '.join(_functions(module)) or 'none'}"
        )
    return function  # type: ignore[no-any-return]  # whatever is callable


class MetricError(Exception):
    """The entrypoint's return value is not metrics: the author's code is at fault, not the spec."""


def _metrics(returned: object) -> dict[str, float]:
    if returned is None:
        return {}
    from muster.core.status import check_metrics

    try:
        return check_metrics(returned)
    except SpecError as error:
        raise MetricError(str(error)) from None


def _describe(error: BaseException, replica: Replica) -> dict[str, Any]:
    if isinstance(error, MetricError):
        return {"message": str(error)}
    from muster.worker.tracebacks import describe

    return describe(error, code=replica.code)


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
