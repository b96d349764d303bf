"""Who reaches whom under the chart's NetworkPolicies: with the labels that muster's own pods have, every pair is asked."""

from __future__ import annotations

import pytest
from tests.chart.examples import LEAST, WHOLE
from tests.chart.helm import NAMESPACE, Document, named, render
from tests.chart.reach import End, may
from tests.unit.backends.kubernetes.golden import EXAMPLES

from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.server import PORT as SERVER

pytestmark = pytest.mark.chart

STORE, METRICS, NAMES, ANY = 8080, 8080, 53, 4242


def _job(example: str) -> End:
    """A pod of a job, as the backend labels it."""
    owner = EXAMPLES[example].documents().owner
    template = owner["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return End(labels=template["metadata"]["labels"], namespace=NAMESPACE)


def _of(kind: str, name: str) -> End:
    """A pod of the chart's own."""
    document = named(render(WHOLE), kind, name)
    spec = document["spec"]
    template = spec.get("jobTemplate", {}).get("spec", spec).get("template", document)
    return End(labels=template["metadata"]["labels"], namespace=NAMESPACE)


@pytest.fixture(scope="module")
def ends() -> dict[str, End]:
    return {
        "job": _job(next(name for name, each in EXAMPLES.items() if each.queue)),
        "store": _of("Deployment", "muster-store"),
        "metrics": _of("Deployment", "muster-metrics"),
        "reaper": _of("Deployment", "muster-reaper"),
        "keeper": _of("Deployment", "muster-keeper"),
        "gc": _of("CronJob", "muster-gc"),
        "requests": _of("CronJob", "muster-requests"),
        "test": _of("Pod", "muster-test"),
        "server": End(labels=names.of_revision("flights", "r1"), namespace=NAMESPACE),
        "stranger": End(labels={"app": "web"}, namespace=NAMESPACE),
        "foreign": End(labels={"muster.dev/job": "x", "app": "muster-gc"}, namespace="elsewhere"),
        "prometheus": End(labels={"app": "prometheus"}, namespace="monitoring"),
        "airflow": End(labels={"component": "worker"}, namespace="airflow"),
        "gateway": End(labels={"app": "gateway"}, namespace="gateway"),
        "dns": End(labels={"k8s-app": "kube-dns"}, namespace="kube-system"),
        "api": End(address="10.1.2.3"),
        "agent": End(address="10.1.2.4"),  # by which the API server asks pods
        "database": End(address="10.9.8.7"),
        "internet": End(address="203.0.113.5"),
    }


@pytest.fixture(scope="module")
def policies() -> list[Document]:
    return [each for each in render(WHOLE) if each["kind"] == "NetworkPolicy"]


def reached(ends: dict[str, End], policies: list[Document], source: str, port: int) -> set[str]:
    return {name for name, end in ends.items() if name != source and may(ends[source], end, port, policies)}


UNGUARDED = {
    "stranger",
    "foreign",
    "prometheus",
    "airflow",
    "gateway",
    "dns",
    "api",
    "agent",
    "database",
    "internet",
}
"""What no policy of the chart speaks of: nothing else keeps others away from it."""


@pytest.mark.parametrize(
    ("source", "port", "found"),
    [
        ("job", STORE, {"store"}),
        ("job", NAMES, {"dns"}),
        ("job", ANY, set()),
        ("job", 5432, {"database"}),
        ("job", 443, set()),
        ("store", STORE, set()),
        ("store", 443, set()),
        ("store", NAMES, set()),
        ("gc", STORE, {"store"}),
        ("gc", 443, set()),
        ("requests", STORE, {"store"}),
        ("requests", 443, set()),
        ("test", STORE, {"store"}),
        ("metrics", STORE, {"store", "keeper"}),  # their health
        ("metrics", 6443, {"api"}),
        ("metrics", 443, set()),
        ("metrics", NAMES, {"dns"}),
        ("prometheus", METRICS, {*UNGUARDED, "metrics"} - {"prometheus"}),
        ("reaper", 6443, {"api"}),
        ("keeper", 6443, {"api"}),
        ("keeper", STORE, set()),
        ("reaper", 443, set()),
        ("reaper", STORE, set()),
        ("server", STORE, set()),
        ("server", 443, set()),
        ("stranger", STORE, UNGUARDED - {"stranger"}),
        ("foreign", STORE, UNGUARDED - {"foreign"}),
        ("airflow", STORE, {*UNGUARDED, "store"} - {"airflow"}),
        ("gateway", SERVER, {*UNGUARDED, "server"} - {"gateway"}),
        ("gateway", ANY, UNGUARDED - {"gateway"}),
        ("agent", SERVER, {*UNGUARDED, "server"} - {"agent"}),
        ("api", SERVER, UNGUARDED - {"api"}),
    ],
)
def test_who_reaches_whom(
    source: str, port: int, found: set[str], ends: dict[str, End], policies: list[Document]
) -> None:
    assert reached(ends, policies, source, port) == found


def test_a_gang_s_pods_reach_each_other_on_any_port(ends: dict[str, End], policies: list[Document]) -> None:
    assert may(ends["job"], ends["job"], ANY, policies)


def test_names_are_asked_for_over_both_protocols(ends: dict[str, End], policies: list[Document]) -> None:
    for protocol in ("UDP", "TCP"):
        assert may(ends["job"], ends["dns"], NAMES, policies, protocol=protocol)
    assert not may(ends["job"], ends["internet"], NAMES, policies, protocol="UDP")


def test_jobs_reach_nothing_more_unless_the_site_says_so(ends: dict[str, End]) -> None:
    policies = [each for each in render(LEAST) if each["kind"] == "NetworkPolicy"]
    for port in (443, 5432, STORE):
        assert reached(ends, policies, "job", port) <= {"store"}


def test_they_can_be_left_out() -> None:
    kinds = {each["kind"] for each in render({**LEAST, "networkPolicy": {"enabled": False}})}
    assert "NetworkPolicy" not in kinds


def test_each_pod_of_the_chart_has_a_policy_whatever_is_switched_off() -> None:
    """Where a namespace denies by default, a pod that no policy names reaches nothing."""
    found = render({**WHOLE, "clusterScoped": False, "operator": {}, "reaper": {"enabled": False}})
    pods = [each for each in found if each["kind"] in ("Deployment", "CronJob", "Pod")]
    names = {each["metadata"]["name"] for each in pods}
    selected = [each["spec"]["podSelector"] for each in found if each["kind"] == "NetworkPolicy"]
    named = {each["matchLabels"]["app"] for each in selected if "matchLabels" in each}
    named |= {
        app
        for each in selected
        for rule in each.get("matchExpressions", ())
        for app in rule.get("values", ())
    }
    assert "muster-uninstall" in names
    assert names <= named
