"""Says how two jobs differ, and so whether one would make what the other made.

Kept versions, checkpoints of an earlier job and resumed runs all use this comparison. Each considers the kinds of
difference that matter to it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from muster.core.address import pinned, shown
from muster.core.data import Input, Pinned
from muster.core.job import MLFLOW_TAGS, TRACEPARENT, Interpreter, JobSpec, Role, SecretRef
from muster.core.origin import Origin
from muster.core.wire import dumps, plain

MOST_FILES = 3
_LONGEST = 60

# These fields say where, when, how often and for whom a job runs, not what it makes. Every other field counts,
# including one that a later release adds.
_IMMATERIAL: Mapping[str, Any] = {
    "name": "-",
    "code": None,
    "origin": Origin(),
    "follows": None,
    **{
        field.name: field.default
        for field in dataclasses.fields(JobSpec)
        if field.name
        in (
            "run_timeout_seconds",
            "queue_timeout_seconds",
            "hang_timeout_seconds",
            "idle_seconds",
            "budget",
            "metric_pattern",
            "grace_seconds",
            "max_restarts",
            "queue",
            "priority",
        )
    },
}
_SOMEWHERE = pinned("somewhere", 1)


class DifferenceKind(str, Enum):
    """The kinds of difference. `SHAPE` is what runs in how many processes, `RESOURCES` what each is given."""

    CODE = "code"
    IMAGE = "image"
    SHAPE = "shape"
    RESOURCES = "resources"
    INPUT = "input"
    PARAM = "param"
    OTHER = "other"


@dataclass(frozen=True)
class Difference:
    """One thing that differs, in words: ``epochs 4 → 5``."""

    what: DifferenceKind
    text: str

    def __str__(self) -> str:
        return self.text


def essence(spec: JobSpec) -> JobSpec:
    """Return a job reduced to what its versions depend on, without its code.

    Inputs count by content and partition, not by number. The trace that a job belongs to is another in each run. An
    interpreter counts by its version and packages, wherever it lies.
    """
    inputs = {name: replace(given, versions=_contents(given)) for name, given in spec.inputs.items()}
    runs = spec.interpreter and replace(spec.interpreter, path="")
    return replace(spec, inputs=inputs, env=_untraced(spec.env), interpreter=runs, **_IMMATERIAL)


def key_of(spec: JobSpec) -> str:
    """Return a digest of a job's essence, without its code: 40 hex digits."""
    text = json.dumps(json.loads(dumps(essence(spec))), sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def whole_key_of(spec: JobSpec) -> str:
    """Return a digest of a job's essence and code: jobs with the same one make the same versions."""
    return hashlib.blake2b(f"{key_of(spec)} {spec.code}".encode(), digest_size=20).hexdigest()


def task_key_of(origin: Origin) -> str:
    """Return a digest of a Dag's id and a task's: 40 hex digits."""
    text = json.dumps([origin.dag_id, origin.task_id])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def differences(then: JobSpec, now: JobSpec, changed: Sequence[str] | None = ()) -> list[Difference]:
    """Return how a job differs from an earlier one, the simplest differences first.

    :param changed: the files of its code that changed; None if that is unknown.
    """
    found = [Difference(DifferenceKind.CODE, text) for text in [files_changed(changed)] if text]
    before, here = essence(then), essence(now)
    for field in dataclasses.fields(JobSpec):
        if not _same(getattr(before, field.name), getattr(here, field.name)):
            found += _TELL.get(field.name, _other)(field.name, then, now)
    return found


def files_changed(changed: Sequence[str] | None) -> str:
    """Write which files changed: ``flights/etl.py changed``; empty where none did.

    :param changed: None if some did and it is unknown which.
    """
    if changed is None:
        return "code changed"
    if not changed:
        return ""
    more = len(changed) - MOST_FILES
    rest = f" and {more} more file{'s' * (more > 1)}" if more > 0 else ""
    return f"{', '.join(changed[:MOST_FILES])}{rest} changed"


def _contents(given: Input) -> tuple[Pinned, ...]:
    return tuple(replace(version, address=_SOMEWHERE) for version in given.versions)


def _same(then: object, now: object) -> bool:
    """Whether two values are the same as JSON: 1 and True are not."""
    return json.dumps(plain(then), sort_keys=True) == json.dumps(plain(now), sort_keys=True)


def _other(name: str, then: JobSpec, now: JobSpec) -> Iterator[Difference]:
    yield Difference(
        DifferenceKind.OTHER, f"{name} {_value(getattr(then, name))} → {_value(getattr(now, name))}"
    )


def _image(name: str, then: JobSpec, now: JobSpec) -> Iterator[Difference]:
    """Say that its name differs; of two locks only where that does not."""
    if name == "image":
        yield Difference(DifferenceKind.IMAGE, f"image {then.image} → {now.image}")
    elif then.image == now.image:
        yield Difference(DifferenceKind.IMAGE, f"image {now.image} has another lock")


def _interpreter(_: str, then: JobSpec, now: JobSpec) -> Iterator[Difference]:
    told = f"{_environment(then.interpreter)} → {_environment(now.interpreter)}"
    yield Difference(DifferenceKind.IMAGE, f"interpreter of image {now.image}: {told}")


def _environment(interpreter: Interpreter | None) -> str:
    return "its lock" if interpreter is None else f"Python {interpreter}"


def _launcher(_: str, then: JobSpec, now: JobSpec) -> Iterator[Difference]:
    yield Difference(DifferenceKind.OTHER, f"launcher {then.launcher.value} → {now.launcher.value}")


def _inputs(_: str, then: JobSpec, now: JobSpec) -> Iterator[Difference]:
    for name in sorted({*then.inputs, *now.inputs}):
        before, here = then.inputs.get(name), now.inputs.get(name)
        if (
            before is None
            or here is None
            or not _same(
                (before.many, before.path, _contents(before)), (here.many, here.path, _contents(here))
            )
        ):
            yield Difference(DifferenceKind.INPUT, f"input {name}: {_arrow(_given(before), _given(here))}")


def _given(given: Input | None) -> str:
    if given is None:
        return "none"
    text = shown([version.address for version in given.versions]) or "no version"
    text += f"/{given.path}" if given.path else ""
    return f"a list of {text}" if given.many and len(given.versions) == 1 else text


def _arrow(before: str, here: str) -> str:
    """Write ``flights/features@9 → @21``: a volume that both sides name is written once."""
    volume, at, _ = before.partition("@")
    if at and here.startswith(f"{volume}@") and ", " not in before + here:
        here = here.removeprefix(volume)
    return f"{before} → {here}"


def _mapping(field: str, then: JobSpec, now: JobSpec) -> Iterator[Difference]:
    what = DifferenceKind.PARAM if field == "params" else DifferenceKind.OTHER
    before, here = (_untraced(spec.env) if field == "env" else getattr(spec, field) for spec in (then, now))
    for name in sorted({*before, *here}):
        if not _same(*([values[name]] if name in values else None for values in (before, here))):
            yield Difference(what, f"{_PREFIXES[field]}{name} {_items(before, here, name)}")


def _items(then: Mapping[str, Any], now: Mapping[str, Any], name: str) -> str:
    """Write both values; of long ones the part where they begin to differ, such as one bound of a whole suite."""
    before, here = _item(then, name), _item(now, name)
    if max(len(before), len(here)) <= _LONGEST:
        return f"{before} → {here}"
    alike = next(
        (at for at, (was, now) in enumerate(zip(before, here, strict=False)) if was != now), _LONGEST
    )
    at = max(0, alike - _LONGEST // 2)
    return f"{_part(before, at)} → {_part(here, at)}"


def _part(text: str, at: int) -> str:
    shown = f"{'…' * (at > 0)}{text[at:]}"
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"


def _item(values: Mapping[str, Any], name: str) -> str:
    return _text(values[name]) if name in values else "none"


def _value(value: Any) -> str:
    return _part(_text(value), 0)


def _text(value: Any) -> str:
    if isinstance(value, SecretRef):
        return f"{value.source}:{value.name}"
    return json.dumps(plain(value), ensure_ascii=False)


def _outputs(_: str, then: JobSpec, now: JobSpec) -> Iterator[Difference]:
    def written(spec: JobSpec) -> dict[str, str]:
        return {
            name: each.volume + (f"@{each.partition}" if each.partition else "")
            for name, each in spec.outputs.items()
        }

    before, here = written(then), written(now)
    for name in sorted({*before, *here}):
        if before.get(name) != here.get(name):
            yield Difference(
                DifferenceKind.OTHER, f"output {name}: {before.get(name, 'none')} → {here.get(name, 'none')}"
            )


def _roles(_: str, then: JobSpec, now: JobSpec) -> Iterator[Difference]:
    names, before = [role.name for role in now.roles], [role.name for role in then.roles]
    if names != before:
        yield Difference(DifferenceKind.SHAPE, f"roles {', '.join(before)} → {', '.join(names)}")
        return
    for old, new in zip(then.roles, now.roles, strict=True):
        label = f"{new.name}: " if len(now.roles) > 1 else ""
        if (old.entrypoint, old.command) != (new.entrypoint, new.command):
            yield Difference(DifferenceKind.SHAPE, f"{label}{_word(old)} → {_word(new)}")
        for field in ("replicas", "ranks"):
            if getattr(old, field) != getattr(new, field):
                yield Difference(
                    DifferenceKind.SHAPE, f"{label}{field} {getattr(old, field)} → {getattr(new, field)}"
                )
        for each in dataclasses.fields(new.resources):
            given, wanted = getattr(old.resources, each.name), getattr(new.resources, each.name)
            if given != wanted:
                yield Difference(
                    DifferenceKind.RESOURCES, f"{label}{each.name} {_amount(given)} → {_amount(wanted)}"
                )


def _word(role: Role) -> str:
    """What a role runs."""
    text = role.entrypoint or " ".join(role.command or ())
    return text if len(text) <= 80 else f"{text[:79]}…"


def _amount(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else ", ".join(value) or "any"


def _untraced(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in (TRACEPARENT, MLFLOW_TAGS)}


_PREFIXES = {"params": "", "env": "env ", "secrets": "secret "}
_TELL = {
    "image": _image,
    "image_digest": _image,
    "interpreter": _interpreter,
    "launcher": _launcher,
    "inputs": _inputs,
    "outputs": _outputs,
    "params": _mapping,
    "roles": _roles,
    "env": _mapping,
    "secrets": _mapping,
}
