"""What holds of a folder holds of the store service in front of one; files are fetched once, and checked."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
from tests.unit.cli.test_service import service
from tests.unit.client import test_files, test_versions
from tests.unit.client.test_files import files

import muster
from muster.volumes.folder import FolderStore

__all__ = ["files", "service"]


class TestVersions(test_versions.TestReading):
    """Versions."""


class TestFiles(test_files.TestReading):
    """``volume://``."""


def fetched(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").rglob("data/*"))


@pytest.mark.usefixtures("history")
def test_a_version_is_fetched_whole_when_its_path_is_asked_for(tmp_path: Path) -> None:
    model = muster.version("flights/model")
    assert (model.metrics, sorted(model.files)) == ({"auc": 0.72}, ["card.md", "model.onnx"])
    assert fetched(tmp_path) == []
    assert (model.path / "card.md").read_text() == "a model"
    assert fetched(tmp_path) == ["card.md", "model.onnx"]


@pytest.mark.usefixtures("history")
def test_of_a_version_only_the_file_that_is_opened_is_fetched(tmp_path: Path) -> None:
    assert fsspec.filesystem("volume").cat_file("flights/model@2/card.md") == b"a model"
    assert fetched(tmp_path) == ["card.md"]


def test_damaged_bytes_are_refused(history: FolderStore) -> None:
    damaged = history.path("flights/model@2") / "card.md"
    damaged.chmod(0o644)
    damaged.write_bytes(b"another"[:7])
    with pytest.raises(OSError, match="other bytes than were committed"):
        fsspec.filesystem("volume").cat_file("flights/model@2/card.md")
