"""A store that an earlier muster made is read, gone on with and protected as it is.

``earlier_store.json`` holds one, file by file: three versions of flights/features that share a file, the first
retired and deleted by gc, the second pinned; one of raw/rows that was put, one of flights/model; and three jobs: one
whose commit was cut off after its PLAN, one after its version was in its place, and one that has only sealed.
"""

import json
import os
from pathlib import Path

import pytest

from muster.core.errors import NotFound
from muster.volumes.commit_records import read_commit
from muster.volumes.folder import FolderStore

TREE = json.loads(Path(__file__).with_name("earlier_store.json").read_text())
UNFINISHED = ("planned-1", "placed-1", "sealed-1")


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "earlier"
    root.mkdir()
    for name, entry in TREE.items():
        if "link" in entry:
            (root / name).symlink_to(entry["link"])
        elif "same" in entry:
            os.link(root / entry["same"], root / name)
        elif "text" in entry:
            (root / name).write_text(entry["text"])
        else:
            (root / name).mkdir()
    for name, entry in reversed(TREE.items()):
        if "mode" in entry:
            (root / name).chmod(int(entry["mode"], 8))
    return FolderStore(root)


def test_its_versions_are_read(store):
    assert store.volumes() == ["flights/features", "flights/model", "raw/rows"]
    assert [version.number for version in store.versions("flights/features")] == [2, 3]
    assert store.resolve("flights/features@2")[0].pins == ("in the paper",)
    assert store.resolve("raw/rows@2013-01")[0].number == 1
    assert store.path("flights/features@3/same").read_text() == "same rows\n"
    assert store.record("flights/features@1").job_id == "made-1"
    with pytest.raises(NotFound, match="@1 was deleted by gc"):
        store.path("flights/features@1")


def test_its_records_are_called_unprotected_until_they_are_protected(store):
    report = store.check(deep=True)
    assert report.clean
    said = [problem.what for problem in report.problems]
    assert said[0].startswith("the records of 5 versions are unprotected")
    assert [what for what in said[1:] if "was interrupted" in what] == [
        "the commit of job placed-1 was interrupted; this version is not visible"
    ]
    before = json.loads(store.layout.commit("made-2").read_text())
    assert not any("unprotected" in each.what for each in store.check(protect=True).problems)
    after = json.loads(store.layout.commit("made-2").read_text())
    assert {**after, "records": None} == {**before, "records": None}
    assert not any("unprotected" in each.what for each in FolderStore(store.layout.root).check().problems)


def test_its_unfinished_jobs_are_committed(store):
    made = [store.commit(job_id, attempt=1)["out"][0].number for job_id in UNFINISHED]
    assert sorted(made) == [4, 5, 6]
    for job_id in UNFINISHED:
        assert len(read_commit(store.layout, job_id).records) == 1
    assert store.check(deep=True).clean
    shared = {(store.path(f"flights/features@{n}") / "same").stat().st_ino for n in (3, 6)}
    assert len(shared) == 1


def test_gc_folds_what_is_left_of_deleted_versions(store):
    before = store.record("flights/features@1"), list(store.manifest("flights/features@1"))
    store.collect()
    assert not store.layout.version("flights/features", 1).exists()
    again = FolderStore(store.layout.root)
    assert (again.record("flights/features@1"), list(again.manifest("flights/features@1"))) == before
    assert again.catalog.described("flights/features", 1).retired
    with pytest.raises(NotFound, match="@1 was deleted by gc"):
        again.path("flights/features@1")


def test_gc_takes_what_it_took_before(store):
    planned = store.plan(keep_last=1)
    assert planned.versions == ()  # 2 is pinned, 3 the last, which flights/model was made from
    store.unpin("flights/features@2", reason="in the paper")
    assert [each.number for each in store.collect(keep_last=1, grace_seconds=0).plan.versions] == [2]
    assert {store.commit(job_id, attempt=1)["out"][0].number for job_id in UNFINISHED} == {4, 5, 6}
    assert store.check(deep=True).clean
