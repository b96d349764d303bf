"""``muster up``: an Airflow on loopback from its first process to its last, and metrics beside it."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import muster
from muster.airflow.embedded.cleaning import DAY_SECONDS, due_in
from muster.airflow.embedded.database import DATABASE, migrate_by
from muster.cli.foreground import check_port
from muster.core.errors import BackendError, MusterError, SpecError
from muster.core.interpreters import python_command
from muster.core.locks import locked, locked_if_free
from muster.core.settings import Settings
from muster.ext.up.component import CLEANING
from muster.ext.up.components import Component, stop
from muster.ext.up.home import ADDRESS, BUNDLE, USER, UpHome
from muster.ext.up.postgres import Postgres, check_answer, major_version
from muster.ext.up.preload import PreloadedAirflow, preload

# Requests to this machine use no proxy.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_PAGE = 100
_PATIENCE_SECONDS = 2.0  # short: Ctrl-C is not handled meanwhile


@dataclass(frozen=True, kw_only=True)
class FoundDags:
    """The Dags of the folder, as Airflow read them.

    :param errors: why a file cannot be imported, by file.
    :param shipped: Dags that came with muster.
    :param paused: Dags of both kinds whose schedule begins only when a person unpauses them.
    """

    dags: tuple[str, ...]
    errors: Mapping[str, str]
    shipped: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()


class Api:
    """The public REST API of one Airflow."""

    def __init__(self, home: UpHome) -> None:
        self._home = home
        self._token: str | None = None
        self._built = False

    def well(self, *, since: datetime) -> set[str]:
        """Return the components that answer; a heartbeat before `since` is of an earlier process.

        :raises OSError: there is no answer.
        """
        # the server builds its API at the first request, for seconds: the first task need not wait
        if not self._built:
            self._ask("/execution/health", token=None)
            self._built = True
        health = self._ask("/api/v2/monitor/health", token=None)
        return {"api-server"} | {
            name.replace("_", "-")
            for name in ("scheduler", "triggerer", "dag_processor")
            if health[name]["status"] == "healthy"
            and datetime.fromisoformat(health[name][f"latest_{name}_heartbeat"]) >= since
        }

    def found(self, *, since: datetime) -> FoundDags:
        """Return the Dags parsed since a moment, and the files that cannot be imported.

        :raises OSError: there is no answer.
        """
        if self._token is None:
            self._token = self._log_in()
        dags = self._ask(f"/api/v2/dags?limit={_PAGE}&exclude_stale=true", token=self._token)["dags"]
        errors = self._ask(f"/api/v2/importErrors?limit={_PAGE}", token=self._token)["import_errors"]
        read = sorted(
            (dag["dag_id"], dag["bundle_name"] == BUNDLE, bool(dag["is_paused"]))
            for dag in dags
            if _after(dag["last_parsed_time"], since)
        )
        return FoundDags(
            dags=tuple(dag_id for dag_id, shipped, _ in read if not shipped),
            shipped=tuple(dag_id for dag_id, shipped, _ in read if shipped),
            paused=tuple(dag_id for dag_id, _, paused in read if paused),
            errors={e["filename"]: e["stack_trace"] for e in errors if _after(e["timestamp"], since)},
        )

    def _log_in(self) -> str:
        body = {"username": USER, "password": self._home.password()}
        return str(self._ask("/auth/token", token=None, body=body)["access_token"])

    def _ask(self, path: str, *, token: str | None, body: Mapping[str, str] | None = None) -> Any:
        request = urllib.request.Request(  # noqa: S310 an address of ours
            self._home.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {token}"} if token else {}),
        )
        try:
            with _OPENER.open(request, timeout=_PATIENCE_SECONDS) as answer:
                return json.load(answer)
        except (HTTPException, ValueError) as error:  # the server was killed while it answered
            raise ConnectionError(f"{self._home.url}{path}: half an answer: {error!r}") from error


def _after(moment: str | None, since: datetime) -> bool:
    return moment is not None and datetime.fromisoformat(moment) >= since


_OWN_MIGRATION = "initdb(); from muster.ext.up.waking import install; install()"


@contextmanager
def served(home: UpHome, note: Callable[[str], None]) -> Iterator[Component | None]:
    """Have the home's database answer within the block; yield its server, None where it is not this home's.

    :param note: is told that there is a database of an earlier release, which is read no more.

    :raises SpecError: the data is not this release's, or cannot be written.
    :raises MusterError: it does not answer, or cannot be migrated.
    """
    if home.names_database():
        try:
            check_answer(home.configured_database())
            migrate_by("initdb()", home.environment())  # nothing of muster's: it is a person's
        except MusterError as error:
            raise MusterError(f"{error}: is it what --database or own.cfg should name?") from error
        yield None
        return
    with ExitStack() as opened:
        try:
            new = home.postgres.make(lambda: _template(home))
            if new and (earlier := home.root / DATABASE).exists():
                note(
                    f"Airflow's runs begin anew, in {home.postgres.folder}; earlier ones are in {earlier}: to go on with it, write "
                    f"sql_alchemy_conn = sqlite:///{earlier} under [database] in {home.root / 'own.cfg'}"
                )
            server = opened.enter_context(home.postgres.running())
            migrate(home, home.postgres)
        except OSError as error:
            raise SpecError(f"{home.postgres.folder} cannot be written: {error}") from error
        yield server


def migrate(home: UpHome, postgres: Postgres) -> None:
    """Bring a database to this release of Airflow, once."""
    marker = postgres.folder / f"migrated-{_release()}"
    if not marker.exists():
        migrate_by(_OWN_MIGRATION, home.environment(), url=postgres.url)
        marker.touch()


def _template(home: UpHome) -> Path:
    """Return a migrated, unused data folder from the cache, created if missing: both steps take seconds."""
    cache = home.settings.cache / "airflow"
    template = cache / f"postgres-{major_version()}-{_release()}"
    with locked(cache / "postgres.lock"):
        if not template.exists():
            for left in cache.glob(".postgres-*"):
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(dir=cache, prefix=".postgres-") as place:
                fresh = Postgres(folder=Path(place, "data"), log=Path(place, "log"))
                fresh.initialise()
                with fresh.running():
                    migrate(home, fresh)
                fresh.folder.replace(template)
    return template


def _release() -> str:
    return f"{version('apache-airflow')}-{muster.__version__}"


_HEALTHY_SECONDS = 45.0
EARLY_DEATHS = 3
LOOK_SECONDS = 0.5
_SETTLED_SECONDS = 3.0
_LONGEST_PARSE_SECONDS = 30.0
_TRIM_SECONDS = 60.0
COMPONENT = python_command("-m", "muster.ext.up.component")
METRICS = python_command("-m", "muster", "metrics", "--serve")
_STOPS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})

COMMANDS = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}


class Audience(Protocol):
    """Shows the progress of ``muster up``."""

    def note(self, text: str) -> None:
        """Something happened."""

    def warning(self, text: str, lines: list[str]) -> None:
        """Show a problem that is being mended; `lines` are the log's last ones, if they help."""

    def ready(self, home: UpHome, found: FoundDags, *, new_password: bool) -> None:
        """Show that all components are healthy and the Dags have been read."""


def run(
    *,
    dags: Path,
    port: int,
    audience: Audience,
    metrics_port: int = 0,
    database: str = "",
    settings: Settings | None = None,
) -> None:
    """Keep an Airflow running until SIGINT, SIGTERM or SIGHUP; none of its processes is left afterwards.

    Airflow's processes that die are restarted. If this process is killed, the kernel
    kills all of them. Jobs and deployments have supervisors of their own and go on.

    :param metrics_port: where metrics are served for Prometheus, on loopback too; 0: nowhere.
    :param database: Airflow's database, as SQLAlchemy writes its address; empty: that of ``own.cfg``, else a PostgreSQL of its own.
    :raises SpecError: no Dags, a home that cannot be written. :raises Conflict: a port is taken.
    :raises MusterError: this home has an Airflow already, or a process of it does not stay alive.
    """
    home = UpHome(
        settings=settings or Settings.load(),
        dags=dags.absolute(),
        port=port,
        metrics_port=metrics_port,
        # SQLAlchemy 2.1 means psycopg 3
        database=database.replace("postgresql://", "postgresql+psycopg2://", 1),
    )
    home.make()
    with locked_if_free(home.lock) as mine:
        if not mine:
            where = f" at {url}" if (url := home.configured_url()) else ""
            raise MusterError(
                f"an Airflow of {home.settings.home} is up already{where}: use that one, end it with "
                "Ctrl-C, or set MUSTER_HOME to another folder"
            )
        check_port(port)
        if metrics_port:
            check_port(metrics_port, option="--metrics-port")
        new_password = home.prepare()
        with served(home, audience.note) as server:
            origin = preload(home)
            with _signals_waited_for():
                _Site(home, audience, origin, server).run(new_password=new_password)


class _Site:
    """One running Airflow."""

    def __init__(
        self, home: UpHome, audience: Audience, origin: PreloadedAirflow | None, server: Component | None
    ) -> None:
        self._server = [] if server is None else [server]
        self._home = home
        self._audience = audience
        self._api = Api(home)
        environment = home.environment()
        self._components = [
            Component(
                name=name,
                command=[*COMPONENT, *words],
                log=home.log(name),
                environment=environment,
                fork=None if origin is None else partial(origin.fork, words),
            )
            for name, words in COMMANDS.items()
        ]
        if home.metrics_port:  # it is no part of Airflow: nothing waits for it
            command = [*METRICS, "--host", ADDRESS, "--port", str(home.metrics_port), "--airflow", home.url]
            log = home.log("metrics")
            self._components.append(
                Component(name="metrics", command=command, log=log, environment=environment)
            )
        self._began = time.monotonic()
        self._since = datetime.now(UTC)
        self._well: set[str] = set()
        self._warned = False
        self._trim = self._began + _TRIM_SECONDS
        self._cleaning = Component(
            name=CLEANING,
            command=[*COMPONENT, CLEANING],
            log=home.log(CLEANING),
            environment=environment,
            fork=None if origin is None else partial(origin.fork, [CLEANING]),
        )
        self._clean = self._began + due_in(home.root)

    def run(self, *, new_password: bool) -> None:
        try:
            for component in self._components:
                component.start()
            if self._become_healthy() and self._read_dags(new_password):
                while not _told_to_stop(LOOK_SECONDS):
                    self._look_after()
                    self._keep_clean()
            self._audience.note("stopping")
        finally:
            stop([*self._components, self._cleaning])

    def _become_healthy(self) -> bool:
        """Wait for every component; return whether all came before the stop."""
        while len(self._well) < len(COMMANDS):
            if _told_to_stop(LOOK_SECONDS):
                return False
            self._look_after()
            self._say_who_is_new()
            self._warn_if_late()
        return True

    def _say_who_is_new(self) -> None:
        try:
            now = self._api.well(since=self._since)
        except OSError:
            return
        for name in (name for name in COMMANDS if name in now - self._well):
            self._audience.note(f"{name} is well after {self._seconds():.1f} s")
        self._well |= now

    def _warn_if_late(self) -> None:
        if self._warned or self._seconds() < _HEALTHY_SECONDS:
            return
        self._warned = True
        missing = ", ".join(name for name in COMMANDS if name not in self._well)
        logs = self._components[0].log.parent
        self._audience.warning(f"still waiting for {missing} after {_HEALTHY_SECONDS:.0f} s; see {logs}", [])

    def _read_dags(self, new_password: bool) -> bool:
        """Wait until the folder has been read; return whether that came before the stop."""
        found, changed = FoundDags(dags=(), errors={}), time.monotonic()
        deadline = changed + _LONGEST_PARSE_SECONDS
        while time.monotonic() < min(changed + _SETTLED_SECONDS, deadline):
            if _told_to_stop(LOOK_SECONDS):
                return False
            self._look_after()
            now = self._found(found)
            if now != found:
                found, changed = now, time.monotonic()
        self._audience.ready(self._home, found, new_password=new_password)
        return True

    def _found(self, before: FoundDags) -> FoundDags:
        try:
            return self._api.found(since=self._since)
        except OSError:  # the API server has just died and is being restarted
            return before

    def _look_after(self) -> None:
        """Restart components that have died, and keep the logs small."""
        if time.monotonic() >= self._trim:
            self._trim = time.monotonic() + _TRIM_SECONDS
            for component in (*self._server, *self._components):
                component.trim_log()
        for component in (*self._server, *self._components):
            if (how := component.ended()) is not None:
                self._again(component, how)
            elif component.process is None and time.monotonic() >= component.due:
                self._start_again(component)
            elif component.name == "scheduler" and component.lost_worker():
                # It may have died with the lock of the queue that the others wait for.
                component.kill()
                self._again(component, "lost a worker")

    def _keep_clean(self) -> None:
        """Once a day, have rows and logs of old runs deleted."""
        if (how := self._cleaning.ended()) is not None:
            if how != "ended with exit code 0":
                what = f"rows and logs of old runs were not deleted, which is tried again in a day: {CLEANING} {how}"
                self._audience.warning(what, self._cleaning.tail())
            self._cleaning.process = None
        elif time.monotonic() >= self._clean and self._cleaning.process is None and self._home.run_days() > 0:
            self._clean = time.monotonic() + DAY_SECONDS
            self._cleaning.start()

    def _start_again(self, component: Component) -> None:
        try:
            component.start()
        except OSError as error:  # no process or file can be created now: try again later
            self._again(component, f"cannot be started ({error})")

    def _again(self, component: Component, how: str) -> None:
        pause = component.plan_restart()
        if component.deaths >= EARLY_DEATHS and component.name in COMMANDS.keys() - self._well:
            tail = "\n".join(component.tail())
            raise BackendError(
                f"{component.name} does not stay alive: it {how} {component.deaths} times; "
                f"{component.log} ends with:\n{tail}"
            )
        self._audience.warning(
            f"{component.name} {how}: it is started again in {pause:.0f} s",
            component.tail() if component.deaths >= EARLY_DEATHS else [],
        )

    def _seconds(self) -> float:
        return time.monotonic() - self._began


@contextmanager
def _signals_waited_for() -> Iterator[None]:
    """Block the signals that end this process, and SIGCHLD, so that they arrive only where this waits for them."""
    # A blocked signal stays pending even if it is ignored, so nohup must be checked.
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (_STOPS | {signal.SIGCHLD}) - ignored)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _told_to_stop(wait_seconds: float) -> bool:
    """Wait, or less if a child ends; return whether a signal asked for the end."""
    came = signal.sigtimedwait(_STOPS | {signal.SIGCHLD}, wait_seconds)
    return came is not None and came.si_signo in _STOPS
