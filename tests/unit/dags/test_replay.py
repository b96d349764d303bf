"""The replay of the example clicks says what did not arrive. Kafka's client lies in the image: something stands in for it."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from muster.core.shipped import shipped


class Producer:
    """Passes each message on to a broker that refuses those of one airport."""

    def __init__(self, _: object) -> None:
        self.waiting: list[tuple[object, object]] = []

    def produce(self, _: str, *, key: str, value: str, on_delivery=None) -> None:
        if on_delivery is not None:
            self.waiting.append((on_delivery, "MSG_SIZE_TOO_LARGE" if key == "JFK" else None))

    def poll(self, _: float) -> None: ...

    def flush(self, _: float) -> int:
        for tell, error in self.waiting:
            tell(error, None)
        return 0


@pytest.mark.parametrize(("airports", "refused"), [(("LGA", "JFK", "JFK"), 2), (("LGA", "EWR"), 0)])
def test_messages_that_the_broker_refuses_are_not_counted_as_sent(
    tmp_path: Path, monkeypatch, airports: tuple[str, ...], refused: int
) -> None:
    told = [{"origin": airport, "departed": 60 * n} for n, airport in enumerate(airports)]
    (tmp_path / "messages.jsonl").write_text("\n".join(map(json.dumps, told)))
    made = SimpleNamespace(create_topics=lambda _: {"t": SimpleNamespace(result=lambda _: None)})
    client, admin = ModuleType("confluent_kafka"), ModuleType("confluent_kafka.admin")
    vars(client).update(KafkaError=Exception, KafkaException=Exception, Producer=Producer)
    vars(admin).update(AdminClient=lambda _: made, NewTopic=lambda *_: None)
    monkeypatch.setitem(sys.modules, "confluent_kafka", client)
    monkeypatch.setitem(sys.modules, "confluent_kafka.admin", admin)
    monkeypatch.setenv("BROKER", "localhost:9092")
    replay = runpy.run_path(str(shipped("dags") / "clicks" / "replay.py"))["replay"]
    if not refused:
        assert replay(tmp_path, topic="t", since=0, until=24) == {"messages": len(airports)}
        return
    with pytest.raises(RuntimeError, match="2 of 3 messages were refused by t: MSG_SIZE_TOO_LARGE"):
        replay(tmp_path, topic="t", since=0, until=24)
