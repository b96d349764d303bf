"""A claim that a gang fills, as the person sees it who started the gang: what is full, what makes room, and that it goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.cluster import kubectl, left, nodes, store
from tests.cluster.author import served, write_file
from tests.cluster.inside import layout
from tests.cluster.layout import NODES, Layout
from tests.e2e.author import Author, stages

pytestmark = [pytest.mark.cluster, pytest.mark.soak]  # three minutes

CPU = next(node for node in NODES if not node.gpus)  # the store service is there, and gangs without cards
SIZE_MIB = 96
DAG = """\
    from airflow.sdk import dag
    from muster.airflow import GangOperator, Resources

    @dag(params={"mib": 10, "seed": 0}, default_args={"muster": {"image": "python"}})
    def fill():
        GangOperator(
            task_id="fill", entrypoint="fill.steps:fill", replicas=2, outputs={"rows": "fill/rows"}, retries=0,
            params={"mib": "{{ params.mib }}", "seed": "{{ params.seed }}"},
            resources=Resources(cpus=0.1, memory_gib=0.25),
        )

    fill()
"""
STEPS = """\
    import os
    import random
    from pathlib import Path


    def fill(rows: Path, *, mib: int, seed: int) -> None:
        rank = os.environ["RANK"]
        made = random.Random(f"{seed} {rank}")
        with (rows / rank).open("wb") as file:
            for _ in range(mib):
                file.write(made.randbytes(1 << 20))
"""


@pytest.fixture
def small() -> Iterator[Layout]:
    """A cluster whose claim is small, and empty at first."""
    here = layout()
    store.remove(here)
    with nodes.small_claim(here, CPU, size_mib=SIZE_MIB), served(here):
        try:
            yield here
        finally:
            store.remove(here)


@pytest.fixture
def author(small: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Author]:
    folder = tmp_path_factory.mktemp("author")
    with Author(folder, MUSTER_CLUSTER=str(write_file(small, folder))) as author:
        author.write("fill", DAG, steps=STEPS)
        yield author


def test_a_gang_that_fills_the_claim_is_told_what_makes_room_and_that_does(
    small: Layout, author: Author
) -> None:
    for seed in (1, 2, 3):  # 60 MiB, of which 40 are old
        done = author.muster("run", "fill", "--param", f"seed={seed}")
        assert done.returncode == 0, done.stderr

    done = author.muster("run", "fill", "--param", "mib=30", "--param", "seed=4")
    print(done.stderr)
    assert done.returncode == 1
    head, message, *advice = done.stderr.partition("\nmuster: ")[2].splitlines()
    assert re.match(r"fill: disk full", head), done.stderr
    assert "No space left on device" in message
    assert re.search(r"the store's claim has \d+(\.\d)? (B|KiB|MiB) free of 96\.0 MiB", message), message
    assert "make room" in advice[0]
    assert "`muster volumes gc`" in advice[0]
    kubectl.until("nothing is left", lambda: not left.of_anybody(small))
    assert author.ask("jobs", "gc")["held"] == []  # what it staged was given back at once
    assert author.is_clean()

    freed = author.muster("volumes", "gc", "--keep", "1", "--yes")
    print(freed.stdout, freed.stderr)
    assert freed.returncode == 0, freed.stderr
    assert "their disk space is free" in freed.stderr
    done = author.muster("run", "fill", "--resume", "--json")
    print(done.stderr)
    assert done.returncode == 0, done.stderr
    assert author.is_clean()
    (address,) = stages(author.ask("run", "fill", "--resume"))["fill"]["versions"]["rows"]
    assert address == "volume://fill/rows@4"
