"""The AIRFLOW_HOME of ``muster up``: its settings, secrets, first user and database.

All settings are in its ``airflow.cfg``, so ``AIRFLOW_HOME=.muster/up airflow …`` in another terminal is
the same Airflow. It is written at each start; the user's ``own.cfg`` beside it overrides it. Only the owner
may enter the folder: its secrets give access to the Airflow.
"""

from __future__ import annotations

import base64
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from configparser import Error as ConfigParserError, RawConfigParser
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from muster.airflow.embedded import cleaning
from muster.airflow.embedded.home import EmbeddedHome, forget_airflow
from muster.airflow.site import kept_name
from muster.core.errors import SpecError
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.ext.up.postgres import Postgres
from muster.volumes.durability import write_whole

_DAG_ID = "muster_maintenance"
_OWN_BUNDLE = "dags-folder"  # Airflow's own name for the folder of Dags
BUNDLE = "muster"
_LOCAL = "airflow.dag_processing.bundles.local.LocalDagBundle"
_OF_MAINTENANCE = (_DAG_ID, "RetentionOperator")


def _wants_maintenance(options: RawConfigParser, dags: Path) -> bool:
    """Whether Airflow reads muster's own Dag: not if the project has one, or if it is turned off.

    :param options: Airflow's settings, including the user's own.
    :raises SpecError: ``maintenance`` under ``[muster]`` is neither true nor false.
    """
    try:
        on = options.getboolean("muster", "maintenance", fallback=True)
    except ValueError as error:
        raise SpecError(
            f"maintenance under [muster] is {options['muster']['maintenance']!r:.40}: write True or False"
        ) from error
    return on and not options.has_option("dag_processor", "dag_bundle_config_list") and not has_own(dags)


def _bundles() -> str:
    """Airflow's ``dag_bundle_config_list``: the folder of Dags, and muster's own Dag beside it."""
    folders: dict[str, dict[str, str]] = {_OWN_BUNDLE: {}, BUNDLE: {"path": str(shipped("dags") / _DAG_ID)}}
    return json.dumps([{"name": name, "classpath": _LOCAL, "kwargs": path} for name, path in folders.items()])


def has_own(dags: Path) -> bool:
    """Whether a Dag file of the project holds the maintenance Dag's name, or that of the retention operator."""
    return any(
        word in _text(file) for file in dags.rglob("*.py") if file.is_file() for word in _OF_MAINTENANCE
    )


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it is gone by now, or not readable, by Airflow neither
        return ""


ADDRESS = "127.0.0.1"
USER = "admin"
_PRIVATE = 0o600
_BOUNDED = (("sql_alchemy_connect_args", "PATIENCE"), ("sql_alchemy_connect_args_async", "PATIENCE_ASYNC"))
_CONN = ("sql_alchemy_conn", "sql_alchemy_conn_cmd", "sql_alchemy_conn_secret")
_NO_PORT = 9  # port of the log servers that are not started; below 1024, so no other user can listen there


@dataclass(frozen=True, kw_only=True)
class UpHome:
    """One AIRFLOW_HOME below MUSTER_HOME, and the address of its Airflow.

    :param dags: the folder of its Dags.
    :param metrics_port: where metrics are served for Prometheus; 0: nowhere.
    :param database: the address of a database for Airflow, as SQLAlchemy writes it; empty: that of ``own.cfg``, else one of its own.
    """

    settings: Settings
    dags: Path
    port: int
    metrics_port: int = 0
    database: str = ""

    @property
    def root(self) -> Path:
        """AIRFLOW_HOME."""
        return self.settings.home / "up"

    @property
    def lock(self) -> Path:
        """The lock file that the ``muster up`` of this home holds."""
        return self.root / "up.lock"

    @property
    def url(self) -> str:
        """The address of its pages and its API."""
        return f"http://{ADDRESS}:{self.port}"

    @property
    def metrics_url(self) -> str:
        """The address of the metrics; empty where none are served."""
        return f"http://{ADDRESS}:{self.metrics_port}/metrics" if self.metrics_port else ""

    @property
    def passwords(self) -> Path:
        """The file of users and passwords, as JSON: ``{"admin": "…"}``."""
        return self.root / "passwords.json"

    @property
    def postgres(self) -> Postgres:
        """Its own database."""
        return Postgres(folder=self.root / "postgres", log=self.log("postgres"))

    def log(self, component: str) -> Path:
        """The log of one of its processes."""
        return self.root / "logs" / f"{component}.log"

    def password(self) -> str:
        """The first user's password."""
        return _kept(self.passwords, _draw_password)[USER]

    def names_database(self) -> bool:
        """Whether a person names Airflow's database. :raises SpecError: two different ones."""
        parser = RawConfigParser()
        self._read_own(parser)
        own = {name: parser["database"][name] for name in _CONN if parser.has_option("database", name)}
        if len(own) > 1:
            raise SpecError(
                f"{self.root / 'own.cfg'} names Airflow's database under {' and '.join(own)}: leave one of them out"
            )
        if own and self.database and [*own.values()] != [self.database]:
            raise SpecError(
                f"--database names one database, and {self.root / 'own.cfg'} another under {next(iter(own))}: leave one of them out"
            )
        return bool(own or self.database)

    def configured_database(self) -> str:
        """The address of Airflow's database, as :meth:`prepare` wrote it; empty where ``own.cfg`` says only how to learn it."""
        return self._written().get("database", "sql_alchemy_conn", fallback="").replace("%%", "%")

    def configured_url(self) -> str:
        """The address of the Airflow whose settings are written here; empty where none are."""
        return self._written().get("api", "base_url", fallback="")

    def _written(self) -> RawConfigParser:
        parser = RawConfigParser()
        parser.read(self.root / "airflow.cfg", encoding="utf-8")
        return parser

    def run_days(self) -> float:
        """How many days after its begin an ended run's rows and logs are deleted, as :meth:`prepare` wrote it; 0: never."""
        return self._written().getfloat("muster", "run_days", fallback=cleaning.DAYS)

    def exports(self) -> bool:
        """Whether Airflow sends metrics or traces by OpenTelemetry, as :meth:`prepare` wrote it."""
        written = self._written()
        return any(
            written.get(section, "otel_on", fallback="").strip().lower() in ("t", "true", "1")
            for section in ("metrics", "traces")
        )

    def auth_manager(self) -> str:
        """The auth manager that ``own.cfg`` names, whose users are not :attr:`passwords`'; empty where it names none."""
        parser = RawConfigParser()
        self._read_own(parser)
        named = parser.get("core", "auth_manager", fallback="")
        return "" if named.endswith(".SimpleAuthManager") else named

    def make(self) -> None:
        """Create the folder, which only its owner may enter.

        :raises SpecError: there is no folder of Dags, or the home cannot be written.
        """
        EmbeddedHome(settings=self.settings, dags=self.dags).check()
        try:
            self.settings.make_home()
            self.root.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o700)
            (self.root / "logs").mkdir(exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def prepare(self) -> bool:
        """Write the settings and secrets; return whether the password is new.

        :raises SpecError: the home cannot be written, or ``own.cfg`` contradicts itself or :attr:`database`.
        """
        named = self.names_database()
        try:
            kept = _kept(self.root / "secrets.json", _draw_secrets)
            fresh = not self.passwords.exists()
            _kept(self.passwords, _draw_password)
            self._write_options(kept, named=named)
        except OSError as error:
            raise self._unwritable(error) from error
        return fresh

    def environment(self) -> dict[str, str]:
        """The environment of its processes: this shell's variables, without those of another Airflow."""
        environment = dict(os.environ)
        forget_airflow(environment)
        direct = ",".join(
            part for part in (os.environ.get("no_proxy", os.environ.get("NO_PROXY")), ADDRESS) if part
        )
        return environment | {
            "AIRFLOW_HOME": str(self.root),
            "MUSTER_HOME": str(self.settings.home),
            "MUSTER_CACHE": str(self.settings.cache),
            "NO_PROXY": direct,
            "no_proxy": direct,  # programs that read both prefer this one
            "PYTHONUNBUFFERED": "1",
            "SPT_NOENV": "1",  # else a changed process title overwrites the process's environment
        }

    def options(self) -> dict[str, dict[str, str]]:
        """Airflow's settings by section, for one machine and one person."""
        return {
            "core": {
                "dags_folder": str(self.dags),
                "load_examples": "False",
                "executor": "LocalExecutor:muster.ext.up.waking.LocalExecutor",
                "parallelism": str(max(4, os.cpu_count() or 1)),
                "dags_are_paused_at_creation": "True",
                "dagbag_import_error_traceback_depth": "50",
                "hostname_callable": "muster.ext.up.home.hostname",
                "execution_api_server_url": f"{self.url}/execution/",
                "simple_auth_manager_users": f"{USER}:admin",
                "simple_auth_manager_passwords_file": str(self.passwords),
            },
            "database": {
                "sql_alchemy_conn": self.database or self.postgres.url,
                "load_default_connections": "False",
            },
            "api": {"host": ADDRESS, "port": str(self.port), "base_url": self.url, "workers": "1"},
            "scheduler": {
                "batch_asset_events": "True",  # as Airflow 3.3 does without it: what comes close together is one run
                # One that is late by more takes its own running tasks away. It is the only one, and its predecessor is buried
                # for certain, so that a busy machine is the one reason to be late.
                "scheduler_health_check_threshold": "300",
                "orphaned_tasks_check_interval": "10",
                "task_instance_heartbeat_timeout": "20",
                "task_instance_heartbeat_timeout_detection_interval": "5",
            },
            "workers": {
                "min_heartbeat_interval": "2",  # a task learns this soon that it was marked failed
                # Retry for a minute or two, every few seconds, while the API server starts.
                "execution_api_timeout": "30",
                "execution_api_retries": "40",
                "execution_api_retry_wait_max": "3",
            },
            "triggerer": {"triggerer_health_check_threshold": "20"},
            "dag_processor": {"refresh_interval": "10"},
            "logging": {
                "base_log_folder": str(self.root / "logs"),
                "dag_processor_child_process_log_directory": str(self.root / "logs" / "dag_processor"),
                "colored_console_log": "False",
                "secret_mask_adapter": "muster.core.masking.forms",
                "worker_log_server_port": str(_NO_PORT),
                "trigger_log_server_port": str(_NO_PORT),
            },
            "usage_data_collection": {"enabled": "False"},
            "muster": {
                "instance": f"{kept_name(self.settings)}-up",  # `muster run` is another Airflow
                "plan_on_page": "True",  # all its processes are one person's, Dags included
                # A server that `muster up` does not own is cleaned only if own.cfg sets run_days.
                "run_days": "0" if self.names_database() else f"{cleaning.DAYS:g}",
            },
        }

    def _write_options(self, kept: Mapping[str, str], *, named: bool) -> None:
        options = self.options()
        if named and not self.database:  # Airflow would take this before a command or a secret
            del options["database"]["sql_alchemy_conn"]
        options["core"]["fernet_key"] = kept["fernet"]
        options["api"]["secret_key"] = kept["pages"]
        options["api_auth"] = {"jwt_secret": kept["tokens"]}
        parser = RawConfigParser()
        for section, values in options.items():
            parser[section] = {name: value.replace("%", "%%") for name, value in values.items()}
        self._read_own(parser)
        database = parser["database"]
        if named and database.get("sql_alchemy_conn", "").startswith("postgresql"):
            for name, bound in _BOUNDED:
                database.setdefault(name, f"muster.ext.up.postgres.{bound}")
        if parser["core"]["executor"] == options["core"]["executor"]:  # it is the one that waits
            parser["scheduler"].setdefault("scheduler_idle_sleep_time", "0")
        _check_days(parser["muster"]["run_days"])
        if _wants_maintenance(parser, self.dags):
            parser["dag_processor"]["dag_bundle_config_list"] = _bundles().replace("%", "%%")
        text = StringIO()
        parser.write(text)
        write_whole(self.root / "airflow.cfg", text.getvalue(), mode=_PRIVATE)

    def _read_own(self, parser: RawConfigParser) -> None:
        own = self.root / "own.cfg"
        try:
            parser.read(own, encoding="utf-8")
        except (ConfigParserError, UnicodeDecodeError) as error:
            raise SpecError(f"{own} is not in the form of an airflow.cfg: {error}") from error

    def _unwritable(self, error: OSError) -> SpecError:
        return SpecError(f"MUSTER_HOME {self.settings.home} cannot be written: {error}")


def _check_days(text: str) -> None:
    """Refuse what is no number of days. :raises SpecError: it says what is needed."""
    try:
        if 0 <= float(text) < math.inf:
            return
    except ValueError:
        pass
    raise SpecError(
        f"run_days under [muster] is {text!r:.40}: write a number of days, such as 30; 0 keeps all"
    )


def hostname() -> str:
    """Name this machine for Airflow, without asking a name server."""
    return "localhost"


def _draw_secrets() -> dict[str, str]:
    return {
        "fernet": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "pages": secrets.token_urlsafe(32),
        "tokens": secrets.token_urlsafe(64),
    }


def _draw_password() -> dict[str, str]:
    return {USER: secrets.token_urlsafe(12)}


def _kept(path: Path, draw: Callable[[], dict[str, str]]) -> dict[str, str]:
    """Return the content of a private file, drawn and written on first use.

    :raises SpecError: it was changed.
    """
    drawn = draw()
    if not path.exists():
        write_whole(path, json.dumps(drawn) + "\n", mode=_PRIVATE)
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {name: str(kept[name]) for name in drawn}
    except (ValueError, TypeError, KeyError) as error:
        raise SpecError(
            f"{path} does not hold {' and '.join(drawn)} as JSON any more: delete it, and it is made anew"
        ) from error
