"""What differs between two jobs, in words, and what does not matter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.core.comparison import (
    DifferenceKind,
    differences,
    essence,
    files_changed,
    key_of,
    task_key_of,
    whole_key_of,
)
from muster.core.data import Input, OutputTarget, Pinned
from muster.core.job import Interpreter, JobSpec, Launcher, Role, SecretRef
from muster.core.origin import Origin
from muster.core.resources import Resources
from muster.core.tally import HourBudget

ROLE = Role(replicas=2, entrypoint="loop.train:train", resources=Resources(cpus=2, gpus=1))


def rows(*numbers: int, digit: str = "1", volume: str = "loop/rows", **facts: Any) -> Input:
    many = facts.pop("many", len(numbers) > 1)
    versions = (Pinned(address=f"volume://{volume}@{n}", digest="b3:" + digit * 64, **facts) for n in numbers)
    return Input(versions=tuple(versions), many=many)


SPEC = JobSpec(
    name="loop.train",
    image="train",
    image_digest="b3:" + "0" * 64,
    roles=(ROLE,),
    code="b3:" + "c" * 64,
    inputs={"rows": rows(3)},
    outputs={"model": OutputTarget(volume="loop/model", partition="2013-01")},
    params={"lr": 0.1, "epochs": 4},
    env={"MODE": "fast"},
    secrets={"TOKEN": SecretRef(source="connection", name="mlflow#password")},
    origin=Origin(instance="one", dag_id="loop", run_id="a", task_id="train"),
)

MATTERS = [
    ({"params": {"lr": 0.1, "epochs": 5}}, "epochs 4 → 5"),
    ({"params": {"lr": 0.1}}, "epochs 4 → none"),
    ({"params": {"lr": 0.1, "epochs": 4, "seed": None}}, "seed none → null"),
    ({"params": {"lr": 0.1, "epochs": 4.0}}, "epochs 4 → 4.0"),
    ({"params": {"lr": True, "epochs": 4}}, "lr 0.1 → true"),
    (
        {"params": {"lr": [*range(40)], "epochs": 4}},
        "lr 0.1 → [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, …",
    ),
    ({"image_digest": "b3:" + "1" * 64}, "image train has another lock"),
    (
        {
            "interpreter": Interpreter(
                path="/opt/python", version="3.11.7", digest="b3:" + "1" * 64, packages=212
            )
        },
        "interpreter of image train: its lock → Python 3.11.7, 212 packages, b3:111111111111",
    ),
    ({"image": "other", "image_digest": "b3:" + "1" * 64}, "image train → other"),
    ({"launcher": Launcher.TORCHRUN}, "launcher plain → torchrun"),
    ({"inputs": {"rows": rows(21, digit="2")}}, "input rows: loop/rows@3 → @21"),
    ({"inputs": {"rows": rows(3, volume="loop/all", digit="2")}}, "input rows: loop/rows@3 → loop/all@3"),
    ({"inputs": {}}, "input rows: loop/rows@3 → none"),
    ({"inputs": {"rows": rows(3), "more": rows(4)}}, "input more: none → loop/rows@4"),
    ({"inputs": {"rows": rows(1, 2, 3, 4)}}, "input rows: loop/rows@3 → @1…@4"),
    ({"inputs": {"rows": rows(3, many=True)}}, "input rows: loop/rows@3 → a list of loop/rows@3"),
    (
        {"outputs": {"model": OutputTarget(volume="loop/model")}},
        "output model: loop/model@2013-01 → loop/model",
    ),
    ({"env": {"MODE": "slow"}}, 'env MODE "fast" → "slow"'),
    ({"env": {}}, 'env MODE "fast" → none'),
    (
        {"secrets": {"TOKEN": SecretRef(source="environment", name="TOKEN")}},
        "secret TOKEN connection:mlflow#password → environment:TOKEN",
    ),
    ({"require_gpus": True}, "require_gpus false → true"),
    ({"cache_key": {"day": 1}}, 'cache_key null → {"day": 1}'),
    ({"pod_override": {"spec": {}}}, 'pod_override {} → {"spec": {}}'),
    ({"roles": (replace(ROLE, replicas=4),)}, "replicas 2 → 4"),
    ({"roles": (replace(ROLE, ranks=2),)}, "ranks 1 → 2"),
    ({"roles": (replace(ROLE, entrypoint="loop.train:fit"),)}, "loop.train:train → loop.train:fit"),
    ({"roles": (replace(ROLE, entrypoint=None, command=("a", "b")),)}, "loop.train:train → a b"),
    ({"roles": (replace(ROLE, resources=Resources(cpus=4, gpus=1)),)}, "cpus 2 → 4"),
    ({"roles": (replace(ROLE, name="worker"),)}, "roles main → worker"),
    ({"keep": 3}, "keep 0 → 3"),
]

MATTERS_NOT: list[dict[str, Any]] = [
    {"name": "another"},
    {"env": {"MODE": "fast", "TRACEPARENT": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}},
    {"origin": Origin(instance="two", dag_id="loop", run_id="b", task_id="train", map_index=3)},
    {"inputs": {"rows": rows(9)}},  # the same content under another number
    {"inputs": {"rows": rows(9, volume="loop/copy")}},
    {"follows": "a-1"},
    {"metric_pattern": "(?P<epoch>.)"},
    {"code": None},  # it is compared file by file
    {"params": {"epochs": 4, "lr": 0.1}},
    *(
        {name: value}
        for name, value in {
            "run_timeout_seconds": 1.0,
            "queue_timeout_seconds": 1.0,
            "hang_timeout_seconds": 1.0,
            "idle_seconds": 1.0,
            "budget": HourBudget(gpu_hours=1),
            "grace_seconds": 1.0,
            "max_restarts": 0,
            "queue": "night",
            "priority": "low",
        }.items()
    ),
]


@pytest.mark.parametrize(("change", "said"), MATTERS, ids=[said for _, said in MATTERS])
def test_what_matters_is_told_and_has_another_key(change: dict[str, Any], said: str) -> None:
    now = replace(SPEC, **change)
    assert [str(each) for each in differences(SPEC, now)] == [said]
    assert key_of(now) != key_of(SPEC)


@pytest.mark.parametrize("change", MATTERS_NOT, ids=[" ".join(change) for change in MATTERS_NOT])
def test_what_does_not_matter_has_the_same_key(change: dict[str, Any]) -> None:
    now = replace(SPEC, **change)
    assert differences(SPEC, now) == []
    assert key_of(now) == key_of(SPEC)


def test_every_field_of_a_job_is_one_or_the_other() -> None:
    """A field that a later release adds is listed above, and counts until it is called immaterial."""
    told = {name for change in [*(change for change, _ in MATTERS), *MATTERS_NOT] for name in change}
    assert told == set(SPEC.__dataclass_fields__)


def test_the_same_partition_of_another_name_matters() -> None:
    now = replace(SPEC, inputs={"rows": rows(3, partition="2013-02")})
    assert [each.what for each in differences(SPEC, now)] == [DifferenceKind.INPUT]


def test_of_several_roles_each_is_named() -> None:
    then = replace(SPEC, roles=(ROLE, replace(ROLE, name="ps")))
    now = replace(then, roles=(ROLE, replace(ROLE, name="ps", replicas=1)))
    assert [str(each) for each in differences(then, now)] == ["ps: replicas 2 → 1"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ((), ""),
        (None, "code changed"),
        (("a.py",), "a.py changed"),
        (("a.py", "b.py", "c.py", "d.py"), "a.py, b.py, c.py and 1 more file changed"),
        (("a.py", "b.py", "c.py", "d.py", "e.py"), "a.py, b.py, c.py and 2 more files changed"),
    ],
)
def test_files_that_changed(files: tuple[str, ...] | None, said: str) -> None:
    assert files_changed(files) == said
    assert [str(each) for each in differences(SPEC, SPEC, files)] == [said] * bool(said)


def test_keys() -> None:
    assert whole_key_of(SPEC) != whole_key_of(replace(SPEC, code="b3:" + "d" * 64))
    assert task_key_of(SPEC.origin) == task_key_of(
        replace(SPEC.origin, run_id="z", map_index=2, instance="x")
    )
    assert task_key_of(SPEC.origin) != task_key_of(replace(SPEC.origin, task_id="features"))
    assert essence(essence(SPEC)) == essence(SPEC)
    assert key_of(SPEC) == "c6c2a4dce279514ee10879de46c462edac587d74", (
        "a key of an earlier release finds what it made"
    )


def test_of_long_values_the_part_is_shown_where_they_begin_to_differ() -> None:
    """A changed suite was told as two equal texts, both cut before the change."""
    then = replace(SPEC, params={"suite": {"expectations": [*range(60), {"max_value": 3}]}})
    now = replace(SPEC, params={"suite": {"expectations": [*range(60), {"max_value": 30}]}})
    (found,) = differences(then, now)
    before, here = str(found).removeprefix("suite ").split(" → ")
    assert (before[0], before[-15:]) == ("…", '"max_value": 3}]}'[-15:])
    assert here.endswith('"max_value": 30}]}')
