"""What a real Airflow tells others of muster's operators: events to OpenLineage, by its file transport, and traces to OpenTelemetry."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import facet_v2
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.serde import Serde
from tests.airflow.collecting import DAG as TRACED, STEPS as TRACED_STEPS, Collector, below, named
from tests.airflow.listening import BAD, GOOD, HEAD, LATER, STEPS, SUITE, Listening
from tests.contract.test_store import make_spec, write_and_seal
from tests.e2e.author import Author
from tests.waiting import until

from muster.airflow.authoring.references import texts_in
from muster.airflow.lineage import Lineage
from muster.core.errors import NotFound
from muster.core.status import JobState, JobStatus
from muster.volumes.folder import FolderStore


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Listening]:
    told = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_TRACES_EXPORTER": "otlp_proto_http"}
    with Listening(tmp_path_factory.mktemp("site"), **told) as site:
        site.write("traced", TRACED, steps=TRACED_STEPS)
        site.set("traces", otel_on=True)
        site.write("good", GOOD, steps=STEPS)
        (site.folder / "dags" / "good" / "suite.json").write_text(SUITE % 2)
        site.write("bad", BAD, steps=STEPS)
        (site.folder / "dags" / "bad" / "suite.json").write_text(SUITE % 1)
        site.write("later", LATER, steps=STEPS)
        transport = {"type": "file", "log_file_path": str(site.file), "append": True}
        site.set("openlineage", transport=json.dumps(transport), namespace="test", execution_timeout=60)
        site.set("muster", lineage_namespace="muster://lab")
        site.up()
        yield site


@pytest.fixture(scope="module")
def good(site: Listening) -> str:
    run_id = site.trigger("good")
    assert site.wait("good", run_id) == "success", site.states("good", run_id)
    return run_id


@pytest.fixture(scope="module")
def bad(site: Listening) -> str:
    run_id = site.trigger("bad")
    assert site.wait("bad", run_id) == "failed"
    return run_id


def short(datasets: list[dict[str, Any]]) -> list[tuple[str, str, str | None]]:
    return [
        (each["namespace"], each["name"], each["facets"].get("version", {}).get("datasetVersion"))
        for each in datasets
    ]


def tags(facets: dict[str, Any]) -> dict[str, str]:
    return {each["key"]: each["value"] for each in facets["tags"]["tags"]}


@pytest.mark.data  # the half of this file's time; what waits, is kept and traced is below
def test_a_job_names_its_versions_with_schema_digest_and_size(site: Listening, good: str) -> None:
    event = site.event(good, "rows")
    (output,) = event["outputs"]
    assert short([output]) == [("muster://lab", "good/rows", "1")]
    fields = [(each["name"], each["type"]) for each in output["facets"]["schema"]["fields"]]
    assert fields == [("number", "int64"), ("name", "string")]
    (version,) = FolderStore(site.home / "store").versions("good/rows")
    assert tags(output["facets"])["digest"] == version.digest
    told = output["outputFacets"]["outputStatistics"]
    assert (told["size"], told["fileCount"]) == (version.size_bytes, version.files)


@pytest.mark.data
def test_a_job_names_its_code_image_and_params(site: Listening, good: str) -> None:
    facets = site.event(good, "rows")["run"]["facets"]
    job_id = site.xcom("good", good, "rows")["job_id"]
    spec = FolderStore(site.home / "store").ledger.spec(job_id)
    assert {name: value for name, value in tags(facets).items() if name.startswith("muster.")} == {
        "muster.job": job_id,
        "muster.code": spec.code,
        "muster.image": "etl",
        "muster.image_digest": spec.image_digest,
    }
    (param,) = facets["executionParameters"]["parameters"]
    assert (param["name"], param["value"]) == ("count", "3")


@pytest.mark.data
def test_the_start_names_what_the_dag_file_and_the_stages_before_tell(site: Listening, good: str) -> None:
    event = site.event(good, "fit", "START")
    assert short(event["inputs"]) == [("muster://lab", "good/rows", "1")]
    assert short(event["outputs"]) == [("muster://lab", "good/model", None)]


@pytest.mark.data
def test_one_stage_reads_what_the_one_before_wrote(site: Listening, good: str) -> None:
    assert short(site.event(good, "fit")["inputs"]) == short(site.event(good, "rows")["outputs"])
    assert short(site.event(good, "gate")["inputs"]) == short(site.event(good, "fit")["outputs"])
    assert site.event(good, "gate")["outputs"] == []


@pytest.mark.data
def test_a_validation_names_each_expectation_the_rows_and_the_columns(site: Listening, good: str) -> None:
    (data,) = site.event(good, "check")["inputs"]
    (assertion,) = data["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (assertion["assertion"], assertion["column"], assertion["success"]) == (
        "expect_column_values_to_be_between",
        "number",
        True,
    )
    measured = data["inputFacets"]["dataQualityMetrics"]
    assert (measured["rowCount"], sorted(measured["columnMetrics"])) == (3, ["name", "number"])
    assert [each["name"] for each in data["facets"]["schema"]["fields"]] == ["number", "name"]


@pytest.mark.data
def test_a_failed_validation_has_its_assertions_and_its_verdict(site: Listening, bad: str) -> None:
    event = site.event(bad, "check", "FAIL")
    (data,) = event["inputs"]
    assert [each["success"] for each in data["inputFacets"]["dataQualityAssertions"]["assertions"]] == [False]
    assert event["run"]["facets"]["errorMessage"]["message"].startswith(
        "validation failed: 1 of 1 expectations"
    )


@pytest.mark.data
def test_a_failed_job_names_its_inputs_the_volume_that_it_was_to_write_and_its_verdict(
    site: Listening, bad: str
) -> None:
    event = site.event(bad, "breaks", "FAIL")
    assert short(event["inputs"]) == [("muster://lab", "bad/rows", "1")]
    assert short(event["outputs"]) == [("muster://lab", "bad/out", None)]
    message = event["run"]["facets"]["errorMessage"]["message"]
    assert message.startswith("user error, rank 0\n")
    assert "the rows are wrong" in message


@pytest.mark.data
def test_each_instance_of_a_mapped_task_has_its_own(site: Listening, good: str) -> None:
    assert until(lambda: len(site.events(good, "each", "COMPLETE")) == 2)
    events = site.events(good, "each", "COMPLETE")
    assert len({event["run"]["runId"] for event in events}) == 2
    assert sorted(short(event["outputs"])[0][1] for event in events) == ["good/a", "good/b"]


def test_a_deferred_task_is_complete_once_its_job_is(site: Listening) -> None:
    gate = site.folder / "gate"
    run_id = site.trigger("later", {"gate": str(gate)})
    site.wait_task("later", run_id, "slow", ("deferred",))
    assert site.events(run_id, "slow", "START")
    assert site.events(run_id, "slow", "COMPLETE") == []
    gate.touch()
    assert site.wait("later", run_id) == "success"
    assert until(lambda: site.events(run_id, "slow", "COMPLETE"))
    event = site.event(run_id, "slow")
    assert short(event["outputs"]) == [("muster://lab", "later/out", "1")]
    assert {each["run"]["runId"] for each in site.events(run_id, "slow", "START")} == {event["run"]["runId"]}


@pytest.fixture(scope="module")
def traced(site: Listening) -> str:
    run_id = site.trigger("traced")
    site.wait("traced", run_id)
    expected = {"epochs": "success", "breaks": "failed"}
    assert site.states("traced", run_id) == expected, site.task_log("traced", run_id, "epochs")
    return run_id


def test_a_jobs_life_is_told_below_its_task(site: Listening, traced: str, collector: Collector) -> None:
    task, job = named(collector, "worker.epochs"), named(collector, "job traced.epochs")
    assert (job.trace_id, job.parent_span_id) == (task.trace_id, task.span_id)
    parts = below(collector, job)
    assert set(parts) == {"waiting", "running", "sealing"}
    status = FolderStore(site.home / "store").ledger.status(site.xcom("traced", traced, "epochs")["job_id"])
    assert status.started is not None
    assert parts["running"].start_time_unix_nano == int(status.started * 1e9)
    times = [
        (parts[name].start_time_unix_nano, parts[name].end_time_unix_nano)
        for name in ("waiting", "running", "sealing")
    ]
    assert times[0][1] == times[1][0]
    assert times[1][1] == times[2][0]
    assert (job.start_time_unix_nano, job.end_time_unix_nano) == (times[0][0], times[2][1])


def test_what_ranks_trace_joins_their_task(site: Listening, traced: str, collector: Collector) -> None:
    task = named(collector, "worker.epochs")
    out = FolderStore(site.home / "store").path("volume://traced/out@1")
    assert {path.read_text() for path in out.iterdir()} == {f"{task.trace_id.hex()} {task.span_id.hex()}"}
    assert sorted(path.name for path in out.iterdir()) == ["0", "1"]


def test_the_span_of_a_failed_job_says_why(site: Listening, traced: str, collector: Collector) -> None:
    job = named(collector, "job traced.breaks")
    assert job.status.code == job.status.STATUS_CODE_ERROR
    assert job.status.message == "user error, rank 0: ValueError: broken"
    assert set(below(collector, job)) == {"waiting", "running"}


@pytest.fixture(scope="module")
def traced_again(site: Listening, traced: str) -> str:
    """A second run, which keeps the stage that succeeded."""
    run_id = site.trigger("traced")
    site.wait("traced", run_id)
    return run_id


def test_another_trace_makes_nothing_anew(site: Listening, traced: str, traced_again: str) -> None:
    assert site.xcom("traced", traced_again, "epochs") == site.xcom("traced", traced, "epochs")


def test_a_kept_stage_names_what_it_kept_and_the_run_that_made_it(
    site: Listening, traced: str, traced_again: str
) -> None:
    event = site.event(traced_again, "epochs")
    assert short(event["outputs"]) == [("muster://lab", "traced/out", "1")]
    assert tags(event["run"]["facets"])["muster.kept"] == f"traced {traced} epochs"


def test_a_muster_run_emits_them_too(tmp_path: Path) -> None:
    settings, events = tmp_path / "openlineage.yml", tmp_path / "events.jsonl"
    settings.write_text(f"transport:\n  type: file\n  log_file_path: {events}\n  append: true\n")
    dag = """
    @dag(schedule=None, start_date=datetime(2024, 1, 1))
    def plain():
        rows = JobOperator(task_id="rows", image="python", command=["touch", "{outputs.rows}/x"],
                           outputs={"rows": "plain/rows"}, resources=SMALL)
        JobOperator(task_id="breaks", image="python", command=["false"], inputs={"rows": rows.versions["rows"]},
                    resources=SMALL, retries=0)

    plain()
"""
    with Author(tmp_path, OPENLINEAGE_CONFIG=str(settings)) as author:
        author.write("plain", HEAD + dag)
        assert author.muster("run", "plain", "--serial").returncode == 1
    kinds = {
        (each["job"]["name"], each["eventType"]) for each in map(json.loads, events.read_text().splitlines())
    }
    assert {("plain.rows", "START"), ("plain.rows", "COMPLETE"), ("plain.breaks", "FAIL")} <= kinds


def test_without_the_provider_nothing_of_it_is_imported() -> None:
    program = (
        "import sys; sys.modules['openlineage'] = sys.modules['airflow.providers.openlineage.extractors'] = None\n"
        "from muster.airflow import DeployOperator, GateOperator, JobOperator, ValidateOperator\n"
        "JobOperator(task_id='a', image='python', entrypoint='a.b:c')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """The lineage of a store in which a job has made lab/model@1 from lab/rows@1, and gc has deleted the job's entry."""
    (tmp_path / "x").write_text("1")
    store = FolderStore(tmp_path / "store")
    rows = store.add("lab/rows", tmp_path / "x")
    spec = make_spec(inputs=[("rows", rows)], model={"volume": "lab/model"})
    store.ledger.create("fit-1", spec)
    write_and_seal(store.stage("fit-1"), spec, {"model": {"m": b"1"}})
    store.commit("fit-1", attempt=1)
    store.ledger.update(JobStatus(job_id="fit-1", state=JobState.SUCCEEDED, submitted=0.0, ended=1.0))
    store.collect(job_days=0.0)
    assert store.ledger.jobs() == []
    return Lineage(store, "muster://lab")


def asdict(datasets: list[Any]) -> list[dict[str, Any]]:
    return [json.loads(Serde.to_json(each)) for each in datasets]


def test_what_is_kept_of_a_job_that_gc_deleted_is_named_by_its_records(lineage: Lineage) -> None:
    with pytest.raises(NotFound):
        lineage.of_job("fit-1", run_id="later")
    kept = lineage.of_kept(["volume://lab/model@1"])
    assert short(asdict(kept.inputs)) == [("muster://lab", "lab/rows", "1")]
    assert short(asdict(kept.outputs)) == [("muster://lab", "lab/model", "1")]


def test_a_release_reads_the_model_and_writes_the_deployment_in_its_version(lineage: Lineage) -> None:
    release = lineage.of_release("volume://lab/model@1", "flights")
    assert short(asdict(release.inputs)) == [("muster://lab", "lab/model", "1")]
    assert short(asdict(release.outputs)) == [("muster://lab", "deployment/flights", "1")]


def test_names_alone_tell_a_version_only_where_it_is_exact(lineage: Lineage) -> None:
    told = lineage.of_names(
        texts_in(
            {"a": ["lab/rows@latest", "volume://lab/rows@<2013-10"], "b": "volume://lab/model@7", "c": None}
        ),
        ["volume://lab/out", "deployment://flights"],
    )
    assert short(asdict(told.inputs)) == [
        ("muster://lab", "lab/rows", None),
        ("muster://lab", "lab/model", "7"),
    ]
    assert [each["name"] for each in asdict(told.outputs)] == ["lab/out", "deployment/flights"]


@pytest.mark.data
def test_the_events_are_those_of_the_specification(site: Listening, good: str, bad: str) -> None:
    """Each is built again by the client's classes, which refuse a field that is unknown or missing, and a wrong time or id."""
    for run_id, task_id, kind in (
        (good, "rows", "COMPLETE"),
        (good, "check", "COMPLETE"),
        (bad, "breaks", "FAIL"),
    ):
        event = site.event(run_id, task_id, kind)
        datasets = [*event["inputs"], *event["outputs"]]
        rebuild({"tags": event["run"]["facets"]["tags"]})
        for dataset in datasets:
            for which in ("facets", "inputFacets", "outputFacets"):
                rebuild(dataset.get(which, {}))
        RunEvent(
            eventTime=event["eventTime"],
            producer=event["producer"],
            run=Run(runId=event["run"]["runId"]),
            job=Job(namespace=event["job"]["namespace"], name=event["job"]["name"]),
            eventType=RunState(event["eventType"]),
        )


def rebuild(facets: dict[str, Any]) -> None:
    """Build each facet by the class that its schema's address names, and compare the address."""
    modules = [getattr(facet_v2, name) for name in dir(facet_v2)]
    for facet in facets.values():
        kind = facet["_schemaURL"].rpartition("/")[2]
        built = next(getattr(module, kind) for module in modules if hasattr(module, kind))
        fields = {name: value for name, value in facet.items() if not name.startswith("_")}
        assert built(**fields) is not None
        assert built._get_schema() == facet["_schemaURL"]
