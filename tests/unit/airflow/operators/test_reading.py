"""Every keyword that names a version is known to lineage and to the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk import DAG

import muster.airflow
from muster.airflow import (
    DeployOperator,
    GateOperator,
    JobOperator,
    SearchOperator,
    SmokeRows,
    choice,
)
from muster.airflow.authoring.keywords import Keyword, addresses_read, keywords_of
from muster.airflow.operators.running import volumes_selected
from muster.core.errors import SpecError

TORN = "volume://flights/model@"
"""What is no address, which every check of addresses says in the same words."""
GANG: dict[str, Any] = {"image": "train", "entrypoint": "a:b"}


def operators() -> Iterator[type]:
    for name in muster.airflow.__all__:
        if name.endswith("Operator"):
            yield getattr(muster.airflow, name)


def takes_addresses(keyword: Keyword) -> bool:
    checks = [check for check in (keyword.check, keyword.each) if check is not None]
    for value in (TORN, SmokeRows(TORN)):
        for check in checks:
            try:
                check(keyword.read(value) if keyword.read and keyword.each is None else value)
            except SpecError as error:
                if "nothing follows the @" in str(error):
                    return True
            except (AttributeError, TypeError):  # the keyword takes no text at all
                pass
    return False


def test_every_keyword_that_takes_an_address_says_that_the_task_reads_it() -> None:
    found = {
        f"{operator.__name__}.{word}": keyword
        for operator in operators()
        for word, keyword in keywords_of(operator).items()
        if takes_addresses(keyword)
    }
    assert {
        "DeployOperator.smoke",
        "GateOperator.not_worse_than",
        "JobOperator.inputs",
        "ScoreOperator.model",
        "SearchOperator.earlier",
        "ValidateOperator.volume",
    } <= found.keys()
    assert [name for name, keyword in found.items() if not keyword.reads] == []


def search(earlier: str) -> SearchOperator:
    return SearchOperator(
        task_id="t", outputs={"model": "a/b"}, space={"x": choice(1, 2)}, metric="auc", rungs=(1,), earlier=earlier, **GANG
    )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "read", "selected"),
    [
        (lambda: JobOperator(task_id="t", inputs={"x": "a/b@latest"}, **GANG), ["a/b@latest"], ["a/b"]),
        (lambda: JobOperator(task_id="t", inputs={"x": "volume://a/b@7"}, **GANG), ["volume://a/b@7"], []),
        (lambda: GateOperator(task_id="t", volume="a/b@2", not_worse_than="a/b@1", metric="auc", scorer="a:b"), ["a/b@2", "a/b@1"], []),
        (lambda: GateOperator(task_id="t", volume="a/b", not_worse_than="champion", metric="auc", scorer="a:b"), ["a/b"], ["a/b"]),
        (lambda: search("a/s@latest"), ["a/s@latest"], ["a/s"]),
        (lambda: DeployOperator(task_id="t", name="n", model="a/b@1"), ["a/b@1"], []),
        (
            lambda: DeployOperator(task_id="t", name="n", model="a/b@1", smoke=SmokeRows(["a/c@latest"])),
            ["a/b@1", "a/c@latest"],
            ["a/c"],
        ),
        (lambda: JobOperator(task_id="t", inputs={"x": "{{ params.rows }}"}, **GANG), ["{{ params.rows }}"], ["{"]),
    ],
)  # fmt: skip
def test_lineage_and_cache_see_what_a_task_reads(make: Any, read: list[str], selected: list[str]) -> None:
    task = make()
    found = addresses_read(type(task), lambda each: getattr(task, each.attribute))
    assert sorted(found) == sorted(read)
    assert list(volumes_selected(task)) == selected


def test_a_mapped_task_and_one_of_airflows_own_are_looked_at_too() -> None:
    from airflow.providers.standard.operators.empty import EmptyOperator

    with DAG("d"):
        mapped = JobOperator.partial(task_id="t", inputs={"x": "a/b@latest"}, **GANG).expand(
            params=[{"rate": "1", "rows": "volume://a/c@latest"}]
        )
        other = EmptyOperator(task_id="other")
    assert sorted(volumes_selected(mapped)) == ["a/b", "a/c"]
    assert list(volumes_selected(other)) == []
