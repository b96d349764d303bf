"""``muster runs`` on a store with a little history: two runs of one Dag, one of another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import make_spec, run_job

from muster.airflow.embedded.home import EmbeddedHome
from muster.core.data import CHECKPOINTS, Input, OutputTarget
from muster.core.ingest import ENTRYPOINT
from muster.core.job import Role
from muster.core.origin import Origin
from muster.core.settings import Settings
from muster.core.status import JobResult, JobState
from muster.core.verdict import Cause, Verdict
from muster.volumes.folder import FolderStore

Run = Callable[..., Any]


def code(store: FolderStore, tmp_path: Path, text: str) -> str:
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "etl.py").write_text("rows = 1")
    return store.put(tmp_path, ["train.py", "etl.py"])


def end(store: FolderStore, job_id: str, state: JobState, **changes: Any) -> None:
    entered = store.ledger.status(job_id)
    times = {"started": entered.submitted, "ended": entered.submitted + 2}
    store.ledger.update(replace(entered, state=state, **times, **changes))


def run_of(store: FolderStore, number: int, *, snapshot: str, epochs: int) -> None:
    """Make one run: its features, and the model trained on them."""
    where = {"dag_id": "flights", "run_id": f"scheduled__2013-0{number}", "instance": "laptop"}
    spec = make_spec(
        name="flights.features",
        params={},
        outputs={"features": OutputTarget(volume="flights/features", partition=f"2013-0{number}")},
        origin=Origin(task_id="features", **where),
    )
    (rows,) = run_job(store, f"features-{number}", spec, {"features": {"a": b"%d" % number}})["features"]
    end(
        store,
        f"features-{number}",
        JobState.SUCCEEDED,
        result=JobResult(outputs={"features": (rows.address,)}),
    )
    spec = make_spec(
        code=snapshot,
        inputs={"features": Input(versions=(rows.pinned,))},
        params={"epochs": epochs},
        origin=Origin(task_id="train", **where),
    )
    auc = {"auc": 0.7 + number / 100}
    (model,) = run_job(store, f"train-{number}", spec, {"model": {"m": b"%d" % number}}, metrics=auc)["model"]
    result = JobResult(outputs={"model": (model.address,)}, metrics=auc)
    end(store, f"train-{number}", JobState.SUCCEEDED, result=result)


@pytest.fixture
def ran(store: FolderStore, tmp_path: Path) -> FolderStore:
    for number in (1, 2):
        run_of(store, number, snapshot=code(store, tmp_path, f"lr = {number}"), epochs=4 + number)
    store.ledger.create("lab-1", make_spec(origin=Origin(dag_id="lab", run_id="manual__1", task_id="try")))
    verdict = Verdict(cause=Cause.USER_ERROR, message="ValueError: \x1b[2Jno rows", advice="mend it", rank=1)
    end(store, "lab-1", JobState.FAILED, verdict=verdict)
    return store


@pytest.mark.usefixtures("ran")
class TestReading:
    def test_ls_is_newest_first(self, muster: Run) -> None:
        head, *rows = muster("runs", "ls").out.splitlines()
        assert head.split() == ["dag", "run", "state", "began", "took", "stages", "metrics"]
        assert [row.split()[:3] for row in rows] == [
            ["lab", "manual__1", "failed"],
            ["flights", "scheduled__2013-02", "succeeded"],
            ["flights", "scheduled__2013-01", "succeeded"],
        ]
        assert rows[1].split()[-2:] == ["2", "auc=0.72"]

    def test_ls_of_one_dag(self, muster: Run) -> None:
        runs = muster("runs", "ls", "--dag", "flights", "--limit", "1", "--json").json()
        assert [run["run_id"] for run in runs] == ["scheduled__2013-02"]
        assert [stage["task_id"] for stage in runs[0]["stages"]] == ["features", "train"]
        assert runs[0]["stages"][1]["jobs"][0]["job_id"] == "train-2"
        assert "no runs of flats" in muster("runs", "ls", "--dag", "flats").err

    def test_show_has_what_each_stage_read_made_and_took(self, muster: Run) -> None:
        out = muster("runs", "show", "scheduled__2013-02").out
        for known in (
            "flights / scheduled__2013-02",
            "succeeded",
            "epochs=6",
            "auc=0.72",
            "features = flights/features@2",
            "model = flights/model@2",
            "train-2  succeeded  2.0 s",
        ):
            assert known in out

    def test_show_says_why_a_stage_failed(self, muster: Run) -> None:
        out = muster("runs", "show", "lab").out
        assert "user error, rank 1: ValueError:" in out
        assert "\x1b[2J" not in out

    @pytest.mark.parametrize(
        ("text", "run_id"),
        [
            ("flights/scheduled__2013-01", "scheduled__2013-01"),
            ("scheduled__2013-01", "scheduled__2013-01"),
            ("manual", "manual__1"),
            ("lab", "manual__1"),
        ],
    )
    def test_a_run_is_named_by_its_id_its_start_or_its_dag(self, muster: Run, text: str, run_id: str) -> None:
        answer = muster("runs", "show", text, "--json")
        assert (answer.json()["run_id"], answer.err) == (run_id, "")

    @pytest.mark.parametrize("text", ["flights", "sched", "flights/sched"])
    def test_of_several_runs_of_one_dag_the_newest_is_taken(self, muster: Run, text: str) -> None:
        answer = muster("runs", "show", text, "--json")
        assert answer.json()["run_id"] == "scheduled__2013-02"
        assert "the newest of 2 runs: scheduled__2013-02" in answer.err

    def test_an_id_of_several_dags_is_refused(self, muster: Run, store: FolderStore) -> None:
        origin = Origin(dag_id="flats", run_id="scheduled__2013-01", task_id="try")
        store.ledger.create("flats-1", make_spec(origin=origin))
        answer = muster("runs", "show", "scheduled__2013-01")
        assert answer.code == 1
        assert "flights/scheduled__2013-01, flats/scheduled__2013-01): write DAG/RUN" in answer.err

    def test_an_unknown_run_names_the_newest(self, muster: Run) -> None:
        answer = muster("runs", "show", "r9")
        assert "no run 'r9': the newest is lab/manual__1" in answer.err

    def test_diff_is_told_by_stage(self, muster: Run) -> None:
        out = muster("runs", "diff", "flights/scheduled__2013-01", "scheduled__2013-02").out
        for known in ("train", "params.epochs: 5 → 6", "metrics.auc: 0.71 → 0.72", "inputs.features: b3:"):
            assert known in out
        assert "    train.py (changed)\n" in out
        assert "etl.py" not in out

    def test_diff_json(self, muster: Run) -> None:
        told = muster("runs", "diff", "flights/scheduled__2013-01", "scheduled__2013-02", "--json").json()
        assert (told["old"], told["new"]["run_id"]) == (
            {"dag_id": "flights", "run_id": "scheduled__2013-01"},
            "scheduled__2013-02",
        )
        features, train = told["stages"]
        assert (features["facts"], features["seconds"]) == ([], pytest.approx([2, 2]))
        assert train["code"] == ["train.py (changed)"]
        assert {fact["name"] for fact in train["facts"]} == {
            "code",
            "inputs.features",
            "metrics.auc",
            "params.epochs",
        }

    def test_diff_of_a_run_with_itself(self, muster: Run) -> None:
        assert "nothing but the durations differs" in muster("runs", "diff", "lab", "lab").err

    def test_diff_of_two_dags_says_what_only_one_has(self, muster: Run) -> None:
        out = muster("runs", "diff", "lab", "scheduled__2013-02").out
        assert "- try: only in the old run" in out
        assert "+ train: only in the new run" in out


def test_before_the_first_run(muster: Run, store: FolderStore) -> None:
    assert store.ledger.jobs() == []
    assert muster("runs", "ls").err == "no runs yet\n"
    assert "there are no runs yet" in muster("runs", "show", "r1").err


def test_of_runs_whose_process_died_the_last_goes_on(muster: Run, store: FolderStore) -> None:
    """`--resume` goes on with the last run of a Dag, whichever is shown."""
    notes = EmbeddedHome(settings=Settings.load(), dags=Path()).notes
    notes.folder.mkdir(parents=True)
    for number in (1, 2):
        run_id = f"muster__2026-11-0{number}"
        store.ledger.create(
            f"lab-{number}", make_spec(origin=Origin(dag_id="lab", run_id=run_id, task_id="try"))
        )
        (notes.folder / f"{run_id}.lock").write_text("4711")  # as a killed process leaves it
    assert "died\n" in muster("runs", "show", "lab/muster__2026-11-01").out
    assert "died: muster run lab --resume\n" in muster("runs", "show", "lab/muster__2026-11-02").out


def test_the_output_of_an_ingest_is_data(muster: Run, store: FolderStore) -> None:
    """Its job writes where others write checkpoints, and so it was shown."""
    spec = make_spec(
        roles=(Role(entrypoint=ENTRYPOINT),),
        inputs={},
        outputs={CHECKPOINTS: OutputTarget(volume="raw/events")},
        origin=Origin(dag_id="lab", run_id="manual__2", task_id="raw"),
    )
    store.ledger.create("raw-1", spec)
    result = JobResult(outputs={CHECKPOINTS: ("volume://raw/events@1",)})
    end(store, "raw-1", JobState.SUCCEEDED, result=result)
    out = muster("runs", "show", "lab/manual__2").out
    assert "data = raw/events@1" in out
    assert CHECKPOINTS not in out
