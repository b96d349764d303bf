"""What the sums of usage are, and that they are whole."""

from __future__ import annotations

import random
from typing import Any

import pytest

from muster.ext.usage.log import UsageLine
from muster.ext.usage.table import UsageQuestion, UsageRow, usage, without

HOUR = 3600.0
NOW = 1000 * HOUR


def line(**changes: Any) -> UsageLine:
    """Return a job of two replicas with a card each, for two hours."""
    given: dict[str, Any] = {
        "ended": NOW,
        "job_id": "a",
        "state": "succeeded",
        "dag": "flights",
        "task": "train",
        "run": "r",
        "user": "ada",
        "team": "vision",
        "gpu_class": "a100",
        "cpus": 4.0,
        "gpus": 1.0,
        "memory_gib": 8.0,
        "held": [(NOW - 2 * HOUR, NOW, 2, 2)],
        "cpu_share": 1.0,
        "gpu_share": 0.75,
        "made": ["volume://flights/model@7"],
        "read": ["volume://flights/features@3"],
    }
    return UsageLine(**{**given, **changes})


LINE = line()


def ask(*lines: UsageLine, by: str = "dag", since: float = 0.0, **models: str) -> list[UsageRow]:
    named = {f"volume://{address}": name for name, address in models.items()}
    return usage(lines, UsageQuestion(by=tuple(by.split(",")), since=since, models=named), now=NOW)


def test_held_is_used_wasted_or_not_measured() -> None:
    (row,) = ask(LINE)
    assert (row.keys, row.jobs) == (("flights",), 1)
    assert row.gpu == (4.0, 3.0, 1.0, 0.0)
    assert row.cpu == (16.0, 4.0, 12.0, 0.0)
    (blind,) = ask(line(gpu_share=None))
    assert blind.gpu == (4.0, 0.0, 0.0, 4.0)
    (busy,) = ask(line(cpu_share=6.0))
    assert busy.cpu == (16.0, 24.0, 0.0, 0.0)


def test_sizes_and_waits_of_an_elastic_gang() -> None:
    held = [(NOW - 5 * HOUR, NOW - 4 * HOUR, 4, 4), (NOW - 2 * HOUR, NOW - HOUR, 2, 2)]
    (row,) = ask(line(held=held))
    assert (row.gpu[0], row.cpu[0]) == (6.0, 24.0)


def test_what_was_held_before_does_not_count() -> None:
    (row,) = ask(LINE, since=NOW - HOUR)
    assert row.gpu == (2.0, 1.5, 0.5, 0.0)


def test_most_wasted_first_by_several_columns() -> None:
    lazy = line(job_id="b", user="bob", gpu_share=0.0)
    cpu = line(job_id="c", user="eve", gpu_class="", held=[(NOW - HOUR, NOW, 1, 0)], team="")
    rows = ask(LINE, cpu, lazy, by="user,team,class")
    assert [row.keys for row in rows] == [
        ("bob", "vision", "a100"),
        ("ada", "vision", "a100"),
        ("eve", "-", "cpu"),
    ]


def test_volumes_share_their_job() -> None:
    both = line(made=["volume://a@1", "volume://b@1", "volume://b@2"])
    none = line(job_id="n", made=[], held=[(NOW - HOUR, NOW, 1, 1)])
    rows = {row.keys[0]: row.gpu[0] for row in ask(both, none, by="volume")}
    assert rows == {"a": 2.0, "b": 2.0, "-": 1.0}


def test_a_model_costs_all_that_it_was_made_from() -> None:
    etl = line(job_id="etl", made=["volume://flights/features@3"], read=["volume://flights/raw@1"])
    raw = line(job_id="raw", made=["volume://flights/raw@1"], read=["volume://flights/model@7"])
    other = line(job_id="o", made=["volume://flights/features@2"], read=[])
    (row,) = ask(LINE, etl, raw, other, by="model", m7="flights/model@7")
    assert (row.keys, row.jobs, row.gpu[0]) == (("m7",), 3, 12.0)
    rows = ask(LINE, etl, raw, other, by="model", m7="flights/model@7", f2="flights/features@2")
    assert {row.keys[0]: row.jobs for row in rows} == {"m7": 3, "f2": 1}
    (dag,) = ask(LINE, etl, raw, other, by="dag", f2="flights/features@2")
    assert dag.jobs == 1


@pytest.mark.parametrize("by", ["dag", "user", "class", "state", "volume", "dag,user,volume"])
def test_every_table_has_the_same_sum(by: str) -> None:
    chance = random.Random(by)
    lines = [
        line(
            job_id=str(number),
            dag=chance.choice("abc"),
            user=chance.choice("xyz"),
            gpu_class=chance.choice(("a100", "")),
            made=[f"volume://{chance.choice('pqr')}@{number}.{at}" for at in range(chance.randint(0, 3))],
            held=[(NOW - chance.uniform(0, 9) * HOUR, NOW, size := chance.randint(1, 4), size)],
            gpu_share=chance.choice((None, chance.random())),
        )
        for number in range(300)
    ]
    whole, found = ask(*lines, by="dag,task,user,state"), ask(*lines, by=by)
    for at in range(4):
        assert sum(row.gpu[at] for row in whole) == pytest.approx(sum(row.gpu[at] for row in found))
        assert sum(row.cpu[at] for row in whole) == pytest.approx(sum(row.cpu[at] for row in found))
    for row in found:
        held, *parts = row.gpu
        assert held == pytest.approx(sum(parts))


def test_a_column_less_is_what_is_asked_without_it() -> None:
    lines = [LINE, line(job_id="b", dag="x", gpu_share=0.0), line(job_id="c", user="bob")]
    assert without(ask(*lines, by="dag,user"), 1) == ask(*lines, by="user")
    (whole,) = without(ask(*lines, by="dag,user"), 2)
    assert (whole.keys, whole.jobs, whole.gpu) == ((), 3, (12.0, 6.0, 6.0, 0.0))
    assert without([], 1) == []
