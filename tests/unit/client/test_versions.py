"""``import muster``: versions of a folder store; :mod:`tests.unit.client.test_service` runs the same over a service."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import muster
from muster.core.errors import NotFound, SpecError
from muster.volumes.folder import FolderStore


@pytest.mark.usefixtures("history")
class TestReading:
    def test_a_version_has_its_files_and_where_they_come_from(self) -> None:
        model = muster.version("flights/model")
        assert (model.address, model.number, model.partition) == ("volume://flights/model@2", 2, None)
        assert (model.path / "card.md").read_text() == "a model"
        assert sorted(model.files) == ["card.md", "model.onnx"]
        assert model.files["card.md"].size_bytes == 7
        assert (model.params, model.metrics) == ({"epochs": 2}, {"auc": 0.72})
        assert model.record.job_id == "train-2"
        assert [each.address for each in model.lineage] == [
            "volume://flights/features@1",
            "volume://flights/features@2",
        ]
        assert repr(model).startswith("<muster.Version volume://flights/model@2 b3:")

    def test_a_partition_is_the_same_version_as_its_number(self) -> None:
        rows = muster.version("flights/features@2013-01")
        assert rows == muster.version("volume://flights/features@1")
        assert rows != muster.version("flights/features@2")
        assert len({rows, muster.version("flights/features@1")}) == 1
        assert Path(rows) == rows.path

    def test_versions_are_a_sequence_oldest_first(self) -> None:
        models = muster.versions("flights/model")
        assert len(models) == 2
        assert [model.number for model in models] == [1, 2]
        assert [model.metrics for model in models] == [{"auc": 0.71}, {"auc": 0.72}]
        assert models[-1] == muster.version("flights/model")
        assert [model.number for model in models[1:]] == [2]
        assert isinstance(models[1:], muster.Versions)
        with pytest.raises(IndexError):
            models[2]

    def test_an_address_selects_some(self) -> None:
        assert [rows.partition for rows in muster.versions("flights/features@<2013-02")] == ["2013-01"]

    def test_a_frame_without_pandas_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(SpecError, match="to_pandas\\(\\) needs pandas"):
            muster.versions("flights/model").to_pandas()

    def test_what_is_put_is_a_version(self, tmp_path: Path) -> None:
        (tmp_path / "rows").mkdir()
        (tmp_path / "rows" / "a.csv").write_text("1,2\n")
        first = muster.put(tmp_path / "rows", "lab/rows", note="by hand")
        assert (first.address, first.record.note) == ("volume://lab/rows@1", "by hand")
        assert (first.path / "a.csv").read_text() == "1,2\n"
        second = muster.put(str(tmp_path / "rows"), "lab/rows", partition="2013-01")
        assert (second.partition, second.record.note) == ("2013-01", f"put from {tmp_path / 'rows'}")

    @pytest.mark.parametrize(
        ("address", "error", "says"),
        [
            ("flights/modle", NotFound, "there are flights/model"),
            ("flights/model@9", NotFound, "no version flights/model@9"),
            ("flights/features@*", SpecError, "muster.versions\\('flights/features@\\*'\\)"),
            ("flights/model@2/card.md", SpecError, "muster.version\\('flights/model@2'\\).path / 'card.md'"),
            ("s3://a/b", SpecError, "expected a version of a volume"),
        ],
    )
    def test_what_is_no_version_is_refused_by_name(
        self, address: str, error: type[Exception], says: str
    ) -> None:
        with pytest.raises(error, match=says):
            muster.version(address)

    def test_an_unknown_volume_is_refused_when_its_versions_are_used(self) -> None:
        with pytest.raises(NotFound, match="no volume flights/modle"):
            len(muster.versions("flights/modle"))

    def test_what_is_not_there_is_not_put(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="rows does not exist"):
            muster.put(tmp_path / "rows", "lab/rows")


def test_nothing_is_read_before_it_is_used(history: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("versions", "resolve", "record", "records"):
        monkeypatch.setattr(FolderStore, name, lambda *_: pytest.fail("it was read"))
    assert repr(muster.versions("flights/model")) == "<muster.Versions flights/model>"


@pytest.mark.usefixtures("home")
def test_without_a_store_the_message_says_where_was_looked() -> None:
    with pytest.raises(NotFound, match=r"nothing is kept in .*\.muster yet"):
        muster.version("flights/model")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'modle'"):
        muster.modle  # noqa: B018
    assert {"version", "versions", "put", "deployment"} <= set(dir(muster))


@pytest.mark.parametrize(
    ("uses", "absent"),
    [
        ("", ("muster.client", "httpx", "blake3", "fsspec", "airflow")),
        (
            "muster.version; muster.versions; muster.put",
            ("airflow", "fsspec", "pandas", "kubernetes", "httpx"),
        ),
        ("muster.deployment", ("airflow", "pandas", "kubernetes")),
    ],
)
def test_the_import_is_cheap(uses: str, absent: tuple[str, ...]) -> None:
    code = f"import muster\n{uses}\nimport sys\nprint(*sorted({absent} & sys.modules.keys()))".replace(
        f"{absent} &", f"set({absent}) &"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
