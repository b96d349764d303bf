"""All documents of muster: the dataclasses that cross a process, a pod, a release or the disk as JSON, and triggers.

They are found in the source, so that a new one cannot be forgotten: what a call of ``wire.loads``, ``wire.build`` or
``Call.message`` names, what the calls of the store service carry, and what a field of those holds. A trigger's fields
are the keywords of its constructor, which Airflow's database stores while a task is deferred.
``python -m tests.unit.documents`` writes documents.txt anew: each document, field, type and default. The schema
number is its first line. While it stays, a line may only be added, and only with a default: the release before
reads the same documents.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import muster
from muster.backends.releases.book import Book
from muster.core.data import Input, OutputTarget, Pinned
from muster.core.tally import HourBudget
from muster.core.wire import SCHEMA_VERSION, written
from muster.ext.search.space import Dimension

LIST = Path(__file__).with_name("documents.txt")
ROOT = Path(muster.__path__[0])
READERS = {"loads", "loads_field", "wire.loads", "wire.loads_field", "wire.build", "call.message"}
READS = "loads|build|message"
DERIVED = {"kind", "row.sent.kind", "self.message"}
"""What the readers are told where one line reads many kinds: those of the table, and of the calls that are found."""
DIGEST = "b3:" + "ab" * 32
ADDRESS = "volume://raw/rows@3"

# What a field needs that refuses a made-up value. A document without such fields is not in here.
VALID: Mapping[str, Mapping[str, Any]] = {
    "ClusterSite": {
        "store_url": "http://store:8080",
        "images": {"python": "registry/python@sha256:" + "0" * 64},
        "gpu_resource": "amd.com/gpu",
        "serving": "kserve",
        "gateway": "gateways/public",
        "serving_url": "http://{name}.models",
        "gateway_metrics": "http://gateway:9100/metrics",
        "gateway_seconds": 1.5,
    },
    "SavedDeployment": {"book": Book(name="text", made=7, moved=1.5)},
    "Comparison": {"metric": "auc", "labels": ((1.0,),), "agreement": 0.5},
    "DeploymentSpec": {"image_digest": DIGEST, "host": "0.0.0.0"},
    "Dimension": {  # it has choices or bounds
        "low": 1.0,
        "high": 9.0,
        "choices": (),
        "log": True,
        "whole": True,
        "step": 1.0,
        "given": {"names": ("a", None)},
    },
    "Interpreter": {"digest": DIGEST},
    "JobSpec": {
        "image_digest": DIGEST,
        "code": DIGEST,
        "inputs": {  # of checkpoints alone a part of a version is named
            "checkpoints": Input(versions=(Pinned(address=ADDRESS, digest=DIGEST),), path="checkpoints/3"),
            "rows": Input(versions=(Pinned(address=ADDRESS, digest=DIGEST),), many=True),
        },
        "outputs": {"model": OutputTarget(volume="raw/model", partition="*")},
        "params": {"rate": 0.1, "names": ["a", None]},
        "env": {"A": "1"},
        "metric_pattern": r"(?P<epoch>\d+)",
    },
    "Pinned": {"address": ADDRESS, "digest": DIGEST},
    "Plan": {"steps": (5, 100)},
    "Replica": {"inputs": {"rows": ("/rows",)}, "staging": {"model": "/staging"}, "index": 1},
    "Role": {
        "entrypoint": "train:train",  # a role has one of the two
        "command": None,
        "replicas": 3,
        "least_replicas": 2,
        "ends_with": None,  # an elastic gang has one role
    },
    "RequestLimits": {"rate": 5.0, "burst": 2, "body_mib": 1.0},
    "RequestLog": {"share": 0.5, "hashed": ("user",), "keep_partitions": 720, "partition_days": 30.0},
    "Rules": {"max_error_share": 0.5, "max_refused_share": 0.5, "max_unseen_share": 0.5, "max_psi": 0.2},
    "SearchSpec": {
        "space": {"rate": Dimension(low=0.0, high=1.0, step=0.5)},
        "rungs": (1.0, 3.0),
        "until": "names",  # a param of the JobSpec above
    },
    "SecretRef": {"source": "environment"},
    "UsageQuestion": {"by": ("dag", "user")},
    "BudgetQuestion": {"given": {"team:vision": HourBudget(gpu_hours=1.0)}},
    "ClientToken": {"digest": "ab" * 32},
    "Workers": {"stream": False},  # beside it stand batch, and the log of a DeploymentSpec
    "SmokeRequest": {"expect": {"probability": {"min": 0.5}}},
}
NEEDED: Mapping[str, tuple[str, ...]] = {
    "Comparison": ("agreement",),
    "Dimension": ("low", "high"),
    "HourBudget": ("gpu_hours",),
    "Role": ("entrypoint",),
}
"""Fields with a default that a document cannot all leave out."""


def named() -> set[tuple[str, str]]:
    """Return the module and the name of each document that the source names."""
    found = set()
    for module, tree in sources(READS):
        origins = imports(tree)
        for call in calls(tree, READERS):
            name = ast.unparse(call.args[0]) if call.args else ""
            if name in DERIVED or not re.search(r"(^|\.)[A-Z]\w+$", name):
                continue
            owner, _, attribute = name.rpartition(".")
            found.add((origins.get(owner or name, module), attribute))
    return found


def sources(words: str) -> Iterator[tuple[str, ast.Module]]:
    """Return each module of muster in which one of the words stands, and its source."""
    for path in sorted(ROOT.rglob("*.py")):
        if re.search(words, text := path.read_text()):
            parts = path.relative_to(ROOT.parent).with_suffix("").parts
            yield ".".join(part for part in parts if part != "__init__"), ast.parse(text)


def calls(tree: ast.Module, names: set[str]) -> Iterator[ast.Call]:
    """Return the calls of functions or methods that the source calls so."""
    last = {name.rpartition(".")[2] for name in names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if called in last and ast.unparse(node.func) in names:
                yield node


def imports(tree: ast.Module) -> dict[str, str]:
    """Return each imported name, and the module that has it or is it."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                whole = f"{node.module}.{each.name}"
                is_module = (ROOT.parent / whole.replace(".", "/")).with_suffix(".py").is_file()
                found[each.asname or each.name] = whole if is_module else node.module
    return found


@cache
def documents() -> dict[str, type]:
    """Return every document by its name."""
    from muster.volumes.service.table import TABLE

    kinds = [getattr(import_module(module), name) for module, name in named()]
    kinds += [kind for row in TABLE for kind in (row.message, row.sent and row.sent.kind) if kind]
    found: dict[str, type] = {}
    while kinds:
        kind = kinds.pop()
        if dataclasses.is_dataclass(kind) and label(kind) not in found:
            found[label(kind)] = kind
            kinds += [part for hint in typing.get_type_hints(kind).values() for part in parts(hint)]
    return dict(sorted(found.items()))


@cache
def triggers() -> dict[str, type]:
    """Return every trigger by the path that Airflow's database stores."""
    kinds = [
        getattr(import_module(module), node.name)
        for module, tree in sources("Trigger")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).endswith("Trigger") for base in node.bases)
    ]
    return {
        f"{kind.stored_in or kind.__module__}.{kind.__name__}": kind
        for kind in kinds
        if not inspect.isabstract(kind)
    }


def keywords(kind: type) -> dict[str, Any]:
    """Return the keywords of a trigger's constructor, each with its default; MISSING where there is none."""
    return {
        name: dataclasses.MISSING if each.default is each.empty else each.default
        for name, each in inspect.signature(kind).parameters.items()
    }


_CHECKED = {"source": "kafka://broker/clicks"}
"""Keywords of triggers that take no text but such a one."""


def given(kind: type, *, all_of_them: bool) -> dict[str, Any]:
    """Return keywords of a trigger, none at its default; only those that it needs unless all are asked for."""
    hints = typing.get_type_hints(kind.__init__)  # type: ignore[misc]  # of this class, not of another
    return {
        name: _CHECKED.get(name) or made(hints[name], value)
        for name, value in keywords(kind).items()
        if all_of_them or value is dataclasses.MISSING
    }


def label(kind: type) -> str:
    """A document's name, with its module where that says more than its name: a message of a call has none."""
    return kind.__name__ if kind.__module__ == "types" else f"{kind.__module__}.{kind.__name__}"


def parts(hint: Any) -> Iterator[type]:
    """Return the classes in a type."""
    if isinstance(hint, type) and not typing.get_args(hint):
        yield hint
    for argument in typing.get_args(hint):
        yield from parts(argument)


def fields(kind: type) -> Mapping[str, dataclasses.Field[Any]]:
    """Return the fields of a document."""
    return {each.name: each for each in dataclasses.fields(kind)}


def default(field: dataclasses.Field[Any]) -> Any:
    """Return what a field is where a document does not have it; MISSING where it must."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def full(kind: type) -> Any:
    """Make a document in which no field has its default."""
    valid = VALID.get(kind.__name__, {})
    hints = typing.get_type_hints(kind)
    return kind(
        **{name: valid.get(name, made(hints[name], default(each))) for name, each in fields(kind).items()}
    )


def least(kind: type) -> Any:
    """Make a document in which every field that has a default is at it."""
    valid = VALID.get(kind.__name__, {})
    hints = typing.get_type_hints(kind)
    return kind(**{name: valid.get(name, made(hints[name], None)) for name in needed(kind)})


def needed(kind: type) -> set[str]:
    """Return the fields that every document of a kind has."""
    without = {name for name, each in fields(kind).items() if default(each) is dataclasses.MISSING}
    return without.union(NEEDED.get(kind.__name__, ()))


def made(hint: Any, unlike: Any) -> Any:
    """Make a value of a type that differs from another one."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in arguments:
        return made(next(each for each in arguments if each is not type(None)), unlike)
    if origin is tuple:
        return (made(arguments[0], None),)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"key": made(arguments[1], None)}
    if dataclasses.is_dataclass(hint):
        return full(typing.cast("type", hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(each for each in hint if each is not unlike)
    if hint is bool:
        return not unlike
    return {str: "text", int: 7, float: 1.5}.get(hint, ["any", {"value": 1}])


def names() -> list[str]:
    """Return the names of the listing, triggers among them, which takes no look at the source."""
    return [line for line in LIST.read_text().splitlines()[1:] if ":" not in line]


def lines() -> Iterator[str]:
    """Return the listing."""
    yield f"schema {SCHEMA_VERSION}"
    for name, kind in documents().items():
        defaults = {each: default(field) for each, field in fields(kind).items()}
        yield from listed(name, typing.get_type_hints(kind), defaults)
    for name, kind in triggers().items():
        yield from listed(name, typing.get_type_hints(kind.__init__), keywords(kind))  # type: ignore[misc]


def listed(name: str, hints: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    """Return the lines of one document."""
    yield name
    for field, value in defaults.items():
        text = "" if value is dataclasses.MISSING else f" = {told(value)}"
        yield f"{name}.{field}: {shown(hints[field])}{text}"


def told(value: Any) -> str:
    """Return a default as it is on the wire, where a document leaves out fields at their own default."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({written(value) or ''})"
    return repr(value)


def shown(hint: Any) -> str:
    """Return a type as its author writes it, without modules; an enum's name is not on the wire."""
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    for kind in parts(hint):
        if issubclass(kind, Enum):
            text = re.sub(rf"\b{kind.__name__}\b", "enum", text)
    return re.sub(r"\b([a-z_]+\.)+", "", text)


def moved(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """Return a listing with the modules that its documents have now: a document says its kind, and no module.

    A trigger's path is in Airflow's database, so it stays where it is.
    """
    there, then = ({line for line in each[1:] if ":" not in line} for each in (now, before))
    new = {name.rpartition(".")[2]: name for name in there - then if not name.endswith("Trigger")}
    for gone in then - there:
        name = new.get(gone.rpartition(".")[2], gone)
        before = [re.sub(rf"^{re.escape(gone)}(?=$|\.)", name, line) for line in before]
    return list(before)


def refused(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """Say what of a listing may not become another one while the schema number stays."""
    if before[:1] != now[:1]:
        return []
    before = moved(before, now)
    kept = {line for line in before if ":" not in line}
    gone = [f"taken away or changed: {line}" for line in before if line not in set(now)]
    return gone + [
        f"a new field needs a default: {line}"
        for line in now
        if line not in set(before)
        and ":" in line
        and " = " not in line
        and line.partition(":")[0].rpartition(".")[0] in kept
    ]


if __name__ == "__main__":
    found = list(lines())
    if why := refused(LIST.read_text().splitlines() if LIST.exists() else [], found):
        sys.exit("\n".join([*why, "move SCHEMA_VERSION in muster.core.wire, or keep what there was"]))
    LIST.write_text("".join(f"{line}\n" for line in found))
