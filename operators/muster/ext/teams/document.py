"""The document of teams, ``teams.toml``, and its rules: whose something is, and what a team's Dags may do.

::

    shared = ["common"]                  # volumes that every team may read

    [teams.vision]
    queue = "vision"                     # of its jobs that name none; only its own jobs may name it
    volumes = "vision"                   # its jobs write below vision/, and nothing else does
    folder = "vision"                    # Dags there are its own; so are those of its bundle. Without one the tag team:vision tells
    secrets = ["connection:vision_*"]    # SOURCE:NAME of the secrets that its jobs may take
    users = {ana = "vision-ana"}         # the queues of persons, for runs that they trigger
    weight = 2                           # of its queue, where queues share fairly

What belongs to no team is for Dags of no team.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomllib

from muster.airflow.teams import TAG, DagFacts, Teams
from muster.core import wire
from muster.core.address import Address
from muster.core.errors import SpecError
from muster.core.job import JobSpec
from muster.core.names import check_label, check_volume

if TYPE_CHECKING:
    from muster.volumes.service.persons import PersonRights

_QUEUE_LENGTH = 63
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


@dataclass(frozen=True, kw_only=True)
class Team:
    """What one team has. :param volumes: the prefix of its volumes. :param secrets: patterns of ``SOURCE:NAME``."""

    queue: str
    volumes: str
    folder: str = ""
    secrets: tuple[str, ...] = ()
    users: Mapping[str, str] = field(default_factory=dict)
    weight: float = 1.0

    def __post_init__(self) -> None:
        for queue in self.queues:
            check_label("queue", queue, length=_QUEUE_LENGTH)
        check_volume(self.volumes)
        if self.folder.startswith("/") or {"..", "."} & {*self.folder.split("/")}:
            raise SpecError(f"folder {self.folder!r:.80}: need a folder of the Dag folder, such as 'vision'")
        if not 0 < self.weight < 1000:
            raise SpecError(f"weight is {self.weight!r:.40}: need a number above 0 and below 1000")

    @property
    def queues(self) -> tuple[str, ...]:
        """Every queue that its jobs may name."""
        return tuple(dict.fromkeys((self.queue, *self.users.values())))


@dataclass(frozen=True, kw_only=True)
class Document(Teams):
    """The whole document: :param file: where it was read, for messages."""

    teams: Mapping[str, Team]
    shared: tuple[str, ...] = ()
    file: str = ""
    named = True

    def __post_init__(self) -> None:
        for name in self.teams:
            check_label("team", name)
        for prefix in self.shared:
            check_volume(prefix)
        for what in ("volumes", "folder", "queues"):
            has = ((name, getattr(team, what)) for name, team in self.teams.items())
            _apart(
                what, [(each, name) for name, own in has for each in ([own] if isinstance(own, str) else own)]
            )

    def of_dag(self, dag: DagFacts) -> str:
        """Return the team that Airflow knows of the Dag's bundle, its tag or its folder names."""
        claims = [("its bundle", dag.bundle_team)] if dag.bundle_team else []
        claims += [
            (f"the tag {each!r:.80}", each.removeprefix(TAG)) for each in dag.tags if each.startswith(TAG)
        ]
        folders = {name: team.folder for name, team in self.teams.items() if team.folder}
        claims += [(f"its folder {each!r}", name) for name, each in folders.items() if _below(dag.file, each)]
        for how, name in claims:
            if name not in self.teams:
                raise SpecError(
                    f"Dag {dag.dag_id} is of team {name!r:.60} by {how}, and {self.file} names no such team; it names "
                    f"{', '.join(self.teams) or 'none'}: correct the name, or add the team there"
                )
            if name != claims[0][1]:
                raise SpecError(
                    f"Dag {dag.dag_id} is of two teams: {claims[0][1]!r} by {claims[0][0]}, {name!r} by {how}: "
                    "leave it to one of them"
                )
        team = claims[0][1] if claims else ""
        if team and (folder := folders.get(team)) and not (dag.bundle_team or _below(dag.file, folder)):
            raise SpecError(
                f"Dag {dag.dag_id} is of team {team!r} by {claims[0][0]}, and its file {dag.file!r:.120} is not in that "
                f"team's folder {folder!r}: move it there, or take the tag away"
            )
        return team

    def of_volume(self, volume: str) -> str:
        """Return the team below whose prefix a volume lies."""
        return next((name for name, team in self.teams.items() if _below(volume, team.volumes)), "")

    def of_queue(self, queue: str) -> str:
        """Return the team whose jobs wait in a queue."""
        return next((name for name, team in self.teams.items() if queue in team.queues), "")

    def may_read(self, team: str, volume: str) -> bool:
        """Whether a volume is the team's own, or shared."""
        return self.of_volume(volume) == team or any(_below(f"{volume}/", each) for each in self.shared)

    def rights(self, may: Callable[[str, str], bool]) -> PersonRights:
        """Return what a person's token may reach: what is of the teams all of which the person sees, and what is shared."""
        from muster.volumes.service.persons import PersonRights

        seen = {name: team for name, team in self.teams.items() if may(name, "GET")}
        return PersonRights(
            teams=tuple(seen),
            reads=tuple(team.volumes for team in seen.values()),
            changes=tuple(team.volumes for name, team in seen.items() if may(name, "PUT")),
            shared=self.shared if seen else (),
            queues=tuple(queue for team in seen.values() for queue in team.queues),
        )

    def admit(self, dag: DagFacts, spec: JobSpec) -> JobSpec:
        """Return a job in its team's queue, if all that it names is the team's."""
        team, queue, pod = self.of_dag(dag), spec.queue, spec.pod_override
        inputs = (each.address for given in spec.inputs.values() for each in given.versions)
        self.admit_use(dag, spec.name, reads=inputs, writes=[each.volume for each in spec.outputs.values()])
        for secret in (*(f"{each.source}:{each.name}" for each in spec.secrets.values()), *_secrets(pod)):
            owners = [name for name, each in self.teams.items() if _matches(secret, each.secrets)]
            if team not in (owners or [""]):
                raise self._foreign(team, f"{spec.name} takes the secret {secret!r:.120}", owners, "secrets")
        if team and queue is None:
            queue = self.teams[team].users.get(dag.user, self.teams[team].queue)
        hidden = " in pod_override" if _QUEUE_LABEL in str(pod) else ""
        if hidden or (queue is not None and self.of_queue(queue) != team):
            whose = [self.of_queue(queue or "")]
            raise self._foreign(team, f"{spec.name} names the queue {queue!r:.80}{hidden}", whose, "queues")
        return replace(spec, queue=queue)

    def admit_use(
        self, dag: DagFacts, what: str, *, reads: Iterable[str] = (), writes: Iterable[str] = ()
    ) -> None:
        """Refuse volumes that are not the team's."""
        team = self.of_dag(dag)
        wrong = [
            f"{what} writes volume {each}"
            for each in writes
            if self.of_volume(each) != team or (team and each == "*")
        ]
        wrong += [f"{what} reads volume {each}" for each in _volumes(reads) if not self.may_read(team, each)]
        for each in wrong:
            raise self._foreign(team, each, [self.of_volume(each.rpartition(" ")[2])], "volumes")

    def _foreign(self, team: str, found: str, owners: Iterable[str], what: str) -> SpecError:
        own = getattr(self.teams[team], what) if team else "what no team has"
        whose = ", ".join(f"of team {each!r}" for each in owners if each) or "of no team"
        return SpecError(
            f"{found}, which is {whose}; {f'team {team!r}' if team else 'a Dag of no team'} has "
            f"{f'{own}/' * bool(team) or own if isinstance(own, str) else ', '.join(own) or 'none'}: name its own, or correct {self.file}"
        )


def read(file: Path) -> Document:
    """Return what a file says. :raises SpecError: it says where it is wrong."""
    try:
        return replace(wire.build(Document, tomllib.loads(file.read_text(encoding="utf-8"))), file=str(file))
    except (SpecError, ValueError) as error:
        raise SpecError(f"{file} names teams wrongly: {error}") from error
    except OSError as error:
        raise SpecError(
            f"the teams in {file} cannot be read ({error.strerror}): correct [muster] teams"
        ) from error


def _below(name: str, prefix: str) -> bool:
    return bool(prefix) and name.startswith(f"{prefix.rstrip('/')}/")


def _apart(what: str, given: Iterable[tuple[str, str]]) -> None:
    """Refuse two teams of which one has what is the other's."""
    names = sorted((f"{each.rstrip('/')}/", name) for each, name in given if each)
    for (outer, one), (inner, other) in pairwise(names):
        if inner.startswith(outer):
            raise SpecError(
                f"{what} of the teams {one!r} and {other!r} are {outer[:-1]!r} and {inner[:-1]!r}: neither may hold the other"
            )


def _matches(secret: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern fits. Of a connection its field does not count, nor the key of a Secret: all of it is taken or nothing."""
    return any(fnmatchcase(_whole(secret), _whole(each)) for each in patterns)


def _whole(secret: str) -> str:
    return secret.partition({"connection": "#", "kubernetes": "/"}.get(secret.partition(":")[0], "\n"))[0]


def _volumes(addresses: Iterable[str]) -> Iterator[str]:
    for address in addresses:
        try:
            yield Address.parse(address).volume
        except SpecError:  # a deployment, or another place: what of it a job reads is an input of the job
            continue


def _secrets(part: Any, within: str = "") -> Iterator[str]:
    """Yield each Secret that a pod's override names, ``kubernetes:NAME/KEY``, whatever field it stands in."""
    if isinstance(part, Mapping):
        for key, value in part.items():
            if isinstance(value, str) and (key == "secretName" or (key == "name" and "secret" in within)):
                yield f"kubernetes:{value}/{part.get('key', '')}"
            yield from _secrets(value, key.lower())
    elif isinstance(part, (list, tuple)):
        for each in part:
            yield from _secrets(each, within)
