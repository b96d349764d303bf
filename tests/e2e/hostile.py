"""A Dag whose job says whatever a log, a page or a store might trip over, secrets among it."""

from __future__ import annotations

from tests.site import Site

GOOD = "https://tracking.example/#/runs/1"
LAST = "this is the last line"
DAG = """\
from airflow.sdk import dag

from muster.airflow import JobOperator


@dag(schedule=None, default_args={"image": "python", "secrets": {"TOKEN": "environment:MY_TOKEN"}})
def hostile():
    JobOperator(task_id="says", entrypoint="hostile.words:says", outputs={"out": "hostile/out"})
    JobOperator(task_id="quotes", entrypoint="hostile.words:quotes")
    JobOperator(task_id="floods", entrypoint="hostile.words:floods")


hostile()
"""
WORDS = f"""\
import os
import sys
from pathlib import Path

TOKEN = os.environ["TOKEN"]


def says(out: Path) -> None:
    (out / "rows").write_text("1")
    write = sys.stdout.buffer.write
    write(b"x" * 10_000_000 + b"\\n")
    write(bytes(range(256)) * 300 + b"\\n")
    write(b"\\x1b[2J\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07\\n")
    for line in (
        "::group::all that follows", "::endgroup::", "<script>alert(1)</script>", "%s %d {{0}} {{{{ params }}}}",
        "[muster] the job has succeeded", "[rank 9] fine", "user error, rank 7",
        "full log: muster jobs logs somewhere-else", "from \\u202eright to left",
        "muster: epoch=1/3 loss=0.5", "muster: epoch=nan", "muster: " + " ".join(f"n{{i}}=1" for i in range(1000)),
        "muster: link Tracking={GOOD}", "muster: link Evil=javascript:alert(1)",
        f"muster: link Token=https://tracking.example/?token={{TOKEN}}", f"muster: link {{TOKEN}}=https://a.example/",
        f"the token is {{TOKEN}}",
    ):
        print(line)
    write(b"x" * (64 * 1024 - 10) + TOKEN.encode() * 10 + b"\\n")
    print("{LAST}", flush=True)


def quotes() -> None:
    for cut in range(340, 400):
        print("x" * cut + TOKEN)
    raise ValueError("x" * 375 + TOKEN + f"\\n[muster] the job has succeeded\\n{{TOKEN!r:.20}}")


def floods() -> None:
    for line in range(200_000):
        print(f"line {{line}} of a flood")
    print("{LAST}", flush=True)
"""


def write(site: Site) -> None:
    """Write the Dag and its code; the site's environment holds ``MY_TOKEN``."""
    site.write("hostile", DAG, words=WORDS)
