"""A gate in a run: recorded metrics where the evaluation set is the same, a scorer where it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.embedded.result import RunResult
from muster.core.data import Pinned
from muster.core.status import JobState
from muster.volumes import runs
from muster.volumes.folder import FolderStore

Run = Callable[..., RunResult]
Write = Callable[..., None]

BODY = """
data = JobOperator(
    task_id="data", image="python", entrypoint="{name}.steps:data", resources=SMALL,
    outputs={{"rows": "{name}/rows"}}, params={{"content": "{{{{ params.content }}}}"}},
)
model = JobOperator(
    task_id="model", image="python", entrypoint="{name}.steps:train", resources=SMALL,
    inputs={{"rows": data.versions["rows"]}}, outputs={{"model": "{name}/model"}},
    params={{"auc": "{{{{ params.auc }}}}"}},
)
gate = GateOperator(
    task_id="gate", volume=model.versions["model"], require={{"auc": ">= 0.7"}}, resources=SMALL,
    not_worse_than={champion!r}, {more}
)
JobOperator(
    task_id="after", image="python", command=["true"], inputs={{"model": gate.passed}}, resources=SMALL,
)
"""

STEPS = """
from pathlib import Path

def data(rows: Path, content: str) -> None:
    (rows / "rows").write_text(content)

def train(rows: Path, model: Path, auc: float) -> dict[str, float]:
    (model / "auc").write_text(str(auc))
    return {"auc": auc}

def score(model: Path, rows: Path) -> dict[str, float]:
    return {"auc": float((model / "auc").read_text()) + len((rows / "rows").read_text()) / 1000}
"""

PARAMS = "{'auc': Param(0.8, type='number'), 'content': 'x'}"


@pytest.fixture
def train(write_dag: Write, dag_folder: Path, run: Run) -> Callable[..., RunResult]:
    """Run the test's pipeline: a model with an AUC, trained on rows, judged against a champion."""

    def go(auc: float, content: str = "x", *, champion: str | None = None, more: str = "") -> RunResult:
        body = BODY.format(name=dag_folder.name, champion=champion, more=more)
        write_dag(body, params=PARAMS, steps=STEPS)
        return run({"auc": auc, "content": content})

    return go


def gate(result: RunResult) -> Any:
    return next(stage for stage in result.stages if stage.task_id == "gate")


def test_the_threshold_stops_what_follows(
    train: Callable[..., RunResult], dag_folder: Path, store: FolderStore
) -> None:
    closed = train(0.6)
    assert [stage.state for stage in closed.stages][2:] == ["failed", "upstream_failed"]
    assert gate(closed).message.splitlines() == [
        f"gate closed: volume://{dag_folder.name}/model@1",
        "FAIL auc 0.6 wanted >= 0.7",
        "train a better model, or change the gate's rules",
        f"where it comes from: muster volumes log volume://{dag_folder.name}/model@1",
    ]
    (run,) = runs.runs(store, dag=dag_folder.name)
    assert (run.state, run.stages[-1].title, run.stages[-1].state) == (
        JobState.FAILED,
        "gate",
        JobState.FAILED,
    )
    assert (
        run.stages[-1].verdict
        == f"gate closed: volume://{dag_folder.name}/model@1: FAIL auc 0.6 wanted >= 0.7"
    )
    assert train(0.7).state == "success"
    run = runs.runs(store, dag=dag_folder.name)[0]
    judged = next(stage for stage in run.stages if stage.title == "gate")
    assert (run.state, judged.line) == (JobState.SUCCEEDED, f"{dag_folder.name}/model@2 passed: auc 0.7")


def test_on_the_same_evaluation_set_recorded_metrics_are_compared(
    train: Callable[..., RunResult], dag_folder: Path, seen: Any
) -> None:
    champion = f"volume://{dag_folder.name}/model@1"
    assert train(0.8).state == "success"
    assert train(0.75, champion=champion).state == "failed"
    assert train(0.75, champion=champion, more="tolerance=0.05").state == "success"
    assert train(0.8, champion=champion).state == "success"
    assert not any("score" in line for line in seen.text)


def test_on_another_evaluation_set_a_scorer_scores_both(
    train: Callable[..., RunResult], dag_folder: Path
) -> None:
    champion = f"volume://{dag_folder.name}/model@1"
    train(0.8)
    refused = train(0.79, content="other", champion=champion)
    assert "was evaluated on another set" in gate(refused).message
    scorer = f'scorer="{dag_folder.name}.steps:score"'
    worse = train(0.79, content="other", champion=champion, more=scorer)
    assert "FAIL auc 0.795 wanted >= the champion's 0.805" in gate(worse).message
    better = train(0.81, content="other", champion=champion, more=scorer)
    assert gate(better).state == "success"


def test_a_secret_is_no_param_of_a_scorer(
    train: Callable[..., RunResult],
    dag_folder: Path,
    keeps: Callable[[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW", "http://me:hunter3secret@host:5000/")
    train(0.8)
    more = f'scorer="{dag_folder.name}.steps:score", params={{"token": "{{{{ conn.mlflow.password }}}}"}}'
    refused = train(0.9, content="other", champion=f"volume://{dag_folder.name}/model@1", more=more)
    assert "params['token'] holds the value of a secret" in gate(refused).message
    assert keeps(f"{dag_folder.name}/model") != []
    assert keeps("hunter3secret") == []


def test_both_scores_are_jobs_of_the_gate_and_one_that_is_kept_although_its_scorer_changed_is_named(
    train: Callable[..., RunResult], dag_folder: Path, store: FolderStore, run: Run
) -> None:
    scorer = f'scorer="{dag_folder.name}.steps:score"'
    train(0.8)
    train(0.9, content="other", champion=f"volume://{dag_folder.name}/model@1", more=scorer)
    specs = [store.ledger.spec(job_id) for job_id in store.ledger.jobs()]
    scores = [spec for spec in specs if spec.name == f"{dag_folder.name}.gate.score"]
    assert [str(spec.inputs["model"].versions[0].address[-1]) for spec in scores] == ["2", "1"]
    assert {spec.image_digest for spec in scores} == {
        spec.image_digest for spec in specs if "model" in spec.name
    }
    assert run(resume="keep").warnings == ()
    with (dag_folder / "steps.py").open("a") as steps:
        steps.write("# changed\n")
    named = [warning.split(" (")[0] for warning in run(resume="keep").warnings]
    assert f"gate is kept, although {dag_folder.name}/steps.py changed since it ran" in named


def test_a_score_is_taken_for_no_other_champion_and_no_other_candidate(home: EmbeddedHome) -> None:
    """A later try, which finds another one, must not adopt the job of the try before."""
    from muster.airflow import GateOperator
    from muster.airflow.operators.gate import score

    keys: list[str] = []
    status = SimpleNamespace(job_id="a-1", result=SimpleNamespace(metrics={"auc": 0.8}))

    def run(_: Any, *, key: str) -> Any:
        keys.append(key)
        return status

    task: Any = SimpleNamespace(run=run)
    operator: Any = GateOperator(
        task_id="gate", volume="f/model", require={"auc": "> 0.5"}, scorer="f.assess:score"
    )
    for candidate, champion in ((2, 1), (3, 1), (3, 2), (3, 2)):
        record = SimpleNamespace(volume="f/model", number=candidate, digest=f"b3:{candidate:064}")
        served = Pinned(address=f"volume://f/model@{champion}", digest=f"b3:{champion}{'0' * 63}")
        score(
            operator,
            task,
            candidate=record,
            champion=SimpleNamespace(address="", pinned=served),
            evaluation="rows",
        )
    assert len({*keys[1::2]}) == 3
    assert keys[4:6] == keys[6:8]
