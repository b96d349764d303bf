"""DeployOperator: a model answers under a name, step by step, or is taken back; users are served all the while.

The release is driven in the task's process for a while, then by its trigger.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from muster.airflow.assets import add_deployment, announce_served
from muster.airflow.attempts.attempt import Asked, Remembered
from muster.airflow.attempts.waiting import Stopped
from muster.airflow.authoring.checks import (
    check_batch,
    check_count,
    check_file,
    check_flag,
    check_hold,
    check_image,
    check_limits,
    check_listened,
    check_log,
    check_name,
    check_one,
    check_resources,
    check_rules,
    check_span,
    check_steps,
    check_trusted,
    optional,
)
from muster.airflow.authoring.keywords import keyword
from muster.airflow.authoring.references import is_known
from muster.airflow.authoring.values import SmokeRows, check_smoke, read_smoke_rows
from muster.airflow.links import DeploymentLink, EndpointLink, returned
from muster.airflow.operators.base import MusterOperator
from muster.airflow.operators.releasing import (
    Smoke,
    admit_deployment,
    answered_otherwise,
    asker,
    check_smoke_file,
    curl_line,
    example_of,
    one_version,
    plan_of,
    read_comparison,
    read_smoke,
    refusal_text,
    serving,
    smoke_digest,
    smoke_of,
    smoke_source,
)
from muster.core.address import short
from muster.core.comparison import files_changed
from muster.core.deployment import (
    NO_LOG_OF_STREAMS,
    PREDICTED,
    Batch,
    DeploymentSpec,
    RequestLimits,
    RequestLog,
    Workers,
    check_host,
    check_streams,
    needs_workers,
)
from muster.core.errors import Behind, DeploymentError, MusterError, NotFound, SpecError
from muster.core.prediction import predictions_volume
from muster.core.resources import Resources
from muster.core.shipped import SERVE
from muster.core.wire import dumps, loads

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.exceptions import AirflowSkipException

    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.attempts.waiting import InlinePatience
    from muster.airflow.authoring.code import DagFolder
    from muster.airflow.authoring.references import VersionReference
    from muster.airflow.lineage import Lineage, TaskLineage
    from muster.backends.base import Backend
    from muster.backends.releases.decision import Outcome
    from muster.backends.releases.driver import ReleaseDriver
    from muster.backends.releases.plan import Comparison, Plan, Rules
    from muster.core.deployment import DeploymentStatus
    from muster.core.settings import Settings
    from muster.volumes.base import Version
    from muster.volumes.protocols import LocalStore

LOOK_SECONDS = 0.25
MARGIN = timedelta(minutes=10)
_TAKING_BACK_SECONDS = 60.0


class DeployOperator(MusterOperator):
    """Deploy a model version under a name and wait until it serves, or is refused.

    The version starts beside the one that serves, answers the smoke requests and takes over, at once or in
    `steps`. A version that answers a smoke request wrongly gets no traffic. A version that breaks a rule loses its
    share at once: the task fails and names the rule, and the old version serves on. A version that is older than the
    one that serves, or than the one that another run is releasing, is refused; in a backfill the task is skipped.

    A release goes on from the share at which an earlier task of the same version ended. All tries of a task ask
    for one release: ``@latest`` means the version that was the latest in the first try.
    """

    ui_color = "#fce8e6"
    operator_extra_links = (DeploymentLink(), EndpointLink())

    name: str = keyword(check=check_name)
    """The deployment."""
    model: str | VersionReference = keyword(check=check_one, templated=True, reads=True)
    """The version: a gate's ``.passed`` or an address."""
    smoke: str | SmokeRows | None = keyword(
        default="smoke.json",
        read=read_smoke_rows,
        check=optional(check_smoke),
        templated=True,
        reads=lambda smoke: smoke["rows"] if isinstance(smoke, Mapping) else None,
    )
    """A JSON file of the Dag's folder: a list of ``{"name": …, "inputs": {column: [values]}, "expect": {output:
    {"min": …, "max": …}}}``; or rows of a version, ``SmokeRows(stage.versions["rows"], most=20)``; None asks nothing."""
    steps: Sequence[int] = keyword(default=(100,), check=check_steps)
    """Percents of the traffic, ``[5, 25, 100]``: the version is watched at each. Where the last is below 100, the task
    ends there, and another DeployOperator of the same version goes on."""
    hold: timedelta | Sequence[timedelta] | None = keyword(default=None, check=optional(check_hold))
    """How long each step is watched: one time for all steps, or one for each. None is five minutes each, and 0 where
    all of the traffic moves at once."""
    rules: Rules | None = keyword(default=None, check=optional(check_rules))
    """Rules that must hold at each step, ``Rules(max_error_share=0.01, max_p95_ratio=2.0)``."""
    comparison: str | None = keyword(default=None, check=optional(check_file))
    """A JSON file of the Dag's folder: ``{"requests": [{"inputs": …, "labels": [0, 1]}], "output": "probability",
    "metric": "auc", "worse_by": 0.01, "agreement": 0.9, "tolerance": 0.1}``; candidate and champion are asked at
    each step."""
    replicas: int = keyword(default=1, check=check_count)
    """The number of servers, on a cluster; up to `most_replicas` under load."""
    most_replicas: int | None = keyword(default=None, check=optional(check_count))
    """The most replicas under load; `replicas` where not given."""
    request_log: RequestLog | None = keyword(default=None, alias="log", check=optional(check_log))
    """What is kept of the requests: ``RequestLog(share=0.1)`` keeps a tenth of them, with their answers, as hourly
    partitions of the volume ``NAME/predictions``. None keeps nothing."""
    host: str = keyword(default="127.0.0.1", check=check_listened)
    """The IPv4 address to listen on, on one machine: ``0.0.0.0`` is all of its addresses. Beyond loopback `tokens` is
    needed. A cluster is reached by its Gateway, whatever is given here."""
    tokens: bool = keyword(default=False, check=check_flag)
    """Whether each request needs a client's token, which ``muster deployments token make NAME CLIENT`` makes."""
    limits: RequestLimits | None = keyword(default=None, check=optional(check_limits))
    """How much a client may ask: ``RequestLimits(rate=50, burst=100, body_mib=1)`` is 50 requests a second, 100 at once
    after a pause, and 1 MiB a request. Each client by itself where there are tokens, else all together."""
    image: str | None = keyword(default=None, check=optional(check_image), own=True, late=True)
    """The environment in which the model runs. Where not given, that of the job that made the version; an ONNX model
    runs in the model server's own."""
    server: str | None = keyword(default=None, check=optional(check_name))
    """The model server, which is also the name of its image: ``serve`` is muster's own, ``kserve`` the same within KServe's
    SDK, ``seldon`` Seldon Core's wrapper. None is ``kserve`` on a cluster with KServe, else ``serve``."""
    grpc: bool = keyword(default=False, check=check_flag)
    """Answer gRPC of the Open Inference Protocol as well, on a port of its own."""
    workers: int = keyword(default=1, check=check_count)
    """The processes of a model that is no ONNX model, in each replica: they share nothing, and one that ends is
    started again."""
    max_requests: int | None = keyword(default=None, check=optional(check_count))
    """After so many answered requests a worker is started anew, for a model that keeps memory; None never does."""
    batch: Batch | None = keyword(default=None, check=optional(check_batch))
    """``Batch(most=64, wait_ms=5)``: requests that come together are computed in one call of the predictor. None
    computes each alone; an ONNX model always does."""
    request_timeout: timedelta = keyword(default=timedelta(seconds=30), check=check_span)
    """The longest that a call of the predictor may take; then its worker is ended and started again. Where it streams, the
    longest that a part may take, and all parts together."""
    trusted: Sequence[str] = keyword(default=(), check=check_trusted)
    """What may be loaded though loading it can run code: ``["pickle"]``, ``["torch.export"]``, or the types in a skops file."""
    stream: bool = keyword(default=False, check=check_flag)
    """The version's ``predict`` yields its answer in parts, which ``…/generate_stream`` sends as they come."""
    allow_older: bool = keyword(default=False, check=check_flag)
    """Serve it although it is older than what serves now."""
    job_resources: Resources | None = keyword(
        default=None, alias="resources", check=check_resources, for_all=True
    )
    """What the server asks for."""
    load_timeout: timedelta = keyword(default=timedelta(minutes=2), check=check_span, for_all=True)
    """The longest that loading and smoke requests may take together."""

    def check_together(self) -> None:
        """Build the plan, and announce the deployment's asset."""
        self._compared: Comparison | None = None  # read when it runs
        with self.refusing("steps"):
            self._plan()
        with self.refusing("most_replicas"):
            self._check_replicas()
        with self.refusing("host"):
            check_host(self.host, tokens=self.tokens)
        with self.refusing("stream"):
            self._check_stream()
        add_deployment(self)

    def images(self, backend: Backend) -> tuple[str, ...]:
        """The model's where it is named here, else the server's; that of the job that made the version was built."""
        image = self.image or self.server or default_server(None, backend.deployments.limits.servers)
        makes_smoke = (SERVE,) if isinstance(self._smoke, Mapping) else ()
        return tuple(dict.fromkeys([image, *makes_smoke]))

    def check_files(self, folder: DagFolder, settings: Settings) -> None:  # noqa: ARG002 - they need no image
        """Read the smoke requests, and what candidate and champion are both asked."""
        with self.refusing("smoke"):
            check_smoke_file(folder, self._smoke)
        with self.refusing("comparison"):
            read_comparison(folder, self.comparison)

    def check_ready(self, backend: Backend) -> None:
        """Ask whether such a server runs here, and whether such steps do."""
        limits = backend.deployments.limits
        with self.refusing("server"):
            if is_known(self.server) and self.server not in (None, *limits.servers):
                known = ", ".join(limits.servers)
                raise SpecError(f"{self.server!r:.60} does not run here; known are: {known}")
        with self.refusing("grpc"):
            if self.grpc and limits.no_grpc:
                raise SpecError(limits.no_grpc)
        from muster.backends.releases.driver import check_steps as check_plan

        with self.refusing("steps"):
            check_plan(backend.deployments, self._plan())

    def changed_since(self, result: Mapping[str, Any], folder: DagFolder, store: LocalStore) -> str:  # noqa: ARG002
        """Name the smoke requests if they read differently now."""
        then, file = result.get("smoke"), self._smoke
        if not then or isinstance(file, Mapping):  # rows are those of a version, which does not change
            return ""
        changed = then != smoke_digest(read_smoke(folder, file))
        return files_changed([str(file)] if changed else [])

    def overtaken(self, result: Mapping[str, Any], backend: Backend) -> str:
        """Say what answers now, if it is not the version that did then."""
        if "url" not in result:  # it ended below all of the traffic
            return ""
        return answered_otherwise(backend.deployments, str(result["name"]), str(result["version"]))

    def changes(self) -> Sequence[str]:
        """The volume of the requests that are kept."""
        return [predictions_volume(self.name)] if self.request_log else []

    def perform(self, context: Context) -> dict[str, Any]:
        """Release, wait, and return where it answers."""
        from muster.airflow.attempts.run import TaskRun
        from muster.airflow.authoring.code import DagFolder

        task, folder = TaskRun.of(self, context), DagFolder.of(context["dag"])
        self._compared = read_comparison(folder, self.comparison)
        driver = self.begin_release(task, lambda: self._spec(task, folder))
        status = self.await_release(task, driver)
        version, smoke = driver.order.spec.model.address, driver.order.spec.smoke
        percent = status.shares.get(driver.revision, 0)
        result = {"name": self.name, "version": version, "percent": percent, "smoke": smoke_digest(smoke)}
        if percent < 100 and self.steps[-1] < 100:
            self.log.info("%s has %d %%; %s", short(version), percent, serving(status))
            announce_served(context, status, None)
            return result
        example = "" if smoke else example_of(task.backend.store, version)
        curl = curl_line(status, smoke, token=self.tokens, example=example)
        self.log.info("%s answers at %s with %s", self.name, status.url, version)
        if status.grpc:
            self.log.info("over gRPC at %s", status.grpc)
        self.log.info("try it: %s", curl)
        announce_served(context, status, status.champion)
        return result | {"url": status.url, "curl": curl}

    def told(self, result: Mapping[str, Any]) -> str:
        """Say which version has which share."""
        return f"{self.name}: {short(result['version'])} has {result['percent']} % of the users"

    def task_lineage(self, lineage: Lineage, ti: Any) -> TaskLineage:
        """Describe what was released and under which name; a release that failed by its keywords alone."""
        released = returned(ti)
        if not released:
            return super().task_lineage(lineage, ti)
        return lineage.of_release(released["version"], self.name)

    def begin_release(self, task: TaskRun, wanted: Callable[[], DeploymentSpec]) -> ReleaseDriver:
        """Ask for the release, or go on with it, unless that takes the deployment back in time.

        :param wanted: makes the spec to ask for, where no earlier try has asked.
        :raises AirflowSkipException: it would, in a backfill: its models are kept, to be looked at.
        :raises SpecError: it would, and this is no backfill.
        """
        from muster.backends.releases.driver import Order, ReleaseDriver, begin

        by, origin, say, plan = asker(task.origin), task.origin, self.tell, self._plan()
        begun = Remembered(task, "release")
        if text := begun.recall():  # never anew: it may have been refused by now, or rolled back by a person
            asked = loads(Asked, text)
            order = Order(spec=asked.spec, plan=plan, by=by, origin=origin)
            return ReleaseDriver(task.backend.deployments, order, revision=asked.revision, say=say)
        deployments, older = task.backend.deployments, self.allow_older
        admit_deployment(task, self.name, model=str(self.model))
        try:
            driver = begin(deployments, wanted(), plan, by=by, origin=origin, allow_older=older, say=say)
        except Behind as error:
            if _backfills(task):
                raise self._skipped(f"not deployed: {error}") from None
            raise SpecError(
                f"{error}. A backfill must not do that; say allow_older=True if it is meant"
            ) from error
        begun.remember(dumps(Asked(revision=driver.revision, spec=driver.order.spec)))
        return driver

    def _skipped(self, text: str) -> AirflowSkipException:
        from airflow.sdk.exceptions import AirflowSkipException

        self.log.warning("%s", text)  # Airflow itself says only that the task is skipped
        return AirflowSkipException(text)

    def await_release(self, task: TaskRun, driver: ReleaseDriver) -> DeploymentStatus:
        """Drive the release to its end, a while longer than it may take: its environment may be built first."""
        from muster.backends.releases.manual import tidy

        patience, began = self._patience(task), time.monotonic()
        outcome = self._seen()
        try:
            while outcome is None:
                outcome = driver.step()
                if outcome is None:
                    self.hand_over_release(task, driver, patience, waited=time.monotonic() - began)
                    self.wait.pause(LOOK_SECONDS)
        except Stopped:
            if task.abandoned():
                driver.give_up("its task was ended by hand")
                tidy(task.backend.deployments, self.name)
            raise
        return self._ended(task, driver.order.spec, outcome)

    def _seen(self) -> Outcome | None:
        """How the trigger has seen the release end; by now another may have taken over."""
        from muster.backends.releases.decision import Outcome

        text = self.news.get("outcome")
        return loads(Outcome, text) if text else None

    def _ended(self, task: TaskRun, spec: DeploymentSpec, outcome: Outcome) -> DeploymentStatus:
        """Return the status where the release is done; else say why it is not."""
        from airflow.sdk.exceptions import AirflowFailException

        from muster.backends.releases.decision import Ending

        try:
            status = task.backend.deployments.deployment(spec.name)
        except NotFound:
            status = None
        if outcome.ending in (Ending.DONE, Ending.HELD) and status is not None:
            return status
        model, maker = spec.model.address, None
        if outcome.ending is Ending.ROLLED_BACK:
            with suppress(MusterError):  # the refusal is what counts
                maker = task.backend.store.record(model).origin
        text = refusal_text(
            status,
            outcome,
            name=spec.name,
            model=model,
            smoke=smoke_source(self._smoke),
            maker=maker,
            again=task.origin.again,
        )
        passed_by = outcome.ending is Ending.SUPERSEDED and _backfills(task)
        raise self._skipped(text) if passed_by else AirflowFailException(text)

    def _patience(self, task: TaskRun) -> InlinePatience:
        longest = (self.load_timeout + MARGIN).total_seconds() + self._plan().longest_seconds
        ends = [self.news.get("deadline") or time.time() + longest, task.deadline]
        return replace(task.patience(), deadline=min(end for end in ends if end is not None))

    def _too_late(self) -> str:
        """Say why a release is given up that had its time."""
        wanted = self._plan().rules.fewest_requests
        each = f"; its share widens after {wanted} requests at a step (fewest_requests)" if wanted else ""
        return (
            f"it does not serve in the time that it has (load_timeout {self.load_timeout}, what its steps "
            f"are held and {MARGIN}, or execution_timeout{each})"
        )

    def hand_over_release(
        self, task: TaskRun, driver: ReleaseDriver, patience: InlinePatience, *, waited: float
    ) -> None:
        """Defer if this process has waited long enough, and give up where its time is over.

        :raises DeploymentError: what was given up does not end either.
        """
        from muster.airflow.attempts.trigger import DeploymentTrigger

        now = time.time()
        if patience.overdue(now):
            reason = self._too_late()
            if patience.overdue(now - _TAKING_BACK_SECONDS):
                raise DeploymentError(
                    f"deployment {self.name}: {driver.order.spec.model.address}: {reason}; see muster deployments show {self.name}"
                )
            driver.give_up(reason)
        elif task.defer is not None and patience.left(waited=waited, queued=False, now=now) == 0:
            self.log.info("the release goes on; the triggerer drives it")
            task.defer(
                DeploymentTrigger(
                    spec=dumps(driver.order.spec),
                    plan=dumps(self._plan()),
                    revision=driver.revision,
                    by=asker(task.origin),
                    origin=dumps(task.origin),
                    deadline=patience.deadline or now,
                )
            )

    def _spec(self, task: TaskRun, folder: DagFolder) -> DeploymentSpec:
        """What is to be released, as it is now: of the model, of the image's lock and of the smoke requests."""
        from muster.airflow.operators.spec import image_digest

        version = one_version(task.backend.store, self.model, what="model ", rule="one is deployed")
        self._check_histograms(task.backend.store, version)
        workers = self._workers(task, folder, version)
        named = None if workers else self.image  # where an ONNX model runs, its server does
        servers = task.backend.deployments.limits.servers
        server = self.server or default_server(named, servers)
        if named in servers and named != server:
            raise SpecError(
                f"image {named!r} has another server than {server!r}, which has an image of its own: leave image= out"
            )
        image = named or server
        return DeploymentSpec(
            name=self.name,
            model=version.pinned,
            image=image,
            image_digest=image_digest(image, folder, task),
            workers=workers,
            server=server,
            smoke=smoke_of(self._smoke, task, folder, model=version.pinned, name=self.name),
            replicas=self.replicas,
            most_replicas=self.most_replicas,
            resources=self.job_resources or Resources(),
            load_timeout_seconds=self.load_timeout.total_seconds(),
            log=self.request_log,
            host=self.host,
            tokens=self.tokens,
            limits=self.limits,
            grpc=self.grpc,
        )

    @property
    def _smoke(self) -> Smoke:
        smoke: Any = self.smoke
        return cast("Smoke", smoke)  # as :func:`read_smoke_rows` wrote it

    def _workers(self, task: TaskRun, folder: DagFolder, version: Version) -> Workers | None:
        """Return how the model runs in processes of its own; None for an ONNX model.

        :raises SpecError: no job made the version, and no image is named; or what only workers can do is asked for.
        """
        from muster.airflow.operators.spec import image_digest

        files = [name for name, _ in task.backend.store.manifest(version.address).names()]
        if self.stream:
            check_streams(version.address, files)
        if not needs_workers(files):
            if self.workers > 1 or self.max_requests or self.batch or self.trusted:
                raise SpecError(
                    f"{version.address} is an ONNX model, which the server runs itself: workers, max_requests, batch and "
                    f"trusted are for versions that hold one of {', '.join(PREDICTED)}"
                )
            return None
        record = task.backend.store.record(version.address)
        if not (self.image or record.image):
            raise SpecError(f"{version.address} was made by no job: name the model's environment, image=…")
        return Workers(
            image=self.image or record.image,
            image_digest=image_digest(self.image, folder, task) if self.image else record.image_digest,
            count=self.workers,
            batch=self.batch,
            request_timeout_seconds=self.request_timeout.total_seconds(),
            trusted=tuple(self.trusted),
            stream=self.stream,
            max_requests=self.max_requests,
        )

    def _plan(self) -> Plan:
        known = is_known(self.steps) and is_known(self.hold) and is_known(self.rules)
        return (
            plan_of(self.steps, self.hold, self.rules, self._compared)
            if known
            else plan_of((100,), None, None)
        )

    def _check_stream(self) -> None:
        if self.stream is not True:  # it may be a template still
            return
        if is_known(self.batch) and self.batch is not None:
            raise SpecError("a predictor that yields parts has one request at a time: leave batch out")
        if is_known(self.request_log) and self.request_log is not None:
            raise SpecError(NO_LOG_OF_STREAMS)
        if is_known(self.server) and self.server == "seldon":
            raise SpecError("Seldon Core's wrapper runs no predict.py: leave server out")

    def _check_histograms(self, store: LocalStore, version: Version) -> None:
        """Refuse a rule on drift for a version without histograms, before a job makes smoke requests of rows."""
        from muster.backends.releases.inputs import check_histograms

        if self.rules and self.rules.max_psi is not None:
            check_histograms(version.address, store.manifest(version.address))

    def _check_replicas(self) -> None:
        known = is_known(self.replicas) and is_known(self.most_replicas)
        if known and self.most_replicas is not None and self.most_replicas < self.replicas:
            raise SpecError(f"{self.most_replicas} is below its {self.replicas} replicas")


def default_server(image: str | None, servers: Sequence[str]) -> str:
    """Return the model server of a deployment that names none: the one whose image it names, else the place's own."""
    return image if image and image in servers else servers[0]


def _backfills(task: TaskRun) -> bool:
    return bool(task.context["dag_run"].run_type == "backfill")
