"""Which versions are committed follows from the commit records, whatever a version says of itself."""

import json
from pathlib import Path

import pytest

from muster.core.errors import Corrupt
from muster.volumes import upkeep
from muster.volumes.commit_records import read_commit
from muster.volumes.folder import FolderStore
from muster.volumes.manifest import digest_of


@pytest.fixture
def version(work):
    return work.run("a-1", {"x": b"rows"})


def edit(store, at=1, **fields):
    path = store.layout.version("flights/features", at) / "RECORD.json"
    document = json.loads(path.read_text())
    path.chmod(0o644)
    path.write_text(json.dumps(document | fields))


def test_a_commit_record_holds_the_digest_of_each_record(store, version):
    text = (store.layout.version(version.volume, 1) / "RECORD.json").read_bytes()
    assert read_commit(store.layout, "a-1").records == {("flights/features", 1): digest_of(text)}


@pytest.mark.parametrize("job_id", ["put-0000000000000000", "No Label!"])
def test_a_record_that_names_another_job_hides_nothing_and_nothing_of_it_goes(work, store, version, job_id):
    edit(store, job_id=job_id)
    again = FolderStore(store.layout.root)
    assert again.volumes() == ["flights/features"]
    with pytest.raises(Corrupt, match="features@1 is damaged"):
        again.resolve(version.address)
    problems = again.check().problems
    assert [(each.where, each.harmless) for each in problems] == [(version.address, False)]
    assert f"the commit of job a-1 names it, and its RECORD.json names job '{job_id}'" in problems[0].what
    for act in (again.plan, again.collect):
        with pytest.raises(
            Corrupt, match="gc takes nothing while the store is damaged: volume://flights/features@1"
        ):
            act()
    assert (again.layout.version(version.volume, 1) / "data" / "x").read_bytes() == b"rows"


@pytest.mark.parametrize("fields", [{"params": {"epochs": 5}}, {"inputs": {}, "note": "mine"}, {"number": 2}])
def test_a_record_that_was_changed_is_found_without_a_deep_check(store, version, fields):
    edit(store, **fields)
    (problem,) = FolderStore(store.layout.root).check().problems
    assert "RECORD.json was changed after the commit" in problem.what
    with pytest.raises(Corrupt, match="was changed after the commit"):
        FolderStore(store.layout.root).record(version.address)


def test_a_version_whose_commit_record_is_lost_is_damaged_and_stays(work, store, version):
    """Its commit came to its end: the mark of its number is gone."""
    work.run("a-2", {"x": b"2"})
    store.layout.commit("a-1").unlink()
    again = FolderStore(store.layout.root)
    (problem,) = again.check().problems
    assert (problem.where, problem.harmless) == (version.address, False)
    assert "no commit record names it" in problem.what
    with pytest.raises(Corrupt, match="no commit record names it"):
        again.collect()
    again.retire(version.address, reason="lost")
    assert [each.number for each in again.collect().plan.versions] == [1]
    assert FolderStore(store.layout.root).check().clean


def test_gc_looks_at_the_commit_record_once_more_before_it_takes_a_folder(work, store, version, monkeypatch):
    aside = work.cut_off("a-1")
    work.end("a-1")
    decided = store.plan()
    assert decided.torn == (str(store.layout.version(version.volume, 1)),)
    aside.rename(store.layout.commit("a-1"))
    monkeypatch.setattr(upkeep, "uncommitted", lambda _: [(Path(path), "a-1") for path in decided.torn])
    store.collect(grace_seconds=0)
    assert FolderStore(store.layout.root).check(deep=True).clean
    assert FolderStore(store.layout.root).resolve(version.address) == (version,)


def test_protecting_what_is_whole_leaves_a_commit_readable_of_which_a_part_is_damaged(work, store):
    work.seal("a-1", work.spec(one="r/one", two="r/two"), {"one": {"x": b"1"}, "two": {"x": b"2"}})
    store.commit("a-1", attempt=1)
    path = store.layout.commit("a-1")
    document = json.loads(path.read_text())
    document.pop("records")  # as the first musters wrote it
    path.write_text(json.dumps(document))
    (store.path("r/two@1") / "x").chmod(0o644)
    FolderStore(store.layout.root).check(protect=True)
    assert list(read_commit(store.layout, "a-1").records) == [("r/one", 1)]
    (store.path("r/two@1") / "x").chmod(0o444)
    FolderStore(store.layout.root).check(protect=True)
    assert FolderStore(store.layout.root).check().problems == ()
    assert set(read_commit(store.layout, "a-1").records) == {("r/one", 1), ("r/two", 1)}


def test_two_commits_that_name_one_version_are_found(store, version):
    store.layout.commit("a-9").write_bytes(store.layout.commit("a-1").read_bytes())
    assert "the commits of two jobs name it, a-1 and a-9" in [p.what for p in store.check().problems]


@pytest.mark.parametrize("damaged", ["RECORD.json", "uncommitted"])
def test_one_version_that_cannot_be_read_does_not_make_a_look_read_all_commit_records(
    work, store, damaged, opened
):
    for n in range(30):
        work.run(f"a-{n}", {"x": b"%d" % n})
    if damaged == "uncommitted":
        work.cut_off("a-9", number=10)
    else:
        edit(store, 10, job_id="other")
    again = FolderStore(store.layout.root)
    seen = opened(lambda: (again.volumes(), again.versions("flights/features")))
    assert len([path for path in seen if "/commits/" in path]) <= 35
    assert len(again.versions("flights/features")) == 29
    seen = opened(lambda: again.versions("flights/features"))
    assert len([path for path in seen if "/commits/" in path]) <= 4
