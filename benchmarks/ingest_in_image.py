"""Runs in the image ingest for ``benchmarks.ingest``: one copy of a bucket, by muster's program or by fsspec; prints its seconds."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from muster_ingest.connection import Connection
from muster_ingest.objects import Ingest
from muster_ingest.places import Place


def main(verb: str, what: str, target: str, before: str) -> None:
    """Copy once; imports are not measured, and each opens the file system and its connections itself."""
    said, folder = json.loads(what), Path(target)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    connection = Connection.of_environment(said)
    place = Place(said["source"], connection)
    place.begin()
    place.fs.call_s3("list_objects_v2", Bucket=place.root.partition("/")[0], MaxKeys=1)
    began = time.perf_counter()
    if verb == "fsspec":
        place.begin()
        names = place.fs.find(place.root)
        files = [str(folder / name[len(place.root) + 1 :]) for name in names]
        place.fs.get(names, files, batch_size=said["streams"])
    elif verb == "list":
        place.begin()
        assert sum(1 for _ in place.objects(lambda _what, question: question()))
    else:
        Ingest(Path(before) if before else None, folder, said, connection).run()
    print(time.perf_counter() - began)


main(*sys.argv[1:])
