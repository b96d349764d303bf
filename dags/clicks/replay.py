"""Puts departures into a topic, as the airports would."""

from __future__ import annotations

import json
import os
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 2


def replay(messages: Path, *, topic: str, since: int, until: int) -> dict[str, float]:
    """Put the messages of a day into a topic, which is made if it is not there; those of one airport stay in order.

    :param since: only departures from this hour of the day on. `until`: and before this one, 24 for the rest of the day.
    :raises RuntimeError: not all arrived, or the broker refused some.
    """
    refused: list[KafkaError] = []
    broker = {"bootstrap.servers": os.environ["BROKER"]}
    admin = AdminClient(broker)  # which has to live until the answer
    (made,) = admin.create_topics([NewTopic(topic, PARTITIONS)]).values()
    try:
        made.result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    producer = Producer({**broker, "enable.idempotence": True})
    lines = (messages / "messages.jsonl").read_text(encoding="utf-8").splitlines()
    told = [json.loads(line) for line in lines]
    midnight = told[0]["departed"] // 1440 * 1440
    last = midnight + 60 * until if until < 24 else told[-1]["departed"] + 1  # some leave after midnight
    sent = [each for each in told if midnight + 60 * since <= each["departed"] < last]
    for each in sent:
        producer.produce(
            topic,
            key=each["origin"],
            value=json.dumps(each),
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )
        producer.poll(0)
    if left := producer.flush(60):
        raise RuntimeError(f"{left} of {len(sent)} messages did not reach {topic}")
    if refused:
        raise RuntimeError(f"{len(refused)} of {len(sent)} messages were refused by {topic}: {refused[0]}")
    return {"messages": len(sent)}
