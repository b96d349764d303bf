"""Folds of deleted versions that are cut off: at every single step, by kill -9 or by an error, and then done again.

``python fold_faults.py FOLDER (kill | ERRNO)`` prints one JSON line: how many steps there were and how many were cut off. It fails at the first broken
promise. A step is a system call that changes something, as in ``commit_faults.py``.
"""

import errno
import itertools
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from commit_faults import fate

from conftest import Work
from muster.core.errors import StoreError
from muster.volumes.folder import FolderStore
from muster.volumes.tombstones import find

VOLUME = "flights/features"
LAST = 5


def main(folder, how):
    ready = Path(folder, "ready")
    expected = prepare(ready)
    for step in itertools.count(1):
        root = Path(shutil.copytree(ready, Path(folder, str(step)), symlinks=True))
        status = cut_off_at(step, root, how)
        assert status in (0, 1, -signal.SIGKILL), f"step {step}: the collection ended with {status}"
        assert known(FolderStore(root)) == expected, f"step {step}"
        problems = FolderStore(root).check(deep=True).problems
        assert not problems, f"step {step}: {problems}"
        finish(root, expected, step)
        if status == 0:
            print(json.dumps({"steps": step}))
            return


def prepare(root):
    """Make a store with two folded versions, and two that wait for it; return what is known of each deleted one."""
    work = Work(root)
    for number in range(1, LAST + 1):
        work.run(f"a-{number}", {"x": b"%d" % number, "d/y": b"same"})
        if number == 3:
            work.store.collect(keep_last=1, job_days=0, now=True)
    work.store.collect(volumes=[VOLUME], keep_last=1, now=True)  # folds none
    assert folded(work.store) == [1, 2]
    return known(work.store)


def known(store):
    return {
        number: (
            store.catalog.described(VOLUME, number),
            store.record(f"{VOLUME}@{number}"),
            *store.manifest(f"{VOLUME}@{number}").items(),
        )
        for number in range(1, LAST)
    }


def folded(store):
    return [number for number in range(1, LAST + 1) if find(store.layout, VOLUME, number) is not None]


def cut_off_at(step, root, how):
    """Collect in a child that meets its fate at its `step`-th change; return its exit status, 0 where that never came."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status, met = 2, False  # whatever else comes: the copy of the tests must never run on
    hook = fate(step, how)

    def meets(event, arguments):
        nonlocal met
        try:
            hook(event, arguments)
        except OSError:
            met = True
            raise

    try:
        store = FolderStore(root)
        sys.addaudithook(meets)
        store.collect(keep_last=1, job_days=0, now=True)
        status = int(met)  # a fold that finds no room waits for the next time
    except StoreError as error:
        status = 1 if os.strerror(int(how)) in str(error) else 2
    finally:
        os._exit(status)


def finish(root, expected, step):
    store = FolderStore(root)
    for _ in range(2):
        store.collect(keep_last=1, job_days=0, now=True)
    assert folded(store) == [1, 2, 3, 4], f"step {step}"
    assert store.layout.numbers(VOLUME) == [LAST], f"step {step}"
    files = [path for path in store.layout.tombstones(VOLUME).iterdir() if path.name[0] != "."]
    assert len(files) in (1, 2), f"step {step}"  # the next fold writes the two as one
    assert [path.name for path in (root / "commits").iterdir()] == [f"a-{LAST}.json"], f"step {step}"
    assert known(FolderStore(root)) == expected, f"step {step}"


if __name__ == "__main__":
    main(sys.argv[1], str(getattr(errno, sys.argv[2], sys.argv[2])))
