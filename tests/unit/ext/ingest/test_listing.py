"""The listing of a source: names that no folder can hold are refused, each by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def listed(tmp_path: Path) -> Any:
    """List objects of these names, each of one byte."""
    from muster_ingest.listing import Listing  # type: ignore[import-not-found]

    listing = Listing(tmp_path / "listing.sqlite")
    yield lambda *names, size=1: listing.list(((f"b/{name}", name, size, "tag") for name in names), "s3://b")
    listing.close()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["../a"], "'b/../a' is no path below a folder"),
        (["a/./b"], "is no path below a folder"),
        (["a//b"], "'b/a//b' is no path below a folder"),
        (["/a"], "is no path below a folder"),
        (["a/"], "ends with a slash and has content"),
        (["a" * 300], "has a name of more than 240 bytes"),
        (["/".join(["abc"] * 700)], "or a path of more than 2000"),
        (["a", "a"], "two objects with one path"),
        (["a/b", "a"], "holds 'a' and 'a/b'"),
        (["a-b", "a/b", "a"], "holds 'a' and 'a/b'"),
        (["a\nb"], "control characters"),
        (["a\ud800"], "no UTF-8"),
        ([".muster-carried"], "that an ingest itself uses"),
        ([".muster-parts/x"], "that an ingest itself uses"),
    ],
)
def test_a_name_that_is_no_path_is_refused(listed: Any, names: list[str], said: str) -> None:
    with pytest.raises(Exception, match=said) as caught:
        listed("good", *names)
    assert type(caught.value).__name__ == "IngestError"


def test_the_empty_objects_that_stand_for_folders_are_left_out(listed: Any) -> None:
    assert listed("a/", "", "b/c/", size=0) == 3


def test_names_beside_each_other_are_no_folders(listed: Any) -> None:
    assert listed("a", "a-b", "a.b", "ab/c", "é/ü", "with space") == 0
