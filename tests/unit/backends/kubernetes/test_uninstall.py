"""Who still uses an installation, before helm deletes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.backends.kubernetes.golden import EXAMPLES
from tests.unit.backends.kubernetes.site_api import kubeconfig, site_api

from muster.backends.kubernetes import uninstall
from muster.backends.kubernetes.api.kinds import CLUSTER_QUEUE, INFERENCE_SERVICE, JOB_SET
from muster.backends.kubernetes.uninstall import main

RELEASE = "muster"


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Look at the site with some more objects; return the exit code and what was said."""
    with site_api() as (site, server):

        def look(
            *more: dict[str, Any], status: dict[str, Any] | None = None, refused: str = ""
        ) -> tuple[int, str]:
            site.documents += more
            site.refused |= {("list", each) for each in refused.split()}
            for each in site.documents:
                if each["kind"] == "ClusterQueue":
                    each["status"] = status or {}
            file = kubeconfig(tmp_path / "kubeconfig", server.host)
            code = main(["--namespace=muster-jobs", f"--release={RELEASE}", f"--kubeconfig={file}"])
            return code, capsys.readouterr().out

        yield look


def a_gang(**status: Any) -> dict[str, Any]:
    made = EXAMPLES["torchrun"].documents().owner
    return {**made, "metadata": {**made["metadata"], "namespace": "muster-jobs"}, "status": status}


def test_an_idle_installation_may_go(asked: Any) -> None:
    ended = a_gang(conditions=[{"type": "Completed", "status": "True"}])
    assert asked(ended) == (0, "")


def test_a_gang_that_runs_is_told_and_what_to_do(asked: Any) -> None:
    code, said = asked(a_gang())
    assert code == 1
    assert "in use: 1 job (train-0a1b2c3d4e5f-1): wait for the end, or `muster jobs cancel JOB`" in said
    assert "helm uninstall --no-hooks" in said


def test_workloads_of_other_namespaces_in_its_queues_keep_it(asked: Any) -> None:
    code, said = asked(status={"reservingWorkloads": 2, "pendingWorkloads": 1})
    assert code == 1
    assert "in use: 3 workloads in ClusterQueue team-a: `kubectl get workloads.kueue.x-k8s.io" in said


def test_jobs_that_may_not_be_seen_are_no_leave_to_go(asked: Any) -> None:
    code, said = asked(a_gang(), refused=JOB_SET.resource)
    assert code == 1
    assert "what uses it cannot be seen" in said


def test_what_the_chart_gives_no_right_to_see_keeps_nothing(asked: Any) -> None:
    assert asked(refused=f"{INFERENCE_SERVICE.resource} {CLUSTER_QUEUE.resource}!") == (0, "")


def test_an_api_that_is_away_is_no_leave_to_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uninstall, "PATIENCE_SECONDS", 0.0)
    file = kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:9")
    assert main(["--namespace=n", "--release=r", f"--kubeconfig={file}"]) == 1
    assert "what uses it cannot be seen" in capsys.readouterr().out
