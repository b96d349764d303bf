"""A trigger for Airflow's AssetWatcher: messages that come to a topic of Kafka wake a Dag.

The triggerer asks the broker where the topic ends, and reads no message: the ingest of the Dag that is woken does, and knows by its last version what
is new. So an event that is lost or comes twice changes no rows.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from muster.airflow.attempts.trigger import StoredTrigger
from muster.core.errors import SpecError
from muster.core.ingest import KAFKA, check_url
from muster.core.shipped import need

_ANSWER_SECONDS = 10.0
TELL_SECONDS = 600.0
_REGISTRY = "schema.registry."
_INGESTS = ("ca", "group.id")


class TopicTrigger(StoredTrigger, BaseEventTrigger):
    """Wakes a Dag when messages have come to a topic of Kafka; one event for all that came since the last look.

    The first look makes an event if the topic holds anything. A broker that is away is asked again, with the connection as it is then. It needs ``confluent-kafka`` where Airflow runs,
    which ``airflow-provider-muster[kafka]`` installs.

    :param source: ``kafka://CONNECTION/topic``, as the IngestOperator has it.
    :param every: seconds between two looks.
    :raises SpecError: `source` is no topic, or ``confluent-kafka`` is not installed.
    """

    def __init__(self, source: str, every: float = 2.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        check_url(source)
        if not source.startswith(f"{KAFKA}://"):
            raise SpecError(f"{source!r:.120}: expected 'kafka://CONNECTION/topic'")
        if not isinstance(every, (int, float)) or isinstance(every, bool) or every <= 0:
            raise SpecError(f"every is {every!r:.40}: need seconds above 0")
        need("kafka", what="TopicTrigger", instead="give the Dag a schedule such as '* * * * *'")
        self.source, self.every = source, every

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, and yield an event whenever the topic ends elsewhere than at the last look."""
        known: dict[str, int] = {}
        topic: Topic | None = await self._topic()
        told: float | None = None
        while True:
            try:
                topic = topic or await self._topic()
                ends = await asyncio.to_thread(topic.ends)
            except Exception as error:
                if not _is_away(error):
                    raise
                topic = None  # the next look reads the connection again: its credentials may have changed
                if told is None or time.monotonic() - told >= TELL_SECONDS:
                    self.log.warning(
                        "%s does not tell where it ends (%s): it is asked again", self.source, error
                    )
                    told = time.monotonic()
            else:
                told = None
                if any(end != known.get(partition, 0) for partition, end in ends.items()):
                    yield TriggerEvent({"source": self.source, "offsets": ends})  # type: ignore[no-untyped-call]
                known = ends
            await asyncio.sleep(self.every)

    async def _topic(self) -> Topic:
        """Return the topic, as the connection is now."""
        return Topic(self.source, await extra_of(self.source))


async def extra_of(source: str) -> Mapping[str, Any]:
    """Return the extra of a source's connection, as it is now."""
    from airflow.sdk import Connection

    connection = await Connection.async_get(urlsplit(source).netloc)
    found: Mapping[str, Any] = await connection.aextra_dejson()
    return found


def _is_away(error: Exception) -> bool:
    """Whether the broker, or the API that tells the connection, may answer another time."""
    from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError, ErrorType
    from confluent_kafka import KafkaException

    if isinstance(error, AirflowRuntimeError):
        return bool(error.error.error is ErrorType.API_SERVER_ERROR)
    # Airflow says not found of a connection whose secrets backends did not answer, too.
    return isinstance(error, (KafkaException, AirflowNotFoundException))


class Topic:
    """Asks a broker about one topic.

    :param extra: of the connection: librdkafka's settings, as the IngestOperator takes them.
    """

    def __init__(self, source: str, extra: Mapping[str, Any]) -> None:
        from confluent_kafka.admin import AdminClient

        self._name = urlsplit(source).path.strip("/")
        config = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in extra.items()
            if not name.startswith(_REGISTRY) and name not in _INGESTS
        }
        authority = {"ssl.ca.pem": extra["ca"]} if extra.get("ca") else {}
        self._admin = AdminClient({**config, **authority})

    def ends(self) -> dict[str, int]:
        """Return of each partition the offset of the next message. :raises KafkaException: the broker does not tell."""
        from confluent_kafka import IsolationLevel, TopicCollection, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        # Not list_topics: asked for a topic that is not there, many a broker makes it.
        described = self._admin.describe_topics(
            TopicCollection([self._name]), request_timeout=_ANSWER_SECONDS
        )
        partitions = described[self._name].result().partitions
        told = self._admin.list_offsets(
            {TopicPartition(self._name, each.id): OffsetSpec.latest() for each in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_ANSWER_SECONDS,
        )
        return {str(each.partition): int(answer.result().offset) for each, answer in told.items()}
