"""KServe's SDK around the server: what is imported of it, its pages, and its definition of the protocol."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.core.shipped import shipped

pytestmark = pytest.mark.slow

# each message and field of KServe's, but for what loads and unloads a model, which muster's server does not answer
DIFFERENCES = """
from kserve.protocol.grpc import grpc_predict_v2_pb2 as theirs
from muster_serving.rpc import generated as ours

def fields(of):
    return {f.name: (f.number, f.type, f.is_repeated, f.message_type and f.message_type.full_name) for f in of.fields}

def compare(theirs, ours):
    yield theirs.full_name, fields(theirs).items() - fields(ours).items()
    for inner in theirs.nested_types:
        yield from compare(inner, ours.nested_types_by_name[inner.name])

for name, message in theirs.DESCRIPTOR.message_types_by_name.items():
    if not name.startswith("RepositoryModel"):
        for what, differs in compare(message, getattr(ours, name).DESCRIPTOR):
            print(what, *sorted(differs))
"""


def said(python: Path, program: str) -> list[str]:
    """Return the lines that a program prints in an image's environment."""
    words = [python, "-c", program]
    return subprocess.check_output(words, cwd=shipped("serving"), text=True).splitlines()


def test_what_it_does_not_use_is_not_imported(python: Callable[[str], Path]) -> None:
    asked = (
        "import sys, muster_serving.kserve_server; print(*sorted({'kubernetes', 'pandas'} & set(sys.modules)))\n"
        "import gc, pandas; print(gc.isenabled(), pandas.DataFrame({'a': [1]}).shape)"
    )
    assert said(python("kserve"), asked) == ["", "True (1, 1)"]


def test_musters_own_server_needs_nothing_of_it(python: Callable[[str], Path]) -> None:
    asked = (
        "import sys, muster_serving.server, muster_serving.rpc.listener\n"
        "print(*sorted({'kserve', 'fastapi', 'pydantic', 'kubernetes', 'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    for image in ("serve", "kserve"):
        assert said(python(image), asked) == [""]


def test_the_messages_are_those_of_kserve(python: Callable[[str], Path]) -> None:
    lines = said(python("kserve"), DIFFERENCES)
    assert len(lines) == 23
    assert [line for line in lines if " " in line] == []
