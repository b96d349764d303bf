"""All that a Dag, a script or a configuration may name: ``python -m tests.unit.airflow.public_names`` writes the list anew.

The list is public_names.txt. A line that is taken away, or changed, breaks what a user wrote: say so in
docs/howto/upgrade.md. A line that is new is a promise.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("public_names.txt")
JSON = {
    "job": "muster.core.status:JobStatus",
    "verdict": "muster.core.verdict:Verdict",
    "version": "muster.volumes.base:Version",
    "record": "muster.volumes.base:Record",
    "deployment": "muster.core.deployment:DeploymentStatus",
    "revision": "muster.core.deployment:Revision",
    "answer": "muster.core.deployment:Answer",
    "run": "muster.volumes.runs:Run",
    "stage": "muster.volumes.runs:RunStage",
    "stage job": "muster.volumes.runs:StageJob",
}
"""What ``--json`` and the page's API write whole, and the dataclass that its keys are."""
CHOICES = (
    "muster.core.job:Launcher",
    "muster.core.status:JobState",
    "muster.core.verdict:Cause",
    "muster.core.verdict:ExitCode",
    "muster.core.deployment:RevisionState",
)
"""What they write as words, and what a script compares with."""


def lines() -> Iterator[str]:
    """Return every public name with what it takes, a line each."""
    import muster
    import muster.airflow as public
    from muster.airflow.provider import get_provider_info
    from muster.core.settings import Settings

    for name in public.__all__:
        yield from (f"muster.airflow.{name}{each}" for each in _signature(getattr(public, name)))
    for name in muster.__all__:
        yield from (f"muster.{name}{each}" for each in _client(getattr(muster, name)))
    for place, attribute in get_provider_info()["config"]["muster"]["options"].items():
        yield f"[muster] {place} = {attribute['default']!r}"
    yield from (f"Settings.{name}" for name in Settings.__dataclass_fields__)
    for kind, path in JSON.items():
        yield from (f"json {kind}.{name}" for name in _load(path).__dataclass_fields__)
    yield from sorted(_commands())
    for path in CHOICES:
        kind = _load(path)
        yield from (f"{kind.__name__} {member.value}" for member in kind)


def _commands() -> Iterator[str]:
    """Return every command with its arguments and options."""
    import typer.main

    from muster.cli.app import app

    def walk(command: Any, words: str) -> Iterator[str]:
        for each in command.params:
            names = (
                each.opts + each.secondary_opts
                if each.param_type_name == "option"
                else [each.metavar or each.name]
            )
            yield from (f"{words} {name}" for name in names if name not in ("-h", "--help"))
        if not getattr(command, "commands", None):
            yield words
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{words} {name}")

    return walk(typer.main.get_command(app), "muster")


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _client(found: Any) -> Iterator[str]:
    """Return what a program may use: a function's keywords, or what an object has; no program makes one."""
    if not isinstance(found, type):
        yield from _signature(found)
        return
    yield ""
    yield from (f".{name}" for name in vars(found) if not name.startswith("_"))


def _signature(found: Any) -> Iterator[str]:
    yield ""
    makers = [found]
    if isinstance(
        found, type
    ):  # Airflow wraps each operator's __init__, and each passes on what it does not take itself
        ours = [each for each in found.__mro__ if each.__module__.startswith("muster.")]
        makers = [inspect.unwrap(vars(each)["__init__"]) for each in ours if "__init__" in vars(each)]
    seen = {"self"}
    for maker in makers:
        for parameter in inspect.signature(maker).parameters.values():
            variable = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if parameter.name not in seen and not variable:
                default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
                yield f"({parameter.name}{default})"
                seen.add(parameter.name)


if __name__ == "__main__":
    LIST.write_text("".join(f"{line}\n" for line in lines()))
