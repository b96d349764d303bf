"""An Airflow whose processes do not stay alive ends with the reason, not with patience."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sys
import threading
from configparser import ConfigParser
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from tests.ports import free_port

from muster.core.errors import Conflict, MusterError, SpecError
from muster.core.locks import locked
from muster.core.settings import Settings
from muster.ext.up import site
from muster.ext.up.components import Component
from muster.ext.up.home import UpHome, has_own
from muster.ext.up.site import FoundDags


class Said:
    """An audience that remembers."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        pass

    def warning(self, text: str, lines: list[str]) -> None:
        self.warnings.append(text)

    def ready(self, home: UpHome, found: FoundDags, *, new_password: bool) -> None:
        raise AssertionError("it never was")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A home without a database, whose processes end as soon as they have begun."""
    (tmp_path / "dags").mkdir()
    monkeypatch.setattr(UpHome, "prepare", lambda _self: True)
    monkeypatch.setattr(site, "served", lambda *_: nullcontext())
    monkeypatch.setattr(site, "preload", lambda _home: None)
    monkeypatch.setattr(site, "COMPONENT", (sys.executable, "-S", "-c", "raise SystemExit('no such table')"))
    monkeypatch.setattr(site, "Component", partial(Component, longest_pause_seconds=0.01))
    monkeypatch.setattr(site, "LOOK_SECONDS", 0.02)
    return Settings(home=tmp_path / ".muster", cache=tmp_path / "cache")


def test_what_never_stays_alive_ends_all_of_it_with_the_end_of_its_log(
    settings: Settings, tmp_path: Path
) -> None:
    said, before = Said(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(MusterError, match="does not stay alive") as raised:
        site.run(dags=tmp_path / "dags", port=free_port(), audience=said, settings=settings)
    assert "no such table" in str(raised.value)
    assert any("ended with exit code 1: it is started again" in text for text in said.warnings)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_what_cannot_be_started_again_is_tried_again_like_what_died(
    settings: Settings, tmp_path: Path
) -> None:
    class Away(Said):
        """The logs are taken away once a program has died."""

        def warning(self, text: str, lines: list[str]) -> None:
            super().warning(text, lines)
            shutil.rmtree(settings.home / "up" / "logs", ignore_errors=True)

    said = Away()
    with pytest.raises(MusterError, match="does not stay alive"):
        site.run(dags=tmp_path / "dags", port=free_port(), audience=said, settings=settings)
    assert any("cannot be started ([Errno 2]" in text for text in said.warnings)


def test_metrics_that_never_stay_alive_end_nothing_else(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are there all the time: what ends it is the signal that a person sends."""
    here = threading.get_ident()
    monkeypatch.setattr(site, "COMPONENT", (sys.executable, "-S", "-c", "import time; time.sleep(600)"))
    monkeypatch.setattr(site, "METRICS", (sys.executable, "-S", "-c", "raise SystemExit('no store')"))

    class Patient(Said):
        def warning(self, text: str, lines: list[str]) -> None:
            super().warning(text, lines)
            if len(self.warnings) == site.EARLY_DEATHS + 3:
                # To this thread: it alone blocks the signal, and a worker of pytest-xdist has others.
                signal.pthread_kill(here, signal.SIGTERM)

    said = Patient()
    site.run(
        dags=tmp_path / "dags", port=free_port(), metrics_port=free_port(), audience=said, settings=settings
    )
    assert len(said.warnings) >= site.EARLY_DEATHS + 3
    assert all(text.startswith("metrics ended with exit code 1") for text in said.warnings), said.warnings


def test_a_port_for_metrics_that_is_taken_is_said_with_the_option(settings: Settings, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Conflict, match=f"port {port} of .* name another one, such as --metrics-port"):
            site.run(
                dags=tmp_path / "dags",
                port=free_port(),
                metrics_port=port,
                audience=Said(),
                settings=settings,
            )


def test_one_home_has_one_airflow(settings: Settings, tmp_path: Path) -> None:
    home = UpHome(settings=settings, dags=tmp_path / "dags", port=free_port())
    home.make()
    with locked(home.lock), pytest.raises(MusterError, match="is up already"):
        site.run(dags=home.dags, port=home.port, audience=Said(), settings=settings)


def test_nothing_of_another_airflow_reaches_its_processes(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {
        "AIRFLOW_HOME": "/other",
        "AIRFLOW_CONFIG": "/other/airflow.cfg",
        "AIRFLOW__API__HOST": "0.0.0.0",
    }
    for name, text in {**other, "AIRFLOW_CONN_S3": "aws://", "NO_PROXY": "example.com"}.items():
        monkeypatch.setenv(name, text)
    home = UpHome(settings=settings, dags=tmp_path / "dags", port=1)
    environment = home.environment()
    airflows = {name: text for name, text in environment.items() if name.startswith("AIRFLOW_")}
    assert airflows == {"AIRFLOW_HOME": str(home.root), "AIRFLOW_CONN_S3": "aws://"}
    assert environment["NO_PROXY"] == "example.com,127.0.0.1"


def test_settings_of_ones_own_win_and_are_checked(tmp_path: Path) -> None:
    (tmp_path / "100% mine").mkdir()
    home = UpHome(
        settings=Settings(home=tmp_path, cache=tmp_path), dags=tmp_path / "100% mine", port=free_port()
    )
    home.make()
    own = home.root / "own.cfg"
    own.write_text("[muster]\ninline_wait = 1\n[core]\nparallelism = 3\n")
    assert home.prepare()
    assert not home.prepare()
    written = ConfigParser()
    written.read(home.root / "airflow.cfg")
    assert written["core"]["parallelism"] == "3"
    assert written["muster"]["inline_wait"] == "1"
    assert written["core"]["dags_folder"] == str(home.dags)
    assert len(home.password()) >= 16
    bundles = {
        each["name"]: each["kwargs"]
        for each in json.loads(written["dag_processor"]["dag_bundle_config_list"])
    }
    assert list(bundles) == ["dags-folder", "muster"]
    assert (Path(bundles["muster"]["path"]) / "dag.py").is_file()
    own.write_text("parallelism = 3\n")
    with pytest.raises(SpecError, match=r"own\.cfg is not in the form of an airflow\.cfg"):
        home.prepare()
    own.unlink()
    home.passwords.write_text("{}")
    with pytest.raises(SpecError, match=r"passwords\.json does not hold admin as JSON any more: delete it"):
        home.prepare()


def test_a_file_that_cannot_be_read_names_no_maintenance(tmp_path: Path) -> None:
    (tmp_path / "a.py").symlink_to("/proc/self/mem")  # is there, may be opened, and fails as it is read
    assert not has_own(tmp_path)
    (tmp_path / "b.py").write_text("muster_maintenance")
    assert has_own(tmp_path)


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("", "[muster]\nmaintenance = False\n"),
        ("class MyClean(RetentionOperator): ...", ""),
        ("", "[dag_processor]\ndag_bundle_config_list = []\n"),
    ],
)
def test_a_project_may_have_maintenance_of_its_own_or_none(tmp_path: Path, file: str, own: str) -> None:
    (tmp_path / "dags" / "clean").mkdir(parents=True)
    (tmp_path / "dags" / "clean" / "dag.py").write_text(file)
    home = UpHome(settings=Settings(home=tmp_path, cache=tmp_path), dags=tmp_path / "dags", port=free_port())
    home.make()
    (home.root / "own.cfg").write_text(own)
    home.prepare()
    written = ConfigParser()
    written.read(home.root / "airflow.cfg")
    assert "muster_maintenance" not in written.get("dag_processor", "dag_bundle_config_list", fallback="")
    (home.root / "own.cfg").write_text("[muster]\nmaintenance = perhaps\n")
    with pytest.raises(SpecError, match=r"maintenance under .muster. is 'perhaps': write True or False"):
        home.prepare()
