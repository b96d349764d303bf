"""What forks Airflow's processes forks none where a fork would not be what a program is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

HEAD = """
    import os, sys, threading, time
    from pathlib import Path
    from muster.ext.up import component, preload
    from muster.ext.up.home import UpHome
    from muster.core.settings import Settings

    component.main = lambda words: print(words)
    home = UpHome(settings=Settings(home=Path("home").absolute(), cache=Path("cache")), dags=Path(), port=1)
    home.make()
"""


def said(folder: Path, body: str) -> list[str]:
    """Run a program that would fork, in a process that has no thread."""
    command = [sys.executable, "-c", dedent(HEAD) + dedent(body)]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    return ran.stdout.splitlines()


def test_it_forks_until_what_it_has_read_is_another(tmp_path: Path) -> None:
    body = """
        read = Path("read.py")
        read.touch()
        origin = preload.PreloadedAirflow([read])
        with open("log", "wb") as log:
            print(origin.fork(["scheduler"], log.fileno()).wait())
            os.utime(read, (time.time() + 5, time.time() + 5))
            print(origin.fork(["scheduler"], log.fileno()))
            read.unlink()
            print(origin.fork(["scheduler"], log.fileno()))
    """
    assert said(tmp_path, body) == ["0", "None", "None"]
    assert (tmp_path / "log").read_text() == "['scheduler']\n"


def test_it_does_not_fork_beside_a_thread(tmp_path: Path) -> None:
    body = """
        end = threading.Event()
        threading.Thread(target=end.wait).start()
        print(preload.PreloadedAirflow([]).fork(["scheduler"], 1))
        end.set()
    """
    assert said(tmp_path, body) == ["None"]


def test_an_airflow_that_cannot_be_imported_is_left_to_a_program_which_says_why(tmp_path: Path) -> None:
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "__init__.py").write_text("print('what it says')\nraise SystemExit('no good')\n")
    body = """
        print(preload.preload(home))
        print(os.environ["AIRFLOW_HOME"] == str(home.root))
    """
    assert said(tmp_path, body) == ["None", "True"]
    assert "what it says" in (tmp_path / "home" / "up" / "logs" / "imports.log").read_text()


def test_an_airflow_of_another_home_is_not_forked(tmp_path: Path) -> None:
    body = """
        import types
        sys.modules["airflow"] = types.ModuleType("airflow")
        print(preload.preload(home))
        print(os.environ.get("AIRFLOW_HOME") == str(home.root))
    """
    assert said(tmp_path, body) == ["None", "False"]


def test_an_airflow_that_starts_threads_when_it_is_imported_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "__init__.py").write_text("raise SystemExit('no good')\n")
    body = """
        for section in ("metrics", "traces"):
            (home.root / "airflow.cfg").write_text(f"[{section}]\\notel_on = True\\n")
            print(preload.preload(home), home.log("imports").exists())
        (home.root / "airflow.cfg").write_text("[metrics]\\notel_on = False\\n")
        print(preload.preload(home), home.log("imports").exists())
    """
    assert said(tmp_path, body) == ["None False", "None False", "None True"]
