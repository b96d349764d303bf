"""The first screen and the runs, from jobs of many states."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.unit.ext.page.boards import Ledgered

from muster.core.data import Input, Pinned
from muster.core.errors import Unavailable
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.status import JobResult, JobState, JobStatus
from muster.ext.page import board as boards, described, listed, routes_serving
from muster.ext.page.board import DRIFT, VALIDATION, Board, Job
from muster.volumes.base import TaskEnd
from muster.volumes.runs import RunParts

if TYPE_CHECKING:
    from muster.airflow.page.access import UserRights


@pytest.fixture(autouse=True)
def _listed_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is."""
    monkeypatch.setattr(boards, "SLOW_SECONDS", 3600.0)


NAMES = ("failed", "succeeded", "cancelled")


def job(
    job_id: str,
    state: str,
    *,
    task: str = "train",
    run: str = "r1",
    at: float = 1.0,
    dag: str = "d",
    trial: int = -1,
) -> Job:
    spec = JobSpec(
        name=f"{dag}.{task}",
        image="etl",
        image_digest="b3:" + "0" * 64,
        roles=(Role(entrypoint="a.b:c"),),
        origin=Origin(dag_id=dag, run_id=run, task_id=task, trial=trial),
    )
    owner = "search-1" if trial >= 0 else None
    ended = at + 10 if state in NAMES else None
    status = JobStatus(
        job_id=job_id, state=JobState(state), submitted=at, started=at + 1, ended=ended, owner=owner
    )
    return Job(job_id=job_id, status=status, spec=spec)


def end(
    task: str, *, state: str = "succeeded", run: str = "r1", at: float, kept_of: str = "", dag: str = "d"
) -> TaskEnd:
    origin = Origin(dag_id=dag, run_id=run, task_id=task)
    return TaskEnd(
        origin=origin, began=at - 1, at=at, state=JobState(state), line=f"{task} said so", kept_of=kept_of
    )


Boards = Callable[..., Ledgered]


@pytest.fixture
def board(tmp_path: Path) -> Boards:
    """Makes boards of jobs, the newest first, and of the ends of tasks."""
    numbers = count()
    return lambda *jobs, ends=(): Ledgered(tmp_path / f"{next(numbers)}", *jobs, ends=ends)


def shown(board: Board, noted: Mapping[tuple[str, str], JobState] | None = None) -> list[dict[str, Any]]:
    """The runs of a board in short, the newest first."""
    board.look()
    found, total = board.runs(board.ends(), board.dags(everyone))
    assert total == len(found)
    return [described.brief(parts.run(noted or {})) for parts in found]


def whole(board: Board) -> dict[str, Any]:
    """The run r1 of the Dag d with all that the page shows of it."""
    board.look()
    lines, ends = board.run("d", "r1"), board.ends(dag_id="d", run_id="r1", runs=1)
    jobs = board.jobs(line for line in lines if not line.is_trial)
    parts = RunParts.of([line.tried for line in reversed(lines) if line.tried], ends)
    return described.whole(parts.run({}), jobs, [line for line in lines if line.is_trial], ends)


def validation(job_id: str, *, failed: int) -> Job:
    """A validation that ran: its job succeeds, and the data need not."""
    done = job(job_id, "succeeded", task="validate")
    assert done.spec
    assert done.status
    result = JobResult(metrics={"failed": float(failed), "expectations": 3.0})
    return replace(
        done,
        spec=replace(done.spec, roles=(Role(entrypoint=VALIDATION),)),
        status=replace(done.status, result=result),
    )


def everyone(dag_id: str) -> bool:
    return True


def test_what_waits_is_listed_first_in_line_first_and_only_what_is_shown_is_asked_for(board: Boards) -> None:
    many = board(*(job(f"w{n}", "queued") for n in reversed(range(100))), job("r", "running"))
    found = listed.first_screen(many.board, permitted=everyone)
    assert [each["job_id"] for each in found["waiting"]] == [f"w{n}" for n in range(listed.MOST)]
    assert found["in_all"] == {"running": 1, "waiting": 100, "failed": 0}
    assert len(many.asked) == listed.MOST + 1


def test_a_failure_is_mended_when_its_task_has_succeeded_since(board: Boards) -> None:
    found = listed.first_screen(
        board(
            job("later", "succeeded", task="train", run="r2", at=4.0),
            job("mended", "failed", task="train", at=3.0),
            job("open", "failed", task="score", at=2.0),
            job("before", "succeeded", task="score", run="r0", at=1.0),
        ).board,
        permitted=everyone,
    )
    assert [(each["job_id"], each["mended"]) for each in found["failed"]] == [
        ("mended", True),
        ("open", False),
    ]


def test_what_failed_last_is_one_entry_a_task_with_a_job_or_without(board: Boards) -> None:
    tries = [job(f"t{n}", "failed", task="train", at=float(n)) for n in (3, 2, 1)]
    again = [job("s2", "succeeded", task="score", at=5.0), job("s1", "failed", task="score", at=4.0)]
    trial = job("trial", "failed", task="search", at=6.0, trial=0)
    closed = end("gate", state="failed", at=30.0)
    found = listed.first_screen(
        board(trial, *again, *tries, ends=[closed, end("deploy", at=20.0)]).board, permitted=everyone
    )
    assert [(each["job_id"], each["name"], each["state"]) for each in found["failed"]] == [
        ("", "d.gate", "failed"),
        ("t3", "d.train", "failed"),
    ]
    assert found["failed"][0]["error"] == "gate said so"
    assert found["in_all"]["failed"] == len(found["failed"])


def test_a_failed_validation_is_failed_and_tells_what_its_job_found(board: Boards) -> None:
    checked = validation("v1", failed=2)
    found = listed.first_screen(
        board(checked, ends=[end("validate", state="failed", at=40.0)]).board, permitted=everyone
    )
    ((only),) = found["failed"]
    assert (only["job_id"], only["state"], only["failed_expectations"], only["ended"]) == (
        "v1",
        "failed",
        "the data failed: 2 of 3 expectations",
        40.0,
    )


def test_nothing_of_a_dag_that_the_user_may_not_see(board: Boards) -> None:
    found = listed.first_screen(
        board(job("x", "failed", dag="secret")).board, permitted=lambda dag_id: not dag_id
    )
    assert (found["failed"], found["runs"], dict(found["states"])) == ([], [], {})


def test_a_run_has_its_stages_in_order_and_the_state_of_the_one_that_needs_a_look(board: Boards) -> None:
    tries = [
        job("t2", "succeeded", task="train", at=5.0),
        job("g1", "failed", task="gate", at=4.0),
        job("t1", "failed", task="train", at=3.0),
        job("f1", "succeeded", task="features", at=1.0),
        job("other", "running", run="r0"),
    ]
    first, second = shown(board(*tries).board)
    assert [(each["stage"], each["job_id"]) for each in first["stages"]] == [
        ("features", "f1"),
        ("train", "t2"),
        ("gate", "g1"),
    ]
    assert (first["state"], first["began"], first["ended"]) == ("failed", 1.0, 15.0)
    assert (second["state"], second["ended"]) == ("running", None)


def test_a_run_that_is_noted_as_going_on_has_not_ended_between_two_stages(board: Boards) -> None:
    noted = {("d", "r1"): JobState.RUNNING, ("d", "r0"): JobState.FAILED}
    jobs = [job("f1", "succeeded", at=1.0), job("f0", "succeeded", run="r0")]
    found = {each["run_id"]: each for each in shown(board(*jobs).board, noted)}
    assert [(each["state"], each["ended"]) for each in found.values()] == [
        ("running", None),
        ("failed", 11.0),
    ]


def test_a_gate_a_release_and_a_kept_stage_are_stages_of_their_run(board: Boards) -> None:
    ends = [
        end("deploy", state="failed", at=22.0),
        end("gate", at=20.0),
        end("features", at=4.0, kept_of="f0"),
        end("etl", run="r9", at=30.0, kept_of="e0"),
    ]
    kept, first = shown(board(job("t1", "succeeded", at=5.0), ends=ends).board)
    assert [(each["stage"], each["job_id"], each["state"]) for each in first["stages"]] == [
        ("features", "f0", "kept"),
        ("train", "t1", "succeeded"),
        ("gate", "", "succeeded"),
        ("deploy", "", "failed"),
    ]
    assert (first["state"], first["began"], first["ended"]) == ("failed", 3.0, 22.0)
    assert (kept["run_id"], kept["state"], kept["began"], kept["ended"]) == ("r9", "succeeded", 29.0, 30.0)
    jobs = [job("t1", "succeeded", at=5.0)]
    told = whole(board(*jobs, ends=ends[:3]).board)
    assert [each["job_id"] for each in told["jobs"]] == ["t1"]
    assert [(each["stage"], each["line"], each["kept_of"]) for each in told["ends"]] == [
        ("features", "features said so", "f0"),
        ("gate", "gate said so", ""),
        ("deploy", "deploy said so", ""),
    ]


def test_a_task_that_was_tried_again_is_told_by_its_newest_job(board: Boards) -> None:
    tries = [job("t2", "running", at=9.0), job("t1", "succeeded", at=1.0)]
    (run,) = shown(board(*tries, ends=[end("train", state="failed", at=5.0)]).board)
    assert (run["state"], run["stages"]) == (
        "running",
        [{"job_id": "t2", "stage": "train", "state": "running"}],
    )


def test_trials_are_one_stage_of_their_run_that_leads_to_their_search(board: Boards) -> None:
    """A trial that its search has paused is a cancelled job: neither the stage nor the run is cancelled for it."""
    trials = [
        job("s3", "cancelled", task="search", at=9.0, trial=1),
        job("s2", "running", task="search", at=8.0, trial=0),
        job("t1", "succeeded", at=1.0),
    ]
    goes_on = whole(board(*trials).board)
    assert [each["job_id"] for each in goes_on["jobs"]] == ["t1"]
    assert (goes_on["state"], goes_on["ended"]) == ("running", None)
    assert goes_on["stages"][1] == {
        "job_id": "",
        "search_id": "search-1",
        "stage": "search",
        "state": "running",
    }
    (searching,) = goes_on["searching"]
    assert (searching["search_id"], searching["submitted"], searching["ended"]) == ("search-1", 8.0, None)
    over = [
        replace(each, status=replace(each.status, state=JobState.SUCCEEDED, ended=30.0))
        for each in trials[:2]
    ]  # type: ignore[type-var]
    jobs, ends = [*over, trials[2]], [end("search", at=40.0)]
    told = whole(board(*jobs, ends=ends).board)
    assert (told["state"], told["ended"], told["searching"]) == ("succeeded", 40.0, [])
    assert [(each["stage"], each["search_id"]) for each in told["ends"]] == [("search", "search-1")]
    (stopped,) = shown(board(*over).board)
    assert (stopped["state"], stopped["ended"]) == ("cancelled", 30.0)


def test_what_tasks_of_another_dag_did_is_not_shown(board: Boards) -> None:
    seen = listed.first_screen(
        board(ends=[end("gate", at=1.0, dag="secret")]).board, permitted=lambda dag_id: dag_id != "secret"
    )
    assert seen["runs"] == []


def test_jobs_are_searched_by_dag_run_text_and_state(board: Boards) -> None:
    all_of_them = board(
        job("a", "failed"), job("b", "succeeded", dag="e"), job("c", "failed", run="r2")
    ).board

    def found(**wanted: str) -> list[str]:
        told = listed.search(all_of_them, listed.JobFilter(**wanted), permitted=everyone)
        return [each["job_id"] for each in told["jobs"]]

    assert found(dag="d") == ["a", "c"]
    assert found(dag="d", run="r2") == ["c"]
    assert found(text="E.TRAIN") == ["b"]
    assert found(state="failed") == ["a", "c"]


def test_a_list_reads_the_documents_of_what_it_shows_and_keeps_few(
    board: Boards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "DOCUMENTS", 3)
    many = board(*(job(f"j{n:02d}", "succeeded", run=f"r{n}", at=n) for n in reversed(range(30))))
    found = listed.search(many.board, listed.JobFilter(), permitted=everyone, limit=2)
    assert [each["job_id"] for each in found["jobs"]] == ["j29", "j28"]
    assert (found["total"], len(many.board.documents)) == (30, 3)
    older = listed.search(many.board, listed.JobFilter(), permitted=everyone, offset=20, limit=10)
    assert [each["job_id"] for each in older["jobs"]] == [f"j{n:02d}" for n in reversed(range(10))]
    assert len(many.board.documents) == 3


def test_only_the_newest_jobs_of_very_many_are_listed(board: Boards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "MOST_JOBS", 4)
    monkeypatch.setattr(boards, "STEP", 2)
    many = board(*(job(f"j{n}", "failed", run=f"r{n}", at=n) for n in reversed(range(5))))

    def seen() -> tuple[list[str], int, int]:
        told = listed.first_screen(many.board, permitted=everyone)
        return [each["run_id"] for each in told["runs"]], told["in_all"]["failed"], told["states"]["failed"]

    assert seen() == (["r4", "r3", "r2", "r1", "r0"], 5, 5)
    many.enter(job("j5", "failed", run="r5", at=5))
    assert seen() == (["r5", "r4", "r3", "r2"], 4, 4)


def test_a_list_follows_jobs_that_end_and_that_gc_deletes(board: Boards) -> None:
    runs_on = job("on", "running", run="r2", at=20.0)
    many = board(runs_on, job("b", "failed", task="score", at=2.0), job("a", "failed", at=1.0))

    def states() -> tuple[dict[str, int], list[tuple[str, bool]], list[tuple[str, str]]]:
        told = listed.first_screen(many.board, permitted=everyone)
        return (
            {**told["states"]},
            [(each["job_id"], each["mended"]) for each in told["failed"]],
            [(each["run_id"], each["state"]) for each in told["runs"]],
        )

    bad = [("b", False), ("a", False)]
    assert states() == ({"failed": 2, "running": 1}, bad, [("r2", "running"), ("r1", "failed")])
    assert runs_on.status
    many.store.ledger.update(replace(runs_on.status, state=JobState.SUCCEEDED, ended=30.0))
    bad = [("b", False), ("a", True)]
    assert states() == ({"failed": 2, "succeeded": 1}, bad, [("r2", "succeeded"), ("r1", "failed")])
    failed = listed.list_runs(many.board, permitted=everyone, state="failed")
    assert [each["run_id"] for each in failed["runs"]] == ["r1"]
    for job_id in ("a", "b"):
        shutil.rmtree(many.store.layout.job(job_id))
    assert states() == ({"succeeded": 1}, [], [("r2", "succeeded")])
    assert listed.list_runs(many.board, permitted=everyone, dag="d")["total"] == 1


def tear(many: Ledgered, job_id: str) -> Callable[[], object]:
    """Make a job's status unreadable; return what makes it readable again."""
    file = many.store.layout.job(job_id) / "status.json"
    text = file.read_text()
    file.write_text("torn")
    return lambda: file.write_text(text)


@pytest.mark.parametrize("deleted", [(), ("old",)])
def test_a_job_that_cannot_be_read_any_more_stays_one_of_its_run(
    board: Boards, deleted: tuple[str, ...]
) -> None:
    many = board(job("on", "running", at=20.0), job("old", "succeeded", run="r0"))
    whole(many.board)
    tear(many, "on")
    for job_id in deleted:  # all that is kept is made anew
        shutil.rmtree(many.store.layout.job(job_id))
    told = listed.first_screen(many.board, permitted=everyone)
    assert [each["run_id"] for each in told["runs"]] == ["r1", "r0"][: 2 - len(deleted)]
    assert [(each["job_id"], each["state"], each["mended"]) for each in told["failed"]] == [
        ("on", "unreadable", False)
    ]
    assert (told["running"], told["in_all"]["running"], told["states"]["unreadable"]) == ([], 0, 1)
    assert listed.list_runs(many.board, permitted=everyone)["total"] == 2 - len(deleted)
    torn = listed.search(many.board, listed.JobFilter(state="unreadable"), permitted=everyone)
    assert [bool(each["error"]) for each in torn["jobs"]] == [True]
    assert [each["job_id"] for each in whole(many.board)["jobs"]] == ["on"]


def test_a_job_is_entered_once_though_it_could_not_be_read_for_a_while(board: Boards) -> None:
    given = {"rows": Input(versions=(Pinned(address="volume://a/rows@1", digest="b3:" + "0" * 64),))}
    on = job("on", "running")
    assert on.spec
    many = board(replace(on, spec=replace(on.spec, inputs=given)))
    many.board.look()
    mend = tear(many, "on")
    many.board.look()
    mend()
    assert [each["job_id"] for each in whole(many.board)["jobs"]] == ["on"]
    assert [name for _, name in many.board.readers("volume://a/rows@1")] == ["rows"]
    assert on.status
    many.store.ledger.update(replace(on.status, state=JobState.SUCCEEDED, ended=30.0))
    many.board.look()
    assert (many.board.open(), many.board.ended({"d"})) == ([], {"succeeded": 1})


def test_a_job_that_ended_and_cannot_be_read_later_has_ended_once(
    board: Boards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "DOCUMENTS", 1)
    many = board(job("b", "succeeded"), job("a", "succeeded"))
    many.board.look()
    mend = tear(many, "a")
    lines = many.board.lines({"d"})
    assert [bool(each.error) for each in many.board.jobs(lines)] == [False, True]
    assert many.board.open() == []
    mend()
    many.board.look()
    assert many.board.ended({"d"}) == {"succeeded": 2}
    tear(many, "a")
    shutil.rmtree(many.store.layout.job("b"))
    many.board.look()
    assert [each.job_id for each in many.board.jobs(lines)] == ["b", "a"]
    assert many.board.open() == []


def test_a_look_that_fails_in_its_middle_loses_no_end(board: Boards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "AT_ONCE", 1)
    many = board(job("b", "running"), on := job("a", "running"))
    many.board.look()
    assert on.status
    many.store.ledger.update(replace(on.status, state=JobState.SUCCEEDED, ended=30.0))

    def statuses(asked: list[str]) -> list[JobStatus]:
        if "b" in asked:
            raise Unavailable("the store service does not answer")
        return [many.store.ledger.status(job_id) for job_id in asked]

    with monkeypatch.context() as away:
        away.setattr(many.store.ledger, "statuses", statuses)
        with pytest.raises(Unavailable):
            many.board.look()
    many.board.look()
    assert [line.job_id for line in many.board.open()] == ["b"]
    assert many.board.ended({"d"}) == {"succeeded": 1}


def drift(job_id: str, *, ended: float) -> Job:
    """A job that made a report of the deployment ``flights``."""
    done = job(job_id, "succeeded", task="drift")
    assert done.spec
    assert done.status
    result = JobResult(outputs={"report": (f"volume://flights/drift@{ended:.0f}",)})
    return replace(
        done,
        spec=replace(done.spec, roles=(Role(entrypoint=DRIFT),), params={"title": "flights"}),
        status=replace(done.status, result=result, ended=ended),
    )


def test_the_report_of_a_deployment_is_that_which_ended_last_and_none_while_it_cannot_be_read(
    board: Boards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "DOCUMENTS", 1)
    many = board(job("c", "failed"), drift("b", ended=50.0), drift("a", ended=90.0))
    who = cast("UserRights", SimpleNamespace(may=everyone))
    assert routes_serving.drift_reports(many.board, who)["flights"]["address"] == "volume://flights/drift@90"
    tear(many, "a")
    many.board.jobs(many.board.lines({"d"})[:1])  # the documents of another one are kept now
    many.board.documents.pop("a", None)
    assert routes_serving.drift_reports(many.board, who) == {}


def test_a_ledger_that_lets_the_page_wait_is_not_listed_each_time(
    board: Boards, monkeypatch: pytest.MonkeyPatch
) -> None:
    many, clock, listings = board(job("a", "running")), [1000.0], list[float]()

    def slow() -> list[str]:
        listings.append(clock[0])
        clock[0] += 1.0
        return ["a"]

    monkeypatch.setattr(boards, "SLOW_SECONDS", 0.004)
    monkeypatch.setattr(boards, "time", SimpleNamespace(monotonic=lambda: clock[0], thread_time=lambda: 0.0))
    monkeypatch.setattr(many.store.ledger, "jobs", slow)
    for _ in range(3):
        many.board.look()
        clock[0] += 1.5
    assert listings == [1000.0]
    clock[0] += 1.0
    many.board.look()
    assert listings == [1000.0, 1006.5]
