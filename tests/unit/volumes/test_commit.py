import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.contract.test_store import seal_written, write
from tests.namespaces import on_a_small_disk
from tests.waiting import GUARD_SECONDS

from muster.core import wire
from muster.core.data import CARRIED, CHECKPOINTS, OutputTarget
from muster.core.errors import BadOutput, Conflict, StoreError
from muster.core.job import Role
from muster.core.replica import PartManifest
from muster.ext.mirrors.scan import scan
from muster.volumes import commit
from muster.volumes.tree import make_folders, remove

FAULTS = Path(__file__).parent / "commit_faults.py"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "ENOSPC", pytest.param("EIO", marks=pytest.mark.soak)])
def test_a_commit_cut_off_at_any_step_shows_nothing_or_all_and_can_be_done_again(how):
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # 200 commits, and no power is cut
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        done = subprocess.run(
            [sys.executable, FAULTS, folder, how], capture_output=True, text=True, check=False, timeout=300
        )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["nothing"] > 30
    if how == "kill":
        assert outcome["everything"] > 5
    else:  # an error says that nothing is visible
        assert outcome["everything"] == 0
    assert outcome["nothing"] + outcome["everything"] == outcome["steps"] - 1


def test_the_mark_of_a_commit_retires(work, store):
    old = work.run("a-1", {"x": b"1"}, volume="v")
    spec = work.spec(
        inputs={"before": old}, out=OutputTarget(volume="v", base="before", after=1, retires=(1,))
    )
    work.seal("a-2", spec, {"out": {"all": b"1"}})
    store.commit("a-2", attempt=1)
    mark = store.layout.version("v", 1) / "replaced" / "a-2"
    assert mark.is_file()
    assert not (store.layout.version("v", 1) / "RETIRED").exists()
    assert [version.retired for version in store.versions("v")] == ["replaced by v@2", None]
    assert {place: found.retired for place, found in scan(store.layout).items()} == {
        ("v", 1): "replaced by v@2",
        ("v", 2): None,
    }
    assert store.reinstate("v@1").retired is None
    assert not mark.exists()


def test_the_mark_of_a_job_that_never_commits_says_nothing(work, store):
    old = work.run("a-1", {"x": b"1"}, volume="v")
    spec = work.spec(
        inputs={"before": old}, out=OutputTarget(volume="v", base="before", after=1, retires=(1,))
    )
    (store.layout.version("v", 1) / "replaced").mkdir()
    (store.layout.version("v", 1) / "replaced" / "a-2").write_text("replaced by v@2")
    assert store.resolve("v@latest") == (old,)
    work.seal("a-3", spec, {"out": {"all": b"1"}})
    ((made,),) = store.commit("a-3", attempt=1).values()
    assert store.resolve("v@1")[0].retired == f"replaced by v@{made.number}"


def inodes(folder):
    return {str(p.relative_to(folder)): p.stat().st_ino for p in folder.rglob("*") if p.is_file()}


def test_files_that_did_not_change_are_shared_with_the_version_before(work, store):
    first = work.run("a-1", {"same": b"1" * 5000, "moved/from": b"2", "other": b"3"})
    second = work.run("a-2", {"same": b"1" * 5000, "moved-to": b"2", "other": b"4"})
    before, after = (inodes(store.path(version.address)) for version in (first, second))
    assert after["same"] == before["same"]
    assert after["moved-to"] == before["moved/from"]
    assert after["other"] != before["other"]
    assert store.check(deep=True).problems == ()


def test_only_the_same_partition_is_compared(work, store):
    spec = work.spec(out=OutputTarget(volume="months", partition="2013-01"))
    work.seal("a-1", spec, {"out": {"x": b"1"}})
    ((first,),) = store.commit("a-1", attempt=1).values()
    spec = work.spec(out=OutputTarget(volume="months", partition="2013-02"))
    work.seal("a-2", spec, {"out": {"x": b"1"}})
    ((second,),) = store.commit("a-2", attempt=1).values()
    assert inodes(store.path(first.address)) != inodes(store.path(second.address))
    assert first.digest == second.digest


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EMLINK, errno.EXDEV, errno.EPERM])
def test_where_linking_fails_a_version_keeps_its_own_bytes(work, store, monkeypatch, code):
    def refuse(source, target, **_):
        raise OSError(code, os.strerror(code), source)

    monkeypatch.setattr(os, "link", refuse)
    first, second = (work.run(f"a-{n}", {"x": b"1"}) for n in range(2))
    assert store.path(first.address).joinpath("x").stat().st_nlink == 1
    assert store.path(second.address).joinpath("x").read_bytes() == b"1"


def test_where_nothing_moves_between_folders_versions_are_copied(work, store, monkeypatch):
    move = os.rename

    def beside_only(old, new):
        if Path(old).parent != Path(new).parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), old)
        move(old, new)

    monkeypatch.setattr(os, "rename", beside_only)
    work.seal("a-1", work.spec(replicas=2, out="v"), {"out": {"d/0": b"0"}}, {"out": {"d/1": b"1"}})
    ((version,),) = store.commit("a-1", attempt=1).values()
    assert sorted(path.name for path in store.path(version.address).rglob("*")) == ["0", "1", "d"]
    assert [path.name for path in store.layout.volume("v").iterdir()] == ["1"]
    assert store.check(deep=True).problems == ()


def test_what_a_crash_copied_in_part_is_no_part_of_a_version(work, store):
    staging = work.seal("a-1", work.spec(out="v"), {"out": {"d/x": b"whole"}})
    torn = staging.root / "ready" / "0" / "data" / "d" / ".new-0123456789abcdef"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"who")
    (store.layout.volume("v") / ".new-1-0123456789abcdef" / "data" / "2013").mkdir(parents=True)
    assert store.volumes() == []
    ((version,),) = store.commit("a-1", attempt=1).values()
    assert store.volumes() == ["v"]
    assert sorted(store.manifest(version.address)) == ["d/x"]
    assert store.check(deep=True).problems == ()


def test_a_truncated_version_is_not_shared(work, store):
    first = work.run("a-1", {"x": b"12345"})
    os.truncate(store.path(first.address) / "x", 0)
    second = work.run("a-2", {"x": b"12345"})
    assert (store.path(second.address) / "x").read_bytes() == b"12345"


def test_a_file_that_has_another_name_gets_bytes_of_its_own(work, store, tmp_path):
    outside = tmp_path / "big.csv"
    outside.write_bytes(b"rows")
    spec = work.spec(out="flights/features")
    store.ledger.create("a-1", spec)
    staging = store.stage("a-1")
    write(staging, spec, {"out": {"y": b"1"}})
    os.link(outside, staging.output("main", 0, "out") / "x")
    seal_written(staging, spec)
    ((version,),) = store.commit("a-1", attempt=1).values()
    outside.write_bytes(b"LATE")
    assert (store.path(version.address) / "x").read_bytes() == b"rows"


def test_a_writer_that_is_still_open_is_refused_by_name(work, store):
    staging = work.seal("a-1", work.spec(out="flights/features"), {"out": {"d/x": b"1"}})
    with (
        (staging.output("main", 0, "out") / "d" / "x").open("ab"),
        pytest.raises(StoreError, match="d/x is still open for writing"),
    ):
        store.commit("a-1", attempt=1)
    assert store.volumes() == []
    store.commit("a-1", attempt=1)
    assert store.volumes() == ["flights/features"]


def spoil_size(folder):
    (folder / "x").write_bytes(b"longer")


def spoil_missing(folder):
    (folder / "x").unlink()


def spoil_late(folder):
    (folder / "late").write_bytes(b"")


def spoil_link(folder):
    (folder / "passwd").symlink_to("/etc/passwd")


def spoil_fifo(folder):
    os.mkfifo(folder / "pipe")


def spoil_folder(folder):
    (folder / "x").unlink()
    folder.rmdir()
    folder.symlink_to("/etc")


def spoil_replica(folder):
    folder.parent.rename(folder.parent.parent / "elsewhere")
    folder.parent.symlink_to(folder.parent.parent / "elsewhere")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_size, "'x' of output 'out' has 6 bytes, 1 were sealed"),
        (spoil_missing, "lacks 'x', which was sealed"),
        (spoil_late, "'late', which came after the seal"),
        (spoil_link, "'passwd', which is no regular file"),
        (spoil_fifo, "'pipe', which is no regular file"),
        (spoil_folder, "was replaced by a link to /etc"),
        (spoil_replica, "was replaced by a link to"),
    ],
)
def test_what_is_not_as_it_was_sealed_is_refused(work, store, spoil, message):
    staging = work.seal("a-1", work.spec(out="flights/features"), {"out": {"x": b"1"}})
    spoil(staging.output("main", 0, "out"))
    with pytest.raises(StoreError, match=message):
        store.commit("a-1", attempt=1)
    assert store.volumes() == []
    assert Path("/etc").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "a/./b", "", "a\nb", "a\x85b", "a/"])
def test_a_seal_whose_paths_leave_the_output_is_refused(work, store, path):
    staging = work.seal("a-1", work.spec(out="flights/features"), {"out": {"x": b"1"}})
    seal = json.loads(staging.sealed("main", 0).read_text())
    seal["files"]["out"] = {path: 1}
    staging.sealed("main", 0).write_text(json.dumps(seal))
    with pytest.raises(StoreError, match=r"no plain path|control characters"):
        store.commit("a-1", attempt=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": 1}, "is that of replica main-1"),
        ({"job_id": "b-1"}, "job b-1"),
        ({"surprise": 1}, "unknown field"),
    ],
)
def test_a_seal_of_somebody_else_is_refused(work, store, change, message):
    staging = work.seal("a-1", work.spec(out="flights/features"), {"out": {"x": b"1"}})
    seal = json.loads(staging.sealed("main", 0).read_text())
    staging.sealed("main", 0).write_text(json.dumps(seal | change))
    with pytest.raises(StoreError, match=message):
        store.commit("a-1", attempt=1)


def test_names_of_any_language_and_odd_modes_are_kept(work, store):
    names = ["größe.csv", "列/x", "a b'\"$(rm)", "x\u2028y", "-rf", ".hidden"]
    staging = work.seal("a-1", work.spec(out="flights/features"), {"out": dict.fromkeys(names, b"1")})
    (staging.output("main", 0, "out") / "列").chmod(0o700)
    ((version,),) = store.commit("a-1", attempt=1).values()
    assert sorted(store.manifest(version.address)) == sorted(names)
    assert store.check(deep=True).problems == ()


def test_a_commit_leaves_nothing_but_the_seal(work, store):
    staging = work.seal("a-1", work.spec(out="flights/features"), {"out": {"x": b"1"}})
    (staging.checkpoints / "step").write_bytes(b"1")
    store.commit("a-1", attempt=1)
    assert [path.name for path in staging.root.iterdir()] == ["sealed"]
    assert list(store.layout.trash.iterdir()) == []
    assert [path.name for path in store.layout.volume("flights/features").iterdir()] == ["1"]


@pytest.mark.slow
def test_a_tree_deeper_than_python_recurs_is_committed_and_deleted(work, store, tmp_path):
    path = "/".join([*"d" * 1_200, "x"])
    staging = work.seal("a-1", work.spec(out="deep"), {"out": {"y": b"1"}})
    make_folders((staging.output("main", 0, "out") / path).parent)
    (staging.output("main", 0, "out") / path).write_bytes(b"deep")
    staging.sealed("main", 0).unlink()
    seal_written(staging, work.spec(out="deep"))
    ((version,),) = store.commit("a-1", attempt=1).values()
    copy = store.add("deep", store.path(version.address))
    assert copy.digest == version.digest
    assert sorted(store.manifest(copy.address)) == [path, "y"]
    work.end("a-1")
    store.retire(version.address, reason="wrong")
    assert store.collect(keep_last=1, grace_seconds=0).plan.versions[0].address == version.address
    assert store.check(deep=True).problems == ()
    remove(store.layout.root)  # pytest would recur
    assert list(tmp_path.iterdir()) == []


TEN = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
from conftest import Work
work = Work(Path(sys.argv[2]))
for n in range(5):
    work.run(f"{sys.argv[3]}-{n}", {"mine": f"{sys.argv[3]}-{n}".encode(), "same": b"x" * 9000})
"""


@pytest.mark.soak
def test_ten_processes_commit_to_one_volume(work, store, tmp_path):
    here = str(Path(__file__).parent)
    writers = [
        subprocess.Popen([sys.executable, "-c", TEN, here, str(tmp_path / "store"), f"w{n}"])
        for n in range(10)
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * 10
    versions = store.versions("flights/features")
    assert [version.number for version in versions] == list(range(1, 51))
    written = {store.path(f"{version.address}/mine").read_text() for version in versions}
    assert written == {f"w{w}-{n}" for w in range(10) for n in range(5)}
    assert store.check(deep=True).clean


@pytest.mark.soak
def test_a_disk_that_is_really_full(tmp_path):
    script = Path(__file__).parent / "full_disk.py"
    command = on_a_small_disk(tmp_path, 2, sys.executable, script, tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=GUARD_SECONDS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [errno.ENAMETOOLONG, errno.EPERM])
def test_what_no_later_commit_can_take_is_the_author_s(work, store, monkeypatch, number):
    work.seal("a-1", work.spec(out="v"), {"out": {"x": b"1"}})

    def refuse(path, *_, **__):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(commit, "freeze_files", refuse)
    with pytest.raises(BadOutput, match="an output cannot be committed: .*: " + os.strerror(number)):
        store.commit("a-1", attempt=1)


def test_a_file_that_may_not_be_changed_is_the_author_s(work, store):
    work.seal("a-1", work.spec(out="v"), {"out": {"x": b"1"}})
    path = store.staging("a-1").output("main", 0, "out") / "x"
    if shutil.which("chattr") is None or subprocess.run(["chattr", "+i", path], check=False).returncode:
        pytest.skip("no file can be made immutable here: chattr +i is refused")
    try:
        with pytest.raises(BadOutput, match="committed: x: Operation not permitted: it is immutable"):
            store.commit("a-1", attempt=1)
    finally:
        subprocess.run(["chattr", "-R", "-i", store.layout.staging("a-1")], check=True)


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_output_may_hold_a_copy_of_an_input_with_its_read_only_folders(
    work, store, unprivileged, replicas
):
    given = work.run("a-1", {"x": b"1", "d/y": b"2"})
    spec = work.spec(replicas=replicas, out="copy")
    store.ledger.create("b-1", spec)
    staging = store.stage("b-1")
    for index in range(replicas):
        out = staging.output("main", index, "out")
        out.parent.mkdir()
        shutil.copytree(
            store.path(given.address), out, copy_function=lambda a, b, n=index: shutil.copy2(a, f"{b}-{n}")
        )
        seal_written(staging, spec, index=index)
    ((copy,),) = store.commit("b-1", attempt=1).values()
    assert copy.files == 2 * replicas


def test_what_cannot_be_taken_away_after_a_commit_does_not_fail_it(work, store):
    work.seal("a-1", work.spec(out="v"), {"out": {"x": b"1"}})
    store.layout.trash.rmdir()
    store.layout.trash.write_text("in the way")
    ((version,),) = store.commit("a-1", attempt=1).values()
    assert store.resolve("v") == (version,)


@pytest.mark.parametrize("damaged", ["data/x", "MANIFEST"])
def test_a_stage_that_runs_again_takes_nothing_from_a_retired_version(work, store, damaged):
    first = work.run("a-1", {"x": b"good"})
    file = store.layout.version(first.volume, first.number) / damaged
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    store.retire(first.address, reason="fsck says so")
    second = work.run("a-2", {"x": b"good"})
    assert (store.path(second.address) / "x").read_bytes() == b"good"


def test_the_record_says_what_each_role_ran(work, store):
    roles = (Role(name="chief", entrypoint="etl:lead"), Role(name="helper", command=("python", "help.py")))
    spec = dataclasses.replace(work.spec(out="flights/features"), roles=roles)
    store.ledger.create("a-1", spec)
    staging = store.stage("a-1")
    for role in roles:
        files = {"out": {role.name: 1}}
        path = staging.output(role.name, 0, "out") / role.name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"1")
        part = PartManifest(job_id="a-1", attempt=1, role=role.name, index=0, files=files)
        staging.sealed(role.name, 0).write_text(wire.dumps(part))
    store.commit("a-1", attempt=1)
    assert store.record("flights/features@1").entrypoint == "chief: etl:lead, helper: python help.py"


def test_checkpoints_that_come_back_are_no_links_into_a_version(work, store):
    first = work.run("a-1", {"same": b"same", "stays": b"1"}, volume="rows")
    work.run("a-2", {"same": b"same", "stays": b"1"}, volume="rows")
    spec = work.spec(
        inputs={"before": first},
        **{CHECKPOINTS: OutputTarget(volume="rows", base="before", after=first.number)},
    )
    files = {CHECKPOINTS: {CARRIED: b"stays\n", "same": b"same", "new": b"2"}}
    staging = work.seal("b-1", spec, files)
    with pytest.raises(Conflict, match="was to come after volume://rows@1, and volume://rows@2 is there"):
        store.commit("b-1", attempt=1)
    left = {path.name: path for path in staging.checkpoints.iterdir()}
    assert sorted(left) == ["new", "same"]
    assert {path.stat().st_nlink for path in left.values()} == {1}
    assert store.check(deep=True).clean


def test_a_commit_has_the_steps_that_its_outputs_ask_for(work):
    plain, first = work.spec(out="v"), work.spec(out=OutputTarget(volume="v", after=0))
    assert commit.Step().is_of(plain)
    assert not any(commit.Step(field=name).is_of(plain) for name in ("base", "after", "retires"))
    assert commit.Step(field="after").is_of(first), "after=0: the first of its volume"
