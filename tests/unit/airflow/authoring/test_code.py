"""What travels with a job, and what of it is different now."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.airflow.authoring.code import DagFolder, differing
from muster.core.errors import SpecError
from muster.volumes.folder import FolderStore


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    root = tmp_path / "dags"
    (root / "flights").mkdir(parents=True)
    for name in ("flights/dag.py", "flights/etl.py", "flights/train.py", "alone.py", "shared.py"):
        (root / name).write_text(f"# {name}\n")
    return root


def folder(bundle: Path, dag: str) -> DagFolder:
    return DagFolder(file=bundle / dag, bundle=bundle)


def test_the_dags_folder_is_the_package(bundle: Path) -> None:
    code = folder(bundle, "flights/dag.py").code()
    assert code.root == bundle
    assert code.files == ("flights/dag.py", "flights/etl.py", "flights/train.py")


def test_a_dag_in_the_bundles_root_travels_alone_unless_more_is_named(bundle: Path) -> None:
    assert folder(bundle, "alone.py").code().files == ("alone.py",)
    assert folder(bundle, "alone.py").code(["shared.py"]).files == ("alone.py", "shared.py")
    assert "flights/etl.py" in folder(bundle, "alone.py").code(["flights"]).files


def test_more_code_may_lie_beside_the_dags_folder(bundle: Path) -> None:
    assert "shared.py" in folder(bundle, "flights/dag.py").code(["../shared.py"]).files


@pytest.mark.parametrize("name", ["missing.py", "../../secret.py", ".."])
def test_what_is_missing_or_above_the_import_path_is_refused(bundle: Path, name: str) -> None:
    (bundle.parent / "secret.py").write_text("x")
    with pytest.raises(SpecError, match="code '"):
        folder(bundle, "flights/dag.py").code([name])


@pytest.mark.parametrize("name", ["nothing.json", "../alone.py", "/etc/hostname"])
def test_a_file_beside_the_dag_is_read_from_its_folder_only(bundle: Path, name: str) -> None:
    with pytest.raises(SpecError, match=f"suite '{name}'"):
        folder(bundle, "flights/dag.py").read(name, what="suite")


def test_only_imported_files_count_as_changed_where_they_are_known(bundle: Path, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    here = folder(bundle, "flights/dag.py")
    digest = here.code().put(store)
    assert differing(digest, None, here.code(), store) == ()
    (bundle / "flights" / "train.py").write_text("# changed\n")
    assert differing(digest, ("flights/etl.py",), here.code(), store) == ()
    assert differing(digest, ("flights/train.py",), here.code(), store) == ("flights/train.py",)
    assert differing(digest, None, here.code(), store) == ("flights/train.py",)
    (bundle / "flights" / "etl.py").unlink()
    assert differing(digest, ("flights/etl.py",), here.code(), store) == ("flights/etl.py",)
    assert differing(None, None, here.code(), store) == ()
