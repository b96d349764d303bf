"""The rules for names, and for whole numbers: each rule once, for all of muster.

Names become folders, DNS labels, environment variables and pod labels, so each rule is the
narrowest of those: no name can mean something else to a shell, a path or a manifest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from muster.core.errors import SpecError

JOB_ID_LENGTH = 40
_VOLUME_LENGTH = 128
_NOTE_LENGTH = 4_000

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z")
_SEGMENT = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?\Z")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PARTITION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._=-]*[A-Za-z0-9])?\Z")
_UNPADDED = re.compile(r"(?<!\d)\d{4}[-._][Ww]?(\d|\d\d[-._]\d)(?!\d)")
_REQUEST = re.compile(r"[0-9a-f]{16}\Z")
_DIGEST = re.compile(r"b3:[0-9a-f]{64}\Z")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…' ({len(str(value))} characters)"


def check_job_id(job_id: str) -> str:
    """Return `job_id`, a DNS label of at most 40 characters, or raise SpecError."""
    if not isinstance(job_id, str) or len(job_id) > JOB_ID_LENGTH or not _LABEL.match(job_id):
        raise SpecError(
            f"job id {_shown(job_id)}: need a DNS label (a-z, 0-9, -) of at most {JOB_ID_LENGTH} characters"
        )
    return job_id


def check_label(what: str, name: str, *, length: int = 40) -> str:
    """Return `name`, a DNS label, or raise SpecError.

    :param what: starts the message; empty where the caller adds it.
    """
    if not isinstance(name, str) or len(name) > length or not _LABEL.match(name):
        raise SpecError(
            f"{what} {_shown(name)}".lstrip()
            + ": need lower-case letters, digits and -, starting and ending with "
            f"a letter or digit, at most {length} characters"
        )
    return name


def is_label(name: str) -> bool:
    """Whether a name is one that :func:`check_label` returns."""
    return len(name) <= 40 and _LABEL.match(name) is not None


def check_volume(name: str) -> str:
    """Return `name`, one or more segments joined by ``/`` such as ``flights/model``, or raise SpecError."""
    wanted = (
        "need segments of a-z, 0-9, '.', '_' and '-' joined by '/', such as 'flights/features', "
        f"no segment of digits alone, at most {_VOLUME_LENGTH} characters"
    )
    if not isinstance(name, str) or not 0 < len(name) <= _VOLUME_LENGTH:
        raise SpecError(f"volume {_shown(name)}: {wanted}")
    for segment in name.split("/"):
        if not _SEGMENT.match(segment) or ".." in segment or segment.isdigit():
            raise SpecError(f"volume {_shown(name)}: segment {_shown(segment)} is not allowed; {wanted}")
    return name


def check_partition(name: str) -> str:
    """Return `name`, such as ``2013-03``; digits alone would read as a version's number."""
    if (
        not isinstance(name, str)
        or len(name) > 63
        or not _PARTITION.match(name)
        or ".." in name
        or name.isdigit()
        or name == "latest"
    ):
        raise SpecError(
            f"partition {_shown(name)}: need letters, digits, '.', '_', '=' and '-', not digits alone "
            "(that reads as a version's number: write '2013-01' or 'y2013'), at most 63 characters"
        )
    return name


def check_new_partition(name: str) -> str:
    """Return the partition of a version that is to be made: partitions are ordered as text, so a date in it has two digits a part.

    Versions that are there may have any that :func:`check_partition` takes.
    """
    if _UNPADDED.search(check_partition(name)):
        raise SpecError(
            f"partition {_shown(name)}: partitions are ordered as text, and 2026-8 would come after 2026-10, so that @latest is "
            "the wrong one: write two digits, such as '2026-08'"
        )
    return name


def check_note(note: str) -> str:
    """Return what a person says of a version: text of at most 4,000 characters, or raise SpecError."""
    if not isinstance(note, str) or len(note) > _NOTE_LENGTH:
        found = (
            f"{len(note)} characters" if isinstance(note, str) else f"{_shown(note)}, {type(note).__name__}"
        )
        raise SpecError(f"note is {found}: need text of at most {_NOTE_LENGTH} characters")
    return note


def check_identifier(what: str, name: str) -> str:
    """Return `name`, a Python identifier: inputs, outputs and params become parameters of a function.

    :param what: the kind of name, at the start of the message; empty where the caller adds it.
    """
    if not isinstance(name, str) or len(name) > 63 or not _IDENTIFIER.match(name):
        raise SpecError(
            f"{what} {_shown(name)}".lstrip() + ": need a Python identifier of at most 63 characters"
        )
    return name


def check_variable(name: str) -> str:
    """Return `name`, that of an environment variable a job may set.

    An author may not set MUSTER_ and what the launchers set (RANK, MASTER_ADDR, HOROVOD_RANK …).
    Launchers win by being applied last, so only the MUSTER_ prefix is refused here.
    """
    if not isinstance(name, str) or len(name) > 128 or not _IDENTIFIER.match(name):
        raise SpecError(f"environment variable {_shown(name)}: need letters, digits and _")
    if name.startswith("MUSTER_"):
        raise SpecError(f"environment variable {_shown(name)}: the prefix MUSTER_ is muster's own")
    return name


def check_request(name: str) -> str:
    """Return `name`, by which a store knows that a call is made again: 16 hex digits, or raise SpecError."""
    if not isinstance(name, str) or not _REQUEST.match(name):
        raise SpecError(f"request {_shown(name)}: need 16 hex digits, of your own choice")
    return name


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name of `known` that `name` is most likely a misspelling of, or None."""
    from difflib import get_close_matches  # imported here: only a refusal needs it

    return next(iter(get_close_matches(name, sorted(known), n=1, cutoff=0.6)), None)


def make_job_id(*, instance: str, task: str, nonce: str, attempt: int) -> str:
    """Name one attempt: a readable stem of `task` and a digest of all four, 40 characters at most."""
    import hashlib  # imported here: it loads OpenSSL, which a worker does not need

    digest = hashlib.sha256(f"{instance}\0{task}\0{nonce}\0{attempt}".encode()).hexdigest()[:12]
    stem = re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-")[: JOB_ID_LENGTH - 20].strip("-") or "job"
    return check_job_id(f"{stem}-{digest}-{attempt}")


def check_whole(what: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what is no whole number within bounds. :param what: starts the message. :raises SpecError: it is none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most and value > most):
        bounds = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise SpecError(f"{what} is {value!r:.40}: need a whole number {bounds}")


def check_digest(what: str, digest: str) -> str:
    """Return `digest`, ``b3:`` and the 64 hex digits of a BLAKE3 hash, or raise SpecError."""
    if not isinstance(digest, str) or not _DIGEST.match(digest):
        raise SpecError(f"{what} digest {digest!r:.80}: expected b3: and 64 hex digits")
    return digest
