"""Commits that are cut off: at every single step, by kill -9 or by an error, and then done again.

``python commit_faults.py FOLDER (kill | ERRNO)`` prints one JSON line: how many steps there were
and how often the cut left nothing or everything visible. It fails at the first broken promise.

A step is a system call that changes something. Python's audit hooks see each before it is made, so
nothing in the store knows of this.
"""

import errno
import itertools
import json
import os
import shutil
import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))

from tests.unit.volumes.conftest import Work

from muster.core.data import CARRIED, CHECKPOINTS, OutputTarget
from muster.core.errors import NotFound, StoreError
from muster.volumes.folder import FolderStore

CHANGES = {"os.rename", "os.link", "os.mkdir", "os.chmod", "os.remove", "os.rmdir", "ctypes.dlsym"}
JOB = "flights-1"
EXPECTED = {
    "features@3": {"kept": b"same", "d/new": b"22", "mine/0": b"0", "mine/1": b"1"},
    "more@2": {"stays": b"1", "d/stays": b"2", "new": b"3"},
    "state@2": {"a": b"1", "d/b": b"2", "c": b"33", "step/w": b"4", "last": b"33", "latest/w": b"4"},
    "months@2013-01": {"x": b"1"},
    "months@2013-02": {"x": b"2"},
}


def main(folder, how):
    outcomes = {"nothing": 0, "everything": 0}
    prepare(Path(folder, "ready"))
    for step in itertools.count(1):
        root = Path(shutil.copytree(Path(folder, "ready"), Path(folder, str(step)), symlinks=True))
        status = commit_cut_off_at(step, root, how)
        assert status in (0, 1, -signal.SIGKILL), f"step {step}: the commit ended with {status}"
        left = visible(root)
        assert left in (set(), set(EXPECTED)), f"step {step}: a part is visible: {left}"
        replaced = FolderStore(root).resolve("more@1")[0].retired
        assert bool(left) == bool(replaced), (
            f"step {step}: {left} is visible, and more@1 is retired: {replaced}"
        )
        assert FolderStore(root).check(deep=True).clean, f"step {step}: not clean"
        finish(root, step)
        if status == 0:
            print(json.dumps({"steps": step, **outcomes}))
            return
        outcomes["everything" if left else "nothing"] += 1


def prepare(root):
    work = Work(root)
    work.run("a-1", {"kept": b"same", "old": b"gone"}, volume="features")
    work.run("a-2", {"kept": b"same", "d/new": b"1"}, volume="features")
    before = work.run("a-3", {"stays": b"1", "d/stays": b"2", "goes": b"4"}, volume="more")
    state = work.run("a-4", {"a": b"1", "d/b": b"2", "goes": b"3"}, volume="state")
    spec = work.spec(
        replicas=2,
        inputs={"before": before, "state": state},
        features="features",
        months=OutputTarget(volume="months", partition="*"),
        more=OutputTarget(volume="more", base="before", after=1, retires=(1,)),
        **{CHECKPOINTS: OutputTarget(volume="state", base="state", after=1)},
    )
    first = {
        "features": {"kept": b"same", "d/new": b"22", "mine/0": b"0"},
        "months": {"2013-01/x": b"1"},
        "more": {CARRIED: b"stays\nd/stays\n", "new": b"3"},
        CHECKPOINTS: {CARRIED: b"a\nd/b\n", "c": b"33", "step/w": b"4"},
    }
    second = {"features": {"mine/1": b"1"}, "months": {"2013-02/x": b"2"}}
    staging = work.seal(JOB, spec, first, second)
    (staging.checkpoints / "last").symlink_to("c")
    (staging.checkpoints / "latest").symlink_to("step")


def commit_cut_off_at(step, root, how):
    """Commit in a child that meets its fate at its `step`-th change; return its exit status."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 2  # whatever else comes: the copy of the tests must never run on
    try:
        store = FolderStore(root)
        sys.addaudithook(fate(step, how))
        store.commit(JOB, attempt=1)
        status = 0
    except StoreError as error:
        status = 1 if os.strerror(int(how)) in str(error) else 2
    finally:
        os._exit(status)


def fate(step, how):
    seen = 0

    def hook(event, arguments):
        nonlocal seen
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        if event not in CHANGES and not writes:
            return
        seen += 1
        if seen == step and how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if seen >= step and how != "kill":  # the disk stays full
            raise OSError(int(how), os.strerror(int(how)), str(arguments[0]))

    return hook


def visible(root):
    found = set()
    for address in EXPECTED:
        try:
            FolderStore(root).resolve(address)
        except NotFound:
            continue
        found.add(address)
    return found


def finish(root, step):
    store = FolderStore(root)
    versions = store.commit(JOB, attempt=1)
    assert store.commit(JOB, attempt=1) == versions
    assert sum(len(each) for each in versions.values()) == len(EXPECTED)
    for address, files in EXPECTED.items():
        data = store.path(address)
        found = {str(path.relative_to(data)): path.read_bytes() for path in data.rglob("*") if path.is_file()}
        assert found == files, f"step {step}: {address} holds {found}"
    assert [len(store.versions(volume)) for volume in ("features", "months", "more", "state")] == [
        3,
        2,
        2,
        2,
    ], f"step {step}"
    assert store.resolve("more@1")[0].retired == "replaced by more@2", f"step {step}"
    problems = store.check(deep=True).problems
    assert not problems, f"step {step}: {problems}"


if __name__ == "__main__":
    main(sys.argv[1], str(getattr(errno, sys.argv[2], sys.argv[2])))
