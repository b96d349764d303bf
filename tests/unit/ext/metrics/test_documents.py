"""The page of docs, the alerts and the dashboard name only metrics that there are, and pages that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.ext.metrics.table import METRICS, NAMED, MetricKind

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "howto" / "monitoring.md"
ON_CALL = (ROOT / "docs" / "howto" / "on-call.md").read_text()
FILES = ROOT / "helm" / "muster" / "files"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
PANELS = [
    target["expr"]
    for panel in json.loads((FILES / "dashboard.json").read_text())["panels"]
    for target in panel.get("targets", ())
]
OF_PROMETHEUS = {"namespace", "instance", "pod", "alertname", "alertstate", "le"}


def test_the_page_has_a_row_for_each_metric_in_the_order_of_the_table() -> None:
    rows = re.findall(r"^\| `(muster_\w+)` \| (.*?) ?\| (.*?) ?\| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    wanted = [
        (
            each.name,
            ", ".join(each.labels),
            "" if each.kind is MetricKind.GAUGE else each.kind.value,
            each.means,
        )
        for each in METRICS
    ]
    assert rows == wanted


def test_the_page_names_each_alert() -> None:
    for page in (PAGE.read_text(), ON_CALL):
        assert set(re.findall(r"\bMuster[A-Z]\w+", page)) == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("expr", [*(rule["expr"] for rule in RULES), *PANELS])
def test_an_expression_names_metrics_and_labels_that_there_are(expr: str) -> None:
    known = {name for each in METRICS for name in _series(each.name, each.kind)}
    used = set(re.findall(r"\bmuster_\w+", expr))
    assert used <= known
    assert used or "ALERTS" in expr
    labels = {label for name in used for label in NAMED[re.sub("_bucket$", "", name)].labels}
    assert set(_labels(expr)) <= labels | OF_PROMETHEUS


def _series(name: str, kind: MetricKind) -> Iterator[str]:
    if kind is MetricKind.HISTOGRAM:
        yield from (f"{name}_bucket", f"{name}_count", f"{name}_sum")
    else:
        yield name


def _labels(expr: str) -> Iterator[str]:
    """Yield the labels that an expression selects or groups by."""
    for inner in re.findall(r"\{(.*?)\}", expr):
        yield from re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inner)
    for inner in re.findall(r"\b(?:by|without|on|ignoring)\s*\((.*?)\)", expr):
        yield from re.findall(r"\w+", inner)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_happened_where_to_read_and_what_to_type(rule: dict[str, Any]) -> None:
    said = rule["annotations"]
    assert said.keys() == {"summary", "description", "docs", "command"}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert said["docs"] == f"docs/howto/on-call.md: {rule['alert']}"
    (section,) = re.findall(rf"^### {rule['alert']}\n(.*?)(?=^#|\Z)", ON_CALL, re.MULTILINE | re.DOTALL)
    assert re.findall(r"^- \*\*(.*?):\*\*", section, re.MULTILINE) == ["Means", "Look at", "Mend"]
    for command in re.split(r"; ", said["command"]):
        typed = re.sub(r"\{\{ \$labels\.\w+ \}\}", "NAME", command)
        assert f"`{typed}`" in section, "the command of the alert is explained there"
    labels = set(re.findall(r"\$labels\.(\w+)", " ".join(said.values())))
    assert labels <= {label for name in re.findall(r"\bmuster_\w+", rule["expr"]) for label in _of(name)}


def _of(name: str) -> tuple[str, ...]:
    return NAMED[re.sub("_bucket$", "", name)].labels
