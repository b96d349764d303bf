"""Puts the deployments' objects into the report of a test of them that failed: later they are gone."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from tests.cluster import deploying, kubectl
from tests.cluster.accounts import NAMESPACE
from tests.cluster.inside import layout
from tests.cluster.layout import Layout

from muster.backends.kubernetes.serving import names

_HERE = f"--namespace={NAMESPACE}"
_LINES = 120  # the last ones of each
_ASKED = (
    ("get", deploying.KINDS, _HERE, f"--selector={names.DEPLOYMENT}", "--output=wide"),
    ("get", "httproutes,inferenceservices", _HERE, "--output=yaml"),
    ("get", "seldondeployments", _HERE, "--output=yaml"),
    ("get", "events", _HERE, "--sort-by=.metadata.creationTimestamp"),
    ("logs", _HERE, f"--selector={names.DEPLOYMENT}", "--all-containers", "--prefix", "--tail=20"),
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Look before what the test used is taken away."""
    report = yield
    if report.failed and call.when != "teardown" and "served" in getattr(item, "fixturenames", ()):
        report.sections.append(("what there was of deployments", _seen(layout())))
    return report


def _seen(of: Layout) -> str:
    told = {f"kubectl {' '.join(words)}": kubectl.ask(of, *words).splitlines() for words in _ASKED}
    for name in ("kserve", "traefik", "metrics-server"):
        log = of.logs / f"{name}.log"
        told[f"tail {log.name}"] = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n\n".join("\n".join([f"$ {asked}", *lines[-_LINES:]]) for asked, lines in told.items())
