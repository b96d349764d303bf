"""The same Dags, under Airflow, on the cluster: what differs from one machine is a file of settings."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import kubectl, left
from tests.cluster.author import served, write_file
from tests.cluster.inside import layout
from tests.cluster.layout import Layout
from tests.cluster.places import places, ran
from tests.e2e.author import MUSTER, Author, stages

pytestmark = [pytest.mark.cluster, pytest.mark.smoke]

ROOT = Path(__file__).parents[2]
MOST_SECONDS = 1800  # a training on a machine that other things share

DAG = """
    from datetime import datetime
    from airflow.sdk import Param, dag
    from muster.airflow import GangOperator, JobOperator, Resources

    SMALL = {"cpus": 0.1, "memory_gib": 0.25}

    @dag(
        schedule=None,
        start_date=datetime(2024, 1, 1),
        params={"rows": Param(10, type="integer"), "fail": Param(False, type="boolean")},
        default_args={"muster": {"image": "python"}},
    )
    def small() -> None:
        rows = JobOperator(
            task_id="rows",
            entrypoint="small.steps:rows",
            outputs={"table": "small/table"},
            params={"count": "{{ params.rows }}"},
            resources=Resources(**SMALL),
            pod_override={"spec": {"containers": [{"name": "base", "env": [{"name": "SEEN", "value": "{{ run_id }}"}]}]}},
        )
        GangOperator(
            task_id="train",
            entrypoint="small.steps:train",
            replicas=2,
            inputs={"table": rows.versions["table"]},
            outputs={"model": "small/model"},
            params={"fail": "{{ params.fail }}"},
            queue="team-a",
            priority="high",
            resources=Resources(**SMALL, gpus=1, gpu_class=("gpu-a100", "gpu-k80")),
        )

    small()
"""
STEPS = """
    import os
    import socket
    from pathlib import Path


    def rows(table: Path, *, count: int) -> dict[str, float]:
        print("seen", os.environ.get("SEEN", "nothing"))
        (table / "rows.csv").write_text("".join(f"{n}\\n" for n in range(count)))
        return {"rows": count}


    def train(table: Path, model: Path, *, fail: bool) -> dict[str, float]:
        total = sum(map(int, (table / "rows.csv").read_text().split()))
        print("on", socket.gethostname(), "of", os.environ["WORLD_SIZE"])
        if fail:
            raise ValueError("the tape is torn")
        if os.environ["RANK"] == "0":
            (model / "total").write_text(str(total))
        return {"total": total}
"""


@pytest.fixture(scope="module")
def here() -> Layout:
    return layout()


@pytest.fixture(scope="module")
def author(here: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Author]:
    """A person with the reference Dags, and a file that says which cluster they go to."""
    folder = tmp_path_factory.mktemp("author")
    shutil.copytree(ROOT / "dags", folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    with served(here):  # the token is signed with a key that is made there
        file = write_file(here, folder)
        with Author(folder, MUSTER_CLUSTER=str(file)) as author:
            author.write("small", DAG, steps=STEPS)
            yield author


def run(author: Author, *words: str) -> Any:
    """``muster run``'s document, however it ended; what it said goes to where pytest shows it."""
    done = subprocess.run(
        [MUSTER, "run", *words, "--json"],
        cwd=author.folder,
        env=author.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=MOST_SECONDS,
    )
    print(done.stderr[-20000:])
    assert done.stdout, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_a_dag_runs_on_the_cluster_and_leaves_nothing(here: Layout, author: Author) -> None:
    with places(here, author.folder / "places") as file:
        document = run(author, "small", "--param", "rows=20")
    assert document["state"] == "success", document
    done = stages(document)
    assert done["rows"]["metrics"] == {"rows": 20}
    assert done["train"]["metrics"] == {"total": 190}
    assert (
        author.ask("volumes", "show", done["train"]["versions"]["model"][0])["record"]["job_name"]
        == "small.train"
    )
    nodes = {stages(document)[name]["job_id"]: name for name in done}
    where = {nodes[job_id]: on for job_id, on in ran(file).items() if job_id in nodes}
    assert where["train"] <= {"a100-0", "a100-1"}, "new cards before old ones"
    assert where.keys() == {"rows", "train"}
    log = author.muster("jobs", "logs", done["rows"]["job_id"]).stdout
    assert f"seen {document['run_id']}" in log, "the override reached the pod, filled in"
    kubectl.until("nothing is left", lambda: not left.of_anybody(here))


def test_a_verdict_ends_the_tasks_log(here: Layout, author: Author) -> None:
    document = run(author, "small", "--param", "fail=true")
    assert document["state"] == "failed"
    message = stages(document)["train"]["message"]
    assert message.splitlines()[0] in ("user error, rank 0", "user error, rank 1"), "the first rank to fail"
    assert "ValueError: the tape is torn" in message
    kubectl.until("nothing is left", lambda: not left.of_anybody(here))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queue": "team-z"}, "team-z"),
        ({"claim": "elsewhere"}, "elsewhere"),
        ({"token_file": "nowhere"}, "token_file .*nowhere cannot be read"),
        ({"image_perfix": "x"}, "unknown setting 'image_perfix'"),
        pytest.param(
            {"store_url": "http://10.96.0.99"}, "10.96.0.99 does not answer", marks=pytest.mark.nightly
        ),  # a minute and a half; unit/cli/checks/test_cluster.py
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    here: Layout, author: Author, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    file = write_file(here, tmp_path, **change)
    done = subprocess.run(
        [MUSTER, "run", "small", "--json"],
        cwd=author.folder,
        env={**author.environment, "MUSTER_CLUSTER": str(file)},
        capture_output=True,
        text=True,
        check=False,
        timeout=MOST_SECONDS,
    )
    assert done.returncode == 1
    assert re.search(message, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert "rows: started" not in done.stderr
    assert not left.of_anybody(here)
