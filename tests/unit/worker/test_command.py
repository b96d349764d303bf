from __future__ import annotations

import sys
from pathlib import Path

import pytest

from muster.core.errors import SpecError
from muster.core.job import Role
from muster.worker.command import fill, folder, prepare
from muster.worker.replica import plan_ranks

ROWS = {"rows": (("/v/rows/1", "/v/rows/2"), True), "one": (("/v/one/7",), False)}


def test_known_names_are_replaced_in_one_pass_and_other_braces_stay(bench, tmp_path: Path) -> None:
    replica = bench.replica(
        command=(
            "train",
            "--data={inputs.one}/x.csv",
            "{inputs.rows}",
            "{outputs.model}",
            "{params.text}:{params.epochs}:{params.deep}:{params.layers}",
            '{"json": {}}',
            "${HOME} {rank} {} {checkpoints.x}",
            "{checkpoints}/last",
        ),
        inputs=ROWS,
        outputs=("model",),
        params={"text": "{params.epochs}", "epochs": 5, "deep": True, "layers": [1, 2]},
    )
    assert fill(replica) == [
        "train",
        "--data=/v/one/7/x.csv",
        "/v/rows/1",
        "/v/rows/2",
        str(tmp_path / "staging" / "model"),
        "{params.epochs}:5:true:[1, 2]",
        '{"json": {}}',
        "${HOME} {rank} {} {checkpoints.x}",
        f"{tmp_path}/checkpoints/last",
    ]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "{inputs.row}",
            "command word '{inputs.row}': the job has no input 'row'; its inputs are: one, rows",
        ),
        ("x{outputs.m}", "command word 'x{outputs.m}': the job has no output 'm'; its outputs are: none"),
        ("{params.}", "command word '{params.}': the job has no param ''; its params are: n"),
        (
            "--data={inputs.rows}",
            (
                "command word '--data={inputs.rows}': {inputs.rows} is a list of versions (2 here); "
                "make it a word of its own and it becomes one word for each"
            ),
        ),
    ],
)
def test_a_known_kind_with_an_unknown_name_is_refused(bench, word: str, message: str) -> None:
    replica = bench.replica(command=("train", word), inputs=ROWS, params={"n": 1})
    with pytest.raises(SpecError) as caught:
        fill(replica)
    assert str(caught.value) == message


def test_it_starts_in_the_dags_folder(bench, tmp_path: Path) -> None:
    bench.code(flights__train="")
    replica = bench.replica(command=("python", "train.py"))
    environment = {"PATH": "/bin"}
    assert prepare(replica, environment) == ([sys.executable, "train.py"], str(tmp_path / "code" / "flights"))
    assert environment["PYTHONPATH"] == str(tmp_path / "code")


def test_an_engines_workers_import_what_its_driver_imports(bench, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    bench.code(counts__count="")
    code = str(tmp_path / "code")
    for how, wanted in (
        ({"entrypoint": "counts.count:f"}, code),
        ({"command": ("python", "count.py")}, f"{code}/counts:{code}"),
    ):
        roles = (Role(replicas=2, **how),)
        for index, found in ((0, code), (1, wanted)):
            replica = bench.replica(roles=roles, index=index, launcher="dask")
            environment = plan_ranks(replica)[0].environment
            assert environment["PYTHONPATH"] == found, (how, index)
    replica = bench.replica(roles=roles, index=1, launcher="dask", env={"PYTHONPATH": "/own"})
    assert plan_ranks(replica)[0].environment["PYTHONPATH"] == f"{wanted}:/own"


def test_it_starts_in_the_code_where_that_is_not_one_folder(bench, tmp_path: Path) -> None:
    bench.code(flights__train="", dag="")
    assert folder(bench.replica(command=("x",))) == str(tmp_path / "code")


def test_a_program_is_found_in_the_image_then_on_the_path_and_relative_to_the_folder(bench) -> None:
    bench.code(flights__train="")
    own = bench.root / "code" / "flights" / "run.sh"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    for name, expected in (("./run.sh", own), ("sh", Path("/bin/sh")), ("/bin/sh", Path("/bin/sh"))):
        words, _ = prepare(bench.replica(command=(name,)), {"PATH": "/nowhere:/bin"})
        assert words is not None
        assert Path(words[0]).samefile(expected)


@pytest.mark.parametrize("name", ["nosuchprogram", "./train.py", "/nowhere/x", "."])
def test_a_program_that_cannot_be_run_is_refused_before_the_start(bench, name: str) -> None:
    bench.code(flights__train="")  # it is there, but has no x bit
    with pytest.raises(SpecError, match="no program"):
        prepare(bench.replica(command=(name,)), {"PATH": "/bin"})
