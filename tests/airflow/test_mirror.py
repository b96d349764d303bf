"""MirrorOperator: what it refuses, and that it brings a mirror up on a schedule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.embedded.result import RunResult
from muster.core.errors import SpecError
from muster.ext.mirrors.folder import FolderHome
from muster.volumes.folder import FolderStore


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"target": ""}, "'copy', target: '': expected one line of text"),
        ({"target": "/m", "verify": 1}, "verify: 1: expected True or False"),
        ({"target": "/m", "target_conn_id": ""}, "target_conn_id: expected the id of an Airflow connection"),
    ],
)
def test_nonsense_is_refused_where_it_is_written(home: EmbeddedHome, given: Any, says: str) -> None:
    from muster.airflow import MirrorOperator

    with pytest.raises(SpecError, match=says):
        MirrorOperator(task_id="copy", **given)


def test_a_task_brings_the_mirror_up_and_fails_where_a_version_is_damaged(
    write_dag: Callable[..., None], run: Callable[..., RunResult], store: FolderStore, tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/a").write_text("1")
    version = store.add("mirrored/rows", tmp_path / "rows")
    write_dag(
        f"""
        from muster.airflow import MirrorOperator
        MirrorOperator(
            task_id="copy", target="{tmp_path}/mirror", volumes="{{{{ params.volumes }}}}", keep_deleted=True
        )
        """,
        params="{'volumes': ['mirrored/rows']}",
    )
    done = run()
    assert done.state == "success", done.stages
    there = FolderHome(FolderStore(tmp_path / "mirror")).holdings()
    assert {place: each.digest for place, each in there.items()} == {("mirrored/rows", 1): version.digest}


def test_a_connection_that_is_not_there_is_named_with_what_to_do(
    write_dag: Callable[..., None], run: Callable[..., RunResult], tmp_path: Path
) -> None:
    write_dag(
        f"""
        from muster.airflow import MirrorOperator
        MirrorOperator(task_id="copy", target="{tmp_path}/mirror", target_conn_id="nope")
        """
    )
    (copy,) = run().stages
    assert copy.message.splitlines()[1].startswith("there is no Airflow connection 'nope': make it"), (
        copy.message
    )
