"""What a TopicTrigger refuses where the Dag is parsed, what of it is stored, and when it wakes a Dag."""

from __future__ import annotations

import asyncio
import importlib.util
import pkgutil
import sys
from contextlib import aclosing
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import AssetWatcher
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from muster.airflow import TopicTrigger
from muster.core.errors import SpecError
from muster.ext.ingest import topic

pytestmark = pytest.mark.slow


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the client look installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))


@pytest.mark.usefixtures("client")
def test_it_is_stored_without_what_is_at_its_default() -> None:
    path = "muster.ext.ingest.topic.TopicTrigger"
    watched = AssetWatcher(name="a", trigger=TopicTrigger("kafka://broker/clicks"))
    assert watched.trigger.serialize() == (path, {"source": "kafka://broker/clicks"})
    assert TopicTrigger("kafka://broker/clicks", every=5).serialize()[1]["every"] == 5


def test_the_path_that_was_stored_before_leads_to_it() -> None:
    assert pkgutil.resolve_name("muster.airflow.topic.TopicTrigger") is TopicTrigger


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("source", "every", "message"),
    [
        ("s3://lake/clicks", 2, "expected 'kafka://CONNECTION/topic'"),
        ("kafka://broker", 2, "expected 'kafka://CONNECTION/topic'"),
        ("kafka://user:word@broker/clicks", 2, "a password"),
        ("kafka://broker/clicks", 0, "seconds above 0"),
    ],
)
def test_what_is_no_topic_is_refused(source: str, every: float, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        TopicTrigger(source, every=every)


def test_without_a_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SpecError, match=r"airflow-provider-muster\[kafka\]"):
        TopicTrigger("kafka://broker/clicks")


class Broker:
    """What stands in for Kafka's client and Airflow's connections: each answer is taken once, the last one for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: list[Any]) -> None:
        self.answers, self.passwords, self.read = answers, list[str](), 0
        monkeypatch.setitem(sys.modules, "confluent_kafka", SimpleNamespace(KafkaException=Refused))
        monkeypatch.setattr(topic, "Topic", lambda _, extra: self.passwords.append(extra["password"]) or self)
        monkeypatch.setattr(topic, "extra_of", self.extra)

    async def extra(self, _: str) -> dict[str, str]:
        self.read += 1
        return {"password": str(self.read)}

    def ends(self) -> dict[str, int]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Refused(Exception):
    """Kafka's error."""


def events(count: int) -> list[dict[str, int]]:
    """The first events of a trigger."""

    async def take() -> list[dict[str, int]]:
        found = []
        async with aclosing(TopicTrigger("kafka://broker/clicks", every=0.001).run()) as run:
            async for event in run:
                found.append(event.payload["offsets"])
                if len(found) == count:
                    break
        return found

    return asyncio.run(take())


@pytest.mark.usefixtures("client")
def test_a_topic_that_ends_elsewhere_wakes_also_one_made_anew_with_fewer_messages(monkeypatch) -> None:
    Broker(monkeypatch, [{"0": 0}, {"0": 9}, {"0": 9}, {"0": 2}, {"0": 2}, {"0": 3}])
    assert events(3) == [{"0": 9}, {"0": 2}, {"0": 3}]


@pytest.mark.usefixtures("client")
def test_a_broker_that_is_away_is_asked_with_the_connection_as_it_is_then(monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        TopicTrigger, "log", SimpleNamespace(warning=lambda text, *given: said.append(text % given))
    )
    broker = Broker(
        monkeypatch, [{"0": 1}, Refused("password"), AirflowNotFoundException("broker"), {"0": 1}, {"0": 2}]
    )
    assert events(2) == [{"0": 1}, {"0": 2}], "what was known is"
    assert broker.passwords == ["1", "2", "3"]
    assert said == ["kafka://broker/clicks does not tell where it ends (password): it is asked again"]
    monkeypatch.setattr(topic, "TELL_SECONDS", 0)
    Broker(monkeypatch, [Refused("a"), Refused("b"), {"0": 1}])
    events(1)
    assert len(said) == 3


@pytest.mark.usefixtures("client")
def test_an_error_that_is_no_absence_ends_the_trigger(monkeypatch) -> None:
    Broker(monkeypatch, [{"0": 1}, KeyError("other")])
    with pytest.raises(KeyError):
        events(2)
    denied = ErrorResponse(error=ErrorType.PERMISSION_DENIED, detail={})
    Broker(monkeypatch, [{"0": 1}, AirflowRuntimeError(denied)])
    with pytest.raises(AirflowRuntimeError):
        events(2)
