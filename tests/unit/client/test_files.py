"""``volume://`` as fsspec has it, found by its entry point; the readers are tried in ``tests/images/test_notebook.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest

import muster

JANUARY = b"2013-01" * 100


@pytest.fixture
def files() -> Any:
    return fsspec.filesystem("volume")


@pytest.mark.usefixtures("history")
class TestReading:
    @pytest.mark.parametrize(
        "where", ["flights/features@2013-01", "flights/features@1", "flights/features@*/2013-01"]
    )
    def test_a_file_is_opened_by_its_address(self, where: str) -> None:
        with fsspec.open(f"volume://{where}/part.parquet") as file:
            assert file.read() == JANUARY

    def test_text_is_decoded(self) -> None:
        with fsspec.open("volume://flights/model/card.md".replace("model/", "model@latest/"), "rt") as file:
            assert file.read() == "a model"

    def test_the_store_is_listed_from_the_top(self, files: Any) -> None:
        assert files.ls("volume://", detail=False) == ["flights/features", "flights/model"]
        assert files.ls("flights", detail=False) == ["flights/features", "flights/model"]
        assert files.ls("flights/model@2", detail=False) == [
            "flights/model@2/card.md",
            "flights/model@2/model.onnx",
        ]
        assert files.ls("flights/features@*", detail=False) == [
            "flights/features@*/2013-01",
            "flights/features@*/2013-02",
        ]
        assert files.find("flights/features@*") == [
            "flights/features@*/2013-01/part.parquet",
            "flights/features@*/2013-02/part.parquet",
        ]

    def test_folders_of_a_version_are_folders(self, files: Any, tmp_path: Path) -> None:
        for name in ("a/b/one", "a/two", "top"):
            (tmp_path / "rows" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "rows" / name).write_text(name)
        muster.put(tmp_path / "rows", "lab/rows")
        assert files.ls("lab/rows@1", detail=False) == ["lab/rows@1/a", "lab/rows@1/top"]
        assert files.isdir("lab/rows@1/a")
        assert files.find("lab/rows@1/a") == ["lab/rows@1/a/b/one", "lab/rows@1/a/two"]
        assert files.glob("lab/rows@1/**/one") == ["lab/rows@1/a/b/one"]
        assert files.cat_file("lab/rows/a/two".replace("rows/", "rows@1/")) == b"a/two"

    def test_info_says_what_a_file_is(self, files: Any) -> None:
        known = files.info("volume://flights/features@2013-01/part.parquet")
        version = muster.version("flights/features@1")
        assert (known["type"], known["size"]) == ("file", 700)
        assert (known["address"], known["digest"]) == (version.address, version.digest)
        assert files.ukey("flights/features@1/part.parquet") == version.files["part.parquet"].hash
        assert files.created("flights/features@1").timestamp() == pytest.approx(version.created)
        assert [
            files.info(name)["type"] for name in ("", "flights", "flights/model", "flights/features@*")
        ] == ["directory"] * 4
        assert files.exists("flights/model@2/card.md")
        assert not files.exists("flights/model@2/absent")

    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            ("flights/model@latest/*.md", ["flights/model@latest/card.md"]),
            (
                "flights/features@*/*.parquet",
                ["flights/features@1/part.parquet", "flights/features@2/part.parquet"],
            ),
            ("flights/features@<2013-02/*", ["flights/features@1/part.parquet"]),
            ("flights/model@2/*.parquet", []),
        ],
    )
    def test_patterns(self, files: Any, pattern: str, found: list[str]) -> None:
        assert files.glob(f"volume://{pattern}") == found
        assert sorted(files.glob(pattern, detail=True)) == found

    def test_all_files_of_one_object_are_of_one_version(self, files: Any, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("first")
        muster.put(tmp_path / "a", "lab/rows")
        assert files.cat_file("lab/rows@latest/a") == b"first"
        (tmp_path / "a").write_text("second")
        muster.put(tmp_path / "a", "lab/rows")
        assert files.cat_file("lab/rows@latest/a") == b"first"
        assert fsspec.filesystem("volume").cat_file("lab/rows@latest/a") == b"second"
        files.invalidate_cache()
        assert files.cat_file("lab/rows@latest/a") == b"second"

    def test_a_reader_of_local_files_gets_paths(self) -> None:
        (path,) = fsspec.open_local("volume://flights/features@2013-01/*.parquet")
        assert Path(path).read_bytes() == JANUARY

    @pytest.mark.parametrize(
        ("where", "error", "says"),
        [
            ("flights/modle@1/a", FileNotFoundError, "no volume flights/modle; there are flights/model"),
            ("flights/model@2/absent", FileNotFoundError, "holds no 'absent'; at its top are card.md"),
            (
                "flights/features@2014-01/a",
                FileNotFoundError,
                "no partition of flights/features is '2014-01'",
            ),
            ("flights/features@*/2014-01/a", FileNotFoundError, "has no partition '2014-01'; it has 2013-01"),
            ("flights/model@0/a", ValueError, "versions are numbered 1, 2, 3"),
            ("flights/model@2/../a", ValueError, "must be plain and relative"),
        ],
    )
    def test_what_is_not_there_is_said_as_readers_expect(
        self, files: Any, where: str, error: type[Exception], says: str
    ) -> None:
        with pytest.raises(error, match=says):
            files.info(f"volume://{where}")

    def test_nothing_is_written(self, files: Any) -> None:
        for write in (
            lambda: files.open("flights/model@2/new", "wb"),
            lambda: files.rm("flights/model@2/card.md"),
            lambda: files.mkdir("flights/model@2/new"),
            lambda: files.pipe_file("flights/model@2/new", b"1"),
            lambda: files.cp_file("flights/model@2/card.md", "flights/model@2/new"),
        ):
            with pytest.raises(OSError, match=r"a version is never changed: muster\.put"):
                write()

    def test_what_a_version_does_not_hold_is_not_found(self, files: Any) -> None:
        with pytest.raises(FileNotFoundError, match=r"holds no 'nope\.csv'"):
            files.open("volume://flights/model@2/nope.csv")

    def test_a_folder_is_not_opened(self, files: Any) -> None:
        with pytest.raises(IsADirectoryError):
            files.open("flights/model@2")
