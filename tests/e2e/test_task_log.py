"""Every cause of a verdict that one machine has, by a real fault under a whole Airflow: what the page shows, what is retried.

Beside these: a full disk in ``test_bad_input``, a lost supervisor in ``tests/contract/test_backend.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.e2e import faulty, hostile
from tests.e2e.test_bad_input import holding
from tests.site import Site
from tests.waiting import until

from muster.backends.local.machine import Machine

pytestmark = pytest.mark.slow

TOKEN = "q7Vd-2mXw-9KfT-w3Rb-c8Zy"

WAITING = """\
from datetime import timedelta

from airflow.sdk import dag

from muster.airflow import JobOperator, Resources


@dag(schedule=None, default_args={{"retries": 1, "retry_delay": timedelta(0)}})
def {name}():
    JobOperator(
        task_id="{name}", image="python", command=["sleep", "600"], resources=Resources(memory_gib={gib}),
        queue_timeout=timedelta(seconds={seconds}),
    )


{name}()
"""
# Per task: how many tries it cost, the cause of each of its jobs, and what its last four lines match.
VERDICTS: dict[str, tuple[int, list[str], str]] = {
    "user_error": (
        1,
        ["user error"],
        r"user error, rank 1\nValueError: row -1 is negative\nmend the code at faults/bad\.py:21 and clear the task",
    ),
    "killed": (
        2,
        ["rank lost", "rank lost"],
        r"rank lost, rank 1\nkilled by SIGKILL .*\nit was started as often as max_restarts allows: look for who",
    ),
    "grows": (
        1,
        ["out of memory"],
        r"out of memory, rank 1\nreplica main-1 used 0\.\d+ GiB, its limit is 0\.25 GiB\nraise memory_gib",
    ),
    "hangs": (
        1,
        ["hang"],
        r"hang\nno line and no progress for 6 s: rank 0 at faults/bad\.py:59, rank 1 at faults/bad\.py:63\nevery",
    ),
    "before": (
        1,
        [],
        r"spec error\ntask 'spec_error', entrypoint: faults/bad\.py:66 spec_error\(\): nothing is given for parameter 'epochs'; .*\nmend what the message",
    ),
    "diverged": (
        1,
        ["user error"],
        r"user error, rank \d\nmetric 'loss' is nan: need a finite number; check the loss .*\nmend the code",
    ),
    "missing_input": (
        1,
        [],
        r"not found\ninput 'features': no volume no/such.*\nsee what is there: muster volumes ls",
    ),
    "cancelled": (
        1,
        ["cancelled"],
        r"cancelled\n\w+ cancelled it with `muster jobs cancel`\nrun it again if that was not meant",
    ),
    "too_slow": (
        2,
        ["run timeout", "run timeout"],
        r"run timeout\nit ran longer than its run_timeout of 2 s\nraise the timeout, or find what takes",
    ),
    "too_big": (
        1,
        [],
        r"can never be scheduled\njob faults\.too_big asks for 200000 GiB .*\nask for less",
    ),
    "no_image": (
        2,
        ["image unavailable", "image unavailable"],
        r"image unavailable\nimage broken: .*\nsee uv's last lines in the log",
    ),
    "waits": (
        2,
        ["queue timeout", "queue timeout"],
        r"queue timeout\nit waited longer than .*: waiting for .* GiB of memory.*\nraise the timeout",
    ),
}


@dataclass(frozen=True)
class Ran:
    """The runs that hold every fault, and the jobs they made."""

    site: Site
    runs: dict[str, tuple[str, str]]
    jobs: dict[str, list[dict[str, Any]]]

    def tries(self, task: str) -> int:
        return int(self.site.task(*self.runs[task], task)["try_number"])

    def shown(self, task: str, try_number: int | None = None) -> list[str]:
        dag, run_id = self.runs[task]
        return faulty.shown(self.site, run_id, task, dag=dag, try_number=try_number or self.tries(task))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    most = 0.6 * Machine.here().memory_gib  # there is room for one such job, not for two
    with Site(tmp_path_factory.mktemp("faults"), MY_TOKEN=TOKEN) as site:
        faulty.write(site)
        hostile.write(site)
        site.write("holds", WAITING.format(name="holds", gib=most, seconds=3600))
        site.write("waits", WAITING.format(name="waits", gib=most, seconds=1))
        # Many tests at once: a scheduler that had no CPU for 20 s would take itself for dead, and each task would have another try.
        site.set("scheduler", scheduler_health_check_threshold=300, task_instance_heartbeat_timeout=300)
        site.up()
        words = site.trigger("hostile")
        misspelt = site.trigger("misspelt")
        faults = faulty.run(site)
        holds = site.trigger("holds")
        assert until(site.running)
        waits = site.trigger("waits")
        site.wait("waits", waits)
        (holder,) = site.running()
        site.muster("jobs", "cancel", holder)
        site.wait("holds", holds)
        site.wait("hostile", words)
        site.wait("misspelt", misspelt)
        runs = {
            task: (dag, run_id)
            for dag, run_id in (
                ("faults", faults),
                ("hostile", words),
                ("misspelt", misspelt),
                ("waits", waits),
            )
            for task in site.states(dag, run_id)
        }
        jobs: dict[str, list[dict[str, Any]]] = {}
        for job in site.ask("jobs", "ls", "-n", "100"):
            jobs.setdefault(job["name"].partition(".")[2], []).append(job)
        yield Ran(site=site, runs=runs, jobs=jobs)


@pytest.mark.parametrize("task", VERDICTS)
def test_a_fault_is_told_in_four_lines_and_retried_as_its_cause_says(ran: Ran, task: str) -> None:
    tries, causes, verdict = VERDICTS[task]
    assert [job["verdict"]["cause"] for job in ran.jobs.get(task, ())] == causes
    assert ran.tries(task) == tries
    lines = ran.shown(task)
    failed = next(i for i, line in enumerate(lines) if line.startswith("ERROR - Task failed with exception"))
    told = "\n".join(lines[failed + 1 :])
    assert re.match(rf"Failed(ForGood)?: {verdict}", told), "\n".join(lines)
    assert sum(line.startswith("    File ") for line in lines[failed:]) == 1
    at = next(i for i, line in enumerate(lines[failed:]) if line.startswith("    File "))
    assert at <= 5  # after the error's own line and four at most
    if causes:
        job = max(ran.jobs[task], key=lambda job: job["submitted"])
        log = rf"full log: muster jobs logs {job['job_id']}, or http://\S+/muster/#/jobs/{job['job_id']}"
        assert any(re.fullmatch(log, line) for line in lines[failed + 1 : failed + 5]), lines[failed:]


def test_the_last_20_lines_hold_the_authors_own_traceback(ran: Ran) -> None:
    last = "\n".join(ran.shown("user_error")[-20:])
    assert 'File "faults/bad.py", line 21, in check' in last
    assert "ValueError: row -1 is negative" in last


def test_a_rank_that_was_lost_costs_no_retry(ran: Ran) -> None:
    (job,) = ran.jobs["killed_once"]
    assert (job["state"], job["restarts"]) == ("succeeded", 1)
    assert ran.tries("killed_once") == 1
    assert all(job["restarts"] == 1 for job in ran.jobs["killed"])


def test_a_hang_shows_every_ranks_stack_before_each_end(ran: Ran) -> None:
    (job,) = ran.jobs["hangs"]
    assert job["restarts"] == 1
    shown = "\n".join(ran.shown("hangs"))
    first, _, second = shown.partition("the whole gang starts again from its checkpoint")
    for part in (first, second):
        assert re.search(r"\[rank 0\] .*bad\.py\", line 59 in gathers", part)
        assert re.search(r"\[rank 1\] .*bad\.py\", line 63 in waits", part)
    assert job["progress"] == {"epoch": {"value": 1.0, "total": 3.0}}


def test_nothing_is_left(ran: Ran) -> None:
    assert ran.site.is_clean()
    running = [job for job in ran.site.ask("jobs", "ls", "-n", "100") if not job["ended"]]
    assert running == []


def test_whatever_a_rank_writes_is_a_line_of_its_own_on_the_page(ran: Ran) -> None:
    lines = ran.shown("says")
    ranks = [line for line in lines if "[rank 0] " in line]
    assert max(map(len, lines)) < 2200
    assert all(line.replace("\t", " ").isprintable() for line in lines)
    assert any("characters more in the full log" in line for line in ranks)
    assert "INFO - [rank 0] : :group::all that follows" in lines  # Airflow would fold the rest away
    assert "INFO - [rank 0] red " in lines
    assert "INFO - [rank 0] <script>alert(1)</script>" in lines
    assert "INFO - [rank 0] [muster] the job has succeeded" in lines
    assert "INFO - [rank 0] full log: muster jobs logs somewhere-else" in lines
    assert ranks[-1] == f"INFO - [rank 0] {hostile.LAST}"


def test_progress_and_links_are_kept_where_they_are_sound(ran: Ran) -> None:
    (job,) = ran.jobs["says"]
    assert job["progress"] == {"epoch": {"value": 1.0, "total": 3.0}, "loss": {"value": 0.5, "total": None}}
    xcom = ran.site.xcom(*ran.runs["says"], "says")
    assert xcom["links"] == {
        "Tracking": hostile.GOOD,
        "Token": "https://tracking.example/?token=***",
        "***": "https://a.example/",
    }
    assert len(json.dumps(xcom)) < 1000


def test_a_flood_is_cut_and_what_is_left_out_is_said(ran: Ran) -> None:
    lines = ran.shown("floods")
    (job,) = ran.jobs["floods"]
    gaps = [line for line in lines if "left out; the full log: muster jobs logs " + job["job_id"] in line]
    left_out = sum(int(line.split()[3].replace(",", "")) for line in gaps)
    said = [line for line in lines if "of a flood" in line]
    assert left_out + len(said) == 200_000
    assert len(said) < 100_000, "so many lines a second are shown, of a machine that takes its time too"
    ends = lines.index(f"INFO - [rank 0] {hostile.LAST}")
    assert lines[ends - 1] == "INFO - [rank 0] line 199999 of a flood"
    full = ran.site.muster("jobs", "logs", job["job_id"]).stdout
    assert full.count("of a flood") == 200_000


def test_a_verdict_that_quotes_a_secret_masks_it_also_where_it_is_cut(ran: Ran) -> None:
    (job,) = ran.jobs["quotes"]
    assert job["verdict"]["cause"] == "user error"
    assert re.search(r"x\*{3}…?$", job["verdict"]["message"])
    told = [line.partition("INFO - ")[2] for line in ran.shown("quotes")]
    assert not any(line.startswith("[muster] the job has succeeded") for line in told)


def test_a_secret_is_in_no_file(ran: Ran) -> None:
    """Logs of tasks and of Airflow, XCom in the database, records, ledger: half of it would tell too much."""
    assert holding(ran.site.home, [TOKEN[: len(TOKEN) // 2]]) == []
