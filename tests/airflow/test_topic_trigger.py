"""What a TopicTrigger refuses where the Dag is parsed, and what of it is stored."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import pytest
from airflow.sdk import AssetWatcher

from muster.airflow import TopicTrigger
from muster.core.errors import SpecError

pytestmark = pytest.mark.slow


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the client look installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))


@pytest.mark.usefixtures("client")
def test_it_is_stored_without_what_is_at_its_default() -> None:
    path = "muster.airflow.topic.TopicTrigger"
    watched = AssetWatcher(name="a", trigger=TopicTrigger("kafka://broker/clicks"))
    assert watched.trigger.serialize() == (path, {"source": "kafka://broker/clicks"})
    assert TopicTrigger("kafka://broker/clicks", every=5).serialize()[1]["every"] == 5


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
