import json

import pytest

from muster.core import wire
from muster.core.data import Input, OutputTarget, Pinned
from muster.core.deployment import DeploymentSpec, SmokeRequest
from muster.core.errors import SpecError
from muster.core.job import JobSpec, Launcher, Role, SecretRef
from muster.core.origin import Origin
from muster.core.replica import Replica, Report
from muster.core.resources import Resources
from muster.core.status import JobResult, JobState, JobStatus
from muster.core.verdict import Cause, ExitCode, Verdict

DIGEST = "b3:" + "ab" * 32
PINNED = Pinned(address="volume://flights/features@7", digest=DIGEST, partition="2013-03")
SPEC = JobSpec(
    name="flights.train",
    image="train",
    image_digest=DIGEST,
    launcher=Launcher.TORCHRUN,
    code=DIGEST,
    roles=(
        Role(name="chief", command=("python", "train.py", "{outputs.model}")),
        Role(
            name="workers",
            replicas=2,
            ranks=4,
            entrypoint="flights.train:train",
            resources=Resources(cpus=2, memory_gib=0.5, gpus=1, gpu_class=("a100", "k80")),
        ),
    ),
    inputs={"train": Input(versions=(PINNED, PINNED), many=True), "one": Input(versions=(PINNED,))},
    outputs={
        "model": OutputTarget(volume="flights/model"),
        "days": OutputTarget(volume="flights/days", partition="*"),
    },
    params={"epochs": 5, "rate": 0.1, "names": ["a", None], "deep": {"x": [1, {"y": True}]}},
    env={"A": "1"},
    secrets={"TOKEN": SecretRef(source="environment", name="TOKEN")},
    origin=Origin(instance="i", dag_id="flights", run_id="r", task_id="train", map_index=3),
    queue="team-a",
)
VERDICT = Verdict(cause=Cause.USER_ERROR, rank=1, message="ValueError: x", advice="mend it")
VALUES = [
    SPEC,
    JobStatus(
        job_id="a-1",
        state=JobState.FAILED,
        submitted=1.5,
        verdict=VERDICT,
        result=JobResult(outputs={"m": (PINNED.address,)}, metrics={"auc": 0.7}, modules=("a.py",)),
    ),
    Report(exit_code=ExitCode.HANG, verdict=VERDICT, traceback=("a", "b"), metrics={"x": 1.0}),
    Replica(
        job_id="a-1",
        spec=SPEC,
        attempt=2,
        role="workers",
        index=1,
        code=None,
        inputs={"train": ("/a", "/b"), "one": ("/c",)},
        staging={"model": "/s", "days": "/t"},
        checkpoints="/k",
        scratch="/x",
        sealed="/y",
        report="/z",
        gpus=("0",),
    ),
    DeploymentSpec(
        name="flights",
        model=PINNED,
        image="serve",
        image_digest=DIGEST,
        smoke=(SmokeRequest(name="a", inputs={"x": (1, "b")}, expect={"p": {"min": 0.0}}),),
    ),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_what_is_written_is_read_back_equal(value):
    again = wire.loads(type(value), wire.dumps(value))
    assert wire.dumps(again) == wire.dumps(value)
    assert again == value


def change(value, **fields):
    return json.dumps({**json.loads(wire.dumps(value)), **fields})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected a JSON object"),
        (change(SPEC, kind="Role"), "expected a JobSpec, found 'Role'"),
        (change(SPEC, schema=2), "has schema 2"),
        (change(SPEC, surprise=1), "unknown field 'surprise'"),
        (change(SPEC, roles="x"), "JobSpec.roles: expected a list"),
        (change(SPEC, roles=[{"name": "a", "replicas": True, "command": ["x"]}]), "expected int, found True"),
        (change(SPEC, launcher="mpi"), "expected one of plain, torchrun, horovod"),
        (change(SPEC, env={"A": 1}), r"JobSpec.env.A: expected str"),
        (change(SPEC, image="../x"), "image '../x'"),
        ("{" + '"kind":"Pinned","schema":1}', "missing 2 required"),
    ],
)
def test_a_bad_document_is_refused_by_name(text, message):
    kind = JobSpec if "Pinned" not in text[:20] else Pinned
    with pytest.raises(SpecError, match=message):
        wire.loads(kind, text)


def test_what_is_nested_too_deeply_is_refused():
    with pytest.raises(SpecError, match="Report: nested too deeply"):
        wire.loads(Report, '{"a":' + 200_000 * "[")


def test_nan_is_never_written():
    with pytest.raises(SpecError, match="not a finite number"):
        wire.dumps(JobResult(metrics={"auc": float("nan")}))


def test_ranks_count_through_roles_in_order():
    replica = VALUES[3]
    assert replica.first_rank == 1 + 4
    assert SPEC.world_size == 9


def test_what_equals_its_default_is_not_written() -> None:
    """So an earlier release, which refuses a field that it does not know, reads what does not use it."""
    role = Role(command=("true",), resources=Resources(cpus=2))
    spec = JobSpec(name="a.b", image="python", image_digest=DIGEST, roles=(role,))
    written = json.loads(wire.dumps(spec))
    assert written == {
        "kind": "JobSpec",
        "schema": 1,
        "name": "a.b",
        "image": "python",
        "image_digest": DIGEST,
        "roles": [{"command": ["true"], "resources": {"cpus": 2}}],
    }
    assert wire.loads(JobSpec, json.dumps(written)) == spec
    assert wire.plain(spec)["queue"] is None  # a script that reads --json finds every field


def test_a_value_that_differs_from_its_default_is_written_however_empty_it_is() -> None:
    spec = JobSpec(
        name="a.b", image="python", image_digest=DIGEST, roles=(Role(command=("x",)),), max_restarts=0
    )
    assert json.loads(wire.dumps(spec))["max_restarts"] == 0
