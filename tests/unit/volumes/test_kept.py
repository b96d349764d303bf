"""What a version keeps of what a job wrote: modes, empty folders, what links name; and how the rest is refused."""

import itertools
import os
import stat
import subprocess
import time
from pathlib import Path

import pytest
from tests.contract.test_store import seal_written

from muster.core import kept
from muster.core.data import CHECKPOINTS, OutputTarget
from muster.core.errors import BadOutput, NotFound, SpecError, StoreError
from muster.core.names import check_new_partition
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause, Verdict
from muster.volumes.layout import open_layout
from muster.volumes.lineage import compare
from muster.volumes.manifest import Entry, render


def staged(work, job_id="a-1", **outputs):
    """Begin a job with these outputs, and return its first replica's folders."""
    spec = work.spec(**outputs)
    work.store.ledger.create(job_id, spec)
    staging = work.store.stage(job_id)
    for name in spec.staged:
        staging.output("main", 0, name).mkdir(parents=True)
    return spec, staging


def commit(work, spec, staging):
    seal_written(staging, spec)
    return {name: each for name, (each,) in work.store.commit(staging.job_id, attempt=1).items()}


def test_a_repository_keeps_its_scripts_its_empty_folders_and_what_its_links_name(work, store):
    spec, staging = staged(work, out="tools/repo")
    out = staging.output("main", 0, "out")
    (out / "bin").mkdir()
    (out / "logs" / "old").mkdir(parents=True)
    (out / "bin" / "run.sh").write_bytes(b"#!/bin/sh\n")
    (out / "bin" / "run.sh").chmod(0o755)
    (out / "README").write_bytes(b"read")
    (out / "run").symlink_to("bin/run.sh")
    made = commit(work, spec, staging)["out"]
    data = store.path(made.address)
    assert os.access(data / "bin" / "run.sh", os.X_OK)
    assert (data / "run").read_bytes() == b"#!/bin/sh\n"
    assert stat.S_IMODE((data / "README").stat().st_mode) == 0o444
    assert (data / "run").stat().st_ino == (data / "bin" / "run.sh").stat().st_ino
    assert (data / "logs" / "old").is_dir()
    found = store.manifest(made.address)
    assert ([*found], [*found.folders()], len(found), made.files) == (
        ["README", "bin/run.sh", "run"],
        ["logs/old"],
        3,
        3,
    )
    assert [found.holds(path) for path in ("logs", "logs/old", "bin", "run", "logs/new")] == [True] * 4 + [
        False
    ]
    assert [dict(found.names(path)) for path in ("logs", "logs/old")] == [{"old": None}, {}]
    assert store.check(deep=True).problems == ()


def test_a_version_of_plain_files_has_the_digest_that_it_always_had():
    text = render([Entry("b", "b" * 64, 2), Entry("a/x", "a" * 64, 1)])
    assert text.endswith(f"\nmuster-manifest 1 files=2 bytes=3\n{'a' * 64} 1 a/x\n{'b' * 64} 2 b\n".encode())


@pytest.mark.parametrize("name", ["pipe", "socket", "out", "nothing", "bytes"])
def test_what_no_version_keeps_fails_the_job_and_what_it_wrote_can_be_fetched(work, store, tmp_path, name):
    spec, staging = staged(work, out="tools/repo")
    out = staging.output("main", 0, "out")
    (out / "weights").write_bytes(b"12 hours")
    if name == "pipe":
        os.mkfifo(out / name)
    elif name == "socket":
        os.mknod(out / name, stat.S_IFSOCK | 0o600)
    elif name == "out":
        (out / name).symlink_to("../../../../../../../etc/passwd")
    elif name == "nothing":
        (out / name).symlink_to("weight")
    else:
        Path(os.fsdecode(bytes(out) + b"/\xff")).write_bytes(b"odd")
    with pytest.raises(
        BadOutput, match=r"output 'out' holds a .*: a version keeps files, folders, and links within it"
    ):
        commit(work, spec, staging)
    verdict = Verdict(cause=Cause.USER_ERROR, message="m", advice="a")
    store.ended.give_back("a-1", cause=verdict.cause)
    store.ledger.update(
        JobStatus(job_id="a-1", state=JobState.FAILED, submitted=1.0, ended=time.time(), verdict=verdict)
    )
    assert store.salvage("a-1", tmp_path / "got") == (2 if name == "bytes" else 1)
    assert (tmp_path / "got" / "main-0" / "out" / "weights").read_bytes() == b"12 hours"


def test_checkpoints_follow_the_same_rule(work, store):
    spec, staging = staged(work, out="flights/model", **{CHECKPOINTS: "flights/saved"})
    (staging.output("main", 0, "out") / "model").write_bytes(b"1")
    saved = staging.checkpoints
    (saved / "epoch=3.ckpt").write_bytes(b"weights")
    (saved / "last.ckpt").symlink_to(saved / "epoch=3.ckpt")
    (saved / "latest").symlink_to("none")
    with pytest.raises(BadOutput, match="output 'checkpoints' holds a link to nothing, 'latest'"):
        commit(work, spec, staging)
    assert (saved / "last.ckpt").read_bytes() == b"weights"
    (saved / "latest").unlink()
    made = {name: each for name, (each,) in store.commit("a-1", attempt=1).items()}
    assert store.manifest(made[CHECKPOINTS].address).keys() == {"epoch=3.ckpt", "last.ckpt"}


def test_what_links_name_is_never_outside_of_the_folder(tmp_path):
    top = tmp_path / "out"
    (top / "d").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    hostile = {
        "up": "../secret",
        "d/up": "../../secret",
        "absolute": str(tmp_path / "secret"),
        "beside": f"{top}-beside/x",
        "chain": "d/up",
        "deep": "d/../../out/../secret",
        "by-dots": f"{top}/../secret",
        "proc": "/proc/self/root/etc/passwd",
        "top": ".",
        "a": "b",
        "b": "a",
    }
    for name, text in hostile.items():
        (top / name).symlink_to(text)
    assert [each.path for each in kept.follow(str(top))] == sorted(hostile)
    assert all((top / name).is_symlink() for name in hostile)


def test_links_to_folders_in_a_circle_and_to_too_many_files_are_refused(tmp_path, monkeypatch):
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "x").symlink_to(f"../{other}")
    assert [str(each.what) for each in kept.follow(str(tmp_path / "out"))] == ["a link in a circle"] * 2
    (tmp_path / "many" / "d").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "many" / "d" / str(number)).touch()
    (tmp_path / "many" / "link").symlink_to("d")
    monkeypatch.setattr(kept, "MOST_LINKED", 2)
    for _ in range(2):  # a commit may be asked for again, and must not take what was linked by then
        assert "links to more than 2 files" in kept.follow(str(tmp_path / "many"))[0].what
    assert (tmp_path / "many" / "link").is_symlink()


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchanged", "in two steps"])
def test_cut_off_at_any_step_links_are_followed_the_next_time(tmp_path, monkeypatch, exchanges):
    if not exchanges:  # as NFS has it
        monkeypatch.setattr(kept, "swap", lambda *_: False)
    for step in itertools.count(1):
        top = tmp_path / str(step)
        (top / "d" / "inner").mkdir(parents=True)
        (top / "d" / "inner" / "w").write_text("1")
        (top / "file").symlink_to("d/inner/w")
        (top / "folder").symlink_to("d")
        with monkeypatch.context() as patched:
            steps = itertools.count(1)
            for call in ("mkdir", "link", "unlink", "replace"):
                patched.setattr(os, call, cut_off_at(step, steps, getattr(os, call)))
            patched.setattr(kept, "swap", cut_off_at(step, steps, kept.swap))
            try:
                kept.follow(str(top), rename=os.replace)
            except KeyboardInterrupt:
                pass
            else:
                break
        assert kept.follow(str(top)) == []
        found = {
            str(path.relative_to(top)) for path in top.rglob("*") if path.is_file() and not path.is_symlink()
        }
        assert found == {"d/inner/w", "file", "folder/inner/w"}, step
        assert not any(path.is_symlink() or path.name.startswith(".") for path in top.rglob("*")), step
    assert step > 6


def cut_off_at(step, steps, call):
    def cut(*arguments, **options):
        if next(steps) == step:
            raise KeyboardInterrupt
        return call(*arguments, **options)

    return cut


def test_the_name_of_a_folder_that_is_not_utf_8_is_told(tmp_path):
    (tmp_path / os.fsdecode(b"d\xff")).mkdir()
    (tmp_path / os.fsdecode(b"d\xff") / "x").touch()
    assert [each.what for each in kept.follow(str(tmp_path))] == ["a name that is not UTF-8"]


def test_a_link_to_a_folder_whose_name_leaves_no_room_is_refused(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / ("l" * 242)).symlink_to("d")
    assert kept.follow(str(tmp_path)) == []
    (tmp_path / ("l" * 243)).symlink_to("d")
    assert [each.what for each in kept.follow(str(tmp_path))] == [
        "a link to a folder that has a name of more than 242 bytes"
    ]


def test_a_link_to_a_file_may_have_the_longest_name(tmp_path):
    (tmp_path / "file").write_text("1")
    (tmp_path / ("漢" * 85)).symlink_to("file")
    assert kept.follow(str(tmp_path)) == []
    assert (tmp_path / ("漢" * 85)).stat().st_nlink == 2


def test_where_no_file_can_be_linked_what_a_link_names_is_copied(tmp_path, monkeypatch):
    (tmp_path / "run").write_text("1")
    (tmp_path / "run").chmod(0o755)
    (tmp_path / "link").symlink_to("run")

    def refuse(*_, **__):
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert kept.follow(str(tmp_path)) == []
    assert (tmp_path / "link").stat().st_nlink == 1
    assert os.access(tmp_path / "link", os.X_OK)


def test_a_difference_tells_of_executable_files_and_empty_folders(store, tmp_path):
    (tmp_path / "repo" / "logs").mkdir(parents=True)
    (tmp_path / "repo" / "run.sh").write_text("#!/bin/sh\n")
    first = store.manifest(store.add("repo", tmp_path / "repo").address)
    assert compare(first, first).same_files == 1
    (tmp_path / "repo" / "run.sh").chmod(0o755)
    (tmp_path / "repo" / "logs").rename(tmp_path / "repo" / "log")
    found = compare(first, store.manifest(store.add("repo", tmp_path / "repo").address))
    assert (found.added, found.removed, found.changed) == ({"log/": 0}, {"logs/": 0}, {"run.sh": (10, 10)})


def test_a_folder_that_is_put_keeps_the_same(store, tmp_path):
    (tmp_path / "repo" / "empty").mkdir(parents=True)
    (tmp_path / "repo" / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "repo" / "run.sh").chmod(0o755)
    (tmp_path / "repo" / "run").symlink_to("run.sh")
    (tmp_path / "repo" / "again").symlink_to("empty")
    made = store.add("tools/repo", tmp_path / "repo")
    assert os.access(store.path(made.address) / "run", os.X_OK)
    assert [*store.manifest(made.address).folders()] == ["again", "empty"]
    (tmp_path / "repo" / "self").symlink_to(".")
    with pytest.raises(StoreError, match="holds a link in a circle, 'self'"):
        store.add("tools/repo", tmp_path / "repo")


@pytest.mark.parametrize("change", [lambda path: path.chmod(0o666), lambda path: os.chown(path, 1234, -1)])
def test_a_wrong_mode_or_owner_is_seen_and_never_spreads(work, store, change):
    if os.geteuid():
        pytest.skip("needs root: another's file")
    first = work.run("a-1", {"x": b"1", "run": b"2"})
    change(store.path(first.address) / "x")
    second = work.run("a-2", {"x": b"1", "run": b"2"})
    one, other = (store.path(version.address) / "x" for version in (first, second))
    assert one.stat().st_ino != other.stat().st_ino
    assert (other.stat().st_mode & 0o777, other.stat().st_uid) == (0o444, 0)
    assert {each.where for each in store.check().problems} == {first.address}
    assert (store.path(first.address) / "run").stat().st_nlink == 2


def test_a_version_of_another_user_is_not_shared_and_no_damage(work, store, caplog):
    if os.geteuid():
        pytest.skip("needs root: another's files")
    data = store.path(work.run("a-1", {"x": b"1", "y": b"2"}).address)
    for each in (data, data / "x", data / "y"):
        os.chown(each, 1234, -1)
    own = store.path(work.run("a-2", {"x": b"1", "y": b"2"}).address)
    assert (own / "x").stat().st_ino != (data / "x").stat().st_ino
    assert not caplog.records
    assert not store.check().problems


def test_what_is_advised_about_a_file_is_one_word_to_a_shell(work, store):
    if os.geteuid():
        pytest.skip("needs root: another's file")
    data = store.path(work.run("a-1", {"a; exit 1 #": b"1"}).address)
    os.chown(data / "a; exit 1 #", 1234, -1)
    (found,) = store.check().problems
    subprocess.run(["sh", "-c", found.advice.partition(": ")[2]], check=True)
    assert not store.check().problems


@pytest.mark.parametrize("name", ["2026-8", "y2026-8", "2026-08-1", "2026-W9", "2026.1"])
def test_a_partition_that_would_sort_wrongly_is_refused_where_a_version_is_made(work, store, tmp_path, name):
    (tmp_path / "x").write_text("1")
    with pytest.raises(SpecError, match="ordered as text, and 2026-8 would come after 2026-10"):
        store.add("flights/raw", tmp_path / "x", partition=name)
    with pytest.raises(SpecError, match="two digits"):
        store.ledger.create("a-1", work.spec(out=OutputTarget(volume="flights/raw", partition=name)))
    for right in ("2026-08", "2026-08-01", "2026-Q3", "v1", "v2.1", "q3"):
        check_new_partition(right)
    assert OutputTarget(volume="flights/raw", partition=name).partition == name, "a job that is there is read"


@pytest.mark.parametrize("note", [3, {"run": 1}, None, Path("x"), "x" * 4001])
def test_a_note_that_is_no_short_text_is_refused_before_anything_is_written(store, tmp_path, note):
    (tmp_path / "x").write_text("1")
    with pytest.raises(SpecError, match="need text of at most 4000 characters"):
        store.add("flights/raw", tmp_path / "x", note=note)
    assert (store.volumes(), store.check().problems) == ([], ())


def test_a_damaged_version_that_is_retired_is_no_problem_any_more(work, store):
    made = work.run("a-1", {"x": b"1"})
    manifest = store.layout.version(made.volume, 1) / "MANIFEST"
    manifest.chmod(0o644)
    manifest.write_bytes(b"torn")
    assert not store.check().clean
    store.retire(made.address, reason="torn")
    report = store.check()
    assert report.clean
    assert ["gc deletes it" in each.advice for each in report.problems] == [True]


def test_what_is_left_of_a_failed_job_without_files_is_not_told(work, store):
    _, staging = staged(work, out="tools/repo")
    (staging.output("main", 0, "out") / "weights").write_bytes(b"1")
    failed = Verdict(cause=Cause.USER_ERROR, message="m", advice="a")
    store.ledger.update(
        JobStatus(job_id="a-1", state=JobState.FAILED, submitted=1.0, ended=2.0, verdict=failed)
    )
    assert [each.advice for each in store.check().problems] == ["`muster jobs gc a-1 --yes` deletes them"]
    store.ended.give_back("a-1", cause=failed.cause)
    assert store.check().problems == ()


def test_a_store_without_its_name_says_how_to_write_it_again(store):
    (store.layout.root / "VOLUME.json").unlink()
    with pytest.raises(NotFound, match=r"holds versions and no VOLUME.json, .*fsck --repair-from MIRROR"):
        open_layout(store.layout.root)
