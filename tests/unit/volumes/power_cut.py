"""Commits on a file system whose power goes: ``python power_cut.py STORE ROUND [careless]``.

Commits version after version until an error ends it, and prints the address, digest and content of each
that was acknowledged. Careless, it leaves out everything that brings data to disk: that must be seen.
"""

import itertools
import os
import sys

from conftest import Work
from muster.volumes import attempts, commit, durability, snapshot
from muster.worker import seal


def main(root, turn, how=""):
    if how == "careless":
        os.fsync = lambda _: None
        seal.sync = lambda _: None
        for room in (attempts, commit, durability, snapshot):
            room.sync_all = lambda _: None
    work = Work(root)
    for number in itertools.count():
        text = f"{turn} {number} ".encode()
        files = {"same": b"same" * 500, "d/changes": text * 2000, **{f"many/{n}": text for n in range(40)}}
        version = work.run(f"cut-{turn}-{number}", files)
        print(version.address, version.digest, text.decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
