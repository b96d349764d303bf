"""The Dag of the page on releasing in which a person decides, and what that person does."""

from __future__ import annotations

import re

from tests.docs.page import DOCS, File, steps
from tests.site import Site
from tests.waiting import eventually

WAITS = ("awaiting_input",)  # the state of the task ``approve`` meanwhile


def careful(name: str) -> str:
    """Return the Dag for a deployment: held for a second, and not judged by a busy machine's clock."""
    (file,) = [
        step
        for step in steps(DOCS / "howto" / "release.md")
        if isinstance(step, File) and "ApprovalOperator" in step.text
    ]
    text = file.text.replace("minutes=10", "seconds=1").replace('name="price"', f'name="{name}"')
    text = text.replace("import DeployOperator,", "import Rules, DeployOperator,")
    return text.replace("smoke=None,", "smoke=None, rules=Rules(max_p95_ratio=None),")


def answer(site: Site, run_id: str, choice: str) -> None:
    """Do what a person does on Airflow's page. :param choice: ``Approve`` or ``Reject``.

    The answer comes only after the scheduler has heard that the process which asked is gone: else Airflow 3.3.2 takes
    the end of that process for the end of the task, and fails it (apache/airflow#72716 is of the same family).
    """
    heard = re.compile(
        rf"TaskInstance Finished: dag_id=careful, task_id=approve, run_id={re.escape(run_id)},.* executor_state=success,"
    )
    scheduler = site.home / "up" / "logs" / "scheduler.log"
    eventually(lambda: heard.search(scheduler.read_text()))
    path = f"dags/careful/dagRuns/{run_id}/taskInstances/approve/-1/hitlDetails"
    site.ask_api("PATCH", path, json={"chosen_options": [choice], "params_input": {}})
