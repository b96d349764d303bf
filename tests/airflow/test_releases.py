"""Releases driven by a real Airflow on real servers, while users ask: what they saw, and what the task says."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.airflow.careful import WAITS, answer, careful
from tests.airflow.released import NAME, Released, events, short, why
from tests.e2e import faulty
from tests.site import Site
from tests.waiting import eventually, until

from muster.airflow.attempts.orphans import YOUNG_SECONDS
from muster.backends.releases.manual import promote
from muster.core.deployment import RevisionState

SMOKE = '[{"name": "two", "inputs": {"x": [2]}}]'
COMPARISON = '{"requests": [{"inputs": {"x": [2, 3]}}], "output": "y", "agreement": 1, "tolerance": 900}'
DAGS = """
    from datetime import datetime, timedelta
    from airflow.sdk import Asset, dag, task
    from muster.airflow import DeployOperator, RollbackOperator, Rules, SweepOperator

    START = dict(schedule=None, start_date=datetime(2024, 1, 1), params={"model": ""})
    MODEL = "{{ params.model }}"
    SECOND = timedelta(seconds=1)
    RULES = Rules(max_p95_ratio=None)


    @dag(**START)
    def stepwise():
        DeployOperator(
            task_id="deploy", name="line", model=MODEL, steps=[20, 60, 100], hold=SECOND, rules=RULES,
            comparison="comparison.json", retry_delay=SECOND,
        )


    @dag(**START)
    def patient():
        DeployOperator(
            task_id="deploy", name="line", model=MODEL, steps=[20, 100], hold=[timedelta(minutes=10), SECOND],
            rules=RULES, retries=30, retry_delay=SECOND,
        )


    @dag(**START)
    def back():
        RollbackOperator(task_id="back", name="line", reason="users complain")


    @dag(**START)
    def sweeping():
        SweepOperator(task_id="sweep")


    @dag(schedule=[Asset("deployment://line")], start_date=datetime(2024, 1, 1))
    def heard():
        @task
        def say(triggering_asset_events=None):
            (events,) = triggering_asset_events.values()
            return [dict(each.extra) for each in events]

        say()


    stepwise(), patient(), back(), sweeping(), heard()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as site:
        site.write("releases", DAGS)
        for name, text in (("smoke", SMOKE), ("comparison", COMPARISON)):
            (site.folder / "dags" / "releases" / f"{name}.json").write_text(text)
        site.write("careful", careful(NAME))
        site.set("muster", inline_wait=0)
        site.up()
        yield site


@pytest.fixture(scope="module")
def released(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Released:
    """One whose first version serves all users."""
    return Released(site).begun("stepwise", tmp_path_factory.mktemp("first"))


@pytest.fixture
def version(released: Released, tmp_path: Path) -> Callable[..., str]:
    numbers = iter(range(100))
    return lambda **line: released.version(tmp_path / str(next(numbers)), **line)


def test_a_release_in_three_steps_loses_no_request_and_is_an_event(
    site: Site, released: Released, version: Callable[..., str]
) -> None:
    old, new = released.champion, version(slope=3.0)
    with released.users() as users:
        run = site.trigger("stepwise", {"model": new})
        assert site.wait("stepwise", run) == "success"
        eventually(lambda: users.sent > 500)
    assert users.failed == {}
    assert len(users.answers) == 2
    log = released.log("stepwise", run)
    told = [line for line in log.splitlines() if "% of the traffic" in line or "all of the traffic" in line]
    assert [line.partition(": ")[2].partition(" ")[0] for line in told] == ["20", "60", "100", "all"], log
    assert " requests, 0 failed, 95 % within " in told[1]
    assert "the release goes on; the triggerer drives it" in log
    assert site.xcom("stepwise", run, "deploy")["percent"] == 100
    event = events(site)[-1]
    assert (event["version"], event["rolled_back"]) == (new, None)
    assert released.status.revision(old).kept  # type: ignore[union-attr]


@pytest.mark.nightly
def test_the_latest_version_is_the_one_that_was_latest_when_the_release_began(
    site: Site, released: Released, version: Callable[..., str]
) -> None:
    new = version(slope=3.5)
    run = site.trigger("patient", {"model": "volume://lines/model@latest"})
    eventually(lambda: released.share(new) == 20)
    version(slope=3.6)
    revision = released.status.revision(new)
    assert revision is not None
    promote(released.backend.deployments, NAME, revision.name, by="ann")
    assert site.wait("patient", run) == "success"
    assert site.xcom("patient", run, "deploy")["version"] == new
    assert released.champion == new


def test_one_that_answers_users_wrongly_is_taken_back_and_the_task_says_why(
    site: Site, released: Released, version: Callable[..., str]
) -> None:
    good, bad, told = released.champion, version(slope=500.0, offset=-1000.0), len(events(site))
    with released.users(x=900.0) as users:  # what it answers is out of the bounds of its signature
        run = site.trigger("stepwise", {"model": bad})
        assert site.wait("stepwise", run) == "failed"
        lost = dict(users.failed)
        before = users.sent
        eventually(lambda: users.sent > before + 300)
    assert users.failed == lost
    assert released.status.shares == {released.status.revision(good).name: 100}  # type: ignore[union-attr]
    first, second, third, fourth = why(site, "stepwise", run)
    assert first == f"release rolled back: {short(bad)} as line"
    assert second.startswith("at 20 % of the traffic, ")
    assert second.endswith("requests failed, above the 1.00% that are allowed")
    assert (third, fourth) == (
        f"{short(good)} serves 100 % of the users",
        "all of it: muster deployments show line",
    )
    assert len(events(site)) == told


def test_a_person_lets_it_go_on_from_where_it_is_held(
    site: Site, released: Released, version: Callable[..., str]
) -> None:
    new = version(slope=4.0)
    with released.users() as users:
        run = site.trigger("careful", {"model": new})
        site.wait_task("careful", run, "approve", WAITS)
        assert released.share(new) == 5
        assert released.status.release is not None
        assert released.status.release.held
        answer(site, run, "Approve")
        seen = set[int]()
        eventually(
            lambda: seen.add(released.share(new)) or site.run_state("careful", run) in ("success", "failed")
        )
    assert site.run_state("careful", run) == "success"
    assert min(seen) == 5
    assert users.failed == {}
    assert released.champion == new
    assert site.states("careful", run)["back"] == "skipped"


@pytest.mark.nightly  # browser/test_by_hand.py rejects one
def test_what_a_person_rejects_is_taken_back_and_the_run_is_red(
    site: Site, released: Released, version: Callable[..., str]
) -> None:
    old, new = released.champion, version(slope=5.0)
    run = site.trigger("careful", {"model": new})
    site.wait_task("careful", run, "approve", WAITS)
    answer(site, run, "Reject")
    assert site.wait("careful", run) == "failed"
    assert site.states("careful", run)["back"] == "success"
    result = site.xcom("careful", run, "back")
    assert (result["version"], result["rolled_back"]) == (old, new)
    assert released.status.revision(new).reason.endswith(": not approved")  # type: ignore[union-attr]
    assert released.champion == old


def test_whoever_is_killed_the_next_one_goes_on_and_another_release_supersedes_it(
    site: Site, released: Released, version: Callable[..., str]
) -> None:
    old, new, newer = released.champion, version(slope=6.0), version(slope=7.0)
    with released.users() as users:
        run = site.trigger("patient", {"model": new})
        eventually(lambda: released.share(new) == 20)
        triggerer = site.component("triggerer")
        assert triggerer is not None
        os.kill(triggerer, signal.SIGKILL)
        eventually(lambda: site.component("triggerer") not in (None, triggerer))
        other = site.trigger("stepwise", {"model": newer})
        assert site.wait("patient", run) == "failed"
        assert site.wait("stepwise", other) == "success"
    assert users.failed == {}
    first, second, *_ = why(site, "patient", run)
    assert first == f"release superseded: {short(new)} as line"
    assert "stepwise.deploy, " in second
    assert (released.champion, released.status.revision(old).kept) == (newer, True)  # type: ignore[union-attr]


@pytest.mark.nightly  # unit/airflow/attempts sweeps one
def test_what_is_marked_failed_while_no_triggerer_runs_is_taken_back_by_a_sweep(
    site: Site, released: Released, version: Callable[..., str]
) -> None:
    good, new = released.champion, version(slope=8.0)
    with released.users() as users:
        run = site.trigger("patient", {"model": new})
        eventually(lambda: released.share(new) == 20)
        site.wait_task("patient", run, "deploy", ("deferred",))
        triggerer = site.component("triggerer")
        assert triggerer is not None
        deaf = [*site.below("triggerer"), triggerer]
        send(signal.SIGSTOP, deaf)
        site.mark("patient", run, "deploy", "failed")
        send(signal.SIGKILL, deaf)
        assert released.share(new) == 20
        age(released)
        swept = site.trigger("sweeping")
        assert site.wait("sweeping", swept) == "success"
    assert users.failed == {}
    assert site.xcom("sweeping", swept, "sweep") == {"swept": [], "taken_back": ["line"]}
    reason = "its task is failed, and no task watches it any more"
    assert f"line is taken back: {reason} (patient.deploy, {run})" in released.log("sweeping", swept, "sweep")
    found = released.status.revision(new)
    assert (found.state, found.reason) == (RevisionState.REFUSED, reason)  # type: ignore[union-attr]
    assert (released.champion, released.status.release) == (good, None)


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        os.kill(pid, number)


def age(released: Released) -> None:
    """Have the step at hand be as old as a release must be that a sweep takes back."""
    status = released.status
    assert status.release is not None
    older = replace(status.release, since=status.release.since - YOUNG_SECONDS)
    kept = {one.name: 0 for one in status.revisions if one.kept and not one.percent}
    released.backend.deployments.shift(status.name, kept | status.shares, token=status.token, release=older)


def test_a_rollback_from_a_dag_goes_back_once_and_says_so(site: Site, released: Released) -> None:
    status = released.status
    kept = next(one for one in status.revisions if one.kept)
    bad = released.champion
    run = site.trigger("back")
    assert site.wait("back", run) == "success"
    assert released.champion == kept.model.address
    told = events(site)[-1]
    assert (told["version"], told["rolled_back"]) == (kept.model.address, bad)
    site.clear("back", run, "back")
    assert until(lambda: site.task("back", run, "back")["try_number"] == 2)
    assert site.wait("back", run) == "failed"  # it was cleared, so it is to be done again
    assert released.champion == kept.model.address
    said = "\n".join(faulty.shown(site, run, "back", dag="back", try_number=2))
    assert "keeps no revision to go back to" in said
