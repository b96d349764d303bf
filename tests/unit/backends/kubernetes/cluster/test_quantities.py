from __future__ import annotations

import pytest

from muster.backends.kubernetes.cluster.quantities import (
    GIB,
    fits,
    how_many,
    pod_requests,
    quantity,
    shown,
    times,
    total,
)
from muster.core.errors import BackendError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0.0),
        ("16", 16.0),
        ("500m", 0.5),
        ("1.5", 1.5),
        ("64Gi", 64 * GIB),
        ("32783832Ki", 32783832 * 1024),
        ("100G", 1e11),
        ("12e6", 12e6),
        ("1E", 1e18),
        ("1Ei", 2.0**60),
        (".5", 0.5),
        ("-1", -1.0),
        (8, 8.0),
    ],
)
def test_quantities(text: object, number: float) -> None:
    assert quantity(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["", "Gi", "1GiB", "1 Gi", None, "nan", "٣"])
def test_what_is_none(text: object) -> None:
    with pytest.raises(BackendError, match=r"is no quantity such as 500m or 64Gi"):
        quantity(text)


def test_sums() -> None:
    assert total([{"cpu": 1.0}, {"cpu": 2.0, "memory": 3.0}, {}]) == {"cpu": 3.0, "memory": 3.0}
    assert times({"cpu": 1.5}, 3) == {"cpu": 4.5}


@pytest.mark.parametrize(
    ("wanted", "room", "whether", "often"),
    [
        ({"cpu": 2.0}, {"cpu": 4.0}, True, 2),
        ({"cpu": 0.1}, {"cpu": 0.3}, True, 3),
        ({"cpu": 5.0}, {"cpu": 4.0}, False, 0),
        ({"cpu": 1.0, "nvidia.com/gpu": 1.0}, {"cpu": 4.0}, False, 0),
        ({"cpu": 1.0, "nvidia.com/gpu": 0.0}, {"cpu": 4.0}, True, 4),
    ],
)
def test_room(wanted: dict[str, float], room: dict[str, float], whether: bool, often: int) -> None:
    assert fits(wanted, room) is whether
    assert how_many(wanted, room) == often


def container(**resources: dict[str, str]) -> dict[str, object]:
    return {"name": "c", "resources": resources}


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ({"containers": [{"name": "c"}]}, {}),
        ({"containers": [container(requests={"cpu": "1"}), container(requests={"cpu": "2"})]}, {"cpu": 3.0}),
        ({"containers": [container(limits={"nvidia.com/gpu": "2"})]}, {"nvidia.com/gpu": 2.0}),
        ({"containers": [container(requests={"cpu": "1"}, limits={"cpu": "4"})]}, {"cpu": 1.0}),
        (
            {
                "initContainers": [container(requests={"cpu": "3"}), container(requests={"memory": "1Gi"})],
                "containers": [container(requests={"cpu": "1", "memory": "4Gi"})],
            },
            {"cpu": 3.0, "memory": 4.0 * GIB},
        ),
        (
            {
                "initContainers": [
                    {**container(requests={"cpu": "1"}), "restartPolicy": "Always"},
                    container(requests={"cpu": "3"}),
                ],
                "containers": [container(requests={"cpu": "1"})],
            },
            {"cpu": 4.0},
        ),
        ({"containers": [container(requests={"cpu": "1"})], "overhead": {"cpu": "250m"}}, {"cpu": 1.25}),
    ],
    ids=["nothing", "sum", "limit", "request", "init", "sidecar", "overhead"],
)
def test_what_a_pod_asks_for(spec: dict[str, object], needs: dict[str, float]) -> None:
    assert pod_requests(spec) == {**needs, "pods": 1.0}


def test_for_people() -> None:
    assert shown("cpu", 2.5) == "2.5 cpu"
    assert shown("memory", 64 * GIB) == "64 GiB memory"
    assert shown("nvidia.com/gpu", 8) == "8 nvidia.com/gpu"
