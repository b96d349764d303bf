"""``muster up``: all of Airflow's processes come, come back, and leave together."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from tests.ports import free_port
from tests.site import COMPONENTS, Site
from tests.unit.ext.metrics.conftest import Values, values
from tests.waiting import GUARD_SECONDS, until

import muster
from muster.airflow.embedded.cleaning import MARKER
from muster.backends.local.processes import Process
from muster.ext.metrics.table import MetricsPart
from muster.volumes.base import UpkeepKind
from muster.volumes.folder import FolderStore

HELLO = """
    from datetime import datetime
    from airflow.sdk import dag, task

    @dag(schedule=None, start_date=datetime(2024, 1, 1), params={"name": "world"})
    def hello():
        @task
        def greet(params):
            print(f"hello {params['name']}")
            return params["name"]

        greet()

    hello()
"""

SLOW = """
    from datetime import datetime
    from pathlib import Path
    from airflow.sdk import dag
    from muster.airflow import JobOperator, Resources

    GO = Path(__file__).parents[2] / "go"

    @dag(schedule=None, start_date=datetime(2024, 1, 1))
    def slow():
        JobOperator(
            task_id="wait", image="python", entrypoint="slow.steps:wait", params={"go": str(GO)}, retries=0,
            resources=Resources(cpus=0.2, memory_gib=0.2),
        )

    slow()
"""
STEPS = """
    import os
    import time

    def wait(*, go: str) -> None:
        while not os.path.exists(go):
            time.sleep(0.1)
"""


METRICS = free_port()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    others = tmp_path_factory.mktemp("another") / "airflow.cfg"  # whose settings are none of ours
    others.write_text("[core]\ndags_folder = /nowhere\n[api]\nhost = 0.0.0.0\n")
    with Site(tmp_path_factory.mktemp("site"), paused=True, AIRFLOW_CONFIG=str(others)) as site:
        site.write("hello", HELLO)
        site.write("slow", SLOW, steps=STEPS)
        site.write(
            "scheduled", HELLO.replace("hello", "scheduled").replace("schedule=None", "schedule='@hourly'")
        )
        site.write("broken", "from airflow.sdk import dag\nimport that_is_not_there\n")
        cleaned = site.home / "up" / MARKER
        cleaned.parent.mkdir(parents=True)
        cleaned.touch()
        os.utime(cleaned, (1, 1))
        site.up("--metrics-port", str(METRICS))
        yield site


def test_it_says_where_it_is_what_it_found_and_what_it_could_not_read(site: Site) -> None:
    said = site.log.read_text()
    assert f"Airflow is up at {site.url}" in said
    assert "Dags in" in said
    assert "hello" in said
    assert "that_is_not_there" in said
    assert site.password() in said


def test_new_dags_are_paused_and_it_says_which_and_how_they_are_started(site: Site) -> None:
    said = site.log.read_text()
    assert "Dags in " in said
    assert ": hello, scheduled, slow\n" in said
    assert "from muster: muster_maintenance, which ends what no task owns and deletes old versions" in said
    assert "paused: all of them: no schedule" in said
    assert "AIRFLOW_HOME=.muster/up " in said
    assert "airflow dags unpause hello" in said
    runs = site.ask_api("GET", "dags/~/dagRuns")["dag_runs"]
    assert [run["dag_id"] for run in runs if run["dag_id"] in ("scheduled", "muster_maintenance")] == []
    maintenance = next(check for check in site.ask("doctor")["checks"] if check["name"] == "maintenance")
    assert maintenance["state"] == "warn"
    assert "muster_maintenance is paused" in maintenance["found"]


def test_once_a_day_it_deletes_rows_and_logs_of_old_runs_and_says_so(site: Site) -> None:
    assert "rows and logs of runs that ended are deleted after 30 days" in site.log.read_text()
    cleaned, log = site.home / "up" / MARKER, site.home / "up" / "logs" / "cleaning.log"
    assert until(lambda: cleaned.stat().st_mtime > 1), site.log.read_text() + log.read_text()
    assert "dag_run" in log.read_text()


@pytest.mark.nightly
def test_what_a_person_started_stays_started(site: Site) -> None:
    run_id = site.trigger("muster_maintenance")
    assert site.wait("muster_maintenance", run_id) == "success"
    maintenance = next(check for check in site.ask("doctor")["checks"] if check["name"] == "maintenance")
    assert maintenance["state"] == "ok"


def test_nobody_is_let_in_without_the_password(site: Site) -> None:
    assert stat.S_IMODE((site.home / "up").stat().st_mode) == 0o700
    for name in ("passwords.json", "secrets.json", "airflow.cfg"):
        assert stat.S_IMODE((site.home / "up" / name).stat().st_mode) == 0o600
    assert httpx.get(f"{site.url}/api/v2/dags", timeout=GUARD_SECONDS, trust_env=False).status_code == 401
    assert httpx.get(f"{site.url}/auth/token", timeout=GUARD_SECONDS, trust_env=False).status_code == 403
    wrong = {"username": "admin", "password": "admin"}
    assert (
        httpx.post(f"{site.url}/auth/token", json=wrong, timeout=GUARD_SECONDS, trust_env=False).status_code
        == 401
    )


def test_its_processes_are_forks_of_one_that_has_no_thread_and_no_open_database(site: Site) -> None:
    program = Path(f"/proc/{site.pid}/cmdline").read_bytes()
    for name in COMPONENTS:
        pid = site.component(name)
        assert pid is not None
        assert Path(f"/proc/{pid}/environ").read_bytes() == Path(f"/proc/{site.pid}/environ").read_bytes()
        assert Path(f"/proc/{pid}/cmdline").read_bytes() != program
        assert os.getsid(pid) == pid
        assert str(site.home / "up" / "up.lock") not in _open_files(pid)
    assert len(list(Path(f"/proc/{site.pid}/task").iterdir())) == 1
    assert not _sockets(site.pid), "a connection to the database would be shared"


def test_metrics_are_beside_it_and_come_back_when_their_process_is_killed(site: Site) -> None:
    assert f"metrics for Prometheus are at http://127.0.0.1:{METRICS}/metrics" in site.log.read_text()
    before = _metrics()
    assert before["muster_build_info", "machine", muster.__version__] == 1
    asked = {part.value for part in MetricsPart} - {"keepers"}  # which are a cluster's
    assert {part: before["muster_scrape_success", part] for part in asked} == dict.fromkeys(asked, 1)
    notes = FolderStore(site.home / "store").upkept
    assert until(lambda: any(note.work is UpkeepKind.SWEEP for note in notes())), "no look of the triggerer"
    (serving,) = [pid for pid, words in site.airflow().items() if "muster metrics --serve" in words]
    os.kill(serving, signal.SIGKILL)
    assert until(lambda: "metrics was killed by SIGKILL: it is started again" in site.log.read_text())
    assert _metrics()["muster_scrape_success", "store"] == 1


def _metrics() -> Values:
    """Return what is served, once it is: its process may have just been started."""
    pages: list[str] = []

    def served() -> bool:
        with suppress(httpx.TransportError):
            pages.append(
                httpx.get(f"http://127.0.0.1:{METRICS}/metrics", timeout=GUARD_SECONDS, trust_env=False).text
            )
        return bool(pages)

    assert until(served)
    return values(pages[-1])


def test_only_loopback_is_listened_on(site: Site) -> None:
    inodes = {link.split("[")[1].rstrip("]") for pid in [site.pid, *site.airflow()] for link in _sockets(pid)}
    rows = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    listening = {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}
    assert listening == {"0100007F"}


def _sockets(pid: int) -> list[str]:
    try:
        return [link for link in _open_files(pid) if link.startswith("socket:")]
    except OSError:
        return []


def _open_files(pid: int) -> list[str]:
    return [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def test_a_dag_runs_when_it_is_triggered(site: Site) -> None:
    run_id = site.trigger("hello", {"name": "you"})
    assert site.wait("hello", run_id) == "success"
    assert site.xcom("hello", run_id, "greet") == "you"
    assert "hello you" in site.task_log("hello", run_id, "greet")


def test_the_port_and_the_home_are_one_airflows(site: Site) -> None:
    again = site.muster("up", "--port", str(site.port))
    assert again.returncode == 1
    assert f"is up already at {site.url}" in again.stderr
    elsewhere = Site(site.folder / "other")
    taken = elsewhere.muster("up", "--port", str(site.port))
    assert taken.returncode == 1
    assert f"port {site.port} of 127.0.0.1 cannot be used" in taken.stderr
    assert not (elsewhere.home / "up" / "postgres").exists()


@pytest.mark.parametrize("name", COMPONENTS)
def test_what_is_killed_comes_back(site: Site, name: str) -> None:
    before, below = site.component(name), site.below(name)
    assert before is not None
    os.kill(before, signal.SIGKILL)
    assert until(lambda: not any(map(Process.find, [before, *below])))
    assert until(lambda: site.component(name) not in (None, before))
    assert f"{name} was killed by SIGKILL: it is started again" in site.log.read_text()


def test_a_killed_worker_does_not_hold_up_the_others(site: Site) -> None:
    """By now each component was killed, too: a run shows that all work again."""
    assert site.wait("hello", site.trigger("hello")) == "success"
    os.kill(site.workers()[0], signal.SIGKILL)
    assert until(lambda: "scheduler lost a worker" in site.log.read_text())
    assert site.wait("hello", site.trigger("hello")) == "success"


def _ctrl_c(site: Site) -> None:
    assert site.stop(signal.SIGINT) == 0


def _kill(site: Site) -> None:
    os.kill(site.pid, signal.SIGKILL)
    assert until(lambda: not site.airflow()), site.airflow()


@pytest.mark.parametrize("ends", [_ctrl_c, pytest.param(_kill, marks=pytest.mark.nightly)])
def test_a_job_outlives_ctrl_c_and_kill_and_is_adopted_by_the_next_start(
    site: Site, ends: Callable[[Site], None]
) -> None:
    go = site.folder / "go"
    go.unlink(missing_ok=True)
    run_id = site.trigger("slow")
    assert until(site.running)
    (job_id,) = site.running()
    ends(site)
    assert site.of_job(job_id)
    site.up()
    assert site.log.read_text().count(site.password()) == 1  # shown when it was drawn
    go.touch()
    assert site.wait("slow", run_id) == "success"
    assert {job["job_id"]: job["state"] for job in site.ask("jobs", "ls")}[job_id] == "succeeded"
    assert site.task("slow", run_id, "wait")["max_tries"] == 0  # none of it cost a retry


def test_a_home_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with Site(tmp_path) as site:
        site.home.write_text("a file where a folder should be")
        refused = site.muster("up", "--port", str(site.port))
    assert refused.returncode == 1
    assert "cannot be written" in refused.stderr


def test_no_folder_of_dags_is_refused_at_once(tmp_path: Path) -> None:
    with Site(tmp_path) as site:
        refused = site.muster("up", "--dags", "nowhere")
    assert refused.returncode == 1
    assert "no folder of Dags at" in refused.stderr


def test_a_port_that_may_not_be_had_is_said(tmp_path: Path) -> None:
    with Site(tmp_path) as site, socket.create_server(("127.0.0.1", 0)) as listener:
        refused = site.muster("up", "--port", str(listener.getsockname()[1]))
    assert refused.returncode == 1
    assert "name another one, such as --port" in refused.stderr
