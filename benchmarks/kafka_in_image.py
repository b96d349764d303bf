"""Runs in the image ingest for ``benchmarks.kafka``: fills a topic, or makes Parquet of it once, by muster's program or by a bare consumer; prints its seconds."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from muster_ingest.connection import Connection
from muster_ingest.rows import GROUP_ROWS, PLACE
from muster_ingest.stream import read_topic

PARTITIONS = 4


def fill(broker: str, topic: str, count: int) -> None:
    """Make a topic of `count` messages of some 150 bytes."""
    admin = AdminClient({"bootstrap.servers": broker})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS)]).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 50, "compression.type": "lz4"})
    for number in range(count):
        event = {
            "id": number,
            "user": f"user-{number % 9973}",
            "page": f"/shop/item/{number % 7919}",
            "at": 1_764_000_000 + number / 7,
            "paid": number % 3 == 0,
            "tags": ["a", "b"],
        }
        while True:
            try:
                producer.produce(
                    topic, json.dumps(event), key=str(number % 9973), partition=number % PARTITIONS
                )
            except BufferError:
                producer.poll(0.1)
            else:
                break
    assert producer.flush(600) == 0


def bare(broker: str, topic: str, target: Path) -> None:
    """Read all, and write it row group by row group, as one would by hand."""
    settings = {
        "bootstrap.servers": broker,
        "group.id": "bare",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings | {"isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
    rows: list[dict[str, Any]] = []
    left, writer = set(range(PARTITIONS)), None
    while left or rows:
        for message in consumer.consume(2_000, 0.5) if left else ():
            if message.error() is not None:
                left.discard(message.partition())
                continue
            row = json.loads(message.value())
            row |= {"_partition": message.partition(), "_offset": message.offset()}
            row |= {"_timestamp": message.timestamp()[1], "_key": message.key()}
            rows.append(row)
        if len(rows) >= GROUP_ROWS or not left:
            table = pa.Table.from_pylist(rows)
            schema = pa.schema([PLACE.field(f.name) if f.name in PLACE.names else f for f in table.schema])
            table = table.cast(schema)
            writer = writer or pq.ParquetWriter(target / "part.parquet", schema, compression="zstd")
            writer.write_table(table)
            rows = []
    assert writer is not None
    writer.close()
    consumer.close()


def main(verb: str, broker: str, topic: str, count: str, target: str) -> None:
    """Do one of them; imports are not measured."""
    folder = Path(target)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    began = time.perf_counter()
    if verb == "fill":
        fill(broker, topic, int(count))
    elif verb == "bare":
        bare(broker, topic, folder)
    else:
        connection = Connection(conn_id="events", kind="kafka", extra={"bootstrap.servers": broker})
        what = {"source": f"kafka://events/{topic}", "values": "json", "unreadable": "stop", "lost": "stop"}
        read_topic(None, folder, what, connection)
    print(time.perf_counter() - began)


main(*sys.argv[1:])
