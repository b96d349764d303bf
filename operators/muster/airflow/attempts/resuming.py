"""Whether a job goes on from the checkpoints that the one before it left: its task was retried, cleared or resumed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from muster.core.errors import NotFound, SpecError
from muster.core.wire import plain

if TYPE_CHECKING:  # a Dag file imports this room
    from muster.core.job import Input, JobSpec, Role
    from muster.volumes.base import Saved
    from muster.volumes.protocols import LocalStore

_SHOWN = 3


class Resume(str, Enum):
    """What a job does about the checkpoints of the one before it, which did not succeed."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def resume_of(name: str | Resume) -> Resume:
    """Return what a word means. :raises SpecError: it is none."""
    try:
        return Resume(name)
    except ValueError as error:
        raise SpecError(f"{name!r:.60}: expected {', '.join(each.value for each in Resume)}") from error


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The job whose checkpoints are gone on from, or None, and what the log says about it."""

    follows: str | None = None
    lines: tuple[str, ...] = ()


def choose(spec: JobSpec, before: str | None, resume: Resume, store: LocalStore) -> Choice:
    """Decide whether a job goes on from what the one before it saved.

    With ``auto`` it does where both do the same with the same: entrypoint or command, the digests of their
    inputs, and their roles are equal. Code, params, resources, image and launcher may differ.

    :param before: the job before it of the same task and run.
    """
    saved = None if before is None else _saved(store, before)
    if saved is None:
        return Choice()
    what = f"the checkpoints of job {saved.job_id}"
    if resume is Resume.NEVER:
        return Choice(lines=(f"starts anew, without {what}: resume_from_checkpoint is 'never'",))
    then = store.ledger.spec(saved.job_id)
    refused = next(_other(then, spec), None)
    if refused is not None and resume is Resume.AUTO:
        said = (
            f"starts anew, without {what}: {refused} (resume_from_checkpoint='always' goes on all the same)"
        )
        return Choice(lines=(said,))
    changed = [*([] if refused is None else [refused]), *_changed(then, spec, store)]
    since = f"; changed since: {'; '.join(changed)}" if changed else ""
    return Choice(follows=saved.job_id, lines=(f"goes on from {what} ({_told(saved)}){since}",))


def edited(then: JobSpec, now: JobSpec) -> bool:
    """Whether a job would do the same with the same inputs as another, and yet is not the same."""
    return next(_other(then, now), None) is None and plain(replace(now, follows=then.follows)) != plain(then)


def _saved(store: LocalStore, job_id: str) -> Saved | None:
    try:
        return store.saved(job_id)
    except NotFound:  # gc has taken the job away
        return None


def _told(saved: Saved) -> str:
    when = time.strftime("%F %T", time.localtime(saved.newest))
    return f"{_many(saved.files, 'file')}, {saved.size_bytes:,} B, the newest of {when}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _other(then: JobSpec, now: JobSpec) -> Iterator[str]:
    """What makes checkpoints those of something else, the first thing first."""
    for name in sorted({*then.inputs, *now.inputs}):
        before, here = then.inputs.get(name), now.inputs.get(name)
        if _digests(before) != _digests(here):
            yield f"input {name} was {_addresses(before)} and is {_addresses(here)}"
    before_roles, roles = [_shape(role) for role in then.roles], [_shape(role) for role in now.roles]
    if before_roles != roles:
        yield f"it was {', '.join(map(_words, then.roles))} and is {', '.join(map(_words, now.roles))}"


def _changed(then: JobSpec, now: JobSpec, store: LocalStore) -> Iterator[str]:
    """What may differ, and is told."""
    if then.code != now.code:
        yield f"code{_files(then.code, now.code, store)}"
    for name in sorted({*then.params, *now.params}):
        if then.params.get(name) != now.params.get(name):
            yield f"param {name} from {then.params.get(name)!r:.60} to {now.params.get(name)!r:.60}"
    if then.image_digest != now.image_digest:
        yield f"image {now.image}"
    if [role.resources for role in then.roles] != [role.resources for role in now.roles]:
        yield "resources"
    if then.launcher is not now.launcher:
        yield f"launcher from {then.launcher.value} to {now.launcher.value}"


def _digests(given: Input | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(version.digest for version in given.versions)


def _addresses(given: Input | None) -> str:
    if given is None:
        return "none"
    names = [version.address.removeprefix("volume://") for version in given.versions]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more if names else "none"


def _shape(role: Role) -> tuple[object, ...]:
    return (role.name, role.replicas, role.ranks, role.entrypoint, role.command)


def _words(role: Role) -> str:
    """A role as people know it: ``main (2 replicas of 1 rank, loop.train:train)``."""
    what = role.entrypoint or " ".join(role.command or ())
    return f"{role.name} ({_many(role.replicas, 'replica')} of {_many(role.ranks, 'rank')}, {what:.80})"


def _files(before: str | None, now: str | None, store: LocalStore) -> str:
    """The files by which two snapshots of code differ, the first few of them; none where gc has taken one away."""
    try:
        then, here = _contents(before, store), _contents(now, store)
    except NotFound:
        return ""
    names = sorted(name for name in {*then, *here} if then.get(name) != here.get(name))
    more = f" and {_many(len(names) - _SHOWN, 'more file')}" if len(names) > _SHOWN else ""
    return f" ({', '.join(names[:_SHOWN])}{more})"


def _contents(digest: str | None, store: LocalStore) -> dict[str, bytes]:
    if digest is None:
        return {}
    root: Path = store.code(digest)
    return {
        path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
