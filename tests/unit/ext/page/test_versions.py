"""Which versions and columns of a volume are shown first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.backends.kubernetes import golden

from muster.ext.page.versions import (
    MOST_FILES,
    VersionsQuery,
    columns,
    files,
    newest_of_each,
    side_by_side,
    version as shown,
    versions as listed,
)
from muster.ext.search.space import loguniform
from muster.ext.search.spec import Search, SearchSpec
from muster.ext.search.stored import begin_search
from muster.volumes.base import Version
from muster.volumes.folder import FolderStore

EVERYONE: dict[str, Any] = {"permitted": lambda dag_id: True}


def added(store: FolderStore, folder: Path, name: str, *paths: str, note: str = "") -> str:
    for path in paths:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    return store.add(name, folder, note=note).address


def version(number: int, partition: str | None, retired: str | None = None) -> Version:
    return Version(
        volume="m",
        number=number,
        digest="b3:0",
        size_bytes=1,
        files=1,
        created=0.0,
        partition=partition,
        retired=retired,
    )


@pytest.mark.parametrize(
    ("metrics", "chosen"),
    [
        ([], []),
        (["loss", "auc", "rows", "auc_baseline"], ["loss", "auc", "auc_baseline", "rows"]),
        ([f"m{n}" for n in range(200)], [f"m{n}" for n in range(6)]),
        (["a", "b", "c", "d", "e", "f", "f_baseline"], ["a", "b", "c", "d", "e"]),
        (["a_baseline", "b"], ["a_baseline", "b"]),
    ],
)
def test_a_few_metrics_are_shown_each_beside_its_baseline(metrics: list[str], chosen: list[str]) -> None:
    assert columns(metrics)[: len(chosen)] == chosen
    assert len(columns(metrics)) <= 6


def test_of_each_partition_the_newest_that_is_not_retired_is_shown_the_last_partition_first() -> None:
    found = [
        version(5, "2013-01"),
        version(4, "2013-02", "bad"),
        version(3, "2013-02"),
        version(2, "2013-01"),
    ]
    assert [each.number for each in newest_of_each([*found, version(1, None)])] == [3, 5]


def test_where_there_are_no_partitions_every_version_is_shown() -> None:
    found = [version(2, None), version(1, None)]
    assert newest_of_each(found) == found


def test_files_are_listed_by_folder_found_by_their_path_and_turned_page_by_page(tmp_path: Path) -> None:
    many = [f"data/part-{n:04}.csv" for n in range(MOST_FILES + 8)]
    store = FolderStore(tmp_path / "store")
    address = added(store, tmp_path / "files", "m", "README.md", "data/deep/x.csv", *many)
    top = files(store, address)
    assert [(name, count) for name, count, _ in top["folders"]] == [("data", MOST_FILES + 9)]
    assert (top["total"], top["files"]) == (1, [["README.md", len("README.md")]])
    inner = files(store, address, under="data", offset=MOST_FILES)
    assert [name for name, *_ in inner["folders"]] == ["deep"]
    assert (inner["total"], [path for path, _ in inner["files"]]) == (len(many), many[MOST_FILES:])
    assert [path for path, _ in files(store, address, text="READ")["files"]] == ["README.md"]
    assert files(store, address, text="deep/")["total"] == 1
    assert files(store, address, under="data", text="data")["total"] == 0


def test_what_a_search_keeps_leads_to_its_search_and_to_no_job(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    spec = SearchSpec(space={"rate": loguniform(1e-3, 1.0)}, metric="auc", trials=9)
    begin_search(store, "s-1", Search(spec=spec, trial=golden.job(params={"rate": 0.1}), began=1.5))
    trained = added(store, tmp_path / "one", "m-trials", "model.bin")
    note = f"the best trial of search s-1: {trained}"
    kept = store.copy(trained, "m", request="0123456789abcdef", note=note).address
    found = shown(store, kept, **EVERYONE, readable=lambda dag_id: True)["record"]
    assert found["search"] == {"search_id": "s-1", "trial": -1, "copy_of": trained}
    assert found["job_known"] is False
    (row,) = listed(store, "m", VersionsQuery(), **EVERYONE)["versions"]
    assert (row["job_id"], row["search"]["search_id"]) == ("", "s-1")
    put = added(store, tmp_path / "two", "own", "model.bin", note="search v2")
    assert shown(store, put, **EVERYONE, readable=lambda dag_id: True)["record"]["search"] is None
    (row,) = listed(store, "own", VersionsQuery(), **EVERYONE)["versions"]
    assert (row["note"], row["search"]) == ("search v2", None)


def test_versions_are_compared_oldest_first_however_they_are_named(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    first, second = (added(store, tmp_path / "files", "m", name) for name in ("a", "b"))
    found = side_by_side(store, [second, first], **EVERYONE, readable=lambda dag_id: True)
    assert [each["address"] for each in found["versions"]] == [first, second]
    assert found["differences"][0]["files"]["changed"] == [["b", None, 1]]
