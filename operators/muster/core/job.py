"""The job: what a task asks a backend to run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from muster.core.data import CHECKPOINTS, EVERY_PARTITION, RESERVED, Input, OutputTarget, Pinned
from muster.core.errors import SpecError
from muster.core.names import (
    check_digest,
    check_identifier,
    check_job_id,
    check_label,
    check_variable,
    check_whole,
)
from muster.core.origin import Origin
from muster.core.progress import Pattern
from muster.core.resources import Resources
from muster.core.tally import HourBudget

DAY_SECONDS = 86_400.0
EVENTS = "spark_events"
"""The output that a gang of Spark writes its event log to. Of a job that fails it stays for a week: it says why."""
MLFLOW_TAG = "muster.job_id"
"""The tag with the job's id on each MLflow run that a rank begins."""
MLFLOW_TAGS = "MLFLOW_RUN_CONTEXT"
"""The variable with the tags, as JSON, that MLflow puts on each run that a rank begins."""
TRACEPARENT = "TRACEPARENT"
"""The variable in which a job finds the span of its task, where Airflow traces: W3C Trace Context."""

_ENTRYPOINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*\Z", re.ASCII)
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")  # the latter stand for bytes that are not UTF-8 (PEP 383)


class Launcher(str, Enum):
    """How the ranks of a gang find each other.

    Each value names a module of :mod:`muster.worker.launchers`.
    """

    PLAIN = "plain"
    TORCHRUN = "torchrun"
    HOROVOD = "horovod"
    TENSORFLOW = "tensorflow"
    DASK = "dask"
    RAY = "ray"
    SPARK = "spark"

    @property
    def listens(self) -> bool:
        """Whether each rank listens on a port of its own that all other ranks know."""
        return self is Launcher.TENSORFLOW

    @property
    def drives(self) -> bool:
        """Whether the first replica alone runs what the author wrote, and the others are the workers of a data engine."""
        return self in (Launcher.DASK, Launcher.RAY, Launcher.SPARK)

    @property
    def package(self) -> str:
        """The distribution that such an engine is."""
        return {Launcher.DASK: "distributed", Launcher.SPARK: "pyspark"}.get(self, self.value)

    @property
    def joins(self) -> bool:
        """Whether all ranks are one world, which each needs to its end: one that leaves early is missed."""
        return self in (Launcher.TORCHRUN, Launcher.HOROVOD, Launcher.TENSORFLOW)


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python of one machine in which a job runs, in place of an environment made from its image's lock.

    :param path: on that machine; it is no part of what makes two interpreters the same.
    :param version: Python's, ``3.11.7``.
    :param digest: of its packages' names and versions; `packages` is how many they are.
    """

    path: str
    version: str
    digest: str
    packages: int = 0

    def __post_init__(self) -> None:
        check_digest("interpreter", self.digest)
        if not self.version or len(self.version) > 40 or not self.version.isprintable():
            raise SpecError(f"interpreter version {self.version!r:.60}: expected such as 3.11.7")

    def __str__(self) -> str:
        many = "" if self.packages == 1 else "s"
        return f"{self.version}, {self.packages} package{many}, {self.digest[:15]}"


@dataclass(frozen=True, kw_only=True)
class SecretRef:
    """Where a secret's value is found when the job starts. The value itself is never in a spec.

    :param source: ``kubernetes`` (``NAME/KEY`` of a Secret), ``connection`` (an Airflow connection's
        id, ``#password`` or another field after it) or ``environment`` (a variable of the machine).
    """

    source: str
    name: str

    def __post_init__(self) -> None:
        if self.source not in ("kubernetes", "connection", "environment"):
            raise SpecError(f"secret source {self.source!r}: expected kubernetes, connection or environment")
        if not self.name or len(self.name) > 253 or not self.name.isprintable():
            raise SpecError(f"secret name {self.name!r:.80}: expected 1 to 253 printable characters")


@dataclass(frozen=True, kw_only=True)
class Role:
    """Replicas that all run the same thing. All roles of a job together are the gang.

    :param replicas: how many; the most where the gang is elastic.
    :param least_replicas: an elastic gang starts with what can be had of `replicas`, at least with these, gives the
        others back to a job that waits for their room, and takes them again when there is room and no job waits.
    :param ends_with: another role: once all of its replicas have ended well, these are told to stop, and have ended well, too.
    """

    name: str = "main"
    replicas: int = 1
    ranks: int = 1
    entrypoint: str | None = None
    command: tuple[str, ...] | None = None
    resources: Resources = field(default_factory=Resources)
    least_replicas: int | None = None
    ends_with: str | None = None

    def __post_init__(self) -> None:
        check_label("role", self.name, length=20)
        self._check_counts()
        if (self.entrypoint is None) == (self.command is None):
            raise SpecError(f"role {self.name}: give an entrypoint or a command, one of the two")
        if self.entrypoint is not None and not (
            isinstance(self.entrypoint, str) and _ENTRYPOINT.match(self.entrypoint)
        ):
            raise SpecError(f"entrypoint {self.entrypoint!r:.80}: expected 'package.module:function'")
        if self.command is not None:
            _check_command(self.name, self.command)
            object.__setattr__(self, "command", tuple(self.command))

    @property
    def least(self) -> int:
        """The number of replicas without which it never starts: all of them, but in an elastic gang."""
        return self.replicas if self.least_replicas is None else self.least_replicas

    def _check_counts(self) -> None:
        counts = {"replicas": self.replicas, "ranks": self.ranks, "least_replicas": self.least}
        for what, count in counts.items():
            check_whole(f"{what} of role {self.name}", count, 1, 10_000)
        if self.least > self.replicas:
            raise SpecError(
                f"role {self.name} has at least {self.least} replicas and at most {self.replicas}: "
                "give the least number first, replicas=(2, 4)"
            )
        if self.least == self.replicas:
            object.__setattr__(self, "least_replicas", None)


TRIAL = "muster.trial"
"""The name of the job by which `helm test` tries the store service."""

NORMAL = "normal"
"""The priority of a job that names none."""


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What a task asks a backend to run: one gang of one or more roles, whole or not at all.

    :param name: for people: ``flights.train``.
    :param image: the image's name; `image_digest` is its lock's (``b3:`` and 64 hex digits).
    :param code: digest of the code snapshot that travels with the job, or None.
    :param params: JSON values; they arrive as keyword parameters.
    :param env: plain variables. `secrets` maps a variable to where its value is found.
    :param run_timeout_seconds: counted from the gang's start; `queue_timeout_seconds` from submission. A
        gang that is put back into its queue waits again, and that time does not count as running.
    :param max_restarts: how often a gang that lost a rank starts again from its checkpoint.
    :param keep: how many checkpoints stay, the newest; 0 keeps all.
    :param hang_timeout_seconds: this long without a line or progress is a hang; 0 turns the check off.
    :param idle_seconds: a gang that does nothing for this long is ended (:mod:`muster.core.idle`); 0 turns the check off.
    :param require_gpus: fail rather than run on CPUs where there are fewer GPUs than asked for.
    :param pod_override: a pod in the Kubernetes API's form, merged over every replica's pod; ignored on one
        machine.
    :param follows: an ended job; the first attempt begins with its checkpoints.
    :param cache_key: a JSON value that the author gives for what no other field shows: jobs that differ in it make
        something else.
    :param metric_pattern: a regular expression with a group for each number, by name, that is looked for in each line of rank 0: see
        :class:`muster.core.progress.Pattern`.
    :param interpreter: the Python of this machine that runs the job, unlocked, in place of the image's environment.
    :param budget: what all jobs of its Dag may hold in a month, before further ones wait.
    """

    name: str
    image: str
    image_digest: str
    roles: tuple[Role, ...]
    launcher: Launcher = Launcher.PLAIN
    code: str | None = None
    inputs: Mapping[str, Input] = field(default_factory=dict)
    outputs: Mapping[str, OutputTarget] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, SecretRef] = field(default_factory=dict)
    run_timeout_seconds: float = DAY_SECONDS
    queue_timeout_seconds: float = DAY_SECONDS
    hang_timeout_seconds: float = 0.0
    grace_seconds: float = 30.0
    max_restarts: int = 3
    queue: str | None = None
    priority: str | None = None
    require_gpus: bool = False
    pod_override: Mapping[str, Any] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    follows: str | None = None
    cache_key: Any = None
    keep: int = 0
    interpreter: Interpreter | None = None
    metric_pattern: str = ""
    idle_seconds: float = 0.0
    budget: HourBudget | None = None

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 250 or not self.name.isprintable():
            raise SpecError(f"job name {self.name!r:.80}: expected 1 to 250 printable characters")
        check_label("image", self.image)
        check_digest("image", self.image_digest)
        if self.code is not None:
            check_digest("code snapshot", self.code)
        if self.follows is not None:
            check_job_id(self.follows)
        self._check_roles()
        self._check_names()
        self._check_params()
        self._check_limits()
        if self.metric_pattern:
            Pattern(self.metric_pattern)
        for name in ("inputs", "outputs", "params", "env", "secrets", "pod_override"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def replicas(self) -> int:
        """Replicas of the whole gang; the most that an elastic one has."""
        return sum(role.replicas for role in self.roles)

    @property
    def least(self) -> int:
        """Replicas without which the gang never starts or trains."""
        return sum(role.least for role in self.roles)

    @property
    def elastic(self) -> bool:
        """Whether the gang shrinks and grows."""
        return self.least < self.replicas

    def sized(self, replicas: int) -> JobSpec:
        """Return an elastic gang as it is while it has so many replicas, which then are fixed; another job as it is."""
        if not self.elastic:
            return self
        (role,) = self.roles
        return replace(self, roles=(replace(role, replicas=replicas, least_replicas=None),))

    @property
    def shown(self) -> frozenset[str]:
        """The names that the job shows everywhere: they are no secret, whatever a secret's value is."""
        refs = (ref.name.partition("#")[0] for ref in self.secrets.values())
        volumes = (
            part for output in self.outputs.values() for part in (output.volume, *output.volume.split("/"))
        )
        at = (self.origin.dag_id, self.origin.run_id, self.origin.task_id, self.image, *self.name.split("."))
        names = (
            *self.inputs,
            *self.outputs,
            *self.params,
            *self.secrets,
            *(role.name for role in self.roles),
        )
        return frozenset(filter(None, (*refs, *volumes, *at, *names)))

    def leader_of(self, role: Role) -> Role | None:
        """The role whose success ends another one: what this one says, or TensorFlow's chief where there are parameter servers.

        These serve for ever (``server.join()``), and so do the workers that a chief hands its steps to.
        """
        named = {each.name: each for each in self.roles}
        served = self.launcher is Launcher.TENSORFLOW and {"chief", "ps"} <= set(named)
        usual = "chief" if served and role.name not in ("chief", "evaluator") else None
        return named.get(role.ends_with or usual or "")

    @property
    def mounted(self) -> tuple[str, ...]:
        """The inputs that replicas read as folders: all but the one that fills the checkpoints."""
        return tuple(name for name in self.inputs if name != CHECKPOINTS)

    @property
    def origins(self) -> Mapping[str, Input]:
        """The inputs that its versions are made from: all but those that an output begins with."""
        bases = {output.base for output in self.outputs.values()}
        return {name: given for name, given in self.inputs.items() if name not in bases}

    def base_of(self, output: str) -> Pinned | None:
        """The version that an output begins with, if there is one."""
        base = self.outputs[output].base
        versions = () if base is None else self.inputs[base].versions
        return versions[0] if versions else None

    @property
    def staged(self) -> tuple[str, ...]:
        """The outputs that each replica has a folder of its own for: all but the checkpoints, which replicas share."""
        return tuple(name for name in self.outputs if name != CHECKPOINTS)

    @property
    def world_size(self) -> int:
        """Ranks of the whole gang; the most that an elastic one has."""
        return sum(role.replicas * role.ranks for role in self.roles)

    def _check_roles(self) -> None:
        object.__setattr__(self, "roles", tuple(self.roles))
        names = [role.name for role in self.roles]
        if not names:
            raise SpecError(f"job {self.name}: a gang needs a role")
        if len(set(names)) != len(names):
            raise SpecError(f"job {self.name}: two roles are called the same: {', '.join(names)}")
        if self.launcher.drives and (len(names) > 1 or self.roles[0].ranks > 1 or self.least < 2):
            raise SpecError(
                f"job {self.name}: a gang of {self.launcher.value} has one role, one rank in each replica, and two replicas or "
                "more: the first drives, the others work; give it replicas=, and CPUs with resources="
            )
        for role in self.roles:
            if role.ends_with is not None and role.ends_with not in set(names) - {role.name}:
                others = ", ".join(name for name in names if name != role.name) or "there is none"
                raise SpecError(
                    f"role {role.name} ends with {role.ends_with!r:.60}: name another role of its gang: {others}"
                )
        if any((leader := self.leader_of(role)) and self.leader_of(leader) for role in self.roles):
            raise SpecError(
                f"job {self.name}: a role that others end with ends by itself: give it no ends_with"
            )
        if self.elastic and len(names) > 1:
            raise SpecError(
                f"job {self.name}: only a gang of one role shrinks and grows, and this has {', '.join(names)}: "
                "give each role a fixed number of replicas"
            )

    def _check_names(self) -> None:
        seen: dict[str, str] = {}
        for what, names in (("input", self.inputs), ("output", self.outputs), ("param", self.params)):
            for name in names:
                check_identifier(what, name)
                if name == CHECKPOINTS and what != "param":
                    continue
                if name in RESERVED:
                    raise SpecError(f"{what} {name!r}: the name is muster's own; call it something else")
                if name in seen:
                    raise SpecError(f"{name!r} is both {seen[name]} and {what}; each becomes one parameter")
                seen[name] = what
        self._check_checkpoints()
        self._check_bases()
        targets = [(o.volume, o.partition) for o in self.outputs.values()]
        if len(set(targets)) != len(targets):
            raise SpecError(f"job {self.name}: two outputs go to the same volume and partition")

    def _check_bases(self) -> None:
        for name, output in self.outputs.items():
            if output.base is None:
                continue
            given = self.inputs.get(output.base)
            if given is None or len(given.versions) > 1 or output.base == CHECKPOINTS:
                raise SpecError(
                    f"output {name!r} has the base {output.base!r}: need an input of one version, or of none yet"
                )

    def _check_checkpoints(self) -> None:
        for name, given in self.inputs.items():
            if given.path and name != CHECKPOINTS:
                raise SpecError(
                    f"input {name!r} names {given.path!r:.80} in a version: an input is a whole one"
                )
        if CHECKPOINTS in self.inputs and self.inputs[CHECKPOINTS].many:
            raise SpecError("input 'checkpoints' names several versions: a job goes on from one")
        if CHECKPOINTS in self.outputs and self.outputs[CHECKPOINTS].partition == EVERY_PARTITION:
            raise SpecError("output 'checkpoints' has partition '*': the folder is one version")

    def _check_params(self) -> None:
        for name, value in self.params.items():
            check_json(f"param {name!r}", value)
        for variable, text in self.env.items():
            check_variable(variable)
            if not _is_text(text):
                raise SpecError(f"env {variable!r} is {text!r:.60}: need text in UTF-8 without NUL")
        for variable in self.secrets:
            check_variable(variable)
            if variable in self.env:
                raise SpecError(f"{variable!r} is given both as env and as a secret")
        if not isinstance(self.pod_override, Mapping):
            raise SpecError(
                f"pod_override is {self.pod_override!r:.60}: need a pod, such as {{'spec': {{…}}}}"
            )
        for name, value in self.pod_override.items():
            check_json(f"pod_override {name!r:.60}", value)
        check_json("cache_key", self.cache_key)

    def _check_limits(self) -> None:
        for what in ("run_timeout_seconds", "queue_timeout_seconds"):
            seconds = getattr(self, what)
            if not isinstance(seconds, (int, float)) or not math.isfinite(seconds) or seconds <= 0:
                word = what.removesuffix("_seconds")
                raise SpecError(
                    f"{word} is {seconds!r} seconds: need more than 0; no job runs or waits for ever"
                )
        for what in ("hang_timeout_seconds", "grace_seconds", "idle_seconds"):
            seconds = getattr(self, what)
            if not isinstance(seconds, (int, float)) or not math.isfinite(seconds) or seconds < 0:
                raise SpecError(f"{what.removesuffix('_seconds')} is {seconds!r} seconds: need 0 or more")
        for what in ("max_restarts", "keep"):
            check_whole(what, getattr(self, what), 0)
        for what in ("queue", "priority"):
            if getattr(self, what) is not None:
                check_label(what, getattr(self, what), length=63)


def check_json(what: str, value: Any) -> None:
    """Refuse a value that JSON cannot hold, such as NaN. :param what: its name. :raises SpecError: names it."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        hint = "; write a time as text, such as {{ data_interval_start | ts }}" if _holds_time(value) else ""
        raise SpecError(f"{what} is {value!r:.60}: need a JSON value ({error}){hint}") from error


def _holds_time(value: Any) -> bool:
    """Whether it is a time or a date, or holds one."""
    if isinstance(value, Mapping):
        return any(map(_holds_time, value.values()))
    return any(map(_holds_time, value)) if isinstance(value, (list, tuple)) else hasattr(value, "isoformat")


def _check_command(role: str, command: object) -> None:
    if isinstance(command, str):
        raise SpecError(
            f"command of role {role} is one text; give its words: {command.split()!r:.80} (no shell reads it)"
        )
    if not isinstance(command, (list, tuple)) or not command:
        raise SpecError(f"command of role {role} is {command!r:.60}: need one or more words")
    for word in command:
        if not _is_text(word):
            raise SpecError(f"command of role {role}: word {word!r:.60} is no text in UTF-8 without NUL")


def _is_text(value: object) -> bool:
    """Whether `value` is text that a spec can hold and a process can be given."""
    return isinstance(value, str) and not _UNWRITABLE.search(value)
