"""What a cluster's jobs compete for, as it is asked for over HTTP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.backends.kubernetes.recordings import recorded
from tests.unit.backends.kubernetes.site_api import SiteApi
from tests.unit.backends.kubernetes.site_objects import node
from tests.unit.backends.kubernetes.state.test_capacity import in_namespace, reserve, root, waits

from muster.backends.forecast import Competition, forecast
from muster.backends.kubernetes.api.kinds import WORKLOAD
from muster.backends.kubernetes.state.capacity import ClusterCapacity
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources

GPU = "nvidia.com/gpu"
OF_A, OF_COHORT = f"team-a: {GPU} of gpu-a100", f"cohort ml: {GPU} of gpu-a100"
OF_NODES = f"nodes of gpu-a100: {GPU}"


def gang(replicas: int = 2, *, gpus: int = 2, gpu_class: tuple[str, ...] = ("gpu-a100",)) -> JobSpec:
    resources = Resources(cpus=1, memory_gib=1, gpus=gpus, gpu_class=gpu_class if gpus else ())
    return JobSpec(
        name="flights.train",
        image="train",
        image_digest="b3:" + "0" * 64,
        roles=(Role(entrypoint="a.b:c", replicas=replicas, resources=resources),),
        queue="team-a",
    )


def admitted(name: str, *, cards: int, queue: str = "team-a") -> dict[str, Any]:
    """A Workload of `cards` cards of an a100 that Kueue has let in."""
    document = waits(name, minute=1, queue=queue)
    document["status"] = {
        "conditions": [
            {"type": "Admitted", "status": "True", "lastTransitionTime": "2026-11-21T18:05:00Z"},
        ],
        "admission": {
            "clusterQueue": queue,
            "podSetAssignments": [
                {
                    "name": "w",
                    "count": 1,
                    "flavors": {"cpu": "gpu-a100", GPU: "gpu-a100"},
                    "resourceUsage": {"cpu": "1", GPU: str(cards)},
                }
            ],
        },
    }
    return document


def starts(outlook: Competition, **durations: list[float]) -> float:
    known = {name.replace("_", "."): seconds for name, seconds in durations.items()}
    now = outlook.running[0].started if outlook.running else 0.0
    return forecast(outlook.planned, outlook, known, now=now or 0.0)["flights.train"].starts.p50


def test_a_gang_takes_quota_and_cards_of_its_class(capacity: ClusterCapacity) -> None:
    found = capacity.outlook([gang()])
    assert found.pools[OF_NODES] == 16.0
    (planned,) = found.planned
    (choice,) = planned.choices
    assert (choice[OF_A], choice[OF_NODES], planned.line) == (4.0, 4.0, "team-a")
    assert starts(found) == 0.0


def test_what_is_admitted_holds_its_part_until_it_ends(site: SiteApi, capacity: ClusterCapacity) -> None:
    site.documents += [admitted("w", cards=14), root("w", title="flights.other")]
    found = capacity.outlook([gang()])
    (runs,) = found.running
    assert (runs.name, runs.job_id, runs.choices[0][OF_NODES]) == ("flights.other", "w", 14.0)
    assert starts(found, flights_other=[100.0]) == pytest.approx(100.0 + found.turnover_seconds)


def test_what_waits_goes_first(site: SiteApi, capacity: ClusterCapacity) -> None:
    site.documents += [waits("old", minute=1, priority=100), waits("urgent", minute=2, priority=1000)]
    found = capacity.outlook([gang()])
    assert [each.name for each in found.waiting] == ["old", "urgent"]
    told = forecast(found.planned, found, {}, now=0.0)["flights.train"]
    assert told.ahead == ("urgent", "old")


def test_either_class_of_a_list_will_do(capacity: ClusterCapacity) -> None:
    (planned,) = capacity.outlook([gang(gpu_class=("gpu-a100", "gpu-k80"))]).planned
    assert [sorted(name for name in choice if name.startswith("nodes")) for choice in planned.choices] == [
        [OF_NODES],
        [f"nodes of gpu-k80: {GPU}"],
    ]


def test_what_never_fits_has_no_choice(capacity: ClusterCapacity) -> None:
    found = capacity.outlook([gang(replicas=9)])
    assert found.planned[0].choices == ()
    assert forecast(found.planned, found, {}, now=0.0) == {}


def test_what_other_namespaces_hold_counts(site: SiteApi, capacity: ClusterCapacity) -> None:
    reserve(site, "team-b", "gpu-a100", 4)
    site.documents += [admitted("w", cards=12)]
    found = capacity.outlook([gang()])
    assert [each.name for each in found.running] == ["w", "jobs of other namespaces"]
    assert starts(found, w=[100.0]) > 0.0


def test_nodes_that_may_not_be_read(site: SiteApi, capacity: ClusterCapacity) -> None:
    site.refused.add(("list", "nodes!"))
    found = capacity.outlook([gang()])
    assert "only quotas count" in found.unseen
    assert OF_NODES not in found.planned[0].choices[0]


def test_without_kueue_nodes_alone_count(site: SiteApi, capacity: ClusterCapacity) -> None:
    site.missing.add(WORKLOAD)
    site.documents += [
        in_namespace(each) for each in recorded("well-running").documents if each["kind"] in ("JobSet", "Pod")
    ]
    found = capacity.outlook([replace(gang(), queue=None)])
    (runs,) = found.running
    assert runs.started is not None
    assert found.planned[0].choices[0][OF_NODES] == 4.0


def test_a_node_that_takes_no_pods_is_named(site: SiteApi, capacity: ClusterCapacity) -> None:
    """So that a plan can say why a gang fits nowhere now."""
    others = [each for each in site.documents if each["metadata"]["name"] != "a100-1"]
    site.documents = [*others, node("a100-1", gpu_class="gpu-a100", gpus=8, cordoned=True)]
    found = capacity.outlook([gang()])
    assert found.down == ("a100-1 (cordoned)",)
    assert found.pools[OF_NODES] == 8.0


def test_a_job_that_names_no_priority_is_planned_before_trials(capacity: ClusterCapacity) -> None:
    plain, trial = capacity.outlook([gang(), replace(gang(), priority="low")]).planned
    assert (plain.priority, trial.priority) == (100, 10)
