"""Which versions a run is about: those of its events, or what is named where there are none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest

from muster.airflow.embedded.home import EmbeddedHome
from muster.core.errors import SpecError
from muster.core.settings import Settings
from muster.volumes.base import Version
from muster.volumes.folder import FolderStore


@pytest.fixture(autouse=True)
def airflow(home: EmbeddedHome) -> None:
    """Nothing here imports Airflow before it knows where it lives."""


def triggering(*names: str, **options: Any) -> Any:
    from muster.airflow.authoring import triggering as room

    return room.triggering(*names, **options)


def refused() -> type[Exception]:
    from airflow.sdk.exceptions import AirflowFailException

    return AirflowFailException


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderStore:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    return FolderStore(Settings.load().store)


@pytest.fixture
def add(store: FolderStore, tmp_path: Path) -> Callable[..., Version]:
    def write(content: str, partition: str | None = None, *, volume: str = "f/model") -> Version:
        (tmp_path / "x").write_text(content)
        return store.add(volume, tmp_path / "x", partition=partition)

    return write


def event(version: Version, *, minute: int = 0, **changes: Any) -> Any:
    extra = {"version": version.address, "digest": version.digest} | changes
    return SimpleNamespace(timestamp=datetime(2026, 1, 1, 0, minute, tzinfo=UTC), extra=extra)


def context(*events: Any, **more: Any) -> dict[str, Any]:
    """Airflow's, as far as it is looked at."""
    from airflow.sdk import Asset

    dag = SimpleNamespace(get_template_env=jinja2.Environment)
    told = {Asset("volume://f/model"): list(events)} if events else {}
    return {"triggering_asset_events": told, "dag": dag, **more}


def test_the_versions_of_the_events_are_named_each_partition_by_its_newest(add: Any) -> None:
    old, april, may = add("1", "2013-05"), add("2", "2013-04"), add("3", "2013-05")
    add("4", "2013-06")
    found = triggering("f/model").resolve(
        context(event(may, minute=2), event(old, minute=1), event(april, minute=3))
    )
    assert found == [april.address, may.address]


def test_an_event_of_many_partitions_names_them_all(add: Any) -> None:
    april, may = add("1", "2013-04"), add("2", "2013-05")
    again = add("3", "2013-04")
    both = event(may, versions=[april.address, may.address])
    assert triggering("f/model").resolve(context(both)) == [april.address, may.address]
    assert triggering("f/model").resolve(context(both, event(again, minute=1))) == [
        again.address,
        may.address,
    ]


def test_an_event_that_speaks_of_another_volume_is_refused(add: Any) -> None:
    with pytest.raises(refused(), match="the event of f/model announced volume://f/other@1"):
        triggering("f/model").resolve(context(event(add("1", volume="f/other"))))


def test_without_an_event_it_is_the_newest_or_what_is_asked_for(add: Any) -> None:
    first, second = add("1"), add("2")
    assert triggering("volume://f/model").resolve(context()) == [second.address]
    named = triggering("f/model", otherwise="volume://f/model@{{ params.number }}")
    here = context(params={"number": 1})
    assert named.resolve(here) == [first.address]
    assert triggering("f/model").resolve(here) == [second.address]


def test_an_event_that_a_person_made_by_hand_names_no_version(add: Any) -> None:
    version = add("1")
    by_hand = SimpleNamespace(timestamp=datetime(2026, 1, 1, tzinfo=UTC), extra={})
    assert triggering("f/model").resolve(context(by_hand)) == [version.address]


def test_all_fields_of_a_try_speak_of_the_same_versions(add: Any) -> None:
    first, model = add("1"), triggering("f/model")
    here = context()
    assert model.resolve(here) == [first.address]
    add("2")
    assert model.resolve(here) == [first.address]
    assert [each["version"] for each in model.lineage.resolve(here)] == [first.address]


def test_another_stores_event_is_refused(add: Any) -> None:
    with pytest.raises(refused(), match="came from another store"):
        triggering("f/model").resolve(context(event(add("1"), digest="b3:" + "0" * 64)))


def test_what_gc_took_meanwhile_is_said(add: Any) -> None:
    gone = event(add("1"))
    gone.extra["version"] = "volume://f/model@9"
    with pytest.raises(refused(), match="no version f/model@9"):
        triggering("f/model").resolve(context(gone))


def test_an_input_that_was_none_is_named(add: Any) -> None:
    add("1")
    with pytest.raises(refused(), match="made without an input 'test'; its inputs are none"):
        triggering("f/model").input("test").resolve(context())


@pytest.mark.parametrize("name", ["f/model@3", "F", "", "volume://f/model/x@2"])
def test_what_is_no_volume_is_refused_in_the_dag_file(name: str) -> None:
    with pytest.raises(SpecError):
        triggering(name)


def test_it_reads_well_where_airflow_shows_the_template() -> None:
    model = triggering("f/model")
    assert str(model) == "triggering('f/model')"
    assert str(model.input("test")) == "triggering('f/model').input('test')"
    assert str(model.lineage) == "triggering('f/model').lineage"
