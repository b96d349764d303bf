"""Commits on NFS that are cut off by kill -9, and done again: ``python -m tests.fuse.cut_commits CLIENT STRIDE FAULTS``.

As ``tests/unit/volumes/commit_faults.py`` does it on a disk, at every STRIDEth step; FAULTS begin when all
is sealed and copied. One JSON line says how many steps there were. It fails at the first broken promise.
"""

import itertools
import json
import os
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "volumes"))

import commit_faults
from tests.fuse.filesystem import FAULTS, Faults

from muster.volumes.folder import FolderStore


def main(client: str, stride: str, faults: str) -> None:
    """See the module."""
    outcomes = {"nothing": 0, "everything": 0}
    ready = Path(client, "ready")
    commit_faults.prepare(ready)
    for step in itertools.count(1, int(stride)):
        root = Path(client, str(step))
        os.setxattr(client, FAULTS, Faults().dumps().encode())
        shutil.copytree(ready, root, symlinks=True)
        os.setxattr(client, FAULTS, faults.encode())
        status = commit_faults.commit_cut_off_at(step, root, "kill")
        assert status in (0, -signal.SIGKILL), f"step {step}: the commit ended with {status}"
        left = commit_faults.visible(root)
        assert left in (set(), set(commit_faults.EXPECTED)), f"step {step}: a part is visible: {left}"
        assert FolderStore(root).check(deep=True).clean, f"step {step}: not clean"
        commit_faults.finish(root, step)
        if status == 0:
            break
        outcomes["everything" if left else "nothing"] += 1
    print(json.dumps({"steps": step, **outcomes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
