"""ScoreOperator with a model that is Python: of a deployment, and of a version, in the image that computes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.airflow.conftest import Seen
from tests.serving.onnx_graph import write_line
from tests.serving.python_model import write_signature
from tests.serving.streaming_model import write_words

from muster.airflow.embedded.runner import RunResult
from muster.backends.base import Backend
from muster.core.job import JobSpec
from muster.volumes.folder import FolderStore

pytestmark = [pytest.mark.slow, pytest.mark.data]

PREDICT = """
import pickle


def load(folder):
    return pickle.loads(pickle.dumps(Slope()))


class Slope:
    of = 2


def predict(model, inputs):
    return {"y": inputs["x"] * model.of}
"""
BODY = """
from muster.airflow import ScoreOperator, SmokeRows
live = DeployOperator(
    task_id="deploy", name="sloped", model="sloped/model@1", image="serve", trusted=["pickle"], workers=2,
    resources=Resources(cpus=4, memory_gib=2), smoke=SmokeRows("sloped/rows@1", most=3, expect={"y": {"max": 200}}),
)
live >> ScoreOperator(
    task_id="served", model="deployment://sloped", rows="sloped/rows@1", outputs="sloped/scores", shards=2, keep=["key"]
)
ScoreOperator(
    task_id="unserved", model="sloped/model@1", rows="sloped/rows@1", outputs="sloped/others", image="serve",
    trusted=["pickle"],
)
"""


UNKNOWN = """
from muster.airflow import Rules, SmokeRows
DeployOperator(
    task_id="deploy", name="unknown", model="sloped/model@1", image="serve", smoke=SmokeRows("sloped/rows@1", most=3),
    rules=Rules(max_psi=0.2),
)
"""


WORDS = """
from muster.airflow import ScoreOperator
live = DeployOperator(task_id="deploy", name="worded", model="worded/model@1", image="serve", stream=True, smoke=None)
live >> ScoreOperator(
    task_id="score", model="deployment://worded", rows="sloped/rows@1", outputs="worded/scores", retries=0
)
"""


LINE = """
from muster.airflow import ScoreOperator
live = DeployOperator(task_id="deploy", name="line", model="line/model@1", server="kserve", smoke=None)
live >> ScoreOperator(
    task_id="score", model="deployment://line", rows="sloped/rows@1", outputs="line/scores", retries=0
)
DeployOperator(
    task_id="mixed", name="mixed", model="line/model@1", image="serve", server="kserve", smoke=None, retries=0
)
"""


@pytest.fixture
def versions(store: FolderStore, tmp_path: Path) -> None:
    """A model that unpickles while it is loaded, and rows."""
    model, rows = tmp_path / "model", tmp_path / "rows"
    model.mkdir(), rows.mkdir()
    (model / "predict.py").write_text(PREDICT)
    write_signature(model, [{"name": "x", "datatype": "FP32"}], [{"name": "y", "datatype": "FP32"}])
    (rows / "rows.csv").write_text("key,x\n" + "".join(f"{n},{n / 2}\n" for n in range(100)))
    for volume, folder in (("sloped/model", model), ("sloped/rows", rows)):
        store.add(volume, folder)


@pytest.mark.usefixtures("versions")
def test_a_deployment_says_how_its_model_is_loaded_and_a_version_is_told(
    run: Callable[..., RunResult],
    write_dag: Callable[..., None],
    backend: Backend,
    store: FolderStore,
    seen: Seen,
) -> None:
    write_dag(BODY)
    try:
        assert run().succeeded, seen.text[-20:]
        spec = backend.deployments.champion("sloped")
    finally:
        backend.deployments.retire("sloped")
    assert [each.inputs for each in spec.smoke] == [{"x": (0.0,)}, {"x": (0.5,)}, {"x": (1.0,)}]
    assert spec.workers
    served, unserved = (_job(store, volume) for volume in ("sloped/scores", "sloped/others"))
    assert (served.image, served.image_digest) == ("serve", spec.workers.image_digest)
    assert served.params["setup"] == {"workers": 2, "cpus": 4, "trusted": ["pickle"]}
    assert unserved.params["setup"] == {"trusted": ["pickle"]}
    for volume in ("sloped/scores", "sloped/others"):
        assert store.record(f"volume://{volume}@1").metrics["rows"] == 100


def _job(store: FolderStore, volume: str) -> JobSpec:
    return store.ledger.spec(store.record(f"volume://{volume}@1").job_id)


@pytest.mark.usefixtures("versions")
def test_a_model_that_answers_in_parts_is_deployed_and_not_scored(
    run: Callable[..., RunResult],
    write_dag: Callable[..., None],
    backend: Backend,
    store: FolderStore,
    tmp_path: Path,
) -> None:
    store.add("worded/model", write_words(tmp_path / "words"))
    write_dag(WORDS)
    try:
        deployed, scored = run().stages
        spec = backend.deployments.champion("worded")
    finally:
        backend.deployments.retire("worded")
    assert spec.workers
    assert spec.workers.stream
    assert (deployed.state, scored.state) == ("success", "failed")
    said = "deployment://worded answers in parts, whose rows are not those of a request: it cannot be scored"
    assert said in (scored.message or "")


@pytest.mark.usefixtures("versions")
def test_an_onnx_model_behind_another_server_is_scored_in_serve(
    run: Callable[..., RunResult],
    write_dag: Callable[..., None],
    backend: Backend,
    store: FolderStore,
    tmp_path: Path,
) -> None:
    (tmp_path / "line").mkdir()
    store.add("line/model", write_line(tmp_path / "line"))
    write_dag(LINE)
    try:
        deployed, scored, mixed = sorted(run().stages, key=lambda stage: stage.task_id != "deploy")
    finally:
        backend.deployments.retire("line")
    assert (deployed.state, scored.state, mixed.state) == ("success", "success", "failed")
    assert _job(store, "line/scores").image == "serve"
    assert "image 'serve' has another server than 'kserve'" in (mixed.message or "")


def test_what_a_deployment_trusts_is_not_said_again(home: Any) -> None:
    from muster.airflow import ScoreOperator
    from muster.core.errors import SpecError

    with pytest.raises(SpecError, match="trusted: deployment://sloped has its own"):
        ScoreOperator(
            task_id="score", model="deployment://sloped", rows="a/b", outputs="a/c", trusted=["pickle"]
        )


@pytest.mark.usefixtures("versions")
def test_a_rule_on_drift_is_refused_before_a_version_without_histograms_costs_a_job(
    run: Callable[..., RunResult],
    write_dag: Callable[..., None],
    backend: Backend,
    store: FolderStore,
    seen: Seen,
) -> None:
    write_dag(UNKNOWN)
    assert not run().succeeded
    said = "\n".join(stage.message for stage in seen.ended)
    assert "max_psi compares requests with the training rows" in said
    assert "sloped/model@1 has no histograms.json: have the job that makes it write one" in said
    assert "unknown/smoke" not in store.volumes()
    assert "unknown" not in backend.deployments.names()
