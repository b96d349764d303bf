"""Whether a job goes on from the checkpoints that the one before it left: its task was retried, cleared or resumed."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from muster.core.comparison import Difference, DifferenceKind, differences
from muster.core.errors import NotFound, SpecError
from muster.core.wire import plain
from muster.volumes.changes import code_changed

if TYPE_CHECKING:  # a Dag file imports this room
    from muster.core.job import JobSpec
    from muster.volumes.base import Saved
    from muster.volumes.protocols import LocalStore

# Checkpoints are of the same where the same runs, in as many processes, with the same inputs.
_OTHERS = frozenset({DifferenceKind.SHAPE, DifferenceKind.INPUT})


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
    found = _since(store.ledger.spec(saved.job_id), spec, store)
    refused = next((each for each in found if each.what in _OTHERS), None)
    if refused is not None and resume is Resume.AUTO:
        said = (
            f"starts anew, without {what}: {refused} (resume_from_checkpoint='always' goes on all the same)"
        )
        return Choice(lines=(said,))
    since = f"; since then: {'; '.join(map(str, found))}" if found else ""
    return Choice(follows=saved.job_id, lines=(f"goes on from {what} ({_told(saved)}){since}",))


def edited(then: JobSpec, now: JobSpec) -> bool:
    """Whether a job would do the same with the same inputs as another, and yet is not the same."""
    if any(each.what in _OTHERS for each in differences(then, now)):
        return False
    return bool(plain(replace(now, follows=then.follows)) != plain(then))


def _since(then: JobSpec, now: JobSpec, store: LocalStore) -> list[Difference]:
    """What differs, first what makes checkpoints those of something else."""
    found = differences(then, now, code_changed(then.code, now.code, store))
    return sorted(found, key=lambda each: each.what not in _OTHERS)


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
