"""Runs one rank of an entrypoint: imports the function, checks its parameters, calls it, writes its outcome and what it read.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from muster.core.errors import SpecError
from muster.core.replica import Replica
from muster.core.verdict import ExitCode

_CACHES, _STARTED = "__pycache__", "\1"
_STARTS = frozenset({"os.system", "os.exec", "os.posix_spawn", "os.spawn"})
_HEARD = _STARTS | {"open", "import", "os.listdir", "os.scandir", "subprocess.Popen"}


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


class Reads:
    """The files of one code folder that this process has read since :meth:`begin`: a later run can tell whether it would read the same.

    Python tells of each file that is opened, each folder that is listed and each program that is started (PEP 578). Imported
    modules are told by ``sys.modules``. Forks of the rank write what they read into a file in memory, which the rank reads in the
    end. What C libraries open by themselves is not seen.
    """

    def __init__(self, code: str) -> None:
        self._root = code.rstrip("/") + "/"
        self._tops = {name.partition(".")[0] for name in os.listdir(code)}
        self._found: set[str] = set()
        self._wanted: set[str] = set()
        self._started = False
        self._rank, self._forks = os.getpid(), os.memfd_create("reads")
        self._file = _identity(self._forks)

    def begin(self) -> None:
        """Begin to listen, until the process ends.

        Python 3.11 tells of each call of ``id``, too: half a million while Great Expectations is imported. What is not
        heard passes as little code as can be.
        """
        hear, heard = self._hear, _HEARD

        def listen(event: str, arguments: tuple[Any, ...]) -> None:
            if event in heard:
                hear(event, arguments)

        sys.addaudithook(listen)

    def names(self) -> list[str] | None:
        """Return paths below the code folder, sorted; None where a program was started that may have read any file.

        A folder that was listed ends in ``/``. A module that was looked for and is not there is named too: it would be
        imported if it were.
        """
        forks = os.pread(self._forks, os.fstat(self._forks).st_size, 0).decode(errors="surrogateescape")
        for line in filter(None, forks.split("\0")):
            self._started = self._started or line == _STARTED
            self._found.add(line)
        if self._started:
            return None
        modules = dict(sys.modules)
        files = (getattr(module, "__file__", None) for module in modules.values())
        found = {name for file in files if isinstance(file, str) and (name := self._below(file))}
        absent = (self._absent(name, modules) for name in self._wanted if name not in modules)
        return sorted({*found, *self._found, *(name for names in absent for name in names)})

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            self._note(arguments[0])
        elif event == "import":
            name = arguments[0]
            if isinstance(name, str) and name.partition(".")[0] in self._tops:
                self._wanted.add(name)
                self._tell(*self._absent(name, sys.modules))
        elif event in ("os.listdir", "os.scandir"):
            # the import system lists the folders that it searches; between it and here is `listen`
            if not sys._getframe(2).f_code.co_filename.startswith("<frozen importlib"):
                self._note(arguments[0], end="/")
        elif event == "subprocess.Popen":
            if self._may_read(*arguments[:3]):
                self._started = True
                self._tell(_STARTED)
        elif event in _STARTS:
            self._started = True
            self._tell(_STARTED)

    def _tell(self, *names: str) -> None:
        """In a fork, let the rank know what is new. The file may be closed by then, as daemons do, or be another one."""
        if os.getpid() == self._rank or not (new := set(names) - self._found):
            return
        self._found |= new
        with suppress(OSError):
            if _identity(self._forks) == self._file:
                os.write(self._forks, "".join(f"{name}\0" for name in new).encode(errors="surrogateescape"))

    def _note(self, path: Any, *, end: str = "") -> None:
        name = self._below("." if path is None else path)
        if name is not None and _CACHES not in name and (name or end):
            self._tell((name or ".") + end)
            self._found.add((name or ".") + end)

    def _below(self, path: Any) -> str | None:
        """Return a path relative to the code folder; None where it is elsewhere, or no path."""
        if isinstance(path, os.PathLike):
            path = os.fspath(path)
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str):
            return None
        if not path.startswith("/"):
            path = f"{os.getcwd()}/{path}"
        if "/." in path or "//" in path:
            path = os.path.normpath(path)
        if path + "/" == self._root:
            return ""
        return path[len(self._root) :] if path.startswith(self._root) else None

    def _may_read(self, executable: Any, words: Any, folder: Any) -> bool:
        """Whether a program may read files of the code: another Python, or one that is given a file of it."""
        words = [words] if isinstance(words, (str, bytes)) else list(words or ())
        program = os.fsdecode(executable or (words[0] if words else ""))
        if os.path.basename(program).startswith("python") or self._below(folder or "."):
            return True
        return any(
            self._root in os.fsdecode(word) for word in words if isinstance(word, (str, bytes, os.PathLike))
        )

    def _absent(self, name: str, modules: dict[str, ModuleType]) -> Sequence[str]:
        """The files that would be a module of one of the author's packages."""
        package, _, last = name.rpartition(".")
        paths = getattr(modules.get(package), "__path__", ())
        below = [inner for path in paths if (inner := self._below(str(path)))]
        return [f"{inner}/{last}{tail}" for inner in below for tail in (".py", "/__init__.py")]


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino
