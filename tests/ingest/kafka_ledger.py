"""Runs in the image ingest: compares a version with its topic, as a bare consumer reads that. ``python kafka_ledger.py BROKER TOPIC VERSION``.

Prints how many messages the topic has, and how many of them the version lacks, and has more than once.
"""

from __future__ import annotations

import json
import sys

from confluent_kafka import Consumer, TopicPartition


def messages(broker: str, topic: str) -> dict[tuple[int, int], int]:
    """Return the number that each message holds, by partition and offset."""
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "ledger", "enable.partition.eof": True})
    partitions = set(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
    found = {}
    while partitions:
        for message in consumer.consume(1_000, 1.0):
            if message.error() is not None:
                partitions.discard(message.partition())
            else:
                found[message.partition(), message.offset()] = json.loads(message.value())["n"]
    consumer.close()
    return found


def main(broker: str, topic: str, version: str) -> None:
    """Compare, and print."""
    import duckdb

    wanted = messages(broker, topic)
    rows = duckdb.sql(f"select _partition, _offset, n from '{version}/part-*.parquet'").fetchall()
    found = {(partition, offset): number for partition, offset, number in rows}
    print(
        json.dumps(
            {
                "messages": len(wanted),
                "lost": len(wanted.keys() - found.keys()),
                "doubled": len(rows) - len(found),
                "other": len(found.items() - wanted.items()),
            }
        )
    )


main(*sys.argv[1:])
