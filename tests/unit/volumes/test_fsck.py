import os

import pytest

from muster.core.errors import Corrupt
from muster.volumes.base import UpkeepKind
from muster.volumes.durability import write_whole
from muster.volumes.folder import FolderStore
from muster.volumes.lineage import ancestors


@pytest.fixture
def version(work):
    return work.run("a-1", {"d/x": b"12345", "y": b"1"})


def found(store, *, deep=False):
    report = store.check(deep=deep)
    assert report.clean == all(problem.harmless for problem in report.problems)
    return [problem.what for problem in report.problems]


def rewrite(path, data):
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)


def test_a_whole_store_is_clean(store, version):
    seen = []
    report = store.check(deep=True, progress=lambda *now: seen.append(now))
    assert (report.versions, report.files, report.size_bytes, report.problems) == (1, 2, 6, ())
    assert seen == [(version.address, 0, 1)]


def test_what_the_last_check_found_is_kept_and_read(store, version):
    path = store.path(version.address) / "d" / "x"
    rewrite(path, b"12344")
    store.check(deep=True)
    (kept,) = store.upkept()
    assert (kept.work, kept.checked.damaged) == (UpkeepKind.FSCK_DEEP, 1)
    assert "changed content: 'd/x'" in kept.checked.damage[0]


def test_a_bit_flip_is_found_by_the_deep_check_alone(store, version):
    path = store.path(version.address) / "d" / "x"
    rewrite(path, b"12344")
    assert found(store) == []
    assert found(store, deep=True) == ["changed content: 'd/x'"]


def test_a_file_that_is_writable_and_changed_is_told_as_changed(store, version):
    path = store.path(version.address) / "d" / "x"
    rewrite(path, b"12344")
    path.chmod(0o644)
    assert found(store) == ["writable file: 'd/x'"]
    assert found(store, deep=True) == ["changed content of a writable file: 'd/x'"]


def truncate(folder):
    os.truncate(folder / "data/d/x", 3)


def take_away(folder):
    (folder / "data/y").unlink()


def put_in(folder):
    (folder / "data/d/z\n").write_bytes(b"")


def open_up(folder):
    (folder / "data/y").chmod(0o644)


def link(folder):
    (folder / "data/y").unlink()
    (folder / "data/y").symlink_to("d/x")


def tear_manifest(folder):
    rewrite(folder / "MANIFEST", (folder / "MANIFEST").read_bytes()[:-10])


def tear_record(folder):
    rewrite(folder / "RECORD.json", (folder / "RECORD.json").read_bytes()[:-10])


def tear_head(folder):
    rewrite(folder / "MANIFEST", (folder / "MANIFEST").read_bytes()[:70])


def empty_record(folder):
    rewrite(folder / "RECORD.json", b"")


def swap_digest(folder):
    rewrite(folder / "RECORD.json", (folder / "RECORD.json").read_bytes().replace(b"b3:", b"b3:0", 1))


def lose_data(folder):
    (folder / "data").chmod(0o755)
    (folder / "data").rename(folder.parents[3] / "trash" / "x")


def lose_all(folder):
    folder.rename(folder.parents[3] / "trash" / "x")


@pytest.mark.parametrize(
    ("damage", "messages"),
    [
        (truncate, ["3 bytes instead of 5: 'd/x'"]),
        (take_away, ["missing file: 'y'"]),
        (put_in, [r"extra file 'd/z\n'"]),
        (open_up, ["writable file: 'y'"]),
        (link, ["no regular file: 'y'"]),
        (tear_manifest, ["torn: "]),
        (tear_record, ["torn: "]),
        (swap_digest, ["manifest and record name two digests"]),
        (lose_data, ["missing file: 'd/x'", "missing file: 'y'"]),
        (lose_all, ["missing: "]),
    ],
)
def test_damage_is_found_and_named(store, version, damage, messages):
    damage(store.layout.version(version.volume, version.number))
    report = store.check()
    assert not report.clean
    assert len(report.problems) == len(messages)
    for problem, message in zip(report.problems, messages, strict=True):
        assert problem.what.startswith(message)
        assert problem.where == version.address
        assert problem.advice


def test_a_torn_commit_record_is_found(store, version):
    write_whole(store.layout.commit("a-1"), "{")
    report = store.check()
    assert not report.clean
    assert "a-1.json cannot be read" in report.problems[0].what


@pytest.mark.parametrize("name", ["b-1.json", "a copy of it.json"])
def test_a_commit_record_that_cannot_be_read_hides_no_other_damage(work, store, version, name):
    (store.layout.root / "commits" / name).mkdir()
    open_up(store.layout.version(version.volume, 1))
    first, second = found(store)
    assert f"{name} cannot be read (" in first
    assert second == "writable file: 'y'"


def test_a_job_that_cannot_be_read_hides_no_other_damage(work, store, version):
    work.seal("b-1", work.spec(out="flights/x"), {"out": {"x": b"1"}})
    write_whole(store.layout.job("b-1") / "status.json", "{")
    open_up(store.layout.version(version.volume, 1))
    first, second = found(store)
    assert first == "writable file: 'y'"
    assert "b-1/status.json cannot be read" in second
    assert not store.check().clean, "gc takes nothing now"


def test_a_commit_that_was_cut_off_is_harmless(work, store, version):
    work.cut_off("a-1")
    report = store.check()
    assert report.clean
    assert "the commit of job a-1 was interrupted" in report.problems[0].what


def test_what_a_failed_job_staged_is_harmless(work, store):
    work.seal("b-1", work.spec(out="flights/x"), {"out": {"x": b"1"}})
    assert found(store) == []
    work.end("b-1")
    assert found(store) == ["files that job b-1 staged and that will not be committed"]


def test_a_file_that_cannot_be_read_hides_no_other_damage(work, store, unprivileged):
    first, second = work.run("a-1", {"x": b"1"}), work.run("a-2", {"x": b"2"})
    (store.path(first.address) / "x").chmod(0o000)
    (store.path(second.address) / "x").chmod(0o644)
    what = {problem.where: problem.what for problem in store.check(deep=True).problems}
    assert what[first.address] == "cannot be read (Permission denied): 'x'"
    assert what[second.address] == "writable file: 'x'"


@pytest.mark.parametrize("damage", [tear_manifest, tear_head, tear_record, empty_record])
def test_one_damaged_version_hides_no_other(work, store, damage):
    first = work.run("a-1", {"x": b"1"})
    second = work.run("a-2", {"x": b"2"})
    third = work.run("a-3", {"x": b"3"}, inputs={"before": second})
    damage(store.layout.version(second.volume, second.number))
    again = FolderStore(store.layout.root)  # it knows nothing from before
    assert again.resolve("flights/features@latest") == (third,)
    assert again.resolve(first.address) == (first,)
    assert again.volumes() == ["flights/features"]
    assert [each.address for each in ancestors(again, third.address)] == [third.address, second.address]
    assert found(again)[0].startswith("torn: ")
    assert type(work)(store.layout.root).run("a-4", {"x": b"2"}).number == 4


@pytest.mark.parametrize("damage", [tear_head, tear_record, empty_record])
def test_a_damaged_version_is_named_retired_and_taken_away(work, store, damage):
    work.run("a-1", {"x": b"1"})
    second = work.run("a-2", {"x": b"2"})
    damage(store.layout.version(second.volume, second.number))
    again = FolderStore(store.layout.root)
    with pytest.raises(Corrupt, match=r"features@2 is damaged .*retire"):
        again.resolve(second.address)
    for refused in (again.plan, again.collect):
        with pytest.raises(
            Corrupt, match=r"gc takes nothing while the store is damaged: volume://flights/features@2: torn"
        ):
            refused()
    assert again.retire(second.address, reason="torn").retired == "torn"
    assert [version.number for version in again.collect().plan.versions] == [2]
    assert not again.layout.version(second.volume, 2).joinpath("data").exists()
    assert again.check().clean
    assert type(work)(store.layout.root).run("a-3", {"x": b"2"}).number == 3, (
        "a number is never given out again"
    )


def lose_record(folder):
    (folder / "RECORD.json").unlink()


@pytest.mark.parametrize("damage", [lose_data, lose_all, lose_record])
def test_what_of_a_version_was_deleted_by_hand_can_be_given_up(work, store, damage):
    work.run("a-1", {"x": b"1"})
    work.run("a-2", {"x": b"2"})
    damage(store.layout.version("flights/features", 1))
    again = FolderStore(store.layout.root)
    with pytest.raises(Corrupt, match="volume://flights/features@1: missing"):
        again.collect()
    assert again.retire("flights/features@1", reason="deleted by hand").retired == "deleted by hand"
    assert [version.number for version in again.collect().plan.versions] == [1]
    assert again.check().clean
    assert [version.number for version in again.versions("flights/features")] == [2]


def test_gc_is_not_named_where_data_was_deleted_by_hand(store, version):
    lose_data(store.layout.version(version.volume, 1))
    for address in (version.address, "flights/features@latest"):
        with pytest.raises(
            Corrupt, match=r"features@1 is damaged .its data is gone, and gc did not delete it"
        ):
            FolderStore(store.layout.root).resolve(address)


def test_a_volume_of_which_all_is_damaged_says_so(store, version):
    tear_record(store.layout.version(version.volume, version.number))
    with pytest.raises(Corrupt, match="features@1 is damaged"):
        FolderStore(store.layout.root).resolve("flights/features@latest")


def test_a_manifest_that_the_disk_does_not_give_hides_no_other_damage(work, store, unprivileged):
    first, second = work.run("a-1", {"x": b"1"}), work.run("a-2", {"x": b"2"})
    (store.layout.version(first.volume, 1) / "MANIFEST").chmod(0o000)
    (store.path(second.address) / "x").chmod(0o644)
    what = {problem.where: problem.what for problem in store.check().problems}
    assert what[first.address].startswith("cannot be read (Permission denied): ")
    assert what[second.address] == "writable file: 'x'"
    assert FolderStore(store.layout.root).resolve("flights/features@latest")[0].number == 2
