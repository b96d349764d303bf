"""The keywords of operators that may keep earlier versions, and which ones a task may keep."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from muster.airflow.authoring.checks import check_flag, optional
from muster.airflow.authoring.keywords import addresses_read, keyword
from muster.airflow.authoring.references import is_known, texts_in
from muster.airflow.authoring.values import plain
from muster.airflow.operators.base import MusterOperator
from muster.core.address import SCHEME
from muster.core.comparison import DifferenceKind, differences, files_changed
from muster.core.errors import NotFound
from muster.core.job import check_json

if TYPE_CHECKING:
    from muster.airflow.attempts.keeping import Wish
    from muster.airflow.authoring.code import Code, DagFolder
    from muster.airflow.lineage import Lineage, TaskLineage
    from muster.core.job import JobSpec
    from muster.core.settings import Settings
    from muster.volumes.base import Made
    from muster.volumes.protocols import LocalStore

_ALL_VOLUMES = "{"


def _check_key(value: Any) -> None:
    """Refuse a cache key that JSON cannot hold, as far as it is known."""
    check_json("cache_key", value if is_known(value) else None)


class CachedOperator(MusterOperator):
    """The base of operators that keep earlier versions instead of making the same again."""

    cache: bool | None = keyword(default=None, check=optional(check_flag), for_all=True)
    """Whether a version that was made of the same code, image, inputs, params, roles, environment and secrets' places
    is taken, and nothing runs. None: as ``[muster] cache`` says, which is False where it is not set. A Param or a conf
    of the run that is called ``no_cache`` makes everything anew."""
    cache_key: Any = keyword(default=None, check=_check_key, spec=plain, templated=True, for_all=True)
    """A JSON value of the author's, for what muster cannot see: code that reads the clock, the network or a file
    outside of its folder. Another value makes the stage anew: ``cache_key="{{ ds }}"``."""

    def wish(self) -> Wish | None:
        """Which earlier versions the task may keep; None: none."""
        from muster.airflow.attempts.keeping import Wish
        from muster.airflow.site import cache_default

        if not (cache_default() if self.cache is None else self.cache):
            return None
        dag = self.get_dag()
        selected = {name for task in dag.tasks for name in volumes_selected(task)} if dag else set()
        return Wish(by_selector=None if _ALL_VOLUMES in selected else selected, refuse=self.refuse)

    if TYPE_CHECKING:  # what a subclass has of its other base

        def travelling(self, folder: DagFolder, settings: Settings) -> Code:
            """Return the code that the job would run with now."""

    @abstractmethod
    def again(self, last: JobSpec, folder: DagFolder, store: LocalStore, settings: Settings) -> JobSpec:
        """Return the job that the Dag's files describe now. What is known only in a run is copied from the last job.

        :raises SpecError: the files are wrong.
        """

    def changed_since(self, result: Mapping[str, Any], folder: DagFolder, store: LocalStore) -> str:
        """Say how the job of a result differs from that of the Dag's files now: ``flights/etl.py changed``.

        Values that are known only in a run, and inputs made by earlier stages, count as unchanged.
        """
        from muster.airflow.authoring.code import differing, records
        from muster.core.settings import Settings

        for record in records(result, store):
            settings = Settings.load()
            files = differing(record.code, record.modules, self.travelling(folder, settings), store)
            try:
                last = store.ledger.spec(record.job_id)
            except NotFound:  # gc took the job's entry: only its code is known
                return files_changed(files)
            found = differences(last, self.again(last, folder, store, settings), files)
            return "; ".join(str(each) for each in found if each.what is not DifferenceKind.INPUT)
        return ""

    def task_lineage(self, lineage: Lineage, ti: Any) -> TaskLineage:
        """Describe what an ended try read, and made or kept; by the kept versions where gc deleted the job that made them."""
        from muster.airflow.links import returned

        try:
            return super().task_lineage(lineage, ti)
        except NotFound:
            return lineage.of_kept(list(texts_in(returned(ti).get("versions"))))

    def refuse(self, made: Made) -> str:  # noqa: ARG002 - for those below
        """Why this task may not keep these versions; empty if it may."""
        return ""


def volumes_selected(task: Any) -> Iterator[str]:
    """Yield the volumes that a task reads by a selector; ``{`` if their names are known only in a run."""
    if getattr(task, "is_mapped", False):
        named = addresses_read(task.operator_class, lambda each: task.partial_kwargs.get(each.parameter))
        others = texts_in([task.partial_kwargs.get("op_kwargs"), task._get_specified_expand_input().value])
        given = [*named, *(text for text in others if text.startswith((SCHEME, _ALL_VOLUMES)))]
    else:
        given = [*addresses_read(type(task), lambda each: getattr(task, each.attribute))]
    for text in given:  # none is a reference to another task: that names an exact version
        volume, at, selector = text.removeprefix(SCHEME).partition("@")
        if _ALL_VOLUMES in volume:
            yield _ALL_VOLUMES
        elif not (at and selector.isdigit()):
            yield volume
