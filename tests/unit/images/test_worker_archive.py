from __future__ import annotations

import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from muster.images.worker_archive import worker_folder, zipapp

USAGE = "usage: python WORKER REPLICA.json"


def test_the_folder_runs_without_muster_installed(tmp_path: Path) -> None:
    folder = worker_folder(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-I", "-S", str(folder)], capture_output=True, text=True, check=False
    )
    assert USAGE in ended.stdout
    assert ended.stderr == ""


def test_the_same_sources_are_one_folder_also_for_many_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(worker_folder, [tmp_path] * 16))
    assert len(folders) == 1
    assert [path.name for path in (tmp_path / "worker").iterdir()] == [folders.pop().name]


def test_the_zipapp_runs_and_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    first = tmp_path / "a.pyz"
    first.write_bytes(zipapp())
    zipapp.cache_clear()
    assert first.read_bytes() == zipapp()
    ended = subprocess.run(
        [sys.executable, "-I", "-S", str(first)], capture_output=True, text=True, check=False
    )
    assert USAGE in ended.stdout
    names = zipfile.ZipFile(first).namelist()
    assert {"__main__.py", "muster/__init__.py", "muster/core/replica.py", "muster/worker/replica.py"} <= set(
        names
    )
    assert not [name for name in names if "airflow" in name or "backends" in name]
