"""How extensions are found: an outsider's, two of one name, and what is no extension; and what none of it imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib
from tests.outsider.install import declare, install
from tests.waiting import GUARD_SECONDS

from muster.airflow.provider import get_provider_info
from muster.core import extensions
from muster.core.errors import SpecError
from muster.volumes.folder import FolderStore

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
OWN = set(PROJECT["entry-points"][extensions.GROUP])


@pytest.fixture(autouse=True)
def found_anew(tmp_path: Path) -> Iterator[None]:
    extensions.find.cache_clear()
    yield
    extensions.find.cache_clear()
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the import path."""
    monkeypatch.syspath_prepend(tmp_path / "outside")
    return tmp_path / "outside"


def muster(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Type a command where the folder's extensions are installed."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "MUSTER_HOME": str(folder / "home")}
    FolderStore(folder / "home" / "store")
    command = [sys.executable, "-m", "muster", *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=GUARD_SECONDS
    )


def test_an_outsiders_is_found_as_our_own_are(outside: Path) -> None:
    install(outside)
    assert set(extensions.extensions()) == {"counts", *OWN}
    assert extensions.problems() == ()
    assert extensions.added(lambda each: each.operators)["CountOperator"] == "counts.operator"
    options = get_provider_info()["config"]["muster"]["options"]
    assert options.keys() > {"most_counted", "plan_on_page", "plugin"}


def test_of_two_folders_the_first_on_the_path_has_the_distribution(
    outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout before an installed release: what Python imports is what counts."""
    install(outside)
    declare(tmp_path / "later", "counts", older="counts.older:EXTENSION")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "later"), str(tmp_path / "not_there")])
    assert set(extensions.extensions()) == {"counts", *OWN}


def test_what_is_no_extension_is_named_and_the_rest_is_found(outside: Path) -> None:
    hostile = {
        "raising": "raising:EXTENSION",
        "other": "os:sep",
        "lost": "nowhere.at.all:X",
        "nameless": "os",
    }
    install(outside, **hostile)
    (outside / "raising.py").write_text("raise SystemError('no')")
    declare(outside, "another", search="counts:EXTENSION")
    assert set(extensions.extensions()) == {"counts", *OWN}
    wrong = dict(zip(["lost", "nameless", "other", "raising", "search"], extensions.problems(), strict=True))
    assert all(f"the extension {name!r}" in text for name, text in wrong.items())
    assert "SystemError: no" in wrong["raising"]
    assert "it is a str, not a muster.core.extensions.Extension" in wrong["other"]
    assert "another extension has its name" in wrong["search"]
    assert all(
        text.endswith("upgrade the distribution that has it, or uninstall it") for text in wrong.values()
    )


def test_metadata_that_is_no_text_ends_nothing(outside: Path) -> None:
    install(outside)
    (outside / "bytes-1.0.dist-info").mkdir()
    (outside / "bytes-1.0.dist-info" / "entry_points.txt").write_bytes(
        b"[muster.extensions]\nx = \xff\xfe:\x00"
    )
    (outside / "others-1.0.dist-info" / "entry_points.txt").mkdir(parents=True)
    assert set(extensions.extensions()) == {"counts", *OWN}
    (problem,) = extensions.problems()
    assert "ModuleNotFoundError" in problem


def test_what_cannot_be_imported_when_it_is_used_is_a_problem_from_then_on(outside: Path) -> None:
    install(outside, late="late:EXTENSION")
    (outside / "late.py").write_text(
        "from muster.core.extensions import Extension\nEXTENSION = Extension(commands='late:add')"
    )
    used = extensions.used(lambda each: (each.commands,) if each.commands else ())
    assert {"counts.commands", "muster.ext.search.commands"} < {each.__module__ for each in used}
    (problem,) = extensions.problems()
    assert "the extension 'late' (late:add) cannot be loaded (AttributeError" in problem


def test_finding_them_imports_none_of_what_they_add(outside: Path) -> None:
    install(outside)
    code = (
        "import sys, json; from muster.core.extensions import extensions; extensions(); "
        "print(json.dumps([name for name in sys.modules if name.startswith(('muster.', 'counts', 'airflow'))]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(outside)}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    imported = {name for name in json.loads(said.stdout) if not name.startswith("muster.core")}
    assert imported == {"counts", "muster.ext", *(f"muster.ext.{name}" for name in OWN)}


def test_finding_them_takes_a_few_milliseconds() -> None:
    """5 ms of CPU at most on a quiet machine; ten times as many here, and the best of some."""
    extensions.extensions()  # imported
    seconds = []
    for _ in range(5):
        extensions.find.cache_clear()
        began = time.process_time()
        extensions.extensions()
        seconds.append(time.process_time() - began)
    assert min(seconds) < 0.05


def test_its_command_is_one_of_musters(outside: Path) -> None:
    install(outside)
    done = muster(outside, "count", "some/volume")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.mark.slow
def test_one_that_cannot_be_loaded_is_told_and_the_rest_goes_on(outside: Path) -> None:
    install(outside, broken="broken:EXTENSION", half="half:EXTENSION")
    (outside / "broken.py").write_text("import there_is_no_such_module")
    (outside / "half.py").write_text(
        "from muster.core.extensions import Extension\n"
        "EXTENSION = Extension(commands='broken:add', checks=('broken:checks',))"
    )
    done = muster(outside, "doctor", "--json")
    found = [(each["name"], each["state"], each["found"]) for each in json.loads(done.stdout)["checks"][-4:]]
    assert found[0] == ("counts", "ok", f"of {outside / 'home'}")
    for (name, state, said), what in zip(found[1:], ("EXTENSION", "add", "checks"), strict=True):
        assert (name, state) == ("extension", "bad")
        assert f"(broken:{what}) cannot be loaded (ModuleNotFoundError" in said
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if "cannot be loaded" in line]
    assert len(told) == 2, "of the checks only the doctor knows"
    assert muster(outside, "count", "some/volume").returncode == 0


def test_its_tab_is_in_the_pages_navigation(outside: Path) -> None:
    install(outside)  # before Airflow comes with the page, and asks which extensions there are
    from muster.ext.page.app import document, files

    assert '<a href="#/counts">Counts</a>' in document()
    assert 'href="static/counts/counts.js" data-room="counts" data-title="Counts"' in document()
    assert files()["counts/counts.js"].parent == outside / "counts" / "static"


def test_what_no_extension_does_is_refused_with_what_needs_it() -> None:
    with pytest.raises(SpecError, match="--repair-from: no extension that is installed does this"):
        extensions.only(lambda _: None, needed_by="--repair-from")
