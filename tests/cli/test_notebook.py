"""``muster notebook``: cells read versions in an image's environment, of a folder and of a store service.

``tests/cluster/test_notebook.py`` runs the same cells against the cluster's store.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.cli.test_tensorboard import fetch
from tests.ports import free_port
from tests.unit.client.test_deployments import doubles
from tests.unit.volumes.service.process import Service
from tests.waiting import GUARD_SECONDS

import muster
from muster.volumes.service.tokens import operator_token

__all__ = ["doubles"]

pytestmark = pytest.mark.slow

SCRIPT = """
from pathlib import Path
import pandas as pd
for number, month in enumerate(["2013-01", "2013-02"], start=1):
    Path("made").mkdir(exist_ok=True)
    pd.DataFrame({"a": [number, 2, 3]}).to_parquet("made/part.parquet")
    muster.put("made", "lab/rows", partition=month, note="by a notebook")
# %%
print("one", pd.read_parquet("volume://lab/rows@2013-01/part.parquet").a.sum())
print("folder", pd.read_parquet("volume://lab/rows").a.sum())
print("all", pd.read_parquet("volume://lab/rows@*").a.sum())
# %%
import fsspec, polars as pl
print("polars", pl.read_parquet(fsspec.open_local("volume://lab/rows@2013-01/*.parquet"))["a"].sum())
# %%
import duckdb
duckdb.register_filesystem(fsspec.filesystem("volume"))
print("duckdb", *duckdb.sql("SELECT sum(a) FROM 'volume://lab/rows@*/*.parquet'").fetchall()[0])
# %%
import pyarrow.parquet as pq
print("pyarrow", pq.read_table("lab/rows@*", filesystem=fsspec.filesystem("volume")).num_rows)
# %%
frame = muster.versions("lab/rows").to_pandas()
print("frame", *frame.index, *frame.partition)
"""
SAID = """one 6
folder 7
all 13
polars 6
duckdb 13
pyarrow 6
frame volume://lab/rows@1 volume://lab/rows@2 2013-01 2013-02
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """A store service, as ``MUSTER_CLUSTER`` names one."""
    (tmp_path / "served").mkdir()
    with Service(tmp_path / "served") as service:
        (tmp_path / "token").write_text(operator_token(service.keys, lifetime_seconds=600))
        (tmp_path / "cluster.toml").write_text(
            f'namespace = "muster-jobs"\nclaim = "muster-store"\nstore_url = "{service.url}"\n'
            'token_file = "token"\n'
        )
        yield {"MUSTER_CLUSTER": str(tmp_path / "cluster.toml")}


def write(path: Path, *cells: str) -> None:
    made = [
        {
            "cell_type": "code",
            "id": f"c{n}",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": text,
        }
        for n, text in enumerate(cells)
    ]
    path.write_text(json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))


def run(folder: Path, environment: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["muster", "notebook", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def printed(path: Path) -> str:
    outputs = [each for cell in json.loads(path.read_text())["cells"] for each in cell["outputs"]]
    return "".join("".join(each["text"]) for each in outputs if each["output_type"] == "stream")


def reads(folder: Path, environment: Mapping[str, str], *, volume: str = "lab/rows") -> None:
    """Make and read versions of a new volume in a notebook that runs headless."""
    write(folder / "report.ipynb", *SCRIPT.replace("lab/rows", volume).split("# %%\n"))
    done = run(folder, environment, "--execute", "report.ipynb")
    assert done.returncode == 0, done.stderr
    assert printed(folder / "report.ipynb") == SAID.replace("lab/rows", volume)


@pytest.mark.data  # libraries of every kind; those below are of one
def test_a_notebook_reads_versions_of_this_machine(tmp_path: Path, environment: dict[str, str]) -> None:
    reads(tmp_path, environment)


@pytest.mark.data
@pytest.mark.nightly  # tests/cluster/test_notebook.py has another service
def test_a_notebook_reads_versions_of_a_store_service(
    tmp_path: Path, environment: dict[str, str], cluster: Mapping[str, str]
) -> None:
    reads(tmp_path, environment | cluster)


def test_cells_run_in_the_image_and_say_what_it_lacks(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.csv").write_text("a\n1\n")
    for _ in range(2):
        subprocess.run(
            ["muster", "volumes", "put", "rows", "lab/rows"], cwd=tmp_path, env=environment, check=True
        )
    (tmp_path / "report.py").write_text(
        "import sys\nprint(sys.prefix.rpartition('/')[2].startswith('python-'), rows.address, sorted(inputs))\n"
        "# %%\nprint((inputs['rows'].path / 'a.csv').read_text())\n"
        "# %%\nfrom flats.work import area\nprint(area(2))\n"
        "# %%\n!python -c 'import sys; print(sys.prefix)'\nprint(sys.prefix)\n"
        "# %%\n!pip install six\n%pip install six\n"
        "# %%\nimport jinja2\n"
    )
    work = tmp_path / "dags" / "flats" / "work.py"
    work.parent.mkdir(parents=True)
    work.write_text("def area(side):\n    return side * side\n")
    done = run(tmp_path, environment, "--image", "python", "--inputs", "lab/rows@1", "--execute", "report.py")
    assert done.returncode == 1
    assert done.stdout.splitlines()[:3] == ["True volume://lab/rows@1 ['rows']", "a", "1"]
    assert "image python has no pandas, polars, pyarrow, duckdb" in done.stderr
    assert done.stdout.splitlines()[4] == "4"
    assert done.stdout.splitlines()[5] == done.stdout.splitlines()[6]
    assert "pip cannot install into image python, whose lock says what it holds" in done.stdout + done.stderr
    assert "Nothing is installed: image 'python' holds what its lock says" in done.stderr
    assert "TCP" not in done.stderr
    assert "report.py: cell 6 failed: ModuleNotFoundError: No module named 'jinja2'" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


FRAME = """
from muster.core.deployment import DeploymentStatus
import numpy as np
import pandas as pd
doubles = muster.Deployment(DeploymentStatus(name="doubles", url="URL", ready=True, token=""))
frame = pd.DataFrame({"x": [1, 2]}, index=["a", "b"])
print(doubles.predict(frame).to_dict())
print(doubles.predict({"x": np.array([1.5])}), doubles.predict([{"x": np.int64(4)}]), doubles.predict({"x": frame.x}))
try:
    doubles.predict(pd.DataFrame({"x": [1, float("inf")]}))
except muster.MusterError as error:
    print(error)
"""


@pytest.mark.nightly
def test_the_notebook_of_nothing_set_plots_and_shows_progress(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "plot.py").write_text(
        "import matplotlib.pyplot as plt, sklearn\nfrom tqdm.auto import tqdm\n"
        "# %%\nlist(tqdm(range(3), desc='rows'))\n# %%\nplt.plot([1, 2])\nplt.show()\n"
    )
    done = run(tmp_path, environment, "--execute", "plot.py")
    assert done.returncode == 0, done.stderr
    assert "100% 3/3" in done.stdout
    assert "<Figure size" in done.stdout


def test_a_frame_is_answered_by_a_frame(
    tmp_path: Path, environment: dict[str, str], doubles: muster.Deployment
) -> None:
    (tmp_path / "ask.py").write_text(FRAME.replace("URL", doubles.url))
    done = run(tmp_path, environment, "--execute", "ask.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "{'y': {'a': 2, 'b': 4}}",
        "{'y': [3.0]} [8] {'y': [2, 4]}",
        "input 'x'[1] is inf: a model takes finite numbers",
    ]


def test_what_is_wrong_is_one_message(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "a.csv").write_text("a\n")
    subprocess.run(
        ["muster", "volumes", "put", "a.csv", "lab/rows"], cwd=tmp_path, env=environment, check=True
    )
    for words, says in (
        (("--image", "nope"), "image 'nope' does not exist: `muster images ls`"),
        (("--inputs", "lab/nope"), "no volume lab/nope"),
        (
            ("--inputs", "lab/rows", "--inputs", "lab/rows@1"),
            "the variable rows is taken; give another, --inputs NAME=",
        ),
        (("--execute", "nope.ipynb"), "nope.ipynb does not exist"),
    ):
        done = run(tmp_path, environment, *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert says in done.stderr
        assert "Traceback" not in done.stderr


def test_jupyterlab_answers_with_one_kernel_until_it_is_ended(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    port, scratch = free_port(), tmp_path / "scratch"
    scratch.mkdir()
    shown = subprocess.Popen(
        ["muster", "notebook", "--port", str(port)],
        cwd=tmp_path,
        env=environment | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert shown.stdout is not None
        address = shown.stdout.readline().split()[0]
        token = address.partition("?")[2]
        known = fetch(f"http://127.0.0.1:{port}/api/kernelspecs?{token}", shown, seconds=120)
        assert known["default"] == "muster"
        assert list(dict(known["kernelspecs"])) == ["muster"]  # type: ignore[call-overload]
    finally:
        shown.send_signal(signal.SIGHUP)  # the terminal is closed
        try:
            shown.communicate(timeout=GUARD_SECONDS)
        finally:
            shown.kill()
            shown.communicate()
    assert [path.name for path in scratch.iterdir() if path.name.startswith("muster-")] == []
