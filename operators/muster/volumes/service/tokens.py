"""Tokens: which calls of the store service a client may make, and until when.

::

    <payload>.<mac>        both base64url without padding
    payload                {"attempt":2,"expires":1798761600.0,"job_id":"train-9f2c-1","kind":"job"}
    mac                    HMAC-SHA256 (RFC 2104) over "muster-token-1." and the payload's text

An **operator**'s token allows every call; Airflow and people have one. A **reader**'s allows the calls that change nothing, but for
users' requests; a **sweeper**'s also what gc does, a **page**'s what people click: it marks versions, ends jobs and searches, and makes
and ends tokens of persons, but sends and deletes nothing. A **person**'s reaches what :mod:`muster.volumes.service.persons` keeps of it. A **job**'s token only allows to
fetch the bundle of its own attempt's replicas, add their lines and seal them, and only while that attempt is
the current one: requests of a fenced attempt are refused.

The keys are in a file, one per line. The first one signs; all of them are accepted, so that a key can be
replaced without a moment in which valid tokens are refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

from muster.core import wire
from muster.core.errors import SpecError, StoreError

_LOG = logging.getLogger(__name__)

_KEY_LENGTH = 32
_TOKEN_LENGTH = 1024

_DOMAIN = b"muster-token-1."  # no other text that is signed with such a key begins so


class TokenRefused(StoreError):
    """The token is not valid, or not for this call."""


class TokenKind(str, Enum):
    """The holder of a token: an operator, one that reads or sweeps, Airflow's page, a person, or the pods of a job."""

    OPERATOR = "operator"
    JOB = "job"
    READER = "reader"
    SWEEPER = "sweeper"
    PAGE = "page"
    PERSON = "person"


@dataclass(frozen=True, kw_only=True)
class Token:
    """The content of a token. `expires` is seconds since the epoch; only a job's has a job, only a person's an id."""

    kind: TokenKind
    expires: float
    job_id: str = ""
    attempt: int = 0
    token_id: str = ""


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Return the keys in a file, one per line.

    :raises SpecError: it cannot be read, holds no key, or one shorter than 32 characters.
    """
    try:
        keys = tuple(path.read_bytes().split())
    except OSError as error:
        raise SpecError(f"key file {path} cannot be read: {error.strerror}") from error
    if not keys or min(map(len, keys)) < _KEY_LENGTH:
        raise SpecError(
            f"key file {path} needs keys of {_KEY_LENGTH} or more characters, one a line: "
            f"`openssl rand -hex 32 > {path}` makes one"
        )
    return keys


class KeyFile(Sequence[bytes]):
    """The keys in a file as it is now: it is read again once it was changed, so that keys change without a stop.

    A file that holds no keys now is told once, and those of before count on.

    :raises SpecError: it holds none at first.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._seen = path, _state(path)
        self._keys = read_keys(path)

    def __len__(self) -> int:
        return len(self._now())

    def __getitem__(self, at: Any) -> Any:
        return self._now()[at]

    def _now(self) -> tuple[bytes, ...]:
        seen = _state(self._path)
        if seen != self._seen:
            self._seen = seen
            try:
                self._keys = read_keys(self._path)
                _LOG.info("key file %s was changed: tokens of %d keys count", self._path, len(self._keys))
            except SpecError as error:
                _LOG.warning("%s. The keys of before count on", error)
        return self._keys


def _state(path: Path) -> tuple[int, ...]:
    """What differs once a file was written or replaced; empty where it cannot be seen."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def operator_token(
    keys: Sequence[bytes], *, lifetime_seconds: float, kind: TokenKind = TokenKind.OPERATOR
) -> str:
    """Make a token for Airflow, a person, or something that has fewer rights."""
    return sign(keys, Token(kind=kind, expires=time.time() + lifetime_seconds))


def job_token(keys: Sequence[bytes], job_id: str, *, attempt: int, lifetime_seconds: float) -> str:
    """Make a token for the pods of one attempt of one job."""
    expires = time.time() + lifetime_seconds
    return sign(keys, Token(kind=TokenKind.JOB, job_id=job_id, attempt=attempt, expires=expires))


def sign(keys: Sequence[bytes], token: Token) -> str:
    """Return the text of a token, signed with the first key."""
    payload = _encode(json.dumps(wire.written(token), sort_keys=True, separators=(",", ":")).encode())
    return f"{payload.decode()}.{_encode(_mac(keys[0], payload)).decode()}"


def verify(keys: Sequence[bytes], text: str) -> Token:
    """Return a token's content if its signature is valid and it has not expired.

    Neither the time this takes nor the error reveals anything about the right signature.

    :raises TokenRefused: the signature is wrong, or the token has expired.
    """
    token = _said(tuple(keys), text)
    if token.expires <= time.time():
        ended, now = (
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(each)) for each in (token.expires, time.time())
        )
        raise TokenRefused(
            f"the token expired at {ended} UTC, by the clock of the store service, which says {now} UTC: ask its operator for a "
            "new one"
        )
    return token


@lru_cache(1024)
def _said(keys: tuple[bytes, ...], text: str) -> Token:
    """Return a valid token's content, cached: a client sends the same one with each request."""
    payload, _, mac = text.partition(".")
    if len(text) > _TOKEN_LENGTH or not _signed(keys, payload, mac):
        raise TokenRefused("the token is not one of this store service: ask its operator for one")
    try:
        return wire.build(Token, json.loads(_decode(payload)))
    except SpecError as error:
        raise TokenRefused(
            f"the token is of another release of muster ({error}): ask the store service's operator for a new one"
        ) from error


def expiry(text: str) -> float | None:
    """Return a token's time of expiry, unchecked; None where it is no token.

    In seconds since the epoch; for a client, which has no keys to check the signature.
    """
    try:
        return float(json.loads(_decode(text.partition(".")[0]))["expires"])
    except (ValueError, KeyError, TypeError):
        return None


def _signed(keys: Sequence[bytes], payload: str, mac: str) -> bool:
    if not (payload.isascii() and mac.isascii()):
        return False
    wanted = [_encode(_mac(key, payload.encode())) for key in keys]
    return any([hmac.compare_digest(each, mac.encode()) for each in wanted])  # noqa: C419 - all, whichever it is


def _mac(key: bytes, payload: bytes) -> bytes:
    return hmac.new(key, _DOMAIN + payload, hashlib.sha256).digest()


def _encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
