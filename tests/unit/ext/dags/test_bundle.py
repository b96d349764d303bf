"""Dags that are versions of a volume, taken as Airflow's Dag processor and workers take them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from muster.backends.choose import open_place
from muster.core.errors import MusterError, SpecError
from muster.core.settings import Settings

pytestmark = pytest.mark.slow  # it imports Airflow

BUNDLE = "muster.ext.dags.bundle.VolumeDagBundle"
VOLUME = "site/dags"
Put = Callable[[str], str]
Bundle = Callable[..., Any]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    """Have Airflow look for Dags in a store of this test's own; put a version with a text there, and return its number."""
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH", str(tmp_path / "bundles"))
    with closing(open_place(Settings.load())) as place:

        def put(text: str) -> str:
            folder = tmp_path / "given" / "dags"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hello.py").write_text(text)
            return str(place.store.add(VOLUME, folder.parent).number)

        yield put


@pytest.fixture
def bundle(put: Put, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """Made by Airflow's own manager, of its setting."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    def made(*, version: str | None = None, volume: str = f"{VOLUME}@latest/dags") -> Any:
        config = [{"name": "site", "classpath": BUNDLE, "kwargs": {"volume": volume}}]
        monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps(config))
        return DagBundlesManager().get_bundle("site", version)  # type: ignore[no-untyped-call]

    return made


def test_a_file_has_one_path_whatever_the_version(put: Put, bundle: Bundle) -> None:
    first, found = put("one"), bundle()
    found.initialize()
    file = found.path / "hello.py"
    assert (file.read_text(), found.get_current_version().version) == ("one", first)
    second = put("two")
    assert file.read_text() == "one"
    found.refresh()
    assert found.path / "hello.py" == file
    assert (file.read_text(), found.get_current_version().version) == ("two", second)


def test_a_run_keeps_the_version_that_it_began_with(put: Put, bundle: Bundle) -> None:
    """Also in a worker that sees it for the first time once there is another, and after Airflow has cleaned up."""
    first, _ = put("one"), put("two")
    for _ in range(2):
        found = bundle(version=first)
        found.initialize()
        assert ((found.path / "hello.py").read_text(), found.get_current_version().version) == ("one", first)
        folder = found.path.parent
        assert all(each.stat().st_mode & 0o200 for each in (folder, found.path)), "what deletes it may"
        shutil.rmtree(folder)


def test_a_version_that_is_none_is_named(put: Put, bundle: Bundle) -> None:
    put("one")
    with pytest.raises(MusterError, match="site/dags@9"):
        bundle(version="9").initialize()


@pytest.mark.parametrize(
    ("volume", "said"), [("site/dags@*", "Dags come from one version"), ("site/", "site/")]
)
def test_an_address_of_no_version_is_refused(volume: str, said: str, bundle: Bundle) -> None:
    with pytest.raises(SpecError, match=said):
        bundle(volume=volume)


def test_gc_keeps_the_versions_of_runs_that_go_on(
    put: Put, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    from muster.ext.dags import bundle as module

    old, used, newest = (put(text) for text in ("old", "used", "newest"))
    bundle()
    going = {("site", used), ("another", old)}
    monkeypatch.setattr(module, "used_versions", lambda: going)
    with closing(open_place(Settings.load())) as place:
        module.keep_used(place.store)
        place.store.collect(keep_last=1)
        assert [str(each.number) for each in place.store.versions(VOLUME)] == [used, newest]
        assert place.store.versions(VOLUME)[0].pins == ("airflow/site",)
        worker = bundle(version=used)
        worker.initialize()
        assert (worker.path / "hello.py").read_text() == "used"
        going.clear()
        module.keep_used(place.store)
        place.store.collect(keep_last=1)
        assert [str(each.number) for each in place.store.versions(VOLUME)] == [newest]
