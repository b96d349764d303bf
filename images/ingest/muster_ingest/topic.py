"""One topic of Kafka: its partitions and offsets, its messages in a range, and what librdkafka's errors mean.

Partitions are assigned at offsets that muster keeps in its versions. The client joins no group and commits nothing to the broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message as Raw,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from muster_ingest.connection import Connection
from muster_ingest.errors import IngestError, SourceAway
from muster_ingest.fetching import Patience
from muster_ingest.rows import Message

_ANSWER_SECONDS, _ANSWER_POLL_SECONDS, _POLL_SECONDS = 10.0, 0.05, 0.5
SILENT_SECONDS = 15.0
"""Seconds without an answer after which another client takes over; each time without one, twice as many.

Where a broker has gone and come back, a client with assigned partitions sometimes asks it for none again (librdkafka, issue 5153).
"""
_AT_ONCE = 200
"""Messages that are taken together: of 1 MiB each, which is the most that a broker takes unless it is told otherwise, 200 MiB."""
_OWN: dict[str, Any] = {
    "group.id": "muster-ingest",  # librdkafka wants one; none is joined where partitions are assigned
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
    "check.crcs": True,
    "queued.max.messages.kbytes": 32 << 10,
    "fetch.wait.max.ms": 50,  # the end of a partition is told by an answer without messages
    "reconnect.backoff.max.ms": 1_000,
    "client.id": "muster-ingest",
}
_CHANGEABLE = (
    "group.id",
    "client.id",
    "queued.max.messages.kbytes",
    "fetch.wait.max.ms",
    "reconnect.backoff.max.ms",
)
_REFUSED = ("debug", "group.instance.id", "group.protocol", "plugin.library.paths", "transactional.id")
_DENIED = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
)
_GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
_FINAL = (
    KafkaError._BAD_COMPRESSION,
    KafkaError._BAD_MSG,
    KafkaError._FATAL,
    KafkaError._INVALID_ARG,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError.INVALID_REQUEST,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNSUPPORTED_VERSION,
)
"""What no waiting mends; a broker that starts says much else for a while, such as that a partition has no leader."""
_OPEN = (
    "bootstrap.servers",
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "client.id",
    "group.id",
)


@dataclass
class Span:
    """What is read of one partition: from the offset `at` to before `end`, and `rows` messages of it at most."""

    at: int
    end: int
    rows: int | None = None

    @property
    def done(self) -> bool:
        """Whether there is nothing more to read."""
        return self.at >= self.end or self.rows == 0

    def take(self, offset: int) -> None:
        """Go on behind a message."""
        self.at = offset + 1
        if self.rows is not None:
            self.rows -= 1


class Topic:
    """One topic of the broker that a connection names.

    :ivar again: what the next run does where the broker was away.
    :param source: its address, for messages. :raises IngestError: the connection names no broker, or a setting that is not its own.
    """

    again = "it begins where the last version ends"

    def __init__(self, source: str, connection: Connection, patience_seconds: float) -> None:
        self.source, self._connection = source, connection
        self.name = source.partition("://")[2].partition("/")[2]
        self._patience_seconds = patience_seconds
        self._answer_seconds = min(_ANSWER_SECONDS, max(1.0, patience_seconds))
        self.patience = Patience(self, patience_seconds)
        self._denied: KafkaError | None = None
        self._told: KafkaError | None = None
        self._config = self._checked()
        self._admin = self._client()

    def look(self) -> tuple[str, list[int]]:
        """Return the topic's id, which another topic of the same name does not have, and its partitions.

        :raises IngestError: there is no such topic. :raises SourceAway: the broker does not answer.
        """

        def ask() -> Any:
            try:
                return self._answer(
                    self._admin.describe_topics(
                        TopicCollection([self.name]), request_timeout=self._answer_seconds
                    )
                )[self.name]
            except KafkaException as error:
                if _code(error) != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                raise IngestError(
                    f"{self.source} is not there: {self._connection.named} names a broker without a topic {self.name!r}"
                ) from None

        found = self._ask("its topic", ask)
        return str(found.topic_id), sorted(each.id for each in found.partitions)

    def oldest(self, partitions: list[int]) -> dict[int, int]:
        """Return the offset of the oldest message that each partition has."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def ends(self, partitions: list[int]) -> dict[int, int]:
        """Return the offset behind each partition's last message that no open transaction holds back."""
        return self._offsets(partitions, OffsetSpec.latest())

    def since(self, partitions: list[int], millis: int) -> dict[int, int]:
        """Return the offset of each partition's first message of a time or later, in ms since 1970; -1 where there is none."""
        return self._offsets(partitions, OffsetSpec.for_timestamp(millis))

    def read(self, spans: Mapping[int, Span]) -> Iterator[Message]:
        """Yield the messages of some partitions, and move each one's span on, to its end at last.

        :raises IngestError: the broker dropped some of them meanwhile. :raises SourceAway: it did not answer for so long.
        """
        left = {partition for partition, span in spans.items() if not span.done}
        heard, silent = time.monotonic(), SILENT_SECONDS
        while left:
            with self._consumer({each: spans[each].at for each in left}) as consumer:
                begun = time.monotonic()
                while left and time.monotonic() - max(begun, heard) < silent:
                    raws = consumer.consume(_AT_ONCE, _POLL_SECONDS)
                    self._refuse_denied()
                    for raw in raws:
                        if not _is_answer(raw):
                            self._judge(raw.error(), raw.partition())
                        elif message := _message(raw, spans[raw.partition()]):
                            yield message
                    if any(_brings_on(raw, spans) for raw in raws):
                        heard, silent = time.monotonic(), SILENT_SECONDS
                    elif time.monotonic() - heard > self._patience_seconds:
                        raise self._away(time.monotonic() - heard)
                    done = {each for each in left if spans[each].done}
                    if done:
                        consumer.pause([TopicPartition(self.name, each) for each in done])
                        left -= done
            silent *= 2

    @contextmanager
    def _consumer(self, at: Mapping[int, int]) -> Iterator[Consumer]:
        """Have a client that reads some partitions from their offsets on."""
        consumer = Consumer({**self._config, "error_cb": self._note}, logger=_quiet())
        try:
            consumer.assign([TopicPartition(self.name, each, offset) for each, offset in at.items()])
            yield consumer
        finally:
            consumer.close()

    def _judge(self, error: KafkaError, partition: int) -> None:
        """Return if the client goes on by itself, else raise what an error means."""
        if error.code() in _GONE:
            raise IngestError(
                f"{self.source}: the broker dropped messages of partition {partition} while they were read ({error.str()}). Nothing is "
                "committed; a longer retention, or most=, gives the ingest the time it needs"
            )
        if error.code() in (*_DENIED, *_FINAL):
            raise self._meant(KafkaException(error))

    def denied(self, error: BaseException) -> bool:
        """Whether an error, or one that the client told of before, says that the credentials do not do."""
        return self._denied is not None or _code(error) in _DENIED

    def passing(self, error: BaseException) -> bool:
        """Whether the same may work a little later."""
        if isinstance(error, KafkaException):
            return _code(error) not in _FINAL
        return isinstance(error, (OSError, TimeoutError))

    def refused(self, error: BaseException) -> IngestError:
        """Name the connection whose credentials do not do; nothing of them is shown."""
        why = error if self._denied is None else KafkaException(self._denied)
        return IngestError(
            f"{self.source} refuses {self._connection.named} ({self._text(why)}): give the operator a connection that may read the topic"
        )

    def _note(self, error: KafkaError) -> None:
        """Note what the client tells beside its answers: wrong credentials, certificates and names of hosts are seen nowhere else."""
        self._told = error
        if error.code() in _DENIED or (error.code() == KafkaError._SSL and "certificate" in error.str()):
            self._denied = error

    def _refuse_denied(self) -> None:
        if self._denied is not None:
            raise self.refused(KafkaException(self._denied))

    def _offsets(self, partitions: list[int], spec: OffsetSpec) -> dict[int, int]:
        def ask() -> dict[int, int]:
            asked = {TopicPartition(self.name, each): spec for each in partitions}
            committed = IsolationLevel.READ_COMMITTED
            told = self._answer(
                self._admin.list_offsets(
                    asked, isolation_level=committed, request_timeout=self._answer_seconds
                )
            )
            found = {place.partition: result.offset for place, result in told.items()}
            if OFFSET_INVALID in found.values():  # librdkafka's answer when the connection breaks
                raise TimeoutError("no offset was told")
            return found

        return dict(self._ask("its offsets", ask))

    def _ask(self, what: str, question: Callable[[], Any]) -> Any:
        try:
            return self.patience.ask(what, question)
        except KafkaException as error:
            raise self._meant(error) from None

    def _client(self) -> AdminClient:
        """Return a client that answers questions. :raises IngestError: the connection will not do."""
        own = {name: value for name, value in self._config.items() if name not in _OWN}
        try:
            return AdminClient({**own, "error_cb": self._note}, logger=_quiet())
        except KafkaException as error:
            said = self._text(error)
            raise IngestError(f"{self.source}: {self._connection.named} cannot be used: {said}") from None

    def _answer(self, futures: Mapping[Any, Future[Any]]) -> dict[Any, Any]:
        """Wait for answers, and for what the client tells beside them."""
        while wait(futures.values(), _ANSWER_POLL_SECONDS).not_done:
            self._admin.poll(0)
            self._refuse_denied()
        try:
            return {key: future.result() for key, future in futures.items()}
        except KafkaException:
            # One that knew a broker before it went is refused by the one that came back, each time (FENCED_LEADER_EPOCH).
            self._admin = self._client()
            raise

    def _away(self, seconds: float) -> SourceAway:
        told = f" ({self._text(KafkaException(self._told))})" if self._told is not None else ""
        return SourceAway(
            f"{self.source} does not answer, for {seconds:.0f} s{told}: run again, {self.again}"
        )

    def _meant(self, error: KafkaException) -> Exception:
        if self.denied(error):
            return self.refused(error)
        return IngestError(f"{self.source} cannot be read: {self._text(error)}")

    def said(self, error: BaseException) -> str:
        """Return what an error says, and what the client told beside it, on one line and without what the connection hides."""
        found = [self._text(error)]
        if self._told is not None:
            found.append(self._text(KafkaException(self._told)))
        return "; ".join(dict.fromkeys(found))

    def _text(self, error: BaseException) -> str:
        first = error.args[0] if error.args else error
        text = first.str() if isinstance(first, KafkaError) else str(first)
        return self._connection.hidden(text, _OPEN)[:300]

    def _checked(self) -> dict[str, Any]:
        """Return the client's settings. :raises IngestError: one of the connection would break what an ingest promises."""
        extra = {name: self._connection.text(name) for name in self._connection.extra}
        if self._connection.kind != "kafka":
            raise IngestError(
                f"{self.source}: {self._connection.named} is of type {self._connection.kind!r:.60}: need one of type 'kafka'"
            )
        if not extra.get("bootstrap.servers"):
            raise IngestError(
                f"{self.source}: {self._connection.named} names no broker: its extra needs 'bootstrap.servers'"
            )
        for name, text in extra.items():
            own = _OWN.get(name)
            if name in _REFUSED or (
                name in _OWN and name not in _CHANGEABLE and text.lower() != str(own).lower()
            ):
                raise IngestError(
                    f"{self.source}: {self._connection.named} sets {name!r} in its extra, which an ingest sets itself or cannot have, since its "
                    "versions hold the offsets: take it out, or give the ingest a connection of its own"
                )
        extra = {name: text for name, text in extra.items() if not name.startswith("schema.registry.")}
        extra.pop("group.id", None)
        ca = {"ssl.ca.pem": self._connection.ca} if self._connection.ca else {}
        return {**ca, **_OWN, **extra}


def _code(error: BaseException) -> int | None:
    first = error.args[0] if error.args else None
    return first.code() if isinstance(first, KafkaError) else None


def _message(raw: Raw, span: Span) -> Message | None:
    """Return a message of a span; None for what lies behind it, and for the news that a partition ends."""
    offset = raw.offset()
    if span.done or offset < span.at:
        return None
    if offset >= span.end:
        # What is not shown lies between: marks of transactions, messages that were withdrawn.
        span.at = span.end
        return None
    if raw.error() is not None:
        return None  # a broker that comes back does not know all of its messages at once
    span.take(offset)
    kind, millis = raw.timestamp()
    return Message(raw.partition(), offset, millis if kind else None, raw.key(), raw.value())


def _is_answer(raw: Raw) -> bool:
    """Whether the broker answered: with a message, or that a partition ends."""
    error = raw.error()
    return error is None or error.code() == KafkaError._PARTITION_EOF


def _brings_on(raw: Raw, spans: Mapping[int, Span]) -> bool:
    """Whether the broker brought what was wanted; each new client hears again of an end that comes too early."""
    return raw.error() is None or (_is_answer(raw) and spans[raw.partition()].done)


def _quiet() -> logging.Logger:
    """Return a log that is not shown: the client tells each lost connection there, and its errors come by other ways, too."""
    log = logging.getLogger("muster_ingest.librdkafka")
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    log.propagate = False
    return log
