"""A backfill by Airflow's own command, what its versions trigger, and what of them is kept.

Months run side by side, each with its own versions, and there is no way back for what serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serving import onnx_graph
from tests.site import Site
from tests.waiting import GUARD_SECONDS, until

from muster.volumes.folder import FolderStore

# Three minutes of runs; test_deploy.py and unit/backends/releases/test_book.py keep the rules.
pytestmark = pytest.mark.data

MONTHS = """
    from datetime import UTC, datetime
    from airflow.sdk import Param, dag
    from airflow.timetables.events import EventsTimetable
    from muster.airflow import DeployOperator, JobOperator, Output, Resources

    MONTH = "{{ params.month if dag_run.run_type == 'manual' else ds[:7] }}"

    @dag(
        schedule=EventsTimetable([datetime(2024, month, 1, tzinfo=UTC) for month in range(1, 13)]),
        start_date=datetime(2024, 1, 1, tzinfo=UTC), catchup=False,
        params={"month": Param("2024-03", type="string")},
        default_args={"resources": Resources(memory_gib=0.5), "retries": 0},
    )
    def months():
        rows = JobOperator(
            task_id="rows", image="python", entrypoint="months.steps:rows", params={"month": MONTH},
            outputs={"rows": Output(volume="months/rows", partition="*")},
        )
        model = JobOperator(
            task_id="model", image="python", entrypoint="months.steps:model", params={"month": MONTH},
            inputs={"train": f"volume://months/rows@<{MONTH}", "test": f"volume://months/rows@{MONTH}"},
            outputs={"model": Output(volume="months/model", partition=MONTH)},
        )
        DeployOperator(task_id="deploy", name="months", model=model.versions["model"], smoke=None)
        rows >> model

    months()
"""

STEPS = """
    from pathlib import Path
    from months.onnx_graph import write_line

    def rows(rows: Path, month: str) -> None:
        for number in range(1, int(month[5:]) + 1):
            folder = rows / f"{month[:4]}-{number:02}"
            folder.mkdir()
            (folder / "rows").write_text(folder.name)

    def model(train: list[Path], test: Path, model: Path, month: str) -> dict[str, float]:
        names = [(each / "rows").read_text() for each in [*train, test]]
        if names != [f"{month[:4]}-{number:02}" for number in range(1, int(month[5:]) + 1)]:
            raise ValueError(f"{month} was given {names}")
        write_line(model, slope=int(month[5:]))
        return {"months": len(names)}
"""

SHEETS = """
    from datetime import UTC, datetime
    from airflow.sdk import dag
    from airflow.timetables.events import EventsTimetable
    from muster.airflow import JobOperator, Output, Resources

    @dag(
        schedule=EventsTimetable([datetime(2024, month, 1, tzinfo=UTC) for month in range(1, 13)]),
        start_date=datetime(2024, 1, 1, tzinfo=UTC), catchup=False,
        default_args={"muster": {"cache": True}, "resources": Resources(memory_gib=0.5), "retries": 0},
    )
    def sheets():
        JobOperator(
            task_id="sheet", image="python", entrypoint="sheets.steps:sheet",
            inputs={"raw": "volume://sheets/raw@{{ ds[:7] }}"},
            outputs={"sheet": Output(volume="sheets/sheet", partition="{{ ds[:7] }}")},
        )

    sheets()
"""

SHEET = """
    from pathlib import Path

    def sheet(raw: Path, sheet: Path) -> None:
        (sheet / "rows").write_text((raw / "rows").read_text().upper())
"""

CARDS = """
    from datetime import UTC, datetime
    from airflow.sdk import Asset, dag
    from muster.airflow import JobOperator, Output, Resources
    from muster.airflow import triggering

    @dag(schedule=[Asset("volume://months/model")], start_date=datetime(2024, 1, 1, tzinfo=UTC), catchup=False)
    def cards():
        models = triggering("months/model")
        JobOperator(
            task_id="card", image="python", entrypoint="cards.steps:card",
            inputs={"models": models, "test": models.input("test")}, params={"lineage": models.lineage},
            outputs={"cards": Output(volume="months/model-card", partition="*")},
            resources=Resources(memory_gib=0.5), retries=0,
        )

    cards()
"""

CARD = """
    from pathlib import Path

    def card(models: list[Path], test: list[Path], cards: Path, lineage: list[dict]) -> None:
        for model, data, origin in zip(models, test, lineage, strict=True):
            month = origin["record"]["partition"]
            if (data / "rows").read_text() != month or not (model / "model.onnx").is_file():
                raise ValueError(f"the card of {month} was given {data} and {model}")
            (cards / month).mkdir()
            (cards / month / "card").write_text(origin["version"])
"""


MAINTENANCE = Path(__file__).parents[2] / "dags" / "muster_maintenance" / "dag.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as site:
        site.write("months", MONTHS, steps=STEPS, onnx_graph=Path(onnx_graph.__file__).read_text())
        site.write("cards", CARDS, steps=CARD)
        site.write("sheets", SHEETS, steps=SHEET)
        site.write("muster_maintenance", MAINTENANCE.read_text())
        site.up()
        yield site


@pytest.fixture(scope="module")
def store(site: Site) -> FolderStore:
    return FolderStore(site.home / "store")


def served(site: Site) -> str:
    """The month whose model answers."""
    (deployment,) = site.ask("deployments", "ls")
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
    answer = httpx.post(
        f"{deployment['url']}/v2/models/months/infer", json=body, timeout=GUARD_SECONDS, trust_env=False
    )
    return f"2024-{answer.json()['outputs'][0]['data'][0]:02.0f}"


def test_months_are_backfilled_side_by_side_and_what_serves_does_not_go_back(
    site: Site, store: FolderStore
) -> None:
    assert site.wait("months", site.trigger("months")) == "success"
    assert served(site) == "2024-03"

    runs = site.backfill("months", "2024-02-01", "2024-04-01")
    assert [run["state"] for run in runs] == ["success"] * 3, [
        site.states("months", r["dag_run_id"]) for r in runs
    ]
    models = {version.number: version for version in store.versions("months/model")}
    assert sorted(str(version.partition) for version in models.values()) == sorted(
        ["2024-03", *(f"2024-{number:02}" for number in range(2, 5))]
    )
    for version in models.values():
        record = store.record(version.address)
        assert [each.partition for each in record.inputs["test"]] == [version.partition]
        assert record.metrics["months"] == int(str(version.partition)[5:])
    assert served(site) == "2024-04"
    early = runs[0]["dag_run_id"]
    assert site.states("months", early)["deploy"] == "skipped"
    assert "is before 2024-0" in site.task_log("months", early, "deploy")
    assert site.states("months", runs[-1]["dag_run_id"])["deploy"] == "success"


def test_a_backfill_makes_only_the_months_that_changed(
    site: Site, store: FolderStore, tmp_path: Path
) -> None:
    def put(month: str, text: str) -> None:
        (tmp_path / "rows").write_text(text)
        store.add("sheets/raw", tmp_path / "rows", partition=month)

    def numbers() -> dict[str | None, int]:
        return {version.partition: version.number for version in store.versions("sheets/sheet")}

    months = ("2024-01", "2024-02")
    for month in months:
        put(month, f"rows of {month}")
    runs = site.backfill("sheets", "2024-01-01", "2024-02-01", at_once=1, on_page=True)
    assert [run["state"] for run in runs] == ["success"] * 2
    before = numbers()
    assert set(before) == set(months)

    put("2024-02", "other rows")
    runs = site.backfill("sheets", "2024-01-01", "2024-02-01", at_once=1, on_page=True, again=True)
    assert [run["state"] for run in runs] == ["success"] * 2
    assert numbers() == before | {"2024-02": 3}, "the other is kept, though the backfill cleared its task"
    assert "kept sheets/sheet@" in site.task_log("sheets", runs[0]["dag_run_id"], "sheet", try_number=2)
    assert "not kept: input raw: sheets/raw@2 → @3" in site.task_log(
        "sheets", runs[1]["dag_run_id"], "sheet", try_number=2
    )

    site.clear("sheets", runs[0]["dag_run_id"], "sheet")
    assert site.wait("sheets", runs[0]["dag_run_id"]) == "success"
    assert numbers()["2024-01"] == 4, "a person who clears a task wants it made again"


def test_every_new_version_triggers_its_consumer_once(site: Site, store: FolderStore) -> None:
    # Airflow leaves an event that comes while another one is queued to the run of the next event; this is it.
    assert until(lambda: quiet(site))
    assert site.wait("months", site.trigger("months", {"month": "2024-04"})) == "success"
    models = sorted(version.address for version in store.versions("months/model"))

    def told() -> list[str]:
        cards = store.versions("months/model-card")
        return sorted((store.path(card.address) / "card").read_text() for card in cards)

    assert until(lambda: len(told()) >= len(models) - 1 and models[-1] in told()), told()
    assert until(lambda: quiet(site))
    assert len(set(told())) == len(told())
    missing = set(models) - set(told())
    newest = {version.partition: version.address for version in store.versions("months/model")}
    assert not missing & set(newest.values())  # of two of one month that came together the newer has the card


def quiet(site: Site) -> bool:
    """Whether no run of the consumer goes on."""
    runs = site.ask_api("GET", "dags/cards/dagRuns", params={"limit": 100})["dag_runs"]
    assert all(run["state"] != "failed" for run in runs)
    return bool(runs) and all(run["state"] == "success" for run in runs)


def test_by_hand_the_consumer_takes_the_newest(site: Site, store: FolderStore) -> None:
    run_id = site.trigger("cards")
    assert site.wait("cards", run_id) == "success"
    card = max(store.versions("months/model-card"), key=lambda version: version.number)
    assert card.partition == "2024-04"
    assert store.record(card.address).origin.run_id == run_id


def test_maintenance_says_and_then_does_what_goes_and_nothing_of_what_serves(
    site: Site, store: FolderStore
) -> None:
    before = {version.address for name in store.volumes() for version in store.versions(name)}
    pinned = [version for version in store.versions("months/model") if version.pins]
    assert len(pinned) == 2  # what serves, and what is kept for a rollback
    strict = {"keep": 1, "young_days": 0}

    said = maintain(site, {**strict, "dry_run": True})
    assert said["deleted"]["months/rows"] > 0
    assert said["freed_bytes"] == 0
    assert {version.address for name in store.volumes() for version in store.versions(name)} == before

    assert maintain(site, strict)["deleted"] == said["deleted"]
    after = {version.address for name in store.volumes() for version in store.versions(name)}
    assert len(before) - len(after) == sum(said["deleted"].values())
    for one in pinned:
        inputs = store.record(one.address).inputs
        assert {one.address} | {each.address for many in inputs.values() for each in many} <= after
    for model in store.versions("months/model"):  # each is the newest of its month, made from what is kept
        for many in store.record(model.address).inputs.values():
            assert {each.address for each in many} <= after
    assert served(site) == "2024-04"


def maintain(site: Site, params: dict[str, Any]) -> Any:
    """Run the maintenance by hand and return what its collection came to, after a look at its log."""
    run_id = site.trigger("muster_maintenance", params)
    assert site.wait("muster_maintenance", run_id) == "success"
    log = site.task_log("muster_maintenance", run_id, "retention")
    assert "older than those kept" in log
    assert "stay: pinned" in log
    return site.xcom("muster_maintenance", run_id, "retention")
