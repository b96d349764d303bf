"""The chart's policy that keeps operators from the pods of muster itself: the name of a proxied pod may have scheme and port."""

import re
from pathlib import Path

import pytest

TEMPLATE = Path(__file__).parents[4] / "helm" / "muster" / "templates" / "admission.yaml"


@pytest.fixture(scope="module")
def own() -> re.Pattern[str]:
    """CEL's `matches` searches, as Python's does; the expression has nothing that RE2 lacks."""
    (found,) = re.findall(r"request\.name\.matches\('(.*)'\)", TEMPLATE.read_text())
    return re.compile(re.sub(r"{{.*?}}", "team-muster", found))


@pytest.mark.parametrize(
    "pod", ["store", "reaper", "keeper", "gc", "requests", "metrics", "airflow-scheduler"]
)
@pytest.mark.parametrize("named", ["{}", "{}:8080", "http:{}:8080", "https:{}:metrics", "http:{}:"])
def test_pods_of_muster_are_refused(own: re.Pattern[str], pod: str, named: str) -> None:
    assert own.search(named.format(f"team-muster-{pod}-7d9f8b6c5-x2x9q"))


def test_the_pod_of_helm_test_is_refused(own: re.Pattern[str]) -> None:
    assert own.search("http:team-muster-test-store:80")


@pytest.mark.parametrize(
    "named", ["fares-r1-predictor-7d9f8b6c5-x2x9q:8080", "http:storefront-team-muster-store-1-2:8080"]
)
def test_pods_of_model_servers_are_not(own: re.Pattern[str], named: str) -> None:
    assert not own.search(named)
