from datetime import date
from pathlib import Path

import pytest

from muster.core.data import OutputTarget
from muster.core.errors import SpecError
from muster.core.job import JobSpec, Launcher, Role, SecretRef
from muster.core.origin import Origin
from muster.core.resources import Resources
from muster.core.status import check_metrics
from muster.core.verdict import Cause, Verdict

DIGEST = "b3:" + "0" * 64
ROLE = Role(command=("true",))


def spec(**changes):
    return JobSpec(**{"name": "a.b", "image": "etl", "image_digest": DIGEST, "roles": (ROLE,), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "job name"),
        ({"name": "a\nb"}, "job name"),
        ({"image": "a/../b"}, "image"),
        ({"image_digest": "b3:12"}, "64 hex digits"),
        ({"roles": ()}, "needs a role"),
        ({"roles": (ROLE, ROLE)}, "called the same"),
        (
            {"outputs": {"m": OutputTarget(volume="a/b"), "n": OutputTarget(volume="a/b")}},
            "same volume and partition",
        ),
        ({"outputs": {"x": OutputTarget(volume="a/b")}, "params": {"x": 1}}, "both output and param"),
        ({"params": {"checkpoints": 1}}, "muster's own"),
        ({"params": {"a-b": 1}}, "Python identifier"),
        ({"params": {"a": float("nan")}}, "JSON value"),
        ({"params": {"a": object()}}, "JSON value"),
        ({"params": {"a": [date(2026, 1, 1)]}}, r"JSON value .*data_interval_start \| ts"),
        ({"params": {"a": ["\udc80"]}}, "JSON value"),
        ({"env": {"A": "\udc80"}}, "in UTF-8"),
        ({"env": {"A": 1}}, "need text"),
        ({"env": {"MUSTER_X": "1"}}, "muster's own"),
        ({"env": {"A": "1"}, "secrets": {"A": SecretRef(source="environment", name="A")}}, "both as env"),
        ({"run_timeout_seconds": 0}, "no job runs or waits for ever"),
        ({"run_timeout_seconds": float("inf")}, "no job runs or waits for ever"),
        ({"queue_timeout_seconds": -1}, "no job runs or waits for ever"),
        ({"max_restarts": -1}, "whole number"),
        ({"queue": "Team A"}, "queue"),
        ({"pod_override": "spec"}, "need a pod"),
        ({"pod_override": {"spec": object()}}, "pod_override 'spec'.*JSON value"),
    ],
)
def test_a_job_refuses_nonsense_when_built(changes, message):
    with pytest.raises(SpecError, match=message):
        spec(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "an entrypoint or a command"),
        ({"command": ("x",), "entrypoint": "a:b"}, "an entrypoint or a command"),
        ({"entrypoint": "a.b"}, "package.module:function"),
        ({"entrypoint": "a:b\n"}, "package.module:function"),
        ({"command": "python train.py"}, r"\['python', 'train.py'\]"),
        ({"command": ()}, "one or more words"),
        ({"command": ("a\0",)}, "without NUL"),
        ({"command": ("\udc80",)}, "in UTF-8"),
        ({"command": ("x",), "replicas": 0}, "replicas of role main is 0"),
        ({"command": ("x",), "replicas": 2, "least_replicas": 0}, "least_replicas of role main is 0"),
        ({"command": ("x",), "replicas": 2, "least_replicas": 4}, "at least 4 replicas and at most 2"),
        ({"command": ("x",), "ranks": True}, "ranks of role main is True"),
    ],
)
def test_a_role_refuses_nonsense_when_built(changes, message):
    with pytest.raises(SpecError, match=message):
        Role(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": -1}, "gpus is -1"),
        ({"gpus": 1.5}, "gpus is 1.5"),
        ({"memory_gib": 0}, "above 0"),
        ({"memory_gib": "4"}, "need a number"),
        ({"cpus": float("nan")}, "need a number"),
        ({"gpu_class": ("a100",)}, "gpus is 0"),
        ({"gpus": 1, "gpu_class": "no/class"}, "GPU class"),
    ],
)
def test_resources_refuse_nonsense_when_built(changes, message):
    with pytest.raises(SpecError, match=message):
        Resources(**changes)


def test_the_name_of_one_class_is_a_list_of_it():
    assert Resources(gpus=1, gpu_class="gpu-a100").gpu_class == ("gpu-a100",)


def test_a_spec_cannot_be_changed_once_built():
    with pytest.raises(TypeError):
        spec(params={"a": 1}).params["a"] = 2


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1], "returned list"),
        ({"auc": float("nan")}, "'auc' is nan"),
        ({"auc": float("inf")}, "'auc' is inf"),
        ({"auc": "high"}, "'auc' is 'high'"),
        ({"auc": 10**400}, "'auc' is 1000"),
        ({1: 2}, "its name"),
    ],
)
def test_metrics_are_finite_numbers_by_name(returned, message):
    with pytest.raises(SpecError, match=message):
        check_metrics(returned)


def test_a_verdict_is_four_clean_lines():
    verdict = Verdict(cause=Cause.USER_ERROR, rank=1, message="a\nb\x1b[31m" + "x" * 999, advice="do\rthis")
    lines = verdict.render(job_id="j-1").splitlines()
    assert lines[0] == "user error, rank 1"
    assert lines[1].startswith("a b [31mx")
    assert len(lines[1]) == 400
    assert lines[2:] == ["do this", "full log: muster jobs logs j-1"]
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("run_id", "words"),
    [
        ("muster__2026-11-23", "`muster run loop --resume`"),
        ("scheduled__2026-11-23", "clear the task"),
        ("", "run again"),
    ],
)
def test_the_next_step_is_right_as_it_stands(run_id, words):
    advice = "mend the code at t.py:3 and run again; earlier stages are kept"
    verdict = Verdict(cause=Cause.USER_ERROR, message="no", advice=advice)
    said = verdict.going_on(Origin(dag_id="loop", run_id=run_id).again).advice
    assert said == f"mend the code at t.py:3 and {words}; earlier stages are kept"


def test_causes_say_who_tries_again():
    assert {c for c in Cause if c.restarts_gang} == {
        Cause.RANK_LOST,
        Cause.HANG,
        Cause.EVICTED,
        Cause.NODE_LOST,
    }
    assert {c for c in Cause if not c.retried} == {
        Cause.USER_ERROR,
        Cause.SPEC_ERROR,
        Cause.OUT_OF_MEMORY,
        Cause.GPU_OUT_OF_MEMORY,
        Cause.IDLE,
        Cause.HANG,
        Cause.UNSCHEDULABLE,
        Cause.CANCELLED,
    }


def test_the_how_to_says_of_each_cause_who_tries_again():
    """``docs/howto/when-it-failed.md`` is what an author reads; the enum is what happens."""
    guide = (Path(__file__).parents[3] / "docs" / "howto" / "when-it-failed.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in guide.splitlines()]
    told = {row[0]: row[2] for row in rows if len(row) == 4}
    for cause in Cause:
        assert ("by the gang" in told[cause.value]) is cause.restarts_gang
        assert ("as a retry" in told[cause.value]) is cause.retried


def test_an_elastic_gang_of_one_size_is_a_gang_like_any_other():
    elastic = spec(roles=(Role(command=("x",), replicas=4, least_replicas=2, ranks=2),))
    assert (elastic.elastic, elastic.least, elastic.replicas, elastic.world_size) == (True, 2, 4, 8)
    three = elastic.sized(3)
    assert (three.elastic, three.least, three.replicas, three.world_size) == (False, 3, 3, 6)
    assert three.sized(2) is three
    assert Role(command=("x",), replicas=4, least_replicas=4) == Role(command=("x",), replicas=4)


def test_an_elastic_gang_has_one_role():
    with pytest.raises(SpecError, match="only a gang of one role shrinks and grows, and this has main, ps"):
        spec(roles=(Role(command=("x",), replicas=2, least_replicas=1), Role(name="ps", command=("x",))))


@pytest.mark.parametrize(
    "roles",
    [
        (Role(command=("x",)),),
        (Role(command=("x",), replicas=3, ranks=2),),
        (Role(command=("x",), replicas=3, least_replicas=1),),
        (Role(command=("x",), replicas=3), Role(name="more", command=("x",))),
    ],
    ids=["no worker", "ranks", "too few at least", "two roles"],
)
@pytest.mark.parametrize("launcher", [each for each in Launcher if each.drives])
def test_an_engine_has_a_driver_and_workers(launcher, roles):
    with pytest.raises(SpecError, match=f"a gang of {launcher.value} has one role"):
        spec(roles=roles, launcher=launcher)
