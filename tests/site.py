# ruff: noqa: A005 it is tests.site, and hides no module
"""A whole Airflow in a test: ``muster up`` on a free port of loopback, in a folder of its own, asked over its API.

A module that needs one starts it once, with its Dags already written (Airflow looks for new files
every ten seconds)::

    @pytest.fixture(scope="module")
    def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
        with Site(tmp_path_factory.mktemp("site")) as site:
            site.write("hello", DAG)  # dags/hello/dag.py
            site.up()
            yield site


    def test_it_runs(site: Site) -> None:
        run_id = site.trigger("hello", {"name": "you"})
        assert site.wait("hello", run_id) == "success"

Leaving the context ends everything that has to do with the folder, jobs included. Mark such a module
``slow``; a start takes about ten seconds.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping
from configparser import ConfigParser, RawConfigParser
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg2
from tests.e2e.author import MUSTER, Author
from tests.ports import free_port
from tests.waiting import GUARD_SECONDS, until

from muster.backends.local.processes import children, descendants
from muster.volumes.folder import FolderStore

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")
USER = "admin"
_FORKS = ("muster up: ", "airflow ")  # what they call themselves: the kernel shows their parent's variables
_OURS_NOT_AIRFLOWS = ("muster.backends.local", "spawn_early")  # supervisors of jobs and deployments


class Site(Author):
    """An author who works with Airflow's pages; everything else is an :class:`Author`'s.

    :ivar port: where its Airflow answers.
    :ivar log: what ``muster up`` says.
    :param paused: leave it as ``muster up`` is: new Dags are paused, until :meth:`trigger` starts them, and
        muster's own maintenance is among them. Else the Dags that are written run from the start, and they alone.
    """

    def __init__(self, folder: Path, *, paused: bool = False, **environment: str) -> None:
        super().__init__(folder, **environment)
        (folder / "dags").mkdir(parents=True, exist_ok=True)
        self.paused = paused
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=GUARD_SECONDS, trust_env=False)
        self._up: subprocess.Popen[bytes] | None = None

    def __exit__(self, *details: object) -> None:
        self.client.close()
        super().__exit__(*details)

    # its life

    def set(self, section: str, **options: object) -> None:
        """Set options of Airflow's, before :meth:`up`: ``site.set("muster", inline_wait=0)``."""
        own, settings = self.home / "up" / "own.cfg", RawConfigParser()
        own.parent.mkdir(parents=True, exist_ok=True)
        settings.read(own)
        settings.read_dict({section: options})
        with own.open("w") as file:
            settings.write(file)

    def up(self, *words: str, metrics: bool = True, seconds: float = 120) -> None:
        """Start ``muster up`` and return when it says that all of it is up.

        :param metrics: whether this release knows ``--metrics-port``; without that word none are served.
        """
        if not self.paused:
            self.set("core", dags_are_paused_at_creation=False)
            self.set("dag_processor", min_file_process_interval=600)  # what is written anew is read at once
            self.set("muster", maintenance=False)
        said = self.log.stat().st_size if self.log.exists() else 0
        none = ("--metrics-port", "0") if metrics and "--metrics-port" not in words else ()
        self._up = self.start("up", "--port", str(self.port), *none, *words)
        ready = until(
            lambda: b"Airflow is up at" in self.log.read_bytes()[said:] or self._up.poll() is not None,
            seconds=seconds,
        )
        assert ready, f"not up after {seconds} s: {self.log.read_text()[-4000:]}"
        assert self._up.poll() is None, self.log.read_text()[-4000:]
        self.log_in()

    @property
    def pid(self) -> int:
        """The process of ``muster up`` itself."""
        assert self._up is not None
        return self._up.pid

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send ``muster up`` a signal and return its exit code, after all of its Airflow is gone."""
        assert self._up is not None
        self._up.send_signal(number)
        code = self._up.wait(timeout=GUARD_SECONDS)
        assert until(lambda: not self.airflow()), self.airflow()
        return code

    # its processes

    def airflow(self) -> dict[int, str]:
        """Every process of its Airflow, and not the supervisors of muster's jobs and deployments."""
        return {
            pid: words
            for pid, words in self.processes().items()
            if (words.startswith(_FORKS) or f"AIRFLOW_HOME={self.home / 'up'}".encode() in _environ(pid))
            and not any(mark in words for mark in _OURS_NOT_AIRFLOWS)
            and b"MUSTER_JOB_ID=" not in _environ(pid)
        }

    def component(self, name: str) -> int | None:
        """The process of one of :data:`COMPONENTS` now; None while it is being started again."""
        marks = {"api-server": ("muster up: api-server", "airflow api_server")}.get(
            name, (f"muster up: {name}",)
        )
        return next((p for p in children(self.pid) if any(mark in _words(p) for mark in marks)), None)

    def workers(self) -> list[int]:
        """LocalExecutor's processes, busy ones and idle ones."""
        scheduler = self.component("scheduler")
        return [] if scheduler is None else children(scheduler)

    def tasks(self) -> list[int]:
        """The processes in which tasks run now."""
        return [child for worker in self.workers() for child in children(worker)]

    def below(self, name: str) -> list[int]:
        """All that one component began."""
        pid = self.component(name)
        return [] if pid is None else descendants(pid)

    def of_job(self, job_id: str) -> list[int]:
        """The workers and ranks of one of muster's jobs."""
        return [pid for pid in self.processes() if f"MUSTER_JOB_ID={job_id}".encode() in _environ(pid)]

    # its API

    def log_in(self, user: str = USER) -> None:
        """Have :attr:`client` send the user's token from here on."""
        answer = self.client.post("/auth/token", json={"username": user, "password": self.password(user)})
        assert answer.status_code == 201, answer.text
        self.client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"

    def password(self, user: str = USER) -> str:
        """What a user logs in with."""
        return str(json.loads((self.home / "up" / "passwords.json").read_text())[user])

    def ask_api(self, method: str, path: str, **options: Any) -> Any:
        """Return the JSON that ``/api/v2`` answers, once it does: a component may be starting again."""
        answer: httpx.Response | None = None

        def answered() -> bool:
            nonlocal answer
            try:
                answer = self.client.request(method, f"/api/v2/{path.lstrip('/')}", **options)
            except httpx.TransportError:
                return False
            return answer.status_code < 500

        assert until(answered), f"{method} {path}: {answer and answer.text}"
        assert answer is not None
        assert answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def trigger(
        self, dag_id: str, conf: Mapping[str, Any] | None = None, *, run_id: str | None = None
    ) -> str:
        """Begin a run, once the Dag is known, and return its id."""
        assert until(lambda: dag_id in self.dags()), f"there are {self.dags()}"
        if self.paused:  # as the page's form does
            self.ask_api("PATCH", f"dags/{dag_id}", json={"is_paused": False})
        body = {"logical_date": None, "conf": dict(conf or {})} | ({"dag_run_id": run_id} if run_id else {})
        return str(self.ask_api("POST", f"dags/{dag_id}/dagRuns", json=body)["dag_run_id"])

    def airflow_command(self, *words: str) -> None:
        """Run ``airflow WORDS`` against this Airflow to its end, which is a good one."""
        environment = self.environment | {"AIRFLOW_HOME": str(self.home / "up")}
        command = [MUSTER.with_name("airflow"), *words]
        ran = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]

    def backfill(
        self,
        dag_id: str,
        first: str,
        last: str,
        *,
        at_once: int = 2,
        seconds: float = 300,
        on_page: bool = False,
        again: bool = False,
    ) -> list[dict[str, Any]]:
        """Backfill from one date to another by Airflow's own command; return the runs once all have ended.

        :param on_page: do what the page does, which takes less.
        :param again: clear the runs that there are.
        """
        behavior = "completed" if again else "none"
        if on_page:
            dates = {"from_date": f"{first}T00:00:00Z", "to_date": f"{last}T00:00:00Z"}
            asked = {"dag_id": dag_id, "max_active_runs": at_once, "reprocess_behavior": behavior}
            self.ask_api("POST", "backfills", json={**asked, **dates})
        else:
            self.airflow_command(
                *("backfill", "create", "--dag-id", dag_id, "--from-date", first, "--to-date", last),
                *("--max-active-runs", str(at_once), "--reprocess-behavior", behavior),
            )
        runs: list[dict[str, Any]] = []

        def ended() -> bool:
            begun = self._known("SELECT state FROM dag_run WHERE dag_id=%s AND run_type='backfill'", dag_id)
            if not begun or not {*begun} <= {"success", "failed"}:
                return False
            asked = {"run_type": "backfill", "limit": 100}
            runs[:] = self.ask_api("GET", f"dags/{dag_id}/dagRuns", params=asked)["dag_runs"]
            made = self.ask_api("GET", "backfills", params={"dag_id": dag_id})["backfills"]
            return all(run["state"] in ("success", "failed") for run in runs) and all(
                each["completed_at"]
                for each in made  # a moment after its runs; until then there can be no other
            )

        assert until(ended, seconds=seconds), runs
        return sorted(runs, key=lambda run: str(run["logical_date"]))

    def dags(self) -> set[str]:
        """The Dags that Airflow has read so far."""
        return {dag["dag_id"] for dag in self.ask_api("GET", "dags", params={"limit": 100})["dags"]}

    def run_state(self, dag_id: str, run_id: str) -> str:
        """The state of a run now."""
        return str(self.ask_api("GET", f"dags/{dag_id}/dagRuns/{run_id}")["state"])

    def wait(self, dag_id: str, run_id: str, *, seconds: float = 180) -> str:
        """Return how a run ended."""
        look = "SELECT state FROM dag_run WHERE dag_id=%s AND run_id=%s"
        ended = until(
            lambda: (
                self._known(look, dag_id, run_id)[:1] in (["success"], ["failed"])
                and self.run_state(dag_id, run_id) in ("success", "failed")
            ),
            seconds=seconds,
        )
        assert ended, (
            f"{run_id} is {self.run_state(dag_id, run_id)} after {seconds} s: {self.states(dag_id, run_id)}"
        )
        return self.run_state(dag_id, run_id)

    def task(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> dict[str, Any]:
        """A task instance as the API shows it: its ``state``, ``try_number`` and so on."""
        mapped = f"/{map_index}" if map_index >= 0 else ""
        found = self.ask_api("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}{mapped}")
        return dict(found)

    def states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """The state of each task of a run; mapped ones as ``task[3]``."""
        found = self.ask_api("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {
            ti["task_id"] + (f"[{ti['map_index']}]" if ti["map_index"] >= 0 else ""): str(ti["state"])
            for ti in found
        }

    def wait_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        states: Collection[str] = ENDED,
        *,
        map_index: int = -1,
        seconds: float = 120,
    ) -> dict[str, Any]:
        """Return a task instance once it is in one of `states`."""
        found: dict[str, Any] = {}
        # Airflow 3.3 and 3.4 name the column of map_index differently, and a state of another index costs one question more.
        look = "SELECT state FROM task_instance WHERE dag_id=%s AND run_id=%s AND task_id=%s"

        def there() -> bool:
            nonlocal found
            if found and not {*self._known(look, dag_id, run_id, task_id)} & {*states}:
                return False
            found = self.task(dag_id, run_id, task_id, map_index=map_index)
            return str(found["state"]) in states

        assert until(there, seconds=seconds), (
            f"{task_id} is {found.get('state')}, not {states}, after {seconds} s"
        )
        return found

    def _known(self, look: str, *of: str) -> list[str]:
        """What Airflow's database says at a look: to ask the API over and over takes a tenth of a core."""
        with suppress(psycopg2.OperationalError), self.database() as database:  # it may be starting again
            database.execute(look, of)
            return [str(state) for (state,) in database]
        return []

    @contextmanager
    def database(self) -> Iterator[Any]:
        """A cursor into Airflow's database, for what its API does not do."""
        config = ConfigParser()
        config.read(self.home / "up" / "airflow.cfg")
        url = config["database"]["sql_alchemy_conn"].replace("+psycopg2", "")
        with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
            yield cursor

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Do what the page's *Mark as …* does: ``success``, ``failed`` or ``skipped``."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        self.ask_api("PATCH", path, json={"new_state": state})

    def mark_run(self, dag_id: str, run_id: str, state: str) -> None:
        """Do what the page's *Mark run as …* does."""
        self.ask_api("PATCH", f"dags/{dag_id}/dagRuns/{run_id}", json={"state": state})

    def end_runs(self) -> None:
        """End every run that goes on, and its jobs: a test that failed would disturb those after it."""
        going = self.ask_api("GET", "dags/~/dagRuns", params={"state": ["queued", "running"], "limit": 100})
        for run in going["dag_runs"]:
            self.mark_run(run["dag_id"], run["dag_run_id"], "failed")
        ledger = FolderStore(self.home / "store").ledger
        assert until(lambda: all(each.state.ended for each in ledger.statuses(ledger.jobs()))), (
            "a job goes on"
        )

    def clear(self, dag_id: str, run_id: str, *task_ids: str) -> None:
        """Do what the page's *Clear* does."""
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": list(task_ids), "only_failed": False}
        self.ask_api("POST", f"dags/{dag_id}/clearTaskInstances", json=body | {"reset_dag_runs": True})

    def task_log(
        self, dag_id: str, run_id: str, task_id: str, *, try_number: int = 1, map_index: int = -1
    ) -> str:
        """The task log as the page shows it, a line for each event."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        shown = self.ask_api("GET", path, params={"map_index": map_index, "full_content": True})
        return "\n".join(_line(event) for event in shown["content"])

    def xcom(
        self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", *, map_index: int = -1
    ) -> Any:
        """What a task returned or pushed."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.ask_api("GET", path, params={"map_index": map_index, "deserialize": True})["value"]


def _line(event: Mapping[str, Any] | str) -> str:
    return event if isinstance(event, str) else str(event.get("event", ""))


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
