"""A keyword is declared in one place: everything else follows, and no other file of muster's operators spells it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Airflow may be imported only once the home is there, so the operators are named through the package.
import muster.airflow as m
from muster.airflow.embedded.home import EmbeddedHome
from muster.core.errors import SpecError

if TYPE_CHECKING:
    from airflow.sdk import DAG

pytestmark = pytest.mark.slow

START = datetime(2024, 1, 1)  # noqa: DTZ001 - as authors write it
ROOMS = [Path(m.__file__).parent / room for room in ("operators", "authoring")]
OPERATORS = [name for name in m.__all__ if name.endswith("Operator")]


@pytest.fixture
def dag(home: EmbeddedHome) -> Iterator[DAG]:
    from airflow.sdk import DAG

    with DAG("d", schedule=None, start_date=START) as dag:
        yield dag


def test_one_declaration_makes_a_keyword(home: EmbeddedHome, tmp_path: Path) -> None:
    """A class with two lines more than GateOperator: they are all that its keywords need."""
    from airflow.sdk import DAG

    from muster.airflow.authoring.checks import check_span
    from muster.airflow.authoring.keywords import AuthorKeywords, keyword
    from muster.airflow.authoring.values import plain, seconds
    from muster.airflow.operators.spec import spec_fields

    class Cooled(m.GateOperator):
        cooling: timedelta = keyword(
            default=timedelta(minutes=1), check=check_span, spec=seconds, for_all=True
        )
        note: str = keyword(default="", spec=plain, templated=True)

    given: dict[str, Any] = {"volume": "x/y", "require": {"auc": "> 0.5"}}
    try:
        with DAG("d", schedule=None, start_date=START, default_args={"muster": {"cooling": timedelta(9)}}):
            usual = Cooled(task_id="usual", **given)
            own = Cooled(task_id="own", cooling=timedelta(2), **given)
            mapped = Cooled.partial(task_id="mapped", note="{{ ds }}", **given).expand(
                cooling=[timedelta(3), timedelta(4)]
            )
            spans = [vars(each)["cooling"] for each in mapped.samples()]
            with pytest.raises(SpecError, match="task 'wrong', cooling: 7: expected a timedelta above 0"):
                Cooled(task_id="wrong", cooling=7, **given)
            with pytest.raises(SpecError, match=r"task 'a', cooled: .* did you mean cooling"):
                Cooled(task_id="a", cooled=7, **given)
            with pytest.raises(SpecError, match=r"cooling: 7: expected a timedelta.* \(mapped instance 1\)"):
                Cooled.partial(task_id="b", **given).expand(cooling=[timedelta(3), 7])
    finally:
        AuthorKeywords.for_all.discard("cooling")
    assert [usual.cooling, own.cooling] == [timedelta(9), timedelta(2)]
    assert spans == [timedelta(3), timedelta(4)]
    assert Cooled.template_fields == ("job_params", *Cooled.template_fields[1:])
    assert {*Cooled.template_fields} == {"note", *m.GateOperator.template_fields}
    assert spec_fields(own)["cooling_seconds"] == timedelta(2).total_seconds()
    assert "note" not in spec_fields(own, templated=False)


def test_a_budget_of_all_tasks_is_not_that_of_a_search(home: EmbeddedHome) -> None:
    from airflow.sdk import DAG

    from muster.airflow.operators.spec import spec_fields
    from muster.core.tally import HourBudget

    def job(budget: object) -> m.JobOperator:
        with DAG("d", schedule=None, start_date=START, default_args={"muster": {"budget": budget}}):
            m.SearchOperator(
                task_id="search",
                image="python",
                space={"x": m.uniform(0, 1)},
                metric="auc",
                entrypoint="a.b:c",
                rungs=(1,),
            )
            return m.JobOperator(task_id="job", image="python", command=["true"])

    assert spec_fields(job({"gpu_hours": 200}))["budget"] == HourBudget(gpu_hours=200)
    for wrong, said in (
        (
            {"gpu_hour": 2},
            "task 'job', budget: HourBudget: unknown field 'gpu_hour'; known are gpu_hours, cpu_hours",
        ),
        ({"gpu_hours": "2"}, "task 'job', budget: HourBudget.gpu_hours: expected a finite number, found '2'"),
        (
            {"gpu_hours": -2},
            "task 'job', budget: a budget of [-2.0]: give gpu_hours, cpu_hours or both, 0 or more",
        ),
        (200, "task 'job', budget: 200: expected a mapping"),
    ):
        with pytest.raises(SpecError, match=re.escape(said)):
            job(wrong)


def test_no_keyword_of_a_job_is_spelled_twice_where_it_is_declared(home: EmbeddedHome) -> None:
    """Each is declared once among the classes above JobOperator, and otherwise only read, as ``operator.WORD``."""
    spelled: dict[str, list[str]] = {word: [] for word in m.JobOperator.keywords}
    for file in (file for room in ROOMS for file in room.glob("*.py")):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)):
            names: list[str] = []
            if isinstance(node, ast.arg):
                names = [node.arg]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = [node.value] if node.value.isidentifier() else []
                names += re.findall(r"^\s*:param (\w+):", node.value, re.MULTILINE)
            for name in set(names) & spelled.keys():
                spelled[name].append(f"{file.parent.name}/{file.name}")
    limits = {
        "hang_timeout",
        "queue_timeout",
        "run_timeout",
        "max_restarts",
        "require_gpus",
        "priority",
        "ranks",
    }
    assert {word: places for word, places in spelled.items() if word in limits and places} == {}


@pytest.mark.parametrize("name", OPERATORS)
def test_every_keyword_is_described_and_in_the_signature(home: EmbeddedHome, name: str) -> None:
    import inspect

    operator: Any = getattr(m, name)
    took = inspect.signature(operator.__init__).parameters
    assert [each.parameter for each in operator.keywords.values()] == [*took][1:-1]
    page = (Path(__file__).parents[4] / "docs" / "reference.md").read_text()
    bases = {"GangOperator": ["JobOperator"], "SearchOperator": ["JobOperator", "SearchOperator"]}
    section = "".join(
        page.partition(f"\n## {each}\n")[2].partition("\n## ")[0] for each in bases.get(name, [name])
    )
    everyones = page.partition("\n## All operators\n")[2].partition("\n## ")[0]
    said = set(re.findall(r"^- `(\w+)`: \S", section + everyones, re.MULTILINE))
    assert set(operator.keywords) <= said
