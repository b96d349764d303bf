"""Budgets: who sets one, what is used of it, and what a job that is beyond it waits for."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.ext.usage.test_log import SPEC
from tests.unit.ext.usage.test_table import line
from tests.unit.volumes.service.process import Service
from typer.testing import CliRunner, Result

from muster.backends.local.checks import machine_checks
from muster.cli.app import app
from muster.core.errors import Corrupt, SpecError
from muster.core.job import JobSpec, Role
from muster.core.settings import Settings
from muster.core.tally import HourBudget, Tally
from muster.ext.usage import log
from muster.ext.usage.budgets import BudgetQuestion, SpentBudget
from muster.ext.usage.service import ask_budgets, held, planned
from muster.volumes.folder import FolderStore
from muster.volumes.protocols import LocalStore

NONE = Tally()
SMALL = HourBudget(gpu_hours=3)


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    """One in which the Dag flights, of team vision, held 4 GPU-hours and 16 CPU-hours in the last second, and others long before."""
    store = FolderStore(tmp_path / "store")
    now = time.time()
    before = now - 40 * 86_400
    log.append(store.layout.root, line(ended=now, held=[(now - 1, now, 14_400, 14_400)]))
    log.append(store.layout.root, line(job_id="before", ended=now, held=[(before, before + 3600, 9, 9)]))
    return store


@pytest.fixture(params=["folder", "service"])
def store(request: pytest.FixtureRequest, folder: FolderStore, tmp_path: Path) -> Iterator[LocalStore]:
    if request.param == "folder":
        yield folder
    else:
        with Service(tmp_path) as service:
            yield service.client()


def of(store: LocalStore, *whose: str) -> list[SpentBudget]:
    return list(ask_budgets(store, BudgetQuestion(whose=whose)).budgets)


def set_budget(store: LocalStore, whose: str, budget: HourBudget | None) -> None:
    ask_budgets(store, BudgetQuestion(given={whose: budget}), keep=True)


def says(budget: HourBudget | None) -> JobSpec:
    return replace(SPEC, budget=budget)


def test_a_job_waits_for_its_dags_budget_until_that_is_raised(store: LocalStore) -> None:
    assert held(store, says(None), NONE, True) == ""
    why = held(store, says(SMALL), NONE, True)
    assert re.fullmatch(
        r"waits for its budget: dag flights has used 4 of 3 GPU-hours of this month; "
        r"the next one begins on \d{4}-\d\d-01",
        why,
    )
    assert held(store, says(SMALL), NONE, False) == why
    set_budget(store, "dag:flights", HourBudget(gpu_hours=5))
    assert held(store, says(SMALL), NONE, False) == ""
    assert held(store, says(None), NONE, True) == ""  # one that says nothing changes nothing
    assert "4 of 2 GPU-hours" in held(store, says(HourBudget(gpu_hours=2)), NONE, True)
    set_budget(store, "dag:flights", None)
    assert held(store, says(None), NONE, False) == ""


def test_what_a_job_does_not_ask_for_it_does_not_wait_for(store: LocalStore) -> None:
    set_budget(store, "team:vision", SMALL)
    assert "team vision has used 4 of 3 GPU-hours" in held(store, SPEC, Tally(team="vision"), True)
    assert held(store, SPEC, Tally(team="speech"), True) == ""
    without = replace(SPEC, roles=(Role(command=("x",)),))
    assert held(store, without, Tally(team="vision"), True) == ""
    set_budget(store, "team:vision", HourBudget(cpu_hours=15))
    assert "of 15 CPU-hours of this month" in held(store, without, Tally(team="vision"), True)


def test_a_plan_warns_of_what_goes_beyond(store: LocalStore) -> None:
    budget = HourBudget(gpu_hours=6)
    assert list(planned(store, "flights", "", [says(budget)], 1.5, 9.0)) == []
    (told,) = planned(store, "flights", "", [says(budget)], 2.5, 9.0)
    assert told.startswith(
        "jobs beyond the budget wait: dag flights has used 4 of 6 GPU-hours of this month and 2.5 planned; "
    )
    assert of(store) == []  # a plan sets nothing
    assert list(planned(store, "flights", "", [], 0.0, 0.0)) == []


def test_budgets_that_cannot_be_read_are_named_with_what_to_do(folder: FolderStore) -> None:
    path = folder.layout.root / "usage" / "budgets.json"
    path.write_text("{")
    with pytest.raises(Corrupt, match=f"{path} cannot be read: .*set the budgets again: muster budget"):
        held(folder, SPEC, NONE, True)


def test_a_job_that_waits_for_its_budget_is_none_without_a_supervisor(
    folder: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    settings = Settings.load()
    assert settings.store == folder.layout.root
    folder.ledger.create("waits", SPEC, kept="waits for its budget: none")
    assert "1 running" in [check.found for check in machine_checks(settings)]
    folder.ledger.create("lost", SPEC)
    assert "1 without a supervisor: lost" in [check.found for check in machine_checks(settings)]


def test_only_this_month_counts(store: LocalStore) -> None:
    set_budget(store, "dag:flights", HourBudget(gpu_hours=9))
    assert of(store, "dag:flights")[0].gpu_hours == pytest.approx(4.0)


@pytest.mark.parametrize("whose", ["flights", "dag:", "user:ada", "team:a\nb"])
def test_whose_it_is_has_to_be_said(whose: str) -> None:
    with pytest.raises(SpecError, match="expected dag:NAME or team:NAME"):
        BudgetQuestion(given={whose: None})


def budget(*words: str) -> Result:
    return CliRunner().invoke(app, ["budget", *words])


def test_the_command_sets_shows_and_takes_away(
    folder: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    assert "no Dag and no team has a budget" in budget().stderr
    assert budget("team:vision", "--gpu-hours", "3").exit_code == 0
    assert budget("dag:flights", "--cpu-hours", "90").exit_code == 0
    rows = [row.split() for row in budget().stdout.splitlines()]
    assert rows == [
        ["whose", "GPU-hours", "used", "CPU-hours", "used"],
        ["dag:flights", "-", "4.00", "90", "16"],
        ["team:vision", "3", "4.00", "-", "16"],
    ]
    assert budget("team:vision", "--none").exit_code == 0
    assert "vision" not in budget().stdout
    assert budget("--gpu-hours", "3").exit_code == 2
    for wrong in (budget("team:vision", "--gpu-hours", "-3"), budget("team:vision")):
        assert (wrong.exit_code, "give gpu_hours, cpu_hours or both" in wrong.stderr) == (1, True)
