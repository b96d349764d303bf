"""A pipeline whose home is a disk of 8 MiB: ``python -m tests.e2e.full_disk FOLDER`` fails at the first broken promise.

Run it where ``FOLDER/.muster`` is such a disk.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.e2e.author import Author, stages

DAG = """\
from airflow.sdk import dag

from muster.airflow import JobOperator


@dag
def full():
    small = JobOperator(
        task_id="small", image="python", entrypoint="full.steps:small", outputs={"small": "full/small"}
    )
    JobOperator(
        task_id="large", image="python", entrypoint="full.steps:large", retries=0,
        inputs={"small": small.versions["small"]}, outputs={"large": "full/large"},
    )


full()
"""
STEPS = """\
from pathlib import Path

FILLER = Path("{filler}")


def small(small: Path) -> None:
    (small / "rows").write_text("1")


def large(small: Path, large: Path) -> None:
    (large / "rows").write_text("2")
    if FILLER.exists():
        with FILLER.open("wb", buffering=0) as filler:
            try:
                while filler.write(b"x" * 4096):
                    pass
            except OSError as error:
                print(error)
"""


def main(folder: Path) -> None:
    author = Author(folder)
    filler = author.home / "filler"
    author.write("full", DAG, steps=STEPS.format(filler=filler))

    filler.touch()
    ran = author.muster("run", "full")
    assert ran.returncode == 1, ran.stderr
    assert "[Errno 28] No space left on device" in ran.stderr
    verdict = ran.stderr.partition("\nmuster: ")[2].splitlines()
    assert verdict[0] == "large: disk full", ran.stderr
    assert "No space left on device" in verdict[1]
    assert "has 0 B free of 8.0 MiB" in verdict[1]
    assert "make room" in verdict[2]
    assert "muster volumes gc" in verdict[2]
    assert "then `muster run full --resume`" in verdict[2]
    check(author, versions={"full/small": 1})

    assert filler.stat().st_size > 0
    with filler.open("ab", buffering=0) as more:
        fill(more)
    ran = author.muster("run", "full")
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr, ran.stderr
    assert "make room there, then run again" in ran.stderr.splitlines()[-1], ran.stderr
    assert str(author.home) in ran.stderr.splitlines()[-1]

    filler.unlink()
    ran = author.muster("run", "full", "--resume", "--json")
    assert ran.returncode == 0, ran.stderr
    ran = author.muster("run", "full", "--resume", "--json")
    assert ran.returncode == 3, ran.stderr  # nothing is left to run
    assert stages(json.loads(ran.stdout))["large"]["kept"]
    check(author, versions={"full/small": 1, "full/large": 1})


def check(author: Author, *, versions: dict[str, int]) -> None:
    assert author.is_clean()
    assert author.is_quiet(), author.processes()
    found = [volume["volume"] for volume in author.ask("volumes", "ls")]
    assert {volume: len(author.ask("volumes", "log", volume)) for volume in found} == versions


def fill(file: object) -> None:
    try:
        while file.write(b"x" * 4096):  # type: ignore[attr-defined]
            pass
    except OSError:
        return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
