"""Says what a stage would keep if it ran now: ``muster cache why``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from muster.airflow.attempts.keeping import Wish, look
from muster.airflow.embedded.home import EmbeddedHome, quieten
from muster.core.comparison import task_key_of
from muster.core.errors import NotFound, SpecError
from muster.core.origin import Origin
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.core.job import JobSpec
    from muster.volumes.protocols import LocalStore

_LAST_JOBS = 200


@dataclass(frozen=True, kw_only=True)
class WouldKeep:
    """What one stage, or one instance of a mapped stage, would keep.

    :param map_index: of an instance; -1 for others.
    :param cache: whether the stage takes what was made before at all.
    :param versions: what is kept, or what was compared; empty where there is nothing.
    :param job_id: the job that made them.
    :param reasons: why nothing is kept; empty where it is.
    """

    stage: str
    map_index: int
    cache: bool
    kept: bool
    line: str
    versions: tuple[str, ...] = ()
    job_id: str | None = None
    reasons: tuple[str, ...] = ()


def would_keep(
    dag_id: str, stage: str, *, settings: Settings | None = None, dags: Path | None = None
) -> list[WouldKeep]:
    """Compare a stage as its files are now, with the inputs and params of its last job, with what was made.

    Nothing is submitted. What only a run tells (Params in Jinja, another task's versions) is as it was in the last job.

    :raises SpecError: there is no such Dag or stage, or it is none whose versions are kept.
    :raises NotFound: it has never run here.
    """
    home = EmbeddedHome(settings=settings or Settings.load(), dags=(dags or Path("dags")).absolute())
    home.enter()
    from muster.airflow.embedded.load import load
    from muster.airflow.operators.running import CachedOperator
    from muster.airflow.site import connect

    quieten(home.log)
    loaded = load(dag_id, home)
    operators = [each for each in loaded.operators() if each.task_id == stage]
    if not operators:
        raise SpecError(
            f"Dag {dag_id} has no stage {stage!r:.80} of muster's; its stages are {', '.join(loaded.order)}"
        )
    operator, store = operators[0], connect(home.settings).store
    if not isinstance(operator, CachedOperator):
        raise SpecError(f"{stage} is never kept: jobs, gangs and validations are")
    wish = operator.wish()
    answers = []
    for last in _last(store, Origin(dag_id=dag_id, task_id=stage)):
        now = operator.again(last, loaded.folder, store, home.settings)
        answers.append(_answer(now, store, wish))
    return answers


def _answer(spec: JobSpec, store: LocalStore, wish: Wish | None) -> WouldKeep:
    found = look(spec, store, wish)
    of = found.made or found.nearest
    off = "" if wish is not None else "; cache is off: the stage says cache=True, or [muster] cache does"
    return WouldKeep(
        stage=spec.origin.task_id,
        map_index=spec.origin.map_index,
        cache=wish is not None,
        kept=wish is not None and found.made is not None,
        line=("would be " if found.made is not None else "") + str(found) + off,
        versions=of.addresses if of else (),
        job_id=of.job_id if of else None,
        reasons=found.reasons,
    )


def _last(store: LocalStore, task: Origin) -> list[JobSpec]:
    """The specs of a task's last job; of a mapped task, of its last run's instances in their order."""
    newest: dict[int, JobSpec] = {}
    for spec in _newest_first(store, task):
        if newest and spec.origin.run_id != next(iter(newest.values())).origin.run_id:
            continue
        newest.setdefault(spec.origin.map_index, spec)
    if not newest:
        raise NotFound(f"{task.dag_id}.{task.task_id} has no job in this store: run it first")
    return [newest[index] for index in sorted(newest)]


def _newest_first(store: LocalStore, task: Origin) -> Iterator[JobSpec]:
    jobs = store.ledger.jobs()[-_LAST_JOBS:]
    specs = store.ledger.specs(jobs)
    for job_id in reversed(jobs):
        spec = specs.get(job_id)
        if spec is not None and task_key_of(spec.origin) == task_key_of(task):
            yield spec
    for made in store.made(task_key_of(task)):
        yield made.spec
