"""Debian's chromium for the tests, unpacked below the cache: nothing is installed, root is not needed.

Looked for in this order: the program that ``MUSTER_CHROMIUM`` names, a chromium on PATH, what lies
unpacked in ``$MUSTER_CACHE/chromium/VERSION`` (``~/.cache/muster`` unless set) and starts here, and
last Debian's own package with the libraries that this machine lacks, fetched by apt (about 100 MB).

To look at a page: ``python -m tests.browser.chromium --screenshot URL FILE.png``
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from muster.core.settings import Settings

PATIENCE = 120_000  # milliseconds, as Playwright counts; a page of Airflow's takes seconds on a busy machine
PACKAGES = (
    "chromium-headless-shell",
    "fonts-dejavu-core",
    "fonts-liberation",
    "libatomic1",  # of Playwright's own program
    "libstdc++6",
)
ON_PATH = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PROGRAM = "usr/lib/chromium/chromium-headless-shell"
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir>{root}/usr/share/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{root}/fonts</cachedir>
  <alias><family>sans-serif</family><prefer><family>Liberation Sans</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>Liberation Mono</family></prefer></alias>
</fontconfig>
"""


_LIBRARIES = "LD_LIBRARY_PATH"


class NoChromium(Exception):
    """No chromium starts here; says why, and what to do."""


@dataclass(frozen=True)
class Chromium:
    """A chromium that starts here, and the variables that it needs to."""

    program: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def starts(self) -> bool:
        """Whether it says its version."""
        try:
            asked = subprocess.run(
                [self.program, "--version"],
                env={**os.environ, **self.variables},
                capture_output=True,
                timeout=120,
            )
        except OSError:
            return False
        return asked.returncode == 0

    @contextmanager
    def browser(self) -> Iterator[Browser]:
        """A headless browser. It has no sandbox: it sees nothing but pages of this machine, and may be root."""
        with self._found_libraries():
            playwright = sync_playwright().start()
        try:
            browser = playwright.chromium.launch(
                executable_path=self.program,
                env={**os.environ, **self.variables},
                chromium_sandbox=False,
                timeout=PATIENCE,
            )
            yield browser
            browser.close()
        finally:
            playwright.stop()

    @contextmanager
    def _found_libraries(self) -> Iterator[None]:
        """Let Playwright's program, which is started meanwhile, find what was unpacked and this machine lacks."""
        before = os.environ.get(_LIBRARIES)
        ours = self.variables.get(_LIBRARIES, "")
        if ours:
            os.environ[_LIBRARIES] = f"{before}:{ours}" if before else ours
        try:
            yield
        finally:
            if ours and before is None:
                del os.environ[_LIBRARIES]
            elif before is not None:
                os.environ[_LIBRARIES] = before


def find() -> Chromium:
    """Return a chromium that starts; raise NoChromium where there is none and none can be had."""
    named = os.environ.get("MUSTER_CHROMIUM")
    if named:
        chromium = Chromium(Path(named))
        if not chromium.starts:
            raise NoChromium(f"MUSTER_CHROMIUM is {named}, which does not start: name a chromium that does")
        return chromium
    cache = Settings.load(os.environ).cache / "chromium"
    return _first(_on_path()) or _first(_unpacked(cache)) or _fetch(cache)


def _first(chromiums: Iterator[Chromium]) -> Chromium | None:
    return next((chromium for chromium in chromiums if chromium.starts), None)


def _on_path() -> Iterator[Chromium]:
    for name in ON_PATH:
        program = shutil.which(name)
        if program:
            yield Chromium(Path(program))


def _unpacked(cache: Path) -> Iterator[Chromium]:
    for root in sorted(cache.glob("[0-9]*"), reverse=True):
        folders = sorted({path.parent for path in root.glob("**/lib/*-linux-gnu*/**/*.so*")})
        variables = {
            _LIBRARIES: ":".join(map(str, folders)),
            "FONTCONFIG_FILE": str(root / "fonts.conf"),
        }
        yield Chromium(root / PROGRAM, variables)


def _fetch(cache: Path) -> Chromium:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise NoChromium(
            "no chromium on PATH, and no apt-get to fetch Debian's with: install chromium, "
            "or set MUSTER_CHROMIUM to the program"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        chromium = _first(_unpacked(cache)) or _unpack(cache)
    if not chromium.starts:
        raise NoChromium(f"{chromium.program} was fetched and does not start: run it, or set MUSTER_CHROMIUM")
    return chromium


def _unpack(cache: Path) -> Chromium:
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as made:
        root = Path(made) / "root"
        archives = _download(Path(made))
        for archive in archives:
            _run("dpkg-deb", "-x", str(archive), str(root))
        home = cache / next(path.name.split("_")[1] for path in archives if path.name.startswith(PACKAGES[0]))
        (root / "fonts.conf").write_text(FONTS.format(root=home))
        shutil.rmtree(home, ignore_errors=True)  # it was there, and did not start
        root.rename(home)
    return next(_unpacked(cache))


def _download(work: Path) -> list[Path]:
    """Have apt fetch the packages and what they need beyond what is installed, with lists of our own."""
    for folder in ("lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    ours = ("-o", f"Dir::State::Lists={work}/lists", "-o", f"Dir::Cache={work}/cache")
    apt = ("apt-get", "-qq", *ours, "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=")
    _run(*apt, "update")
    _run(*apt, "install", "--yes", "--download-only", "--reinstall", "--no-install-recommends", *PACKAGES)
    return sorted((work / "cache" / "archives").glob("*.deb"))


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise NoChromium(
            f"no chromium on PATH, and Debian's cannot be fetched: {' '.join(words[:1] + words[-len(PACKAGES) :])} "
            f"ended with {done.returncode}: {done.stderr.strip()[-500:]}. Install chromium, or set MUSTER_CHROMIUM"
        )


def screenshot(url: str, file: Path, *, width: int = 1280, height: int = 900) -> None:
    """Open `url`, wait until it loads nothing more, and write what is seen to `file`."""
    with find().browser() as browser:
        page = browser.new_page(viewport={"width": width, "height": height})
        page.goto(url, wait_until="networkidle")
        page.screenshot(path=file)


if __name__ == "__main__":
    words = argparse.ArgumentParser(prog="python -m tests.browser.chromium")
    words.add_argument("--screenshot", nargs=2, metavar=("URL", "FILE"), required=True)
    url, file = words.parse_args().screenshot
    screenshot(url, Path(file))
