"""Images as a real builder makes them: two builds are one image, and what is in it runs for any user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster import __version__

pytestmark = pytest.mark.soak

BASE = "localhost/debian-python:bookworm"
PACKAGES = "python3,python3-venv,ca-certificates,libgomp1,libstdc++6"
ANY_USER, OF_GROUP_0 = "12345:12345", "12345:0"  # Airflow's folder is its group's, as in Airflow's own image
AIRFLOW = """
from airflow.providers_manager import ProvidersManager
from muster.airflow import GangOperator
print(GangOperator.__name__, *(name for name in ProvidersManager().providers if "muster" in name))
"""
# What its log groomer does in its first round.
GROOM = """
mkdir -p logs/dag=gone && touch -d "20 days ago" logs/old.log && touch logs/new.log
timeout 5 /clean-logs; echo left: $(ls /opt/airflow/logs).
"""

Command = Callable[..., str]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Runs a command that sees images of ours alone, on a base that was made from packages of Debian."""
    missing = [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]
    if missing or os.geteuid():
        pytest.skip(f"needs root, and of Debian's packages {', '.join(missing) or 'no more'}")
    folder = tmp_path_factory.mktemp("storage")
    settings = folder / "storage.conf"
    settings.write_text(
        f'[storage]\ndriver = "overlay"\nrunroot = "{folder}/run"\ngraphroot = "{folder}/graph"\n'
    )
    environ = {**os.environ, "CONTAINERS_STORAGE_CONF": str(settings), "TMPDIR": str(folder)}

    def run(*words: str, **more: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, env={**environ, **more}, check=False)
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout.strip()

    archive = str(folder / "base.tar")
    include = (f"--include={PACKAGES}", "--dpkgopt=path-exclude=/usr/share/doc/*")
    run("mmdebstrap", "--variant=essential", *include, "bookworm", archive, SOURCE_DATE_EPOCH="0")
    container = run("buildah", "from", "scratch")
    run("buildah", "add", container, archive, "/")
    run("buildah", "commit", "--timestamp=0", container, BASE)
    try:
        yield run
    finally:
        run("buildah", "rm", "--all")
        run("buildah", "rmi", "--all", "--force")


@pytest.fixture(scope="module")
def build(command: Command) -> Callable[[str], dict[str, Any]]:
    """Builds an image by the command ``muster``, and returns what that says of it."""
    muster = str(Path(sys.executable).with_name("muster"))

    def built(name: str) -> dict[str, Any]:
        (image,) = json.loads(
            command(muster, "images", "build", name, "--container", "--base", BASE, "--json")
        )["images"]
        return dict(image)

    return built


@pytest.mark.parametrize("name", ["python", "seldon", "muster"])
def test_two_builds_are_one_image(build: Callable[[str], dict[str, Any]], name: str) -> None:
    assert build(name) == build(name)


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("python", ("python3", "-c", "import os; print(os.getuid())"), "12345"),
        ("muster", ("muster", "--version"), __version__),
        # by the way in that the probes of Airflow's own chart take
        ("airflow", ("/entrypoint", "python3", "-c", AIRFLOW), "GangOperator airflow-provider-muster"),
        ("airflow", ("sh", "-c", GROOM), "left: new.log."),
        ("serve", ("python3", "-c", "from muster_serving import server; print(server.__name__)"), "server"),
        (
            "kserve",
            ("python3", "-c", "from muster_serving import kserve_server; print(kserve_server.kserve)"),
            "kserve",
        ),
    ],
)
def test_what_is_in_an_image_runs_for_anybody(
    command: Command, build: Callable[[str], dict[str, Any]], name: str, words: tuple[str, ...], said: str
) -> None:
    container = command("buildah", "from", build(name)["reference"])
    try:
        user = OF_GROUP_0 if name == "airflow" else ANY_USER
        run = ("buildah", "run", "--isolation=chroot", f"--user={user}", "--env=HOME=/tmp")
        assert said in command(*run, container, "--", *words)
    finally:
        command("buildah", "rm", container)
