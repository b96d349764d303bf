"""A home that two releases use, each in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from muster.airflow.embedded.home import forget_airflow
from muster.core.settings import Settings

ROOT = Path(__file__).parents[3]
ACT = Path(__file__).with_name("act.py")


class Machine:
    """A home that both releases use; a release is ``earlier`` or ``this``."""

    def __init__(self, folder: Path, earlier: Path) -> None:
        self.folder = folder
        self.paths = {"earlier": str(earlier), "this": str(ROOT / "operators")}

    def act(self, release: str, act: str, *words: str, of: str = "act.py") -> Any:
        """Have a release do something; see act.py, or another file of such acts."""
        return self._answer(release, [str(ACT.with_name(of)), str(self.folder), act, *words])

    def ask(self, release: str, url: str, token: str, act: str, *, of: str = "ask.py") -> Any:
        """Have a release ask a store service; see ask.py and pod.py."""
        return self._answer(release, [str(ACT.with_name(of)), url, token, str(self.folder), act])

    def _answer(self, release: str, words: list[str]) -> Any:
        done = self.run(release, words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def command(self, release: str, *words: str, **variables: str) -> str:
        """Run ``muster`` of a release; what it printed."""
        done = self.run(release, ["-m", "muster", *words], **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def put(self, release: str, text: str) -> str:
        """Commit a version of two/rows that holds `text`; its address."""
        source = self.folder / f"source-{text}"
        source.mkdir()
        (source / "rows.csv").write_text(text)
        self.command(release, "volumes", "put", str(source), "two/rows")
        return str(self.act(release, "versions", "two/rows")[-1])

    def run(self, release: str, words: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python with a release on its import path."""
        return subprocess.run(
            [sys.executable, *words],
            env=self.environment(release) | variables,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def start(self, release: str, words: list[str], **variables: str) -> subprocess.Popen[bytes]:
        """The same, not waited for; its output is in service.log."""
        with (self.folder / "service.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *words],
                env=self.environment(release) | variables,
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )

    def environment(self, release: str) -> dict[str, str]:
        """The variables of a release's processes."""
        own = {**os.environ}
        forget_airflow(own)  # this release's settings, which name what an earlier one does not have
        return {
            **own,
            "PYTHONPATH": self.paths[release],
            "MUSTER_HOME": str(self.folder / "home"),
            "MUSTER_CACHE": str(Settings.load().cache),
        }
