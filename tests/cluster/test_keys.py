"""The page on keys, typed as it stands on the chart with Airflow, while a run waits for its gang."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.layout import Layout
from tests.cluster.test_backup import DOCS, NAMESPACE, asked, do, installed, parts
from tests.cluster.test_installing import empty

__all__ = ["empty"]

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]


def test_keys_are_changed_while_a_run_waits(
    empty: Layout, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    typed = parts(tmp_path, DOCS / "howto" / "keys.md", note="test_keys")

    def told(line: str) -> None:
        record_property("keys changed during a run: seconds of each command", line)

    with installed(empty, tmp_path, told) as (_, type_it):
        old = (tmp_path / "token").read_text()
        secret = {"connection_id": "site", "conn_type": "http", "password": "kept"}
        with asked(empty) as airflow:
            airflow.ask("POST", "connections", json=secret)
            run_id = airflow.trigger(rows=40, seconds=60)
        for step in typed:
            do(step, type_it)
        with asked(empty) as airflow:
            assert airflow.ended(run_id) == "success", airflow.tasks(run_id)
        assert (tmp_path / "token").read_text() != old
        type_it("kill %% && wait")
        type_it(f"kubectl port-forward --namespace {NAMESPACE} service/muster-store 8470:80 &")
        assert "two/model@1" in type_it("muster volumes log two/model")
        shown = type_it(
            f"kubectl exec --namespace {NAMESPACE} deployment/muster-airflow-scheduler --container scheduler -- "
            "python -m airflow connections get site --output json"
        )
        assert "kept" in shown
        (tmp_path / "token").write_text(old)
        said = type_it("muster volumes log two/model 2>&1 || true")
        assert "not one of this store service" in said
