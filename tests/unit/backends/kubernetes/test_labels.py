from __future__ import annotations

import re

import pytest
from tests.unit.backends.kubernetes.golden import job

from muster.backends.kubernetes import labels
from muster.core.errors import SpecError
from muster.core.job import Role
from muster.core.origin import Origin

VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?\Z")


def roles(*names: str, replicas: int = 1) -> list[Role]:
    return [Role(name=name, replicas=replicas, entrypoint="a:b") for name in names]


def test_an_object_is_called_as_its_job_but_for_a_digit_in_front() -> None:
    assert labels.object_name("train-0a1b-1") == "train-0a1b-1"
    assert labels.object_name("2013-etl-1") == "job-2013-etl-1"


@pytest.mark.parametrize("job_id", ["", "a/b", "..", "a b", "A", "a\n", "x" * 41, "-a", "é"])
def test_what_is_no_job_id_names_nothing(job_id: str) -> None:
    for name in (labels.object_name, labels.secret_name):
        with pytest.raises(SpecError, match="job id"):
            name(job_id)


@pytest.mark.parametrize("replicas", [1, 10, 10_000])
@pytest.mark.parametrize("job_id", ["t-1", "9" * 40, "t" * 40])
@pytest.mark.parametrize("names", [("main",), ("a" * 20, "b"), ("2nd", "first")])
def test_no_name_of_a_pod_is_too_long_or_begins_with_a_digit(
    job_id: str, names: tuple[str, ...], replicas: int
) -> None:
    groups = labels.group_names(job_id, roles(*names, replicas=replicas))
    assert len(set(groups)) == len(names)
    for group in groups:
        pod = f"{labels.object_name(job_id)}-{group}-0-{replicas - 1}-abcde"
        assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", pod)
        assert len(pod) <= 63


def test_pods_are_called_after_their_role_where_there_is_room() -> None:
    assert labels.group_names("train-0a1b2c3d4e5f-1", roles("coordinator", "worker")) == (
        "coordinator",
        "worker",
    )
    assert labels.group_names("t" * 40, roles("coordinator-of-all", "worker")) == ("r0", "r1")


def test_labels_are_values_that_kubernetes_takes() -> None:
    hostile = Origin(instance="prod / Ω\n" * 40, dag_id="d\n\x1b[31m" * 300, run_id="manual__2013+00:00")
    told = labels.labels(job(origin=hostile), job_id="t-1", attempt=3, role="main")
    assert all(VALUE.match(value) for value in told.values())
    assert told[labels.ATTEMPT] == "3"
    assert told[labels.INSTANCE] == labels.instance_label(hostile.instance)
    notes = labels.notes(job(origin=hostile))
    assert notes[labels.RUN] == "manual__2013+00:00"
    assert notes[labels.DAG].isprintable()
    assert len(notes[labels.DAG]) <= 400
    assert labels.TASK not in notes


def test_two_instances_have_two_labels() -> None:
    assert labels.instance_label("a") != labels.instance_label("b")
    assert labels.selector({"b": "2", "a": "1"}) == "a=1,b=2"
