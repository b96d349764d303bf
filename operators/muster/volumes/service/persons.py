"""Tokens of persons: what each may see and change, made with the rights that its person has then.

``STORE/tokens/<token_id>.json`` is one :class:`PersonToken`, and a file ``<token_id>.used`` beside it is touched when the token is
used. The token itself is kept nowhere: it holds only the id, signed. It counts while its document is there and has
no end, so it is refused from the moment on in which that is written.

A person reaches volumes by the prefixes in the document, and jobs that wrote nothing else and waited in one of its queues. Which calls
there are for persons stands with each call (`person` of :func:`muster.volumes.service.calls.route`); all others are refused.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.core import wire
from muster.core.address import Address
from muster.core.errors import Corrupt, NotFound, SpecError
from muster.core.names import check_note, check_request, check_volume
from muster.volumes.base import Record
from muster.volumes.durability import read_whole, write_whole
from muster.volumes.protocols import Ledger, VersionStore
from muster.volumes.service.tokens import Token, TokenKind, TokenRefused, sign

if TYPE_CHECKING:
    from muster.volumes.folder import FolderStore

DAY_SECONDS = 86_400.0
MOST_DAYS = 90
MOST_TOKENS = 50
"""The tokens that one person may have at a time."""

_KEPT_SECONDS = 30 * DAY_SECONDS  # after its time, so that it is seen when it was used last
_USED_SECONDS = 60.0
_NAME_LENGTH = 80
_HIDDEN = "hidden"
_JOBS_KNOWN = 1 << 18


@dataclass(frozen=True, kw_only=True)
class PersonRights:
    """What a token reaches.

    :param teams: whose things these are; empty where the site has no teams, or the person sees all of them.
    :param reads: prefixes of the volumes that it sees; the empty one is the whole store.
    :param changes: prefixes of the volumes whose versions it may put and mark.
    :param shared: prefixes of volumes that it may read, but not see who made them.
    :param queues: those of the jobs that it sees.
    """

    teams: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for prefix in filter(None, (*self.reads, *self.changes, *self.shared)):
            check_volume(prefix)


@dataclass(frozen=True, kw_only=True)
class PersonToken:
    """One token of a person. Times are in seconds since the epoch.

    :param user: the person, by the name that Airflow knows. :param name: what the person calls it.
    :param used: when it was used last, at most a minute before; None where it never was. The document has it not.
    """

    token_id: str
    user: str
    name: str
    made: float
    expires: float
    rights: PersonRights
    ended: float | None = None
    ended_by: str = ""
    used: float | None = None

    def __post_init__(self) -> None:
        for what, text in (("user", self.user), ("name", self.name)):
            if not text.strip() or len(text) > _NAME_LENGTH or not text.isprintable():
                raise SpecError(
                    f"{what} of a token is {text!r:.120}: need 1 to {_NAME_LENGTH} printable characters"
                )

    def counts(self, *, now: float) -> bool:
        """Whether it has neither ended nor expired."""
        return self.ended is None and self.expires > now


@dataclass(frozen=True, kw_only=True)
class MadeToken:
    """A new token, which nothing tells again, and its id."""

    token_id: str
    token: str


class PersonTokens:
    """The tokens of persons at one store. Any number of threads may ask; the one store service that serves is its only writer."""

    def __init__(self, store: FolderStore, keys: Sequence[bytes]) -> None:
        self._store, self._folder, self._keys = store, store.layout.root / "tokens", keys
        self._writing = threading.Lock()
        self.facts = lru_cache(_JOBS_KNOWN)(self._facts)

    def make(self, user: str, *, token_name: str, lifetime_seconds: float, rights: PersonRights) -> MadeToken:
        """Make a token for a person, and say it this once.

        :raises SpecError: the time is longer than :data:`MOST_DAYS`, or the person has :data:`MOST_TOKENS`.
        """
        if not 0 < lifetime_seconds <= MOST_DAYS * DAY_SECONDS:
            raise SpecError(
                f"a token for {lifetime_seconds / DAY_SECONDS:g} days: need more than 0 and at most {MOST_DAYS}"
            )
        now = time.time()
        about = PersonToken(
            token_id=secrets.token_hex(8),
            user=user,
            name=token_name,
            made=now,
            expires=now + lifetime_seconds,
            rights=rights,
        )
        with self._writing:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._forget(now)
            if sum(each.counts(now=now) for each in self.all(user)) >= MOST_TOKENS:
                raise SpecError(
                    f"{user} has {MOST_TOKENS} tokens, and more cannot be: end one that is not used any more"
                )
            self._write(about)
        kept = Token(kind=TokenKind.PERSON, expires=about.expires, token_id=about.token_id)
        return MadeToken(token_id=about.token_id, token=sign(self._keys, kept))

    def all(self, user: str = "") -> list[PersonToken]:
        """Return the tokens of one person, or of all, oldest first; also those that ended lately."""
        found = []
        for path in self._folder.glob("[!.]*.json"):
            with suppress(FileNotFoundError):  # forgotten meanwhile
                about = _parsed(read_whole(path))
                if user in ("", about.user):
                    found.append(replace(about, used=_touched(path.with_suffix(".used"))))
        return sorted(found, key=lambda each: (each.made, each.token_id))

    def end(self, token_id: str, *, by: str) -> PersonToken:
        """End a token, at once; one that has ended stays as it is. :param by: who does it. :raises NotFound: there is none."""
        with self._writing:
            about = self._read(token_id)
            if about is None:
                raise NotFound(f"there is no token {token_id}: `muster tokens ls` lists what is there")
            if about.ended is None:
                about = replace(about, ended=time.time(), ended_by=check_note(by))
                self._write(about)
        return about

    def reach(self, token: Token) -> Reach:
        """Return what a person's token reaches now. :raises TokenRefused: it was ended, or is not known here."""
        about = self._read(token.token_id)
        if about is None:
            raise TokenRefused(
                "the token is not known here any more: make another one on muster's page, Tokens"
            )
        if about.ended is not None:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(about.ended))
            raise TokenRefused(
                f"the token {about.name!r} was ended at {at} UTC by {about.ended_by}: make another one on muster's page, Tokens"
            )
        used = self._folder / f"{about.token_id}.used"
        if (_touched(used) or 0.0) < time.time() - _USED_SECONDS:
            with suppress(OSError):  # a full disk is no reason not to read
                used.touch()
        return Reach(about, self)

    def _facts(self, job_id: str) -> tuple[str | None, frozenset[str]]:
        """Return the queue of a job, and the volumes that it writes: what never changes. :raises NotFound: there is none."""
        spec = self._store.ledger.spec(job_id)
        return _same(spec.queue, frozenset(each.volume for each in spec.outputs.values()))

    def _read(self, token_id: str) -> PersonToken | None:
        try:
            return _parsed(read_whole(self._path(token_id)))
        except FileNotFoundError:
            return None

    def _write(self, about: PersonToken) -> None:
        write_whole(self._path(about.token_id), wire.dumps(about), mode=0o600)

    def _path(self, token_id: str) -> Path:
        return self._folder / f"{check_request(token_id)}.json"

    def _forget(self, now: float) -> None:
        for each in self.all():
            if each.expires + _KEPT_SECONDS < now:
                path = self._path(each.token_id)
                path.unlink(missing_ok=True)
                path.with_suffix(".used").unlink(missing_ok=True)


class Reach:
    """What one person's token sees and changes. It knows names alone, so a refusal says nothing of what is there."""

    def __init__(self, about: PersonToken, tokens: PersonTokens) -> None:
        self._name, self._rights, self._tokens = about.name, about.rights, tokens

    def admit(self, given: Mapping[str, Any], *, right: str) -> dict[str, Any]:
        """Return a call's arguments without the jobs of many that the token does not reach.

        :param right: `reads`, or `changes` what the arguments name.
        :raises TokenRefused: a volume is out of reach. :raises NotFound: a job is, or there is none.
        """
        admitted = dict(given)
        if "checkpoints" in admitted:
            raise TokenRefused(f"the token {self._name!r} puts no checkpoints: they may be another team's")
        addresses = (*_one(given, "address"), *_one(given, "where"), *given.get("addresses", ()))
        for volume in (*(Address.parse(each).volume for each in addresses), *_one(given, "volume")):
            self._need(check_volume(volume), right)
        for job_id in _one(given, "job_id"):
            if not self.sees_job(job_id):
                raise NotFound(f"job {job_id:.60} is not in this store, or not within reach of the token")
        if "job_ids" in admitted:
            admitted["job_ids"] = tuple(filter(self.sees_job, admitted["job_ids"]))
        return admitted

    def seen(self, method: object, returned: Any) -> Any:
        """Return what a call answers without what the token does not reach."""
        if method is VersionStore.volumes:
            return list(filter(self.sees, returned))
        if method is Ledger.jobs:
            return list(filter(self.sees_job, returned))
        if method is VersionStore.record:
            return self._record(returned)
        return list(map(self._record, returned)) if method is VersionStore.records else returned

    def sees(self, volume: str) -> bool:
        """Whether the token reads a volume."""
        shared = any(_below(f"{volume}/", each) for each in self._rights.shared)
        return shared or self._within(volume, self._rights.reads)

    def sees_job(self, job_id: str) -> bool:
        """Whether the token sees a job; False where there is none."""
        try:
            queue, volumes = self._tokens.facts(job_id)
        except (Corrupt, NotFound):
            return False
        own = partial(self._within, prefixes=self._rights.reads)
        return "" in self._rights.reads or (queue in self._rights.queues and all(map(own, volumes)))

    def _need(self, volume: str, right: str) -> None:
        rights, changes = self._rights, right == "changes"
        if not (self._within(volume, rights.changes) if changes else self.sees(volume)):
            has = rights.changes if changes else (*rights.reads, *rights.shared)
            only = ", ".join(f"{each}/" for each in has) or (
                "no volume: it is for reading" if changes else "none"
            )
            raise TokenRefused(
                f"the token {self._name!r} does not {'change' if changes else 'reach'} volume {volume:.130}; it "
                f"{'changes' if changes else 'reaches'} {only}"
            )

    def _record(self, record: Record) -> Record:
        """Return a record without versions out of reach; of a shared volume only what names the version."""
        if self._within(record.volume, self._rights.reads):
            inputs = {
                name: tuple(each for each in several if self._sees_address(each.address))
                for name, several in record.inputs.items()
            }
            return replace(record, inputs=inputs, siblings=tuple(filter(self._sees_address, record.siblings)))
        return Record(
            volume=record.volume,
            number=record.number,
            digest=record.digest,
            created=record.created,
            partition=record.partition,
            job_id=_HIDDEN,
            output=_HIDDEN,
        )

    def _sees_address(self, address: str) -> bool:
        return self.sees(Address.parse(address).volume)

    @staticmethod
    def _within(volume: str, prefixes: Sequence[str]) -> bool:
        return any(not each or _below(volume, each) for each in prefixes)


def _below(name: str, prefix: str) -> bool:
    return name.startswith(f"{prefix}/")


def _one(given: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return () if given.get(name) is None else (given[name],)


@lru_cache(1024)
def _parsed(text: bytes) -> PersonToken:
    return wire.loads(PersonToken, text)


@lru_cache(4096)
def _same(queue: str | None, volumes: frozenset[str]) -> tuple[str | None, frozenset[str]]:
    """Return one object for all jobs of a stage: there may be many."""
    return queue, volumes


def _touched(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None
