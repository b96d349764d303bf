"""The calls of the store service, one row each: the method of a store, and its address.

The rest follows from the method's signature, for both sides. Arguments in the address's path are sent there;
the others are the query or, where the row names a message, its fields. The return value is sent as a message
of its own, or as the field that the row names. A row's address and its messages' kinds, fields and defaults never
change: earlier clients use them, and a field that equals its default is not written. Streams of bytes are not
rows: see ``reading``, ``writing`` and ``pods``.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from muster.core import wire
from muster.core.address import Address
from muster.core.errors import SpecError
from muster.core.names import check_digest, check_job_id, check_label, check_request, check_volume
from muster.volumes.base import Collected, CollectionPlan, Version
from muster.volumes.protocols import (
    Attempts,
    EventLogs,
    Ledger,
    LocalStore,
    Makings,
    ServedStore,
    Snapshots,
    Upkeep,
    VersionStore,
)
from muster.volumes.service.persons import PersonTokens

MOST_SPECS = 200
MOST_RECORDS = 200

CURSOR = "muster-cursor"
"""The header with the offset of the next line of a log."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Place:
    """The staging of one attempt.

    :param root: its folder on the service's side.
    :param replicas: that it has, of an elastic gang; None of others, as clients of earlier releases expect it.
    """

    job_id: str
    attempt: int
    root: str
    replicas: int | None = None


@dataclass(frozen=True, kw_only=True)
class Current:
    """The staging of the current attempt, or None before the first. `taken`: a pod has asked for it."""

    place: Place | None
    taken: bool = False


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A plan, and what it freed. Fields without a default must be written for earlier clients."""

    versions: tuple[Version, ...]
    kept: Mapping[str, str]
    staging: tuple[str, ...]
    torn: tuple[str, ...]
    code: tuple[str, ...]
    jobs: tuple[str, ...]
    resumable: tuple[str, ...] = ()
    freed_bytes: int = 0
    at_once: bool = False

    def plan(self) -> CollectionPlan:
        """Return the plan alone."""
        return CollectionPlan(
            **{each.name: getattr(self, each.name) for each in dataclasses.fields(CollectionPlan)}
        )

    def collected(self) -> Collected:
        """Return what was deleted."""
        return Collected(plan=self.plan(), freed_bytes=self.freed_bytes, at_once=self.at_once)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Whether a status was recorded for the given owner."""

    yes: bool


class Starting(Protocol):
    """The calls behind the client's ``stage``, ``begin``, ``staging`` and ``attempt``."""

    def begun(self, job_id: str, *, request: str, replicas: int | None = None) -> Place:
        """Begin an attempt, the same for the same request, and return it.

        :param replicas: of an elastic gang; without it, those of the attempt before.
        """

    def current(self, job_id: str) -> Current:
        """Return the current attempt."""


@dataclass(frozen=True)
class ReplyFormat:
    """How a return value is sent.

    :param pack: makes the message of the value. `unpack`: the value of the message.
    """

    kind: type
    pack: Callable[[Any], Any] = lambda value: value
    unpack: Callable[[Any], Any] = lambda message: message


@dataclass(frozen=True)
class Row:
    """One call.

    :param body: the kind of the message that carries the arguments; without one they are the query.
    :param answer: kind and field of the message that carries the return value, such as ``Count.count``.
    :param names: arguments that have another name on the wire. `blank`: fields that are sent empty.
    :param turns: those of :class:`muster.volumes.service.calls.Served`; others than `quick` for calls that may take long.
    :param right: as that of :func:`muster.volumes.service.calls.route`, and `person` too.
    """

    method: Callable[..., Any]
    verb: str
    path: str
    body: str = ""
    answer: str | ReplyFormat = ""
    names: Mapping[str, str] = field(default_factory=dict)
    blank: tuple[str, ...] = ()
    turns: str = "quick"
    right: str = ""
    person: str = ""

    @cached_property
    def signature(self) -> inspect.Signature:
        """The method's signature, with `self`."""
        return inspect.signature(self.method)

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The parameters that the query must have; without them the request is another row's."""
        parameters = self.signature.parameters
        return tuple(name for name in self._others if parameters[name].default is inspect.Parameter.empty)

    @cached_property
    def message(self) -> type | None:
        """The kind of the message that carries the arguments."""
        if not self.body:
            return None
        fields: list[Any] = [
            (self.names.get(name, name), hint, _default(self.signature.parameters[name]))
            for name, hint in self._others.items()
        ]
        blank = [(name, str, field(default="")) for name in self.blank]
        return dataclasses.make_dataclass(self.body, fields + blank, frozen=True, kw_only=True)

    @cached_property
    def sent(self) -> ReplyFormat | None:
        """How the return value is sent; None where there is none."""
        if isinstance(self.answer, ReplyFormat):
            return self.answer
        returned = _hints(self.method)["return"]
        if returned is type(None):
            return None
        if not self.answer:
            return ReplyFormat(returned)
        name, _, carried = self.answer.partition(".")
        kind = dataclasses.make_dataclass(name, [(carried, _on_wire(returned))], frozen=True, kw_only=True)
        whole = list if typing.get_origin(returned) is list else lambda value: value
        return ReplyFormat(
            kind,
            pack=lambda value: kind(**{carried: _sequence(value)}),
            unpack=lambda message: whole(getattr(message, carried)),
        )

    def request(
        self, arguments: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, Any], bytes | None]:
        """Return path, query and body of a client's request for a call with these arguments. :raises SpecError: one is wrong."""
        given = self.signature.bind(None, *arguments, **named).arguments
        for name, value in given.items():
            _CHECKS.get(name, _any)(value)
        path = re.sub(r"{(\w+)}", lambda found: quote(str(given[found[1]]), safe=":"), self.path)
        values = {name: given.get(name, self.signature.parameters[name].default) for name in self._others}
        if self.message is None:
            return path, values, None
        values = {self.names.get(name, name): _sequence(value) for name, value in values.items()}
        return path, {}, wire.dumps(self.message(**values)).encode()

    def arguments(self, parts: Mapping[str, Any], query: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """Return the arguments for the service's call of the method.

        :raises SpecError: one is missing or wrong.
        """
        hints = _hints(self.method)
        given = {name: _read(name, value, hints[name]) for name, value in parts.items()}
        if self.message is not None:
            said: object = wire.loads(self.message, body)
            return given | {name: getattr(said, self.names.get(name, name)) for name in self._others}
        for name in self._others:
            if query.get(name):
                given[name] = _read(name, query[name], hints[name])
            elif name in self.needed:
                raise SpecError(f"the request lacks its parameter {name!r}")
        return given

    @cached_property
    def _others(self) -> dict[str, Any]:
        """Return the parameters outside the path, under their names on the wire."""
        hints = _hints(self.method)
        names = [name for name in self.signature.parameters if name != "self"]
        return {name: _on_wire(hints[name]) for name in names if f"{{{name}}}" not in self.path}


def number(name: str, text: str) -> int:
    """Parse a whole number of a path or query. :raises SpecError: it is none."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise SpecError(f"{name} is {text!r:.60}: need a whole number, 0 or more")
    return int(text)


@cache
def _hints(method: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(method)


def _on_wire(hint: Any) -> Any:
    """Return a type as messages have it, where sequences are tuples."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(_on_wire, arguments))]  # noqa: UP007 - of as many as there are
    if origin is None:
        return hint
    if issubclass(origin, collections.abc.Mapping):
        return collections.abc.Mapping[str, _on_wire(arguments[1])]  # type: ignore[misc]
    return tuple[_on_wire(arguments[0]), ...]  # type: ignore[misc]


def _sequence(value: Any) -> Any:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, collections.abc.Iterable):
        return value
    return tuple(value)


def _default(parameter: inspect.Parameter) -> Any:
    empty = parameter.default is inspect.Parameter.empty
    return field() if empty else field(default=parameter.default)


def _read(name: str, text: str, hint: Any) -> Any:
    return number(name, text) if int in (hint, *typing.get_args(hint)) else text


def _any(value: object) -> None:
    """Accept any value: the service checks it."""


def _each(check: Callable[[str], object]) -> Callable[[Sequence[str]], None]:
    def checked(values: Sequence[str]) -> None:
        for value in values:
            check(value)

    return checked


# Checks before a request is sent, by the name of the argument: it must be safe in a path.
_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "address": Address.parse,
    "digest": lambda digest: check_digest("code snapshot", digest),
    "holder": check_job_id,
    "job_id": check_job_id,
    "job_ids": _each(check_job_id),
    "kind": lambda kind: check_label("kind", kind),
    "name": check_job_id,
    "token_id": check_request,
    "volume": check_volume,
}

_JOB = "/v1/jobs/{job_id}"
_LOG = "/v1/logs/{kind}/{name}"
_PLAN = ReplyFormat(Swept, pack=lambda plan: Swept(**vars(plan)), unpack=Swept.plan)
_COLLECTED = ReplyFormat(
    Swept,
    pack=lambda done: Swept(**vars(done.plan), freed_bytes=done.freed_bytes, at_once=done.at_once),
    unpack=Swept.collected,
)


# fmt: off
TABLE = (
    Row(VersionStore.resolve, "GET", "/v1/resolve", answer="Versions.versions", person="reads"),
    Row(VersionStore.volumes, "GET", "/v1/volumes", answer="Names.names", person="reads"),
    Row(VersionStore.newest, "GET", "/v1/versions", answer="Versions.versions", person="reads"),
    Row(VersionStore.versions, "GET", "/v1/versions", answer="Versions.versions", person="reads"),
    Row(VersionStore.last, "GET", "/v1/last", answer="Count.count", person="reads"),
    Row(VersionStore.count, "GET", "/v1/count", answer="Count.count", person="reads"),
    Row(VersionStore.record, "GET", "/v1/record", person="reads"),
    Row(VersionStore.records, "POST", "/v1/records", body="Names", names={"addresses": "names"}, answer="Records.records", right="reads", person="reads"),
    Row(VersionStore.pin, "POST", "/v1/pin", body="Why", right="clicks", person="changes"),
    Row(VersionStore.unpin, "POST", "/v1/unpin", body="Why", right="clicks", person="changes"),
    Row(VersionStore.retire, "POST", "/v1/retire", body="Why", right="clicks", person="changes"),
    Row(VersionStore.reinstate, "POST", "/v1/reinstate", body="Why", blank=("reason",), right="clicks", person="changes"),
    Row(VersionStore.copy, "POST", "/v1/copies/{request}", body="Copying", turns="working"),
    Row(VersionStore.lease, "PUT", "/v1/leases/{holder}", body="Reading"),
    Row(VersionStore.release, "DELETE", "/v1/leases/{holder}", right="clicks"),

    Row(Snapshots.holds, "GET", "/v1/code/{digest}/held", answer="Answer.yes"),

    Row(Makings.made, "GET", "/v1/made", answer="Makings.made"),
    Row(Makings.used, "GET", "/v1/used", answer="Used.at"),
    Row(Makings.use, "POST", "/v1/made/{job_id}/use", body="User"),
    Row(Makings.forget, "DELETE", "/v1/made/{job_id}", answer="Answer.yes"),
    Row(Makings.claim, "POST", "/v1/claims/{key}", body="Claim", answer="Holder.job_id"),

    Row(Starting.begun, "POST", f"{_JOB}/attempts", body="Begin", turns="starting"),
    Row(Starting.current, "GET", f"{_JOB}/attempts/current"),
    Row(ServedStore.stop, "POST", f"{_JOB}/attempts/{{attempt}}/stop", answer="Answer.yes"),
    Row(LocalStore.note_gone, "PUT", f"{_JOB}/attempts/{{attempt}}/gone"),
    Row(ServedStore.token, "POST", f"{_JOB}/attempts/{{attempt}}/token", body="Lifetime",
        names={"lifetime_seconds": "seconds"}, answer="Secret.token"),
    Row(Attempts.sealed, "GET", f"{_JOB}/sealed", answer="Parts.parts"),
    Row(Attempts.saved, "GET", f"{_JOB}/saved", answer="Left.saved"),
    Row(Attempts.commit, "POST", f"{_JOB}/commit", body="Order", answer="Committed.outputs", turns="working"),
    Row(Attempts.held, "GET", "/v1/held", answer="Holding.held", turns="working"),
    Row(Attempts.let_go, "POST", "/v1/held/let-go", body="Jobs", answer="Count.count", turns="working"),

    Row(EventLogs.begin_log, "PUT", _LOG, body="NewLog", answer="Answer.yes"),
    Row(EventLogs.log_head, "GET", _LOG, answer="LogHead.head"),
    Row(EventLogs.logs, "GET", "/v1/logs/{kind}", answer="Names.names"),
    Row(EventLogs.log_events, "GET", f"{_LOG}/events"),
    Row(EventLogs.append_events, "POST", f"{_LOG}/events", body="NewEvents", answer="Count.count", right="clicks"),

    Row(Ledger.create, "PUT", _JOB, body="NewJob", answer="Answer.yes"),
    Row(Ledger.spec, "GET", f"{_JOB}/spec", person="reads"),
    Row(Ledger.status, "GET", f"{_JOB}/status", person="reads"),
    Row(Ledger.own, "POST", f"{_JOB}/owner", body="Ownership", answer="Answer.yes"),
    Row(Ledger.tally, "GET", f"{_JOB}/tally", person="reads"),
    Row(Ledger.note_tally, "PUT", f"{_JOB}/tally", body="Tallying", right="clicks"),
    Row(Ledger.log_bytes, "GET", f"{_JOB}/log/bytes", answer="Count.count", person="reads"),
    Row(Ledger.log_times, "GET", f"{_JOB}/log/times", answer="LogTimes.times", person="reads"),
    Row(Ledger.series, "GET", f"{_JOB}/series", person="reads"),
    Row(Ledger.jobs, "GET", "/v1/jobs", answer="Names.names", person="reads"),
    Row(Ledger.statuses, "POST", "/v1/statuses", body="Names", names={"job_ids": "names"}, answer="Statuses.statuses", right="reads", person="reads"),
    Row(Ledger.specs, "POST", "/v1/specs", body="Names", names={"job_ids": "names"}, answer="Specs.specs", right="reads", person="reads"),
    Row(Ledger.origins, "GET", "/v1/origins", answer="Origins.origins"),
    Row(Ledger.end_task, "POST", "/v1/ends", body="Ending"),
    Row(Ledger.task_ends, "GET", "/v1/ends", answer="Endings.ends"),
    Row(Ledger.note_run, "POST", "/v1/runs", body="Running"),
    Row(Ledger.run_notes, "GET", "/v1/runs", answer="Notes.notes"),

    Row(Upkeep.plan, "POST", "/v1/gc/plan", body="Rules", answer=_PLAN, turns="working", right="reads"),
    Row(Upkeep.collect, "POST", "/v1/gc/collect", body="Rules", answer=_COLLECTED, turns="working", right="sweeps"),
    Row(Upkeep.room, "GET", "/v1/room"),
    Row(Upkeep.upkept, "GET", "/v1/upkeep", answer="Upkept.notes"),
    Row(Upkeep.note_sweep, "POST", "/v1/upkeep/sweep", right="sweeps"),

    Row(PersonTokens.make, "POST", "/v1/tokens", body="NewToken", names={"token_name": "name", "lifetime_seconds": "seconds"}, right="persons"),
    Row(PersonTokens.all, "GET", "/v1/tokens", answer="Tokens.tokens", right="persons"),
    Row(PersonTokens.end, "POST", "/v1/tokens/{token_id}/end", body="TokenEnd", right="persons"),
)
# fmt: on

PERSONS = (PersonTokens.make, PersonTokens.all, PersonTokens.end)
ROWS: Mapping[Callable[..., Any], Row] = {row.method: row for row in TABLE}
