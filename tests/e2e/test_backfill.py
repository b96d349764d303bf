"""Show: six months of flights by ``airflow backfill create``, two at a time, beside a model that serves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.site import Site
from tests.waiting import until

from muster.volumes.folder import FolderStore

DAGS = Path(__file__).parents[2] / "dags"


@pytest.mark.soak
def test_six_months_of_flights_are_backfilled_and_the_served_model_stays(tmp_path: Path) -> None:
    with Site(tmp_path) as site:
        for name in ("flights", "flights_report"):
            shutil.copytree(DAGS / name, tmp_path / "dags" / name)
        site.up()
        store = FolderStore(site.home / "store")
        assert site.wait("flights", site.trigger("flights"), seconds=900) == "success"
        (serving,) = [version for version in store.versions("flights/model") if version.pins]
        assert serving.partition == "2013-12"

        runs = site.backfill("flights", "2013-04-01", "2013-09-01", seconds=3600)
        states = {run["logical_date"][:7]: site.states("flights", run["dag_run_id"]) for run in runs}
        assert [run["state"] for run in runs] == ["success"] * 6, states
        assert {state["deploy"] for state in states.values()} == {"skipped"}
        for run in runs:
            month = run["logical_date"][:7]
            (model,) = store.resolve(f"flights/model@{month}")
            record = store.record(model.address)
            assert record.origin.run_id == run["dag_run_id"]
            assert [each.partition for each in record.inputs["test"]] == [month]
            before = [f"2013-{number:02}" for number in range(1, int(month[5:]))]
            assert [each.partition for each in record.inputs["train"]] == before
        # a month is the same bytes whichever run made it
        months = {version.partition: set[str]() for version in store.versions("flights/features")}
        for version in store.versions("flights/features"):
            months[version.partition].add(version.digest)
        assert {len(digests) for digests in months.values()} == {1}

        (still,) = [version for version in store.versions("flights/model") if version.pins]
        assert still == serving
        models = partitions(store, "flights/model")
        # the event of the last one may wait for the next: Airflow hears none while another is queued
        assert until(lambda: len(models - partitions(store, "flights/model-card")) <= 1, seconds=900)


def partitions(store: FolderStore, volume: str) -> set[str | None]:
    return {version.partition for version in store.versions(volume)}
