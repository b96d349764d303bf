"""Runs in the image ingest: makes topics, and puts messages into them. ``python topic.py BROKER STEPS``, the steps as JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

Message = list[Any]
"""Partition, key, value (texts of latin-1, or None) and perhaps milliseconds since 1970."""


class Steps:
    """What can be done, by name."""

    def __init__(self, broker: str) -> None:
        self._to = {"bootstrap.servers": broker}
        self._admin = AdminClient(self._to)

    def create(self, topic: str, partitions: int = 1, settings: dict[str, str] | None = None) -> None:
        """Make a topic, which is there once this returns."""
        self._wait(self._admin.create_topics([NewTopic(topic, partitions, config=settings or {})]))
        while topic not in self._admin.list_topics(timeout=30).topics:
            time.sleep(0.05)

    def delete(self, topic: str) -> None:
        """Delete a topic, which is gone once this returns."""
        self._wait(self._admin.delete_topics([topic]))
        while topic in self._admin.list_topics(timeout=30).topics:
            time.sleep(0.05)

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        self._wait(self._admin.create_partitions([NewPartitions(topic, partitions)]))
        while len(self._admin.list_topics(topic, timeout=30).topics[topic].partitions) < partitions:
            time.sleep(0.05)

    def drop(self, topic: str, partition: int, before: int) -> None:
        """Have the broker drop the messages before an offset, as a retention does."""
        self._wait(self._admin.delete_records([TopicPartition(topic, partition, before)]))

    def put(self, topic: str, messages: list[Message]) -> None:
        """Put messages, in order."""
        producer = Producer({**self._to, "linger.ms": 1})
        self._put(producer, topic, messages)
        assert producer.flush(60) == 0

    def pour(self, topic: str, partitions: int, each_millis: int) -> None:
        """Put numbered messages, one after another, until the input ends; each is in the topic once it returns."""
        settings = {"linger.ms": 5, "enable.idempotence": True, "delivery.timeout.ms": 600_000}
        producer = Producer({**self._to, **settings})
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        number = 0
        while not ended.is_set():
            value = json.dumps({"n": number, "text": f"message {number}"}).encode()
            producer.produce(topic, value, partition=number % partitions, on_delivery=self._told)
            producer.poll(each_millis / 1000)
            if number == 0:
                producer.flush(60)
                print("the first is there", flush=True)
            number += 1
        assert producer.flush(600) == 0

    def transact(self, topic: str, messages: list[Message], *, how: str) -> None:
        """Put messages in a transaction that is ``commit``ted, ``abort``ed, or left ``open`` for a minute."""
        producer = Producer(
            {**self._to, "transactional.id": f"tests-{time.time_ns()}", "transaction.timeout.ms": 60_000}
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        self._put(producer, topic, messages)
        producer.flush(60)
        if how == "commit":
            producer.commit_transaction(60)
        elif how == "abort":
            producer.abort_transaction(60)

    def _put(self, producer: Producer, topic: str, messages: list[Message]) -> None:
        for partition, key, value, *millis in messages:
            texts = {
                "key": None if key is None else key.encode("latin-1"),
                "value": None if value is None else value.encode("latin-1"),
            }
            when = millis[0] if millis else 0
            producer.produce(topic, partition=partition, timestamp=when, on_delivery=self._told, **texts)
            producer.poll(0)

    def _told(self, error: Any, _message: Any) -> None:
        if error is not None:
            raise AssertionError(error.str())

    def _wait(self, futures: dict[Any, Any]) -> None:
        for future in futures.values():
            future.result(120)


def main(broker: str, steps: str) -> None:
    """Do them, one after another."""
    able = Steps(broker)
    for name, arguments, named in json.loads(steps):
        getattr(able, name)(*arguments, **named)


main(*sys.argv[1:])
