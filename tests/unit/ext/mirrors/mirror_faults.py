"""Mirrors that are killed at their steps, and then go on.

``python mirror_faults.py FOLDER (store | open) STEPS [SEED]`` kills a mirror to a store, or to an open layout, at
so many random steps, or with ``all`` at every single one; after each kill what is visible must be whole. It prints one
JSON line. A step is a system call that changes something; Python's audit hooks see each before it is made.
"""

import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[4]))

from tests.contract.mirrored import assert_restores, facts, fill, mirror
from tests.forks import forks
from tests.unit.volumes.commit_faults import fate
from tests.waiting import GUARD_SECONDS

from muster.core.address import pinned
from muster.ext.mirrors.folder import FolderHome
from muster.ext.mirrors.open_layout import OpenHome
from muster.volumes.folder import FolderStore

# A clean process is forked for each run: threads that have hashed a large file do not outlive a fork.
_FORKS = forks("tests.unit.ext.mirrors.mirror_faults")


def main(folder, kind, steps, seed):
    source = FolderStore(folder / "source")
    fill(source, folder / "put")
    expected, kills = facts(source), 0
    count = steps_of(source, kind, folder / "counted")
    chosen = random.Random(seed)
    at = range(1, count + 1) if steps == "all" else [chosen.randint(1, count) for _ in range(int(steps))]
    root = folder / "mirror"
    for step in at:
        if steps == "all" and root.exists():
            os.system(f"chmod -R u+w {root}")
            shutil.rmtree(root)
        status = killed_at(step, source, kind, root)
        assert status in (0, -signal.SIGKILL), f"step {step}: {status}"
        kills += status != 0
        look(kind, root, expected, step)
        if status == 0 and steps != "all":  # it is complete: begin anew
            os.system(f"chmod -R u+w {root}")
            shutil.rmtree(root)
        elif steps == "all":
            assert mirror(FolderHome(source), opened(kind, root)).whole, step
            assert opened(kind, root).holdings() == FolderHome(source).holdings(), step
    assert mirror(FolderHome(source), opened(kind, root)).whole
    assert_restores(source, opened(kind, root), folder / "restored")
    print(json.dumps({"steps": count, "kills": kills}))


def steps_of(source, kind, root):
    """Count the steps of a whole run."""
    reading, writing = _FORKS.Pipe()
    child = _FORKS.Process(target=counted, args=(source.layout.root, kind, root, writing))
    child.start()
    child.join(GUARD_SECONDS)
    return reading.recv()


def counted(source, kind, root, told):
    seen = [0]

    def hook(event, arguments):
        try:
            fate(1, "5")(event, arguments)
        except OSError:
            seen[0] += 1

    home = opened(kind, root)
    sys.addaudithook(hook)
    mirror(FolderHome(FolderStore(source)), home)
    told.send(seen[0])


def killed_at(step, source, kind, root):
    """Mirror in a process that is killed at its `step`-th change; return its exit code."""
    child = _FORKS.Process(target=killed, args=(step, source.layout.root, kind, root))
    child.start()
    child.join(GUARD_SECONDS)
    return child.exitcode


def killed(step, source, kind, root):
    home = opened(kind, root)
    sys.addaudithook(fate(step, "kill"))
    mirror(FolderHome(FolderStore(source)), home)


def opened(kind, root):
    return FolderHome(FolderStore(root)) if kind == "store" else OpenHome(f"file://{root}")


def look(kind, root, expected, step):
    """What is visible is whole."""
    if kind == "store":
        store = FolderStore(root)
        assert store.check(deep=True).clean, f"step {step}: {store.check(deep=True).problems}"
        for address, found in facts(store).items():
            assert found == expected[address], f"step {step}: {address}"
        return
    home = opened(kind, root)
    for place, holding in home.holdings().items():
        version, record, files = expected[pinned(*place)]
        documents = home.documents(place)
        assert (documents.digest, documents.origin) == (version.digest, record), step
        if not holding.deleted:
            data = root / f"{place[0]}/{place[1]}/data"
            there = {
                str(path.relative_to(data)): path.read_bytes() for path in data.rglob("*") if path.is_file()
            }
            contents = {name: found[0] for name, found in files.items() if found is not None}
            assert contents.items() <= there.items(), f"step {step}: {place}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else os.getpid())
