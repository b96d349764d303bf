"""SearchOperator: many trials of one training job, of which the bad ones stop early and the best one is the result."""

from __future__ import annotations

import hashlib
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.airflow.assets import announce
from muster.airflow.attempts.attempt import Remembered
from muster.airflow.attempts.waiting import Stopped
from muster.airflow.authoring.checks import (
    check_count,
    check_input,
    check_input_name,
    check_kept,
    check_retries,
    check_volume_name,
    optional,
    rule,
)
from muster.airflow.authoring.keywords import keyword
from muster.airflow.links import (
    JobLink,
    ReportLink,
    TrackingLink,
    VersionsLink,
    push_job_link,
)
from muster.airflow.operators.job import GangOperator
from muster.airflow.operators.running import report, summary
from muster.core.address import SCHEME
from muster.core.data import CHECKPOINTS, EVERY_PARTITION
from muster.core.errors import MusterError, NotFound, SpecError
from muster.core.job import JobSpec
from muster.core.names import make_job_id
from muster.core.progress import Pattern
from muster.core.room import size
from muster.core.status import JobStatus
from muster.ext.search.link import SearchLink
from muster.ext.search.space import Dimension, check_space, sample
from muster.ext.search.spec import Budget, Mode, Sampler, Search, SearchSpec, Stopping
from muster.ext.search.stored import KIND, begin_search, stored_search
from muster.volumes.base import MOST_CHECKPOINTS

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.authoring.references import VersionsReference
    from muster.backends.base import Backend
    from muster.ext.search.driver import SearchDriver
    from muster.ext.search.spec import Event
    from muster.volumes.protocols import LocalStore

LOOK_SECONDS = 0.25
TRIALS = "-trials"
"""What the volumes of the trials' own versions are called after: those of ``flights/model`` are in ``flights/model-trials``."""
_RESULTS = "results"


_check_budget = rule(lambda value: isinstance(value, Budget), "a Budget(resource=…, gpu_hours=…, seconds=…)")


def _check_searched(value: Any) -> None:
    """Refuse what is no space to search."""
    if not isinstance(value, Mapping):
        raise SpecError(
            f"{value!r:.60}: expected params and their values, such as {{'rate': loguniform(1e-4, 1e-1)}}"
        )
    check_space(value)


class SearchOperator(GangOperator):
    """Search for the params with which a training job does best.

    A trial is one point of `space`; a gang trains it as :class:`GangOperator` does, whose keywords say how. The script writes its
    checkpoint and then prints how far it is and how good, ``muster: epoch=3/27 auc=0.71``. At each of `rungs` a trial is compared with
    the others: one that is not among the best is paused at its checkpoint, and its cards are free. It goes on once it is among
    the best. The versions of the best trial become those of the task.

    Trials wait for room at the priority ``low``: they take what is free, and give it back when another job waits.

    ::

        SearchOperator(
            task_id="search", image="train", entrypoint="flights.train:train", inputs={"features": features},
            outputs={"model": "flights/model"}, space={"rate": loguniform(1e-4, 1e-1), "width": choice(64, 128)},
            metric="auc", trials=81, rungs=(1, 3, 9, 27), until="epochs",
        )
    """  # fmt: skip

    costs = "muster.ext.search.planned:search_cost"
    runs_a_job = False
    ui_color = "#e6f4ea"
    operator_extra_links = (SearchLink(), JobLink(), VersionsLink(), ReportLink(), TrackingLink())
    priority = "low"

    space: Mapping[str, Dimension] = keyword(check=_check_searched)
    """The params that are searched for, ``{"rate": loguniform(1e-4, 1e-1), "width": choice(64, 128)}``; with
    ``integers(1, 8)``, ``uniform(0, 1)``, and ``.when(optimizer="sgd")`` for one that only some points have."""
    metric: str = keyword(check=check_input_name)
    """The number that says how good a trial is; rank 0 prints it, with the resource in the same line."""
    mode: str | Mode = keyword(default=Mode.MAX)
    """Whether more of the metric is better: ``max`` or ``min``."""
    trials: int = keyword(default=27)
    """How many points are tried at most."""
    rungs: Sequence[float] = keyword()
    """Values of the resource at which trials are compared, ``(1, 3, 9, 27)``; a trial ends at the last."""
    resource: str | None = keyword(default=None, check=optional(check_input_name))
    """The number that says how far a trial is, ``epoch``. None: the one that it prints with a total."""
    until: str | None = keyword(default=None, check=optional(check_input_name))
    """The trial's param that says how far it trains, ``epochs``, which the search sets. None: the script knows by itself."""
    at_once: int | None = keyword(default=None, check=optional(check_count))
    """The most trials that run at once. None: as many as there is room for."""
    stopping: str | Stopping = keyword(default=Stopping.ASHA)
    """Which trials stop at a rung: ``asha`` (asynchronous successive halving), ``halving`` (a rung waits for all trials) or ``none``."""
    sampler: str | Sampler = keyword(default=Sampler.RANDOM)
    """How points are chosen: ``random``, ``grid`` or ``tpe``, which learns from the trials before."""
    seed: int = keyword(default=0)
    """Of the choices: the same seed chooses the same points."""
    trial_retries: int = keyword(default=1, check=check_retries)
    """How often a trial whose job failed is started again from its checkpoint, unless the error would come again."""
    budget: Budget | None = keyword(default=None, check=optional(_check_budget))  # type: ignore[assignment]
    """What the search may use at most, ``Budget(resource=500, gpu_hours=8, seconds=3600)``. Trials then stop at their next rung."""
    earlier: str | Sequence[str] = keyword(default=(), check=check_input, templated=True, reads=True)
    """Results of earlier searches, ``"flights/search@latest"``, which ``tpe`` knows from the start."""
    results: str | None = keyword(default=None, check=optional(check_volume_name), templated=True)
    """The volume for the table of all trials: params, values at each rung, curves. None: none is kept."""
    keep_checkpoints: int | None = keyword(default=10, check=optional(check_kept))
    """Of how many trials, the best, `results` keeps the checkpoints, for a later job to start from. None: of all, at most 500; 0: of none."""

    def check_together(self) -> None:
        """Check the space with the rules, and the job of a trial with a point of the space."""
        with self.refusing("space"):
            if shared := sorted(self.space.keys() & self.job_params.keys()):
                raise SpecError(f"param {shared[0]!r:.60} is in params, too: leave it out there")
        if self.until is not None and self.until in self.job_params:
            with self.refusing("until"):
                raise SpecError(f"param {self.until!r:.60} is in params, too: the search sets it")
        with self.refusing("the search"):
            spec = self.search_spec()
        if self.metric_pattern:
            with self.refusing("metric_pattern"):
                lacks = {self.metric, self.resource} - set(Pattern(self.metric_pattern).names)
                if lacks:
                    raise SpecError(
                        f"{self.metric_pattern!r:.120}: a search needs a group for its metric, {self.metric}, and one for how far a trial is, which "
                        "resource= names"
                    )
        if self.cache:
            with self.refusing("cache"):
                raise SpecError(
                    "a search always searches; earlier=… lets it know what an earlier one has found"
                )
        if self.resume_from_checkpoint != "auto":
            with self.refusing("resume_from_checkpoint"):
                raise SpecError("a trial always goes on from its checkpoint; leave it out")
        outputs: Mapping[str, Any] = self.outputs  # as :func:`read_outputs` wrote them
        for name, field in outputs.items():
            with self.refusing(f"outputs[{name!r}]"):
                if field["partition"] == EVERY_PARTITION:
                    raise SpecError("partition '*': the best trial's output is one version")
                if name == _RESULTS and self.results is not None:
                    raise SpecError(
                        f"{name!r} is what the table of all trials is called: call the output something else"
                    )
                check_volume_name(f"{field['volume']}{TRIALS}")
        self.job_params = {**self.job_params, **sample(self.space), **_until(spec)}
        super().check_together()

    @property
    def versions(self) -> VersionsReference:
        """References to the versions of the best trial, ``search.versions["model"]``, and to ``results``."""
        from muster.airflow.authoring.references import VersionsReference

        return VersionsReference(self, (*self.outputs, *([_RESULTS] if self.results is not None else [])))

    @classmethod
    def output_names(cls, keywords: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of its outputs, and ``results``."""
        return (*super().output_names(keywords), *([_RESULTS] if keywords.get("results") is not None else []))

    def job_spec(self, task: TaskRun) -> JobSpec:
        """Return the job of a trial, with a point of the space for its params."""
        job = super().job_spec(task)
        outputs = {name: replace(each, volume=f"{each.volume}{TRIALS}") for name, each in job.outputs.items()}
        return replace(job, outputs=outputs)

    def written(self, spec: JobSpec) -> set[str]:
        """The volumes that the task writes, with those of its trials."""
        own = {name.removesuffix(TRIALS) for name in super().written(spec)}
        return super().written(spec) | own | ({self.results} if self.results is not None else set())

    def changes(self) -> Sequence[str]:
        """The volume of the table, which no job writes."""
        return [self.results] if self.results is not None else []

    def wish(self) -> None:
        """None: a search always searches."""

    def doubts(self) -> tuple[str, ...]:
        """None: a trial that says nothing of its metric ends the search."""
        return ()

    def perform(self, context: Context) -> dict[str, Any]:
        """Search, and return the best trial's job, versions and metrics."""
        from muster.airflow.attempts.run import TaskRun

        task = TaskRun.of(self, context)
        driver = self._driver(task)
        ended = self._await(task, driver)
        if ended.trial < 0:
            from airflow.sdk.exceptions import AirflowFailException

            raise AirflowFailException(
                f"the search found nothing\n{ended.reason}\nmend it, then {task.origin.again}\n"
                f"all of it: muster search show {driver.search_id}"
            )
        return self._result(context, task.backend, driver, ended)

    def told(self, result: Mapping[str, Any]) -> str:
        """Say which trial is the best."""
        found = result["search"]
        return f"{found['metric']}={found['value']:.6g} by trial {found['trial']} of {found['trials']}: {found['params']}"

    def outcome(self, result: dict[str, Any]) -> Mapping[str, tuple[str, ...]]:
        """The best trial's versions, and the results."""
        return {name: (address,) for name, address in result["versions"].items()}

    def search_spec(self, earlier: Sequence[str] = ()) -> SearchSpec:
        """Return the space and the rules. :param earlier: addresses of earlier searches' results."""
        return SearchSpec(
            space=self.space,
            metric=self.metric,
            mode=_one_of("mode", Mode, self.mode),
            trials=self.trials,
            rungs=self.rungs,  # type: ignore[arg-type]  # SearchSpec makes it a tuple, and refuses what is no list
            resource=self.resource or "",
            until=self.until or "",
            at_once=self.at_once,
            stopping=_one_of("stopping", Stopping, self.stopping),
            sampler=_one_of("sampler", Sampler, self.sampler),
            seed=self.seed,
            retries=self.trial_retries,
            budget=self.budget or Budget(),
            earlier=tuple(earlier),
        )

    # The search goes on, or begins

    def _driver(self, task: TaskRun) -> SearchDriver:
        """Begin the search, or go on with it: an earlier try's, or one that was stopped and is resumed as it was."""
        from muster.ext.search.driver import SearchDriver

        store, begun = task.backend.store, Remembered(task, "search")
        search_id = begun.recall()
        if search_id is None:
            search = self._search(task)
            fresh = make_job_id(
                instance=task.origin.instance, task=task.name, nonce=secrets.token_hex(8), attempt=1
            )
            search_id = _resumed(store, fresh, search) or fresh
            begun.remember(search_id)
            self._begin(store, search_id, search)
        else:
            try:
                stored_search(store, search_id)
            except NotFound:  # the process died between the two writes
                self._begin(store, search_id, self._search(task))
        SearchLink.push(task.context["ti"], f"#/searches/{search_id}")
        return SearchDriver(task.backend, search_id, say=self.tell)

    def _search(self, task: TaskRun) -> Search:
        store, names = task.backend.store, [self.earlier] if isinstance(self.earlier, str) else self.earlier
        earlier = [version.address for name in names for version in store.resolve(name)]
        return Search(
            spec=self.search_spec(earlier),
            trial=task.admitted(self.job_spec(task)),
            began=time.time(),
            tally=task.tally,
        )

    def _begin(self, store: LocalStore, search_id: str, search: Search) -> None:
        rungs = ", ".join(f"{each:g}" for each in search.spec.rungs)
        pinned = [each.address for given in search.trial.inputs.values() for each in given.versions]
        store.lease([*pinned, *search.spec.earlier], holder=search_id)  # a trial may begin hours later
        begin_search(store, search_id, search)
        self.tell(f"search {search_id}: at most {search.spec.points} trials, rungs {rungs}")

    def _await(self, task: TaskRun, driver: SearchDriver) -> Event:
        """Drive the search to its end, here for a while and then in the triggerer."""
        patience, began = task.patience(), time.monotonic()
        try:
            while (ended := driver.step()) is None:
                self._hand_over(task, driver, waited=time.monotonic() - began)
                if patience.overdue(time.time()):
                    driver.close("it came to its execution_timeout")
                self.wait.pause(LOOK_SECONDS)
        except Stopped:
            if task.abandoned():
                driver.pause()
                self.log.info("the search is paused: the task goes on with it when it runs again as it was")
            raise
        finally:
            driver.leave()
        return ended

    def _hand_over(self, task: TaskRun, driver: SearchDriver, *, waited: float) -> None:
        from muster.core.wire import dumps
        from muster.ext.search.trigger import SearchTrigger

        now = time.time()
        if task.defer is not None and task.patience().left(waited=waited, queued=False, now=now) == 0:
            self.log.info("the search goes on; the triggerer drives it")
            task.defer(
                SearchTrigger(search_id=driver.search_id, origin=dumps(task.origin), deadline=task.deadline)
            )

    # The best trial

    def _result(
        self, context: Context, backend: Backend, driver: SearchDriver, ended: Event
    ) -> dict[str, Any]:
        """Make the best trial's versions those of the task, keep the table of all, and let the other trials' files go."""
        store, best = backend.store, driver.state.trials[ended.trial]
        status = backend.status(best.jobs[-1])
        push_job_link(context["ti"], status.job_id)
        outputs = {
            name: (self._copied(store, driver, name, places[0]),) for name, places in _made(status).items()
        }
        kept = 0
        if self.results is not None:
            outputs[_RESULTS] = (self._kept(store, driver, self.results),)
            kept = self._tell_kept(store, outputs[_RESULTS][0])
        jobs = [job_id for trial in driver.state.trials for job_id in trial.jobs]
        try:
            freed = max(0, store.let_go(jobs) - kept)
            self.log.info("what else the trials left is deleted: %.1f MB", freed / 1e6)
        except MusterError as error:
            self.log.warning("what the trials left stays until gc: %s", error)
        assert status.result is not None
        final = replace(status, result=replace(status.result, outputs=outputs))
        announce(context, store, final)
        result = summary(final)
        spec = driver.search.spec
        result["search"] = {
            "id": driver.search_id,
            "trial": best.number,
            "trials": len(driver.state.trials),
            "params": dict(best.params),
            "metric": spec.metric,
            "value": best.value,
        }
        report(self.log, result)
        self.tell(self.told(result))
        return result

    def _copied(self, store: LocalStore, driver: SearchDriver, name: str, address: str) -> str:
        version = store.resolve(address)[0]
        return store.copy(
            address,
            version.volume.removesuffix(TRIALS),
            request=_request(driver.search_id, name),
            partition=version.partition,
            note=f"the best trial of search {driver.search_id}: {address}",
        ).address

    def _kept(self, store: LocalStore, driver: SearchDriver, volume: str) -> str:
        from muster.ext.search.results import kept_checkpoints, write_results

        most = MOST_CHECKPOINTS if self.keep_checkpoints is None else self.keep_checkpoints
        with tempfile.TemporaryDirectory(prefix="muster-search-") as folder:
            write_results(Path(folder), driver.search, driver.state, store.ledger)
            note, request = f"search {driver.search_id}", _request(driver.search_id, _RESULTS)
            checkpoints = kept_checkpoints(driver.state, most=most)
            return store.add(
                volume, Path(folder), note=note, request=request, checkpoints=checkpoints
            ).address

    def _tell_kept(self, store: LocalStore, address: str) -> int:
        """Say what the results hold of checkpoints, and return their bytes."""
        from muster.ext.search.results import sizes_of_checkpoints

        sizes = sizes_of_checkpoints(store.manifest(address))
        if sizes:
            self.tell(
                f"checkpoints of {len(sizes)} trials are kept, {size(sum(sizes.values()))}: "
                f"{address.removeprefix(SCHEME)}/{CHECKPOINTS}/…"
            )
        return sum(sizes.values())


def _resumed(store: LocalStore, fresh: str, wanted: Search) -> str | None:
    """The last search of this task and run, whose try was cleared, if it has not ended and would be the same.

    :param fresh: the id that another search of the task would have.
    """
    from muster.core.wire import dumps, loads
    from muster.ext.search.driver import look_up

    for search_id in store.logs(KIND):
        if search_id.rsplit("-", 2)[0] != fresh.rsplit("-", 2)[0]:  # another task's
            continue
        with suppress(NotFound):  # gc deletes it
            search = stored_search(store, search_id)
            if search.trial.origin != wanted.trial.origin:
                continue
            read = loads(
                Search, dumps(replace(wanted, began=search.began, tally=search.tally))
            )  # 1 is 1.0 by then
            return search_id if search == read and look_up(store, search_id)[1].closed is None else None
    return None


def _made(status: JobStatus) -> Mapping[str, tuple[str, ...]]:
    return status.result.outputs if status.result is not None else {}


def _request(search_id: str, name: str) -> str:
    """A name for one of the search's calls: the same in each try."""
    return hashlib.sha256(f"{search_id} {name}".encode()).hexdigest()[:16]


def _until(spec: SearchSpec) -> dict[str, Any]:
    last = spec.rungs[-1]
    return {spec.until: int(last) if last.is_integer() else last} if spec.until else {}


def _one_of(word: str, kind: Callable[[Any], Any], value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(each.value for each in kind)  # type: ignore[attr-defined]
        raise SpecError(f"{word} is {value!r:.60}: expected one of {known}") from None
