"""Plans the stages of a Dag: what is kept, what runs and when, what is deployed.

A stage is rendered as its task would be. A stage after one that would run is not fully known.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from muster.airflow.assets import DEPLOYMENT
from muster.airflow.attempts.keeping import look
from muster.airflow.attempts.run import TaskRun
from muster.airflow.attempts.verdicts import Failed
from muster.airflow.attempts.watcher import called
from muster.airflow.authoring.code import DagFolder
from muster.airflow.authoring.keywords import addresses_read
from muster.airflow.embedded.load import read_params
from muster.airflow.embedded.rendering import Unknown, plan_context, render
from muster.airflow.operators.base import MusterOperator
from muster.airflow.operators.deploy import DeployOperator
from muster.airflow.operators.gate import GateOperator
from muster.airflow.operators.mapping import Mapped
from muster.airflow.operators.releasing import admit_deployment
from muster.airflow.operators.spec import arrives_as_list
from muster.airflow.operators.validate import ValidateOperator
from muster.airflow.site import interpreter_path
from muster.airflow.teams import DagFacts, site_teams
from muster.backends.forecast import Competition, Demand, Forecast, TaskCost, durations, forecast
from muster.core.address import Address
from muster.core.data import EVERY_PARTITION
from muster.core.errors import MusterError, NotFound, SpecError
from muster.core.extensions import load, used
from muster.core.job import JobSpec
from muster.core.settings import Settings
from muster.core.text import one_line
from muster.ext.plan.plan import Deploys, Does, PlannedStage, RunPlan, Starts, When
from muster.images.environment import Environments
from muster.images.folders import image_digest

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from muster.backends.base import Backend
    from muster.volumes.base import Made

GIB = 1 << 30
HOUR_SECONDS = 3600.0


class Planner:
    """Plans one run of a parsed Dag.

    :param params: those that the run is given; the others have the Dag's defaults.
    :raises SpecError: a wrong param.
    """

    def __init__(
        self,
        dag: DAG,
        params: Mapping[str, Any],
        backend: Backend,
        settings: Settings,
        *,
        cache: bool = True,
    ) -> None:
        self._dag = dag
        self._given = {**dag.params.dump(), **read_params(dag, params)}
        self._backend = backend
        self._settings = settings
        self._cache = cache
        self._folder = DagFolder.of(dag)
        self._results: dict[str, Any] = {}
        self._specs: dict[
            str, JobSpec
        ] = {}  # of the stages that run, by label; of those that run many jobs, of one of them
        self._operators: dict[str, MusterOperator] = {}  # of the same
        self._writes: dict[str, set[str]] = {}  # volumes by the stage that would write them

    def plan(self) -> RunPlan:
        """Plan all stages, then forecast those that run."""
        stages = [stage for task in self._dag.topological_sort() for stage in self._of_task(task)]  # type: ignore[no-untyped-call]
        outlook = self._backend.place.capacity.outlook(list(self._specs.values()))
        found = self._forecast(stages, outlook)
        spans = [each.start.ends for each in found if each.start]
        ends = [] if None in spans else [span for span in spans if span is not None]
        cpu, gpu = (sum(getattr(each, f"{what}_hours") or 0.0 for each in found) for what in ("cpu", "gpu"))
        jobs = tuple(self._specs.values())
        team = site_teams().of_dag(DagFacts.of({"dag": self._dag}))
        told = (self._backend.store, self._dag.dag_id, team, jobs, gpu, cpu)
        return RunPlan(
            dag_id=self._dag.dag_id,
            params=self._given,
            stages=tuple(found),
            cpu_hours=cpu,
            gpu_hours=gpu,
            warnings=tuple(line for ask in used(lambda each: each.planned) for line in ask(*told)),
            ends=max(ends, key=lambda span: span.p90, default=None),
            unseen=outlook.unseen,
        )

    def _of_task(self, task: Any) -> Iterator[PlannedStage]:
        if isinstance(task, MusterOperator):
            yield self._of_operator(task, task.task_id)
        elif isinstance(task, Mapped):
            samples, name = list(task.samples()), str(task.task_id)  # type: ignore[attr-defined]
            for number, sample in enumerate(samples):
                yield self._of_operator(sample, called(name, number, sample.arguments), mapped=True)
            if not samples:
                why = "its instances are known when the stages before it have run"
                yield PlannedStage(task_id=name, label=name, does=Does.UNKNOWN, why=why)
        else:
            yield PlannedStage(task_id=task.task_id, label=task.task_id, does=Does.SKIPS)

    def _of_operator(self, operator: MusterOperator, label: str, *, mapped: bool = False) -> PlannedStage:
        stage = PlannedStage(task_id=operator.task_id, label=label, does=Does.UNKNOWN)
        try:
            operator.check_files(self._folder, self._settings)
        except SpecError as error:
            return replace(stage, does=Does.REFUSED, why=one_line(str(error)))
        if operator.later:
            return replace(stage, why="its arguments are known when the stages before it have run")
        try:
            rendered = render(operator, self._dag, self._given, self._results)
        except Unknown as unknown:
            return self._behind(stage, operator, unknown.task_id)
        except MusterError as error:
            return replace(stage, does=Does.REFUSED, why=one_line(str(error)))
        except Failed as error:  # a template that is wrong, or needs what only a run knows
            return replace(stage, why=str(error).splitlines()[1])
        except Exception as error:  # whatever an author's expression raises
            return replace(stage, why=one_line(f"{type(error).__name__}: {error}"))
        try:
            return self._of_rendered(stage, rendered, mapped=mapped)
        except (SpecError, NotFound) as error:
            before = self._missing_from(rendered) if isinstance(error, NotFound) else ""
            if before:
                return self._behind(stage, rendered, before)
            return replace(stage, does=Does.REFUSED, why=one_line(str(error)))

    def _of_rendered(self, stage: PlannedStage, operator: MusterOperator, *, mapped: bool) -> PlannedStage:
        task = self._task(operator)
        read = addresses_read(type(operator), lambda each: getattr(operator, each.attribute))
        what, writes = f"task {operator.task_id}", operator.changes()
        site_teams().admit_use(DagFacts.of(task.context), what, reads=read, writes=writes)
        if isinstance(operator, DeployOperator):
            admit_deployment(task, operator.name, model=str(operator.model))
            return self._deploys(stage, operator.name, str(operator.model))
        if isinstance(operator, GateOperator):
            if not mapped:
                self._results[stage.task_id] = {"passed": str(operator.volume), "versions": {}}
            return replace(stage, does=Does.ASKS, inputs={"volume": (str(operator.volume),)})
        spec = operator.job_spec(task)
        if spec is None:
            return replace(stage, does=Does.RUNS)
        spec = task.admitted(spec)
        before = self._making(stage.task_id, spec)
        if before:
            return self._behind(stage, operator, before)
        kept, why = self._kept(operator, spec)
        if kept is not None:
            if not mapped:
                self._results[stage.task_id] = kept
            return replace(self._about(stage, spec, operator), does=Does.KEPT, why=why)
        return self._runs(replace(stage, why=why), operator, spec)

    def _behind(self, stage: PlannedStage, operator: MusterOperator, before: str) -> PlannedStage:
        """Plan a stage whose inputs another stage would make."""
        if isinstance(operator, DeployOperator):
            return self._deploys(stage, operator.name, None, before=before)
        if isinstance(operator, GateOperator):
            return replace(stage, does=Does.ASKS, inputs={"volume": (f"what {before} makes",)})
        spec = operator.job_draft(f"{self._dag.dag_id}.{operator.task_id}")
        if spec is None:
            return replace(stage, does=Does.RUNS)
        kept = self._cache and operator.wish() is not None
        why = f"runs, or is kept if {before} comes out the same" if kept else ""
        made = self._runs(replace(stage, why=why), operator, spec)
        inputs = dict.fromkeys(spec.inputs, (f"what {before} makes",))
        return replace(made, does=Does.MAYBE if kept else Does.RUNS, inputs=inputs)

    def _making(self, task_id: str, spec: JobSpec) -> str:
        """Return the earlier stage that would write a volume that this one reads; empty if there is none."""
        read = {
            Address.parse(each.address).volume for given in spec.inputs.values() for each in given.versions
        }
        return self._writer(task_id, read)

    def _missing_from(self, operator: MusterOperator) -> str:
        """Return the earlier stage that would write a volume that this one names, of which there is no such version yet."""
        named = [*getattr(operator, "inputs", {}).values()]
        named += [getattr(operator, word, "") for word in ("model", "rows", "reference")]
        volumes = set()
        for text in (each for value in named for each in _texts(value)):
            if text.startswith(DEPLOYMENT):
                volumes.add(text)
            else:
                with suppress(SpecError):  # it is no address
                    volumes.add(Address.parse(text).volume)
        return self._writer(operator.task_id, volumes)

    def _writer(self, task_id: str, volumes: set[str]) -> str:
        for name in self._dag.get_task(task_id).get_flat_relative_ids(upstream=True):
            if volumes & self._writes.get(name, set()):
                return str(name)
        return ""

    def _runs(self, stage: PlannedStage, operator: MusterOperator, spec: JobSpec) -> PlannedStage:
        about = self._about(stage, spec, operator)
        try:
            warnings = self._backend.runner.check(spec)
        except SpecError as error:
            never = Starts(when=When.NEVER, why=one_line(str(error)))
            return replace(about, does=Does.RUNS, start=never)
        self._specs[stage.label] = spec
        self._writes.setdefault(stage.task_id, set()).update(operator.written(spec))
        self._operators[stage.label] = operator
        return replace(about, does=Does.RUNS, warnings=(*operator.doubts(), *warnings))

    def _about(self, stage: PlannedStage, spec: JobSpec, operator: MusterOperator) -> PlannedStage:
        return replace(
            stage,
            image=spec.image,
            image_built=self._is_built(operator, spec.image),
            inputs={
                name: tuple(version.address for version in given.versions)
                for name, given in spec.inputs.items()
            },
            needs=_needs(spec),
        )

    def _is_built(self, operator: MusterOperator, image: str) -> bool | None:
        """Whether an image's environment is on this machine; None if images are containers."""
        if not self._backend.place.here:
            return None
        if interpreter_path(image, self._settings) is not None:
            return True
        with operator.refusing("image"):
            digest = image_digest(self._folder.image(image, self._settings))
        return Environments(self._settings.cache).find(image, digest) is not None

    def _deploys(
        self, stage: PlannedStage, name: str, model: str | None, *, before: str = ""
    ) -> PlannedStage:
        self._writes.setdefault(stage.task_id, set()).add(f"{DEPLOYMENT}{name}")
        try:
            champion = self._backend.deployments.deployment(name).champion
        except NotFound:
            champion = None
        serves = champion.model.address if champion else None
        if model is not None:
            model = self._backend.store.resolve(model)[0].address
        made = Deploys(name=name, model=model or f"what {before} passes", instead_of=serves)
        does = Does.SERVED if model is not None and model == serves else Does.DEPLOYS
        return replace(stage, does=does, deploys=made)

    def _kept(self, operator: MusterOperator, spec: JobSpec) -> tuple[Mapping[str, Any] | None, str]:
        """Return the result that a stage would keep, if any, and the line for its log."""
        wish = operator.wish() if self._cache else None
        if wish is None:
            return None, ""
        found = look(spec, self._backend.store, wish)
        return (None if found.made is None else _result(operator, spec, found.made)), str(found)

    def _task(self, operator: MusterOperator) -> TaskRun:
        context = plan_context(operator, self._dag, self._given, self._results)
        return TaskRun.of(operator, context, settings=self._settings, backend=self._backend)

    def _forecast(self, stages: Sequence[PlannedStage], outlook: Competition) -> list[PlannedStage]:
        """Add start and cost to each stage that runs."""
        by_task: dict[str, list[str]] = {}
        for stage in stages:
            if stage.label in self._specs:
                by_task.setdefault(stage.task_id, []).append(stage.label)
        tasks = {stage.label: stage.task_id for stage in stages}
        demands = {
            label: replace(
                demand,
                name=label,
                history=demand.name,
                since=time.time(),
                after=tuple(self._before(tasks[label], by_task)),
            )
            for label, demand in zip(self._specs, outlook.planned, strict=True)
        }
        costs: dict[str, TaskCost] = {
            label: load(operator.costs)(
                operator, self._specs[label], demands[label], outlook, self._backend, self._folder
            )
            for label, operator in self._operators.items()
            if operator.costs
        }
        took = dict(durations(self._backend.store.ledger))
        for label, cost in costs.items():
            demands[label] = replace(demands[label], history=f"all of {label}")
            took[demands[label].history] = cost.durations
        told = forecast(list(demands.values()), outlook, took, now=time.time())
        return [self._costed(stage, told, demands, costs, outlook) for stage in stages]

    def _costed(
        self,
        stage: PlannedStage,
        told: Mapping[str, Forecast],
        demands: Mapping[str, Demand],
        costs: Mapping[str, TaskCost],
        outlook: Competition,
    ) -> PlannedStage:
        """Add start and cost to a stage, if it runs."""
        if stage.label not in demands:
            return stage
        demand = demands[stage.label]
        if stage.label not in told:
            before = next((label for label in demand.after if label not in told), "")
            down = f" while {', '.join(outlook.down)} takes no pods" if outlook.down else ""
            why = (
                f"{before}, before it, has no start"
                if before
                else f"it fits nowhere{down}; `muster gpus` shows what there is"
            )
            return replace(stage, start=Starts(when=When.UNKNOWN, why=why))
        found = self._timed(stage, told[stage.label], demand)
        unknown = [label for label in demand.after if label in told and not told[label].known]
        if unknown and found.start is not None and found.start.starts is not None:
            why = f"how long {unknown[0]} takes is not known: no run of it has ended here"
            found = replace(found, start=Starts(when=When.UNKNOWN, why=why))
        cost = costs.get(stage.label)
        if cost is None:
            return found
        return replace(
            found,
            search=cost.facts,
            why="; ".join(filter(None, (found.why, *cost.lines))),
            warnings=(*found.warnings, *cost.warnings),
            cpu_hours=cost.cpu_hours,
            gpu_hours=cost.gpu_hours,
        )

    def _before(self, task_id: str, by_task: Mapping[str, list[str]]) -> Iterator[str]:
        for name in sorted(self._dag.get_task(task_id).get_flat_relative_ids(upstream=True)):
            yield from by_task.get(name, ())

    def _timed(self, stage: PlannedStage, told: Forecast, demand: Demand) -> PlannedStage:
        spec = self._specs[stage.label]
        hours = (told.ends.p50 - told.starts.p50) / HOUR_SECONDS if told.known else None
        return replace(
            stage,
            start=Starts(
                when=When.NOW if told.at_once else When.WAITS,
                queue=demand.line,
                ahead=told.ahead,
                starts=told.starts,
                ends=told.ends if told.known else None,  # no guess stands in for it
            ),
            cpu_hours=None if hours is None else hours * _total(spec, "cpus"),
            gpu_hours=None if hours is None else hours * demand.gpus,
        )


def _result(operator: MusterOperator, spec: JobSpec, made: Made) -> dict[str, Any]:
    """Return what a task that keeps its versions returns, as far as other stages refer to it."""
    many = {name for name, each in spec.outputs.items() if each.partition == EVERY_PARTITION}
    found: dict[str, Any] = {
        "versions": {
            name: list(addresses) if name in many else addresses[0]
            for name, addresses in made.outputs.items()
        }
    }
    if isinstance(operator, ValidateOperator):
        checked = [version.address for version in spec.inputs["data"].versions]
        found["passed"] = checked if arrives_as_list(operator.volume) else checked[0]
    return found


def _texts(value: Any) -> list[str]:
    return [
        each for each in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(each, str)
    ]


def _needs(spec: JobSpec) -> dict[str, float]:
    found = {"cpu": _total(spec, "cpus"), "memory": _total(spec, "memory_gib") * GIB}
    cards = _total(spec, "gpus")
    return {**found, "gpu": cards} if cards else found


def _total(spec: JobSpec, what: str) -> float:
    return float(sum(role.least * getattr(role.resources, what) for role in spec.roles))
