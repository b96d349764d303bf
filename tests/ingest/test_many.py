"""A million objects: the comparison of two lists takes bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ingest.conftest import IMAGE

pytestmark = [pytest.mark.slow, pytest.mark.data]

COMPARE = """
import json, resource, sys
from pathlib import Path
from muster_ingest import listing

def objects(changed=0):
    for number in range(1_000_000):
        path = f"day={number // 3_000:03}/part-{number:07}.parquet"
        yield f"bucket/{path}", path, 1_000, f"tag-{number}" + ("x" if number < changed else "")

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
began = peak()
found = listing.Listing(Path(sys.argv[1]) / "listing.sqlite")
found.had(((path, size, tag) for _, path, size, tag in objects()), here=False)
found.list(objects(changed=7), "s3://bucket")
print(json.dumps([found.missing(), found.gone(), len(found.missing_after("")), peak() - began]))
"""


@pytest.mark.nightly
def test_the_lists_of_a_million_objects_are_compared_on_disk(tmp_path: Path) -> None:
    said = subprocess.check_output(
        [sys.executable, "-c", COMPARE, tmp_path], env={"PYTHONPATH": str(IMAGE)}, text=True
    )
    missing, gone, changed, mebibytes = json.loads(said)
    assert (missing, gone, changed) == ([7, 7_000], [], 7)
    assert mebibytes < 96
