"""Bad input: each gets one clear error that names it and says what to do, before anything starts where possible.

Requests to a deployment (wrong names, shapes, NaN, 100 MB) are in ``tests/serving/test_http.py``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.author import Author, stages
from tests.namespaces import on_a_small_disk

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HEAD = """\
from airflow.sdk import dag

from muster.airflow import (
    DeployOperator, GangOperator, GateOperator, JobOperator, Output, Resources, ValidateOperator
)


"""
HOSTILE = {"up": "../../x", "newline": "a\nb", "long": "x" * 300}


def written(name: str, *body: str, params: object = None) -> str:
    """A Dag file with some statements in its function."""
    lines = "\n".join(f"    {line}" for line in body)
    return f"{HEAD}@dag(params={params!r})\ndef {name}():\n{lines}\n\n\n{name}()\n"


def job(task: str = "a", **keywords: object) -> str:
    """The statement of a JobOperator that runs `true` unless it is told otherwise."""
    known = {"image": "python", **({} if "entrypoint" in keywords else {"command": ["true"]}), **keywords}
    return f"JobOperator(task_id={task!r}, {', '.join(f'{name}={value!r}' for name, value in known.items())})"


class Verbatim(str):
    """Source text that stands for itself."""

    __slots__ = ()

    __repr__ = str.__str__


NAMED = {"up": r"'\.\./\.\./x'", "newline": r"'a\\nb'", "long": r"'x+…' \(300 characters\)"}
PARSED: dict[str, tuple[str, str]] = {
    **{
        f"{what}_{how}": (statement, rf".*{what} '?{NAMED[how]}.*need ")
        for how, name in HOSTILE.items()
        for what, statement in {
            "volume": job(outputs={"x": name}),
            "output": job(outputs={name: "a/b"}),
            "input": job(inputs={name: "a/b"}),
            "param": job(params={name: 1}),
            "partition": job(outputs=Verbatim(f"{{'x': Output(volume='a/b', partition={name!r})}}")),
        }.items()
    },
    **{
        f"deployment_{how}": (
            f"DeployOperator(task_id='a', name={name!r}, model='a/b')",
            rf"task 'a', name: .*{NAMED[how]}: need lower-case letters",
        )
        for how, name in HOSTILE.items()
    },
    "address": (job(inputs={"x": "a/b@07"}), r"task 'a', inputs\['x'\]: .*versions are numbered 1, 2, 3"),
    "image_name": (job(image="../train"), r"task 'a', image: '\.\./train': need "),
    "command_text": (job(command="python x.py"), r".*give its words: \['python', 'x\.py'\]"),
    "param_nan": (
        job(params=Verbatim("{'rate': float('nan')}")),
        r".*param 'rate' is nan: need a JSON value",
    ),
    "secret_itself": (
        job(secrets={"KEY": "hunter2"}),
        r"task 'a', secrets\['KEY'\]: expected where the value",
    ),
    "no_launcher": (job(launcher="mpi"), r"task 'a', launcher: 'mpi': expected plain, torchrun, horovod"),
}


def test_what_a_dag_file_shows_to_be_wrong_is_named_with_its_line(author: Author) -> None:
    for name, (statement, _) in PARSED.items():
        author.write(name, written(name, statement))
    ran = author.muster("run", "absent")
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert "hunter2" not in ran.stderr
    said = dict(re.findall(r"^  (\w+)/dag\.py:10: (.*)$", ran.stderr, re.MULTILINE))
    wrong = {
        name: said.get(name) for name, (_, says) in PARSED.items() if not re.match(says, said.get(name, ""))
    }
    assert wrong == {}
    assert max(map(len, said.values())) < 400
    assert author.jobs() == []


def test_what_files_show_to_be_wrong_is_one_line_before_anything_starts(author: Author) -> None:
    """Each of them, and what the machine shows, is in tests/airflow/test_run.py."""
    author.write("typing", written("typing", job("first"), job(image="nosuch")))
    ran = author.muster("run", "typing")
    assert ran.returncode == 1
    assert ran.stdout == ""
    said = ran.stderr.removeprefix("starting Airflow\n")
    assert re.fullmatch("muster: task 'a', image: image 'nosuch' is not there; .*\n", said), said
    assert author.jobs() == []


STEPS = """\
import os
from pathlib import Path

TRAIN = 3


def typed(epochs: int) -> None:
    pass


def metric(x: Path, value: str) -> dict[str, float]:
    (x / "rows").write_text("1")
    return {"auc": float(value)}


def folder(x: Path, name: str) -> None:
    (x / name).mkdir()
    (x / name / "rows").write_text("1")


def nothing(x: Path) -> None:
    pass


def link(x: Path) -> None:
    (x / "passwords").symlink_to("/etc/passwd")
"""
IMPORTS = "import nosuchpackage\n\n\ndef train():\n    pass\n"
OUT = {"x": "bad/never"}
SPLIT = Verbatim("{'x': Output(volume='bad/never', partition='*')}")
REFUSED: dict[str, tuple[str, str]] = {
    "unknown_volume": (
        job("unknown_volume", inputs={"x": "no/such"}),
        r"not found\ninput 'x': no volume no/such; there are bad/rows: check the name",
    ),
    "unknown_version": (
        job("unknown_version", inputs={"x": "bad/rows@7"}),
        r"not found\ninput 'x': no version bad/rows@7; there are 1",
    ),
    "unknown_partition": (
        job("unknown_partition", inputs={"x": "bad/rows@2013-01"}),
        r"not found\ninput 'x': bad/rows has no partitions, so '2013-01' selects nothing",
    ),
    **{
        f"{what}_{how}": (
            job(f"{what}_{how}", **{f"{what}s": {"x": f"bad/{{{{ params.{how} }}}}"}}),
            rf"spec error\n{what} 'x': volume 'bad/.*need segments of",
        )
        for how in HOSTILE
        for what in ("input", "output")
    },
    **{
        f"partition_{how}": (
            job(
                f"partition_{how}",
                outputs=Verbatim(f"{{'x': Output(volume='bad/x', partition='{{{{ params.{how} }}}}')}}"),
            ),
            rf"spec error\noutput 'x': partition {NAMED[how]}: need ",
        )
        for how in HOSTILE
    },
}
FAILED: dict[str, tuple[str, str]] = {
    "no_package": (
        job("no_package", entrypoint="bad.imports:train"),
        r"user error, rank 0\nModuleNotFoundError: .*'nosuchpackage'\nimage python has no nosuchpackage: run `muster images copy python ",
    ),
    "no_function": (
        job("no_function", entrypoint="bad.steps:TRAIN"),
        r"spec error, rank 0\n.*bad\.steps \(bad/steps\.py\) has no function 'TRAIN'; it has typed, ",
    ),
    "wrong_type": (
        job("wrong_type", entrypoint="bad.steps:typed", params={"epochs": "{{ params.epochs }}"}),
        r"spec error, rank 0\nparam 'epochs' of bad\.steps:typed \(bad/steps\.py:7\) is 'many' .*annotated int",
    ),
    **{
        value: (
            job(value, entrypoint="bad.steps:metric", params={"value": value}, outputs={"x": "bad/never"}),
            rf"user error, rank 0\nmetric 'auc' is {value}: need a finite number",
        )
        for value in ("nan", "inf")
    },
    "folder_up": (
        job("folder_up", entrypoint="bad.steps:folder", params={"name": ".x"}, outputs=SPLIT),
        r"user error\noutput 'x': folder '\.x' cannot be a partition: .*need .*\nmend the code",
    ),
    "folder_newline": (
        job("folder_newline", entrypoint="bad.steps:folder", params={"name": "a\nb"}, outputs=SPLIT),
        r"user error\noutput 'x' holds a name with a control character, 'a\\nb': .*\nmend the code",
    ),
    "folder_long": (
        job("folder_long", entrypoint="bad.steps:folder", params={"name": "x" * 100}, outputs=SPLIT),
        r"user error\noutput 'x': folder 'x+.* cannot be a partition: .*at most 63 characters\nmend the code",
    ),
    "nothing": (
        job("nothing", entrypoint="bad.steps:nothing", outputs=OUT),
        r"user error\noutput 'x' is empty: the job wrote no file into its folder; [^\n]*\nlet the code write",
    ),
    "link_out": (
        job("link_out", entrypoint="bad.steps:link", outputs=OUT),
        r"user error\noutput 'x' holds a link out of it, 'passwords': .*\nmend the code .*what it wrote: muster jobs get",
    ),
}


def test_what_only_the_run_can_show_is_one_error_and_leaves_nothing(author: Author) -> None:
    rows = job("rows", command=["sh", "-c", "echo 1 > {outputs.rows}/rows"], outputs={"rows": "bad/rows"})
    statements = [statement for statement, _ in {**REFUSED, **FAILED}.values()]
    dag = written("bad", rows, *statements, params={**HOSTILE, "epochs": "many"})
    author.write("bad", dag, steps=STEPS, imports=IMPORTS)
    ran = author.muster("run", "bad", "--serial", "--json")  # what reads a volume comes after what writes it
    assert ran.returncode == 1, ran.stderr[-3000:]
    assert ran.stdout, ran.stderr[-3000:]
    found = stages(json.loads(ran.stdout))
    wrong = {
        name: found[name]["message"]
        for name, (_, says) in {**REFUSED, **FAILED}.items()
        if not re.match(says, found[name]["message"]) or found[name]["message"].count("\n") > 3
    }
    assert wrong == {}
    assert "Traceback (most recent call last)" not in ran.stderr.partition("\nmuster: ")[2]
    names = sorted(entry["name"] for entry in author.ask("jobs", "ls"))
    assert names == sorted(f"bad.{name}" for name in ("rows", *FAILED))  # once each: none was tried again
    assert [volume["volume"] for volume in author.ask("volumes", "ls")] == ["bad/rows"]
    assert author.is_clean()
    assert author.is_quiet(), author.processes()


KEEPS = """\
import os
import subprocess
import sys
from pathlib import Path


def uses(x: Path) -> dict[str, float]:
    (x / "length").write_text(str(len(os.environ["TOKEN"])))
    return {"length": len(os.environ["KEY"])}


def prints() -> None:
    print("token", os.environ["TOKEN"], "key", os.environ["KEY"])
    print(dict(os.environ))
    for character in os.environ["TOKEN"]:
        sys.stdout.write(character)
        sys.stdout.flush()
    subprocess.run(["env"], check=True)


def raises() -> None:
    raise ValueError(f"{os.environ['TOKEN']} and {os.environ['KEY']} were refused")


def measures() -> dict[str, float]:
    return {os.environ["TOKEN"]: float("nan")}
"""


@pytest.mark.nightly  # contract/test_backend.py has one, test_task_log.py looks for one in every file
def test_a_secret_is_never_printed_or_stored(tmp_path: Path) -> None:
    token, lines = "tok-hunter2-9d81", ["MIIBhunterLine1abcd", "MIIBhunterLine2efgh"]
    key = "\n".join(["-----BEGIN KEY-----", *lines, "-----END KEY-----", ""])
    secrets = {"TOKEN": "environment:MY_TOKEN", "KEY": "environment:MY_KEY"}
    kept = {"uses": OUT, "prints": {}, "raises": {}, "measures": {}}
    tasks = [
        job(name, entrypoint=f"keeps.steps:{name}", secrets=secrets, outputs=outputs)
        for name, outputs in kept.items()
    ]
    shell = job("shell", command=["sh", "-c", 'env; echo "$TOKEN" "$KEY" >&2; exit 3'], secrets=secrets)
    with Author(tmp_path, MY_TOKEN=token, MY_KEY=key) as author:
        author.write("keeps", written("keeps", *tasks, shell), steps=KEEPS)
        ran = author.muster("run", "keeps", "--json")
        assert ran.returncode == 1
        states = {name: stage["state"] for name, stage in stages(json.loads(ran.stdout)).items()}
        assert states == {
            **dict.fromkeys(kept, "failed"),
            "uses": "success",
            "prints": "success",
            "shell": "failed",
        }
        assert "token *** key ***" in ran.stderr
        assert author.is_quiet(), author.processes()
        said = (ran.stdout + ran.stderr).encode()
        shown = [part for part in (token, *lines) if part.encode() in said]
        assert shown == []
        assert holding(author.home, [token, *lines]) == []


def holding(root: Path, texts: list[str]) -> list[Any]:
    """The files below `root` whose bytes or whose path hold one of `texts`: store, ledger, logs, database."""
    files = [path for path in root.rglob("*") if path.is_file()]
    assert len(files) > 20
    return [
        (path.relative_to(root), text)
        for path in files
        for text in texts
        if text in str(path) or text.encode() in path.read_bytes()
    ]


@pytest.mark.nightly  # contract/test_backend.py fills one
def test_a_full_disk_is_one_error_and_a_resume_goes_on_when_there_is_room(tmp_path: Path) -> None:
    home = tmp_path / ".muster"
    home.mkdir()
    done = subprocess.run(
        on_a_small_disk(home, 8, sys.executable, "-m", "tests.e2e.full_disk", tmp_path),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
