"""Runs, built from a ledger and from records: the same over the store service (``tests/unit/cli/test_service.py``)."""

import time
from dataclasses import replace

import pytest

from muster.core.errors import NotFound
from muster.core.origin import Origin
from muster.core.status import JobResult, JobState
from muster.core.verdict import Cause, Verdict
from muster.volumes import runs
from muster.volumes.base import TaskEnd
from muster.volumes.lineage import Fact, stages

FAULT = Verdict(cause=Cause.USER_ERROR, message="ValueError: no rows", advice="mend it", rank=1)


def job(work, job_id, task, *, run="r1", dag="flights", index=-1, instance="laptop", **changes):
    """Enter a job of a task; `changes` are fields of its spec."""
    origin = Origin(instance=instance, dag_id=dag, run_id=run, task_id=task, map_index=index)
    spec = replace(work.spec(out=f"{dag}/{task}"), name=f"{dag}.{task}", origin=origin, **changes)
    work.store.ledger.create(job_id, spec)
    return spec


def end(work, job_id, state=JobState.SUCCEEDED, *, seconds=3.0, **result):
    entered = work.store.ledger.status(job_id)
    work.store.ledger.update(
        replace(
            entered,
            state=state,
            started=entered.submitted,
            ended=entered.submitted + seconds,
            result=JobResult(**result) if state is JobState.SUCCEEDED else None,
            verdict=FAULT if state is JobState.FAILED else None,
        )
    )


def made(work, job_id, task, *, inputs=None, run="r1", metrics=None, **changes):
    """Run a job of a task to its end; return its version."""
    spec = replace(
        work.spec(out=f"flights/{task}", inputs=inputs),
        name=f"flights.{task}",
        origin=Origin(instance="laptop", dag_id="flights", run_id=run, task_id=task),
        **changes,
    )
    work.seal(job_id, spec, {"out": {"x": job_id.encode()}})
    ((version,),) = work.store.commit(job_id, attempt=1, metrics=metrics).values()
    end(work, job_id, outputs={"out": (version.address,)}, metrics=metrics or {})
    return version


def collect(store, *job_ids):
    """Take jobs out of the ledger, as gc does."""
    for job_id in job_ids:
        store.layout.delete(store.layout.job(job_id))


def test_a_run_has_its_stages_in_the_order_in_which_they_began(work, store):
    rows = made(work, "etl-1", "etl", params={"year": 2013})
    model = made(work, "train-1", "train", inputs={"rows": rows}, metrics={"auc": 0.7})
    run = runs.run(store, "flights", "r1")
    assert (run.dag_id, run.run_id, run.instance, run.state) == (
        "flights",
        "r1",
        "laptop",
        JobState.SUCCEEDED,
    )
    assert [stage.title for stage in run.stages] == ["etl", "train"]
    etl, train = run.stages
    assert (etl.params, etl.versions, etl.seconds) == (
        {"year": 2013},
        {"out": (rows.address,)},
        pytest.approx(3),
    )
    assert (train.metrics, train.inputs["rows"][0].address) == ({"auc": 0.7}, rows.address)
    assert train.versions == {"out": (model.address,)}
    assert [job.job_id for job in train.jobs] == ["train-1"]


def test_a_stage_is_as_its_newest_job_is_and_lists_all(work, store):
    job(work, "train-1", "train", params={"epochs": 1})
    end(work, "train-1", JobState.FAILED)
    assert runs.run(store, "flights", "r1").stages[0].verdict == "user error, rank 1: ValueError: no rows"
    assert runs.run(store, "flights", "r1").state is JobState.FAILED
    job(work, "train-2", "train", params={"epochs": 2})
    running = runs.run(store, "flights", "r1")
    assert (running.state, running.ended) == (JobState.RUNNING, None)
    end(work, "train-2", seconds=7.0)
    (stage,) = runs.run(store, "flights", "r1").stages
    assert (stage.state, stage.params, stage.verdict) == (JobState.SUCCEEDED, {"epochs": 2}, "")
    assert stage.seconds == pytest.approx(7)
    assert [each.job_id for each in stage.jobs] == ["train-1", "train-2"]
    assert [each.seconds for each in stage.jobs] == pytest.approx([3, 7])


@pytest.mark.parametrize(
    ("states", "run_is"),
    [
        ((JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED), JobState.FAILED),
        ((JobState.SUCCEEDED, JobState.CANCELLED), JobState.CANCELLED),
        ((JobState.FAILED, JobState.QUEUED), JobState.RUNNING),
    ],
)
def test_the_state_of_a_run_is_that_of_its_worst_stage_once_nothing_runs(work, store, states, run_is):
    for number, state in enumerate(states):
        job(work, f"a-{number}", f"stage{number}")
        if state.ended:
            end(work, f"a-{number}", state)
    assert runs.run(store, "flights", "r1").state is run_is


def test_tasks_of_one_mapped_task_are_stages_of_their_own(work, store):
    for index in range(3):
        job(work, f"a-{index}", "train", index=index)
    assert [stage.title for stage in runs.run(store, "flights", "r1").stages] == [
        "train[0]",
        "train[1]",
        "train[2]",
    ]


def test_runs_are_listed_by_their_newest_job(work, store):
    for job_id, run, dag in (
        ("a-1", "r1", "flights"),
        ("a-2", "r2", "flights"),
        ("a-3", "r1", "lab"),
        ("a-4", "r1", "flights"),
    ):
        job(work, job_id, job_id, run=run, dag=dag)
    assert [(run.dag_id, run.run_id) for run in runs.runs(store)] == [
        ("flights", "r1"),
        ("lab", "r1"),
        ("flights", "r2"),
    ]
    assert [run.run_id for run in runs.runs(store, dag="flights")] == ["r1", "r2"]
    assert [run.dag_id for run in runs.runs(store, limit=2)] == ["flights", "lab"]


def test_two_airflows_have_runs_of_their_own(work, store):
    job(work, "a-1", "train", instance="laptop")
    job(work, "a-2", "train", instance="server")
    assert [run.instance for run in runs.runs(store)] == ["server", "laptop"]
    assert runs.run(store, "flights", "r1").instance == "server"


def test_what_gc_took_of_the_ledger_is_known_by_its_records(work, store):
    rows = made(work, "etl-1", "etl", params={"year": 2013})
    made(work, "train-1", "train", inputs={"rows": rows}, metrics={"auc": 0.7})
    whole = runs.run(store, "flights", "r1")
    collect(store, "etl-1")
    part = runs.run(store, "flights", "r1")
    collect(store, "train-1")
    gone = runs.run(store, "flights", "r1")
    for run in (part, gone):
        assert [stage.title for stage in run.stages] == ["etl", "train"]
        for name in ("params", "metrics", "inputs", "versions", "image", "entrypoint", "state"):
            assert [getattr(s, name) for s in run.stages] == [getattr(s, name) for s in whole.stages], name
    assert [len(stage.jobs) for stage in part.stages] == [0, 1]
    assert [len(stage.jobs) for stage in gone.stages] == [0, 0]
    assert [run.run_id for run in runs.runs(store)] == ["r1"]


def test_older_runs_follow_those_of_the_ledger(work, store):
    made(work, "etl-1", "etl", run="r1")
    made(work, "etl-2", "etl", run="r2")
    collect(store, "etl-1")
    assert [run.run_id for run in runs.runs(store)] == ["r2", "r1"]
    assert [run.run_id for run in runs.runs(store, limit=1)] == ["r2"]


def test_a_run_that_is_not_known_says_where_to_look(store):
    with pytest.raises(NotFound, match="no run 'r9' of the Dag 'flights': `muster runs ls`"):
        runs.run(store, "flights", "r9")


def test_jobs_without_a_dag_are_no_run(work, store):
    store.ledger.create("by-hand", work.spec(out="lab"))
    assert runs.runs(store) == []


def test_two_runs_differ_in_what_differs(work, store):
    first = made(work, "etl-1", "etl", run="r1")
    second = made(work, "etl-2", "etl", run="r2")
    made(work, "train-1", "train", inputs={"rows": first}, run="r1", params={"epochs": 4})
    made(work, "train-2", "train", inputs={"rows": second}, run="r2", params={"epochs": 5})
    made(work, "card-2", "card", run="r2")
    etl, train, card = stages(runs.run(store, "flights", "r1"), runs.run(store, "flights", "r2"))
    assert etl.facts == ()
    assert etl.seconds == pytest.approx((3, 3))
    assert train.facts == (
        Fact(name="inputs.rows", old=first.digest[:11], new=second.digest[:11]),
        Fact(name="params.epochs", old=4, new=5),
    )
    assert (card.task_id, card.only, card.facts) == ("card", "new", ())


def test_a_stage_without_a_job_that_failed_in_one_run_differs_in_how_it_ended(work, store):
    made(work, "train-1", "train", run="r1")
    made(work, "train-2", "train", run="r2")
    for run, state, line in (
        ("r1", JobState.FAILED, "smoke request refused"),
        ("r2", JobState.SUCCEEDED, ""),
    ):
        origin = Origin(instance="laptop", dag_id="flights", run_id=run, task_id="deploy")
        store.ledger.end_task(TaskEnd(origin=origin, began=1.0, at=2.0, state=state, line=line))
    deploy, train = stages(runs.run(store, "flights", "r1"), runs.run(store, "flights", "r2"))
    assert train.facts == ()
    assert deploy.facts == (
        Fact(name="state", old="failed", new="succeeded"),
        Fact(name="says", old="smoke request refused", new=None),
    )


def use(work, job_id, task, *, run):
    """Have a task of a run take what a job made."""
    work.store.use(job_id, by=Origin(instance="laptop", dag_id="flights", run_id=run, task_id=task))


def test_a_stage_that_a_run_kept_is_a_stage_of_the_run(work, store):
    rows = made(work, "etl-1", "etl", params={"year": 2013})
    use(work, "etl-1", "etl", run="r2")
    made(work, "train-2", "train", run="r2", inputs={"rows": rows})
    etl, train = runs.run(store, "flights", "r2").stages
    assert (etl.title, etl.state, etl.jobs, etl.kept_of) == ("etl", JobState.SUCCEEDED, (), "etl-1")
    assert (etl.versions, etl.params) == ({"out": (rows.address,)}, {"year": 2013})
    assert (train.title, train.kept_of) == ("train", "")
    assert [stage.kept_of for stage in runs.run(store, "flights", "r1").stages] == [""]


def test_a_run_that_kept_all_its_stages_is_listed(work, store):
    made(work, "etl-1", "etl")
    use(work, "etl-1", "etl", run="r2")
    made(work, "etl-3", "etl", run="r3")
    use(work, "etl-1", "etl", run="r4")
    assert [run.run_id for run in runs.runs(store)] == ["r4", "r3", "r2", "r1"]
    assert [run.run_id for run in runs.runs(store, limit=2)] == ["r4", "r3"]
    assert [run.run_id for run in runs.runs(store, dag="flights", limit=3)] == ["r4", "r3", "r2"]
    assert runs.runs(store, dag="another") == []
    assert runs.names(store) == [("flights", f"r{n}") for n in (1, 2, 3, 4)], "oldest first"
    only = runs.run(store, "flights", "r4")
    assert (only.state, only.began == only.ended) == (JobState.SUCCEEDED, True)


def test_a_stage_that_was_kept_after_a_failed_try_has_succeeded(work, store):
    job(work, "train-1", "train", run="r2")
    end(work, "train-1", JobState.FAILED, seconds=0.0)
    made(work, "train-2", "train", run="r3")
    use(work, "train-2", "train", run="r2")
    (train,) = runs.run(store, "flights", "r2").stages
    assert (train.state, train.kept_of, train.verdict) == (JobState.SUCCEEDED, "train-2", "")
    assert [each.job_id for each in train.jobs] == ["train-1"]


def test_a_kept_stage_stays_in_its_run_when_gc_deleted_what_it_kept(work, store):
    made(work, "etl-1", "etl")
    use(work, "etl-1", "etl", run="r2")
    work.store.retire("volume://flights/etl@1", reason="old")
    work.store.collect()
    (etl,) = runs.run(store, "flights", "r2").stages
    assert (etl.kept_of, etl.versions) == ("etl-1", {"out": ("volume://flights/etl@1",)})


def ended(work, task, state=JobState.SUCCEEDED, *, run="r1", line="", after=0.0):
    """Have a task end of which no job tells it."""
    at = time.time() + after
    origin = Origin(instance="laptop", dag_id="flights", run_id=run, task_id=task)
    work.store.ledger.end_task(TaskEnd(origin=origin, began=at - 2, at=at, state=state, line=line))


def test_a_gate_and_a_release_are_stages_of_the_run(work, store):
    made(work, "train-1", "train")
    ended(work, "gate", line="flights/train@1 passed: auc 0.7", after=5)
    ended(
        work, "deploy", JobState.FAILED, line="release rolled back: the graph's outputs are variable", after=9
    )
    run = runs.run(store, "flights", "r1")
    assert run.state is JobState.FAILED, "what was made does not serve"
    _, gate, deploy = run.stages
    assert (gate.title, gate.state, gate.line, gate.verdict) == (
        "gate",
        JobState.SUCCEEDED,
        "flights/train@1 passed: auc 0.7",
        "",
    )
    assert gate.seconds == pytest.approx(2)
    assert (deploy.state, deploy.line) == (JobState.FAILED, "")
    assert deploy.verdict == "release rolled back: the graph's outputs are variable"
    assert [each.run_id for each in runs.runs(store)] == ["r1"]


def test_the_next_try_of_a_task_counts(work, store):
    made(work, "train-1", "train")
    ended(work, "deploy", JobState.FAILED, line="away", after=5)
    ended(work, "deploy", after=9)
    assert [stage.state for stage in runs.run(store, "flights", "r1").stages] == [JobState.SUCCEEDED] * 2


def test_a_task_that_failed_after_its_job_succeeded_has_failed(work, store):
    version = made(work, "train-1", "train")
    ended(work, "train", JobState.FAILED, line="store error: away", after=5)
    (train,) = runs.run(store, "flights", "r1").stages
    assert (train.state, train.verdict) == (JobState.FAILED, "store error: away")
    assert (train.versions, [each.job_id for each in train.jobs]) == (
        {"out": (version.address,)},
        ["train-1"],
    )


def test_a_task_that_failed_with_its_job_is_told_by_the_job(work, store):
    job(work, "train-1", "train")
    end(work, "train-1", JobState.FAILED)
    ended(work, "train", JobState.FAILED, line="user error: another wording", after=5)
    (train,) = runs.run(store, "flights", "r1").stages
    assert "ValueError: no rows" in train.verdict


def test_a_task_that_failed_before_it_had_a_job_is_a_stage(work, store):
    ended(work, "etl", JobState.FAILED, line="bad Dag: inputs.rows names no version")
    (etl,) = runs.run(store, "flights", "r1").stages
    assert (etl.title, etl.jobs, etl.verdict) == ("etl", (), "bad Dag: inputs.rows names no version")


def test_a_damaged_note_of_a_task_s_end_hides_no_other(work, store):
    ended(work, "gate", line="first", after=5)
    ended(work, "gate", run="r2", line="second", after=6)
    newest = max((store.layout.root / "ends").iterdir())
    newest.write_text('{"of": "another release"}')
    assert [end.line for end in store.ledger.task_ends()] == ["first"]


def test_a_run_took_what_its_stages_took_without_the_time_until_it_was_resumed(work, store):
    job(work, "a", "etl")
    end(work, "a", seconds=3.0)
    ended(work, "gate", after=100)
    (run,) = runs.runs(store)
    assert run.seconds == pytest.approx(3 + 2, abs=0.01)


@pytest.mark.parametrize(
    ("run_id", "seconds", "state"),
    [
        ("manual__1", 0, JobState.RUNNING),
        ("manual__1", 600, JobState.SUCCEEDED),  # its triggerer is away: the jobs are all that is known
        ("muster__1", 0, JobState.RUNNING),
        ("muster__1", 600, JobState.FAILED),
    ],
)
def test_a_run_between_two_stages_is_as_was_noted(work, store, monkeypatch, run_id, seconds, state):
    job(work, "a", "etl", run=run_id)
    end(work, "a")
    store.ledger.note_run(Origin(instance="i", dag_id="flights", run_id=run_id), going=True)
    later = time.time() + seconds
    monkeypatch.setattr("muster.volumes.task_notes.time.time", lambda: later)
    (run,) = runs.runs(store)
    assert run == runs.run(store, "flights", run_id)
    assert (run.state, run.ended is None) == (state, state is JobState.RUNNING)
    store.ledger.note_run(Origin(instance="i", dag_id="flights", run_id=run_id), going=False)
    assert runs.run(store, "flights", run_id).state is JobState.SUCCEEDED


def test_a_run_is_as_its_process_is(work, store):
    job(work, "a", "etl")
    end(work, "a")
    (run,) = runs.runs(store)
    assert run.state is JobState.SUCCEEDED
    assert runs.as_held(run, {}) == run
    between, dead = runs.as_held(run, {"r1": False}), runs.as_held(run, {"r1": True})
    assert (between.state, between.ended) == (JobState.RUNNING, None), "its next stage has no job"
    assert dead.state is JobState.FAILED
