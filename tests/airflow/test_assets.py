"""A volume's event: once for each new version, however many tries that took."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.airflow.embedded.result import RunResult
from muster.volumes.folder import FolderStore

Run = Callable[..., RunResult]
Write = Callable[..., None]

STEPS = """
import os
import signal
from pathlib import Path

def make(rows: Path, seen: str) -> dict[str, float]:
    (rows / "rows").write_text("1")
    if not Path(seen).exists():
        Path(seen).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"count": 1}
"""

LOST = """
JobOperator(
    task_id="make", image="python", entrypoint="{name}.steps:make", resources=SMALL, max_restarts=0,
    outputs={{"rows": "{name}/rows"}}, params={{"seen": "{seen}"}}, retries=1, retry_delay=0.0,
)
"""

TORN = """
from airflow.sdk.exceptions import AirflowException
from pathlib import Path

class Torn(JobOperator):
    def perform(self, context):
        result = super().perform(context)
        if context["ti"].try_number == 1:
            raise AirflowException("the process died after its job had ended")
        return result

Path("{seen}").touch()
Torn(
    task_id="make", image="python", entrypoint="{name}.steps:make", resources=SMALL,
    outputs={{"rows": "{name}/rows"}}, params={{"seen": "{seen}"}}, retries=1, retry_delay=0.0,
)
"""


MAPPED = """
JobOperator.partial(
    task_id="make", image="python", entrypoint="{name}.steps:write", resources=SMALL,
).expand(outputs=[{{"rows": "{name}/one"}}, {{"rows": "{name}/two"}}])
"""

TWICE = """
JobOperator(
    task_id="make", image="python", entrypoint="{name}.steps:both", resources=SMALL,
    outputs={{
        "april": Output(volume="{name}/rows", partition="2013-04"),
        "may": Output(volume="{name}/rows", partition="2013-05"),
    }},
)
"""

WRITES = """
from pathlib import Path

def write(rows: Path) -> None:
    (rows / "rows").write_text("1")

def both(april: Path, may: Path) -> None:
    write(april)
    write(may)
"""


def events(uri: str) -> list[dict[str, Any]]:
    """What the events of one asset carry, oldest first."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(AssetEvent).where(AssetEvent.asset_id == AssetModel.id, AssetModel.uri == uri)
        return [dict(event.extra) for event in session.scalars(query.order_by(AssetEvent.id))]


@pytest.mark.parametrize(
    ("body", "jobs"),
    [(LOST, 2), pytest.param(TORN, 1, marks=pytest.mark.nightly)],  # that one in CI on Airflow 3.4
    ids=["job_retried", "result_taken"],
)
def test_a_version_is_announced_once(
    body: str, jobs: int, write_dag: Write, dag_folder: Path, run: Run, store: FolderStore, tmp_path: Path
) -> None:
    write_dag(body.format(name=dag_folder.name, seen=tmp_path / "seen"), steps=STEPS)
    before = set(store.ledger.jobs())
    assert run().state == "success"
    assert len(set(store.ledger.jobs()) - before) == jobs
    (version,) = store.versions(f"{dag_folder.name}/rows")
    (extra,) = events(f"volume://{dag_folder.name}/rows")
    assert (extra["version"], extra["digest"]) == (version.address, version.digest)
    assert extra["metrics"] == {"count": 1.0}
    assert run().state == "success"
    newest = store.versions(f"{dag_folder.name}/rows")[-1]
    assert [each["version"] for each in events(f"volume://{dag_folder.name}/rows")] == [
        version.address,
        newest.address,
    ]


@pytest.mark.nightly  # in CI on Airflow 3.4
def test_each_instance_of_a_mapped_task_announces_what_it_wrote_alone(
    write_dag: Write, dag_folder: Path, run: Run, store: FolderStore
) -> None:
    write_dag(MAPPED.format(name=dag_folder.name), steps=WRITES)
    assert run().state == "success"
    for volume in (f"{dag_folder.name}/one", f"{dag_folder.name}/two"):
        (version,) = store.versions(volume)
        assert [each["version"] for each in events(f"volume://{volume}")] == [version.address]


@pytest.mark.nightly  # in CI on Airflow 3.4
def test_two_outputs_of_one_volume_are_one_event_of_both(
    write_dag: Write, dag_folder: Path, run: Run, store: FolderStore
) -> None:
    write_dag(TWICE.format(name=dag_folder.name), steps=WRITES)
    assert run().state == "success"
    (extra,) = events(f"volume://{dag_folder.name}/rows")
    assert sorted(extra["versions"]) == [each.address for each in store.versions(f"{dag_folder.name}/rows")]
