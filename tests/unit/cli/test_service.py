"""``muster volumes`` of a cluster: what holds of a folder holds of the store service in front of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli import test_runs, test_upkeep, test_volumes
from tests.unit.cli.test_runs import ran  # noqa: F401 - a fixture
from tests.unit.volumes.service.process import Service

from muster.volumes.folder import FolderStore
from muster.volumes.service.tokens import operator_token

pytestmark = pytest.mark.slow

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def service(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """The store of the other tests, behind a service that MUSTER_CLUSTER names."""
    with Service(tmp_path, root=home / "store") as service:
        (tmp_path / "token").write_text(operator_token(service.keys, lifetime_seconds=60))
        (tmp_path / "cluster.toml").write_text(
            f'namespace = "muster-jobs"\nclaim = "muster-store"\nstore_url = "{service.url}"\n'
            'token_file = "token"\n'
        )
        monkeypatch.setenv("MUSTER_CLUSTER", str(tmp_path / "cluster.toml"))
        yield service


class TestReading(test_volumes.TestReading):
    def test_show_lists_the_files_with_hashes(self, muster: Run) -> None:
        document = muster("volumes", "show", "flights/model@1", "--json").json()
        assert [entry["path"] for entry in document["entries"]] == ["card.md", "model.onnx"]
        assert document["path"] is None
        assert "\n  path " not in muster("volumes", "show", "flights/model@1").out

    def test_nothing_is_fetched_to_be_shown(self, muster: Run, tmp_path: Path) -> None:
        for words in (("ls",), ("log", "flights/model"), ("show", "flights/model@1")):
            assert muster("volumes", *words).code == 0
        assert not list((tmp_path / "cache").rglob("model.onnx"))


class TestRuns(test_runs.TestReading):
    """In a few requests."""


class TestFsck(test_upkeep.TestFsck):
    """Where the store is, told line by line."""


class TestGc(test_upkeep.TestGc):
    """Where the store is."""


class TestPutAndGet:
    def test_there_and_back(self, muster: Run, tmp_path: Path) -> None:
        (tmp_path / "rows").mkdir()
        (tmp_path / "rows" / "a.csv").write_text("1,2\n")
        assert muster("volumes", "put", "rows", "raw/rows").out == "volume://raw/rows@1\n"
        assert muster("volumes", "get", "raw/rows@1", "copy").code == 0
        assert (tmp_path / "copy" / "a.csv").read_text() == "1,2\n"
        assert muster("volumes", "get", "raw/rows@1/a.csv", "a.csv").code == 0
        assert "already exists" in muster("volumes", "get", "raw/rows@1", "copy").err

    def test_pins_and_retirement(self, muster: Run, history: FolderStore) -> None:
        assert muster("volumes", "pin", "flights/model@1", "--reason", "in the paper").code == 0
        assert history.resolve("flights/model@1")[0].pins == ("in the paper",)
        assert muster("volumes", "unpin", "flights/model@1", "--reason", "in the paper").code == 0
        assert muster("volumes", "retire", "flights/model@1", "--reason", "torn").code == 0
        assert history.resolve("flights/model@1")[0].retired == "torn"
        assert muster("volumes", "reinstate", "flights/model@1").code == 0


class TestAway:
    def test_a_service_that_does_not_answer_is_one_message(
        self, muster: Run, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("muster.backends.base.LOOK_SECONDS", 0.01)
        service.kill()
        answer = muster("volumes", "ls")
        assert (answer.code, answer.out) == (1, "")
        assert "does not answer" in answer.err
        assert service.url in answer.err

    def test_a_token_of_somebody_else(self, muster: Run, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("hello.world")
        assert "the token is not one of this store service" in muster("volumes", "ls").err


def test_the_log_of_a_job(muster: Run, history: FolderStore) -> None:
    history.ledger.append("train-1", b"[rank 0] a line\n")
    assert muster("jobs", "logs", "train-1").out == "[rank 0] a line\n"
