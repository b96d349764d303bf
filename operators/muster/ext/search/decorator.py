"""``@search``, and ``@task.search``: a function of the Dag file is what a search trains in each of its trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster.airflow.operators.decorators import DecoratedJob, Function, decorate, typed
from muster.ext.search.operator import SearchOperator


class DecoratedSearch(DecoratedJob, SearchOperator):
    """Search with a function of the Dag file; :func:`search` says how it is written."""

    custom_operator_name = "@task.search"


if TYPE_CHECKING:
    from muster.airflow.authoring.keywords import keyword

    class _Keywords(SearchOperator):
        """What ``@search`` takes: a task that is given no name is called as its function."""

        task_id: str = keyword(default="")

else:
    _Keywords = DecoratedSearch


@typed(_Keywords)
def search(python_callable: Function | None = None, **keywords: Any) -> Any:
    """Make a function of the Dag file what a search trains in each of its trials.

    Like :func:`~muster.airflow.operators.decorators.gang`, with the keywords of a
    :class:`~muster.ext.search.operator.SearchOperator`. The params of the space, and the one that ``until`` names, are
    not given where it is called.

    ::

        from muster.airflow import choice, loguniform, search


        @search(
            image="train",
            outputs={"model": "sales/model"},
            space={"rate": loguniform(1e-4, 1e-1), "width": choice(64, 128)},
            metric="auc",
            rungs=(1, 3, 9),
            until="epochs",
        )
        def train(table: Path, model: Path, checkpoints: Path, *, rate: float, width: int, epochs: int = 9) -> None:
            ...
    """  # fmt: skip
    return decorate(python_callable, DecoratedSearch, keywords)
