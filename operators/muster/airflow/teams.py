"""The teams of a site: whose a Dag, a volume or a queue is, and what a team's Dags may do.

An extension reads the site's document and knows the rules (:attr:`muster.core.extensions.Extension.teams`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from muster.core.data import UNKNOWN
from muster.core.extensions import only

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.core.job import JobSpec
    from muster.volumes.service.persons import PersonRights

FILE = "teams.toml"
TAG = "team:"
"""What begins the tag of a Dag that names its team."""


@dataclass(frozen=True, kw_only=True)
class DagFacts:
    """What tells whose a Dag is, and for whom it runs.

    :param file: its file, relative to its bundle.
    :param bundle_team: the team that Airflow knows of its bundle; empty where Airflow has no teams.
    :param user: who triggered the run.
    """

    dag_id: str
    tags: tuple[str, ...] = ()
    file: str = ""
    bundle_team: str = ""
    user: str = ""

    @classmethod
    def of(cls, context: Context) -> DagFacts:
        """Gather them where a task runs."""
        from airflow.sdk import conf

        dag, run = context.get("dag"), context.get("dag_run")
        file = Path(str(getattr(dag, "relative_fileloc", None) or getattr(dag, "fileloc", "")))
        if file.is_absolute() and file.is_relative_to(conf.get("core", "dags_folder")):
            file = file.relative_to(conf.get("core", "dags_folder"))
        return cls(
            dag_id=getattr(dag, "dag_id", ""),
            tags=tuple(sorted(getattr(dag, "tags", ()))),
            file=file.as_posix(),
            bundle_team=getattr(run, "team_name", None) or "",
            user=getattr(run, "triggering_user_name", None) or "",
        )


class Teams:
    """The teams of a site without a document: there are none, and nothing is refused. An empty name is that of no team.

    :cvar named: whether a document names teams.
    """

    named = False

    def of_dag(self, dag: DagFacts) -> str:
        """Return a Dag's team; without a document its tag tells it, for usage alone.

        :raises SpecError: two teams claim it, or one that the document lacks.
        """
        return next((each.removeprefix(TAG) for each in dag.tags if each.startswith(TAG)), "")

    def of_volume(self, volume: str) -> str:  # noqa: ARG002 - for those below, as in all that follow
        """Return the team below whose prefix a volume lies."""
        return ""

    def of_queue(self, queue: str) -> str:  # noqa: ARG002
        """Return the team whose jobs wait in a queue."""
        return ""

    def may_read(self, team: str, volume: str) -> bool:  # noqa: ARG002
        """Whether a team's jobs may read a volume."""
        return True

    def rights(self, may: Callable[[str, str], bool]) -> PersonRights:  # noqa: ARG002
        """Return what a person's token may reach. :param may: whether the person may GET all of a team, or PUT it."""
        from muster.volumes.service.persons import PersonRights

        return PersonRights()

    def admit(self, dag: DagFacts, spec: JobSpec) -> JobSpec:  # noqa: ARG002
        """Return a job as the Dag's team may run it, in its queue. :raises SpecError: the team may not run it."""
        return spec

    def admit_drafts(self, dag: DagFacts, drafts: Iterable[JobSpec | None]) -> None:
        """Refuse the jobs of a Dag as far as its file tells them: not by their inputs. :raises SpecError: as :meth:`admit`."""
        for draft in filter(None, drafts if self.named else ()):
            told = {name: each for name, each in draft.outputs.items() if each.volume != UNKNOWN}
            alone = {name: replace(each, base=None, after=None, retires=()) for name, each in told.items()}
            self.admit(dag, replace(draft, inputs={}, outputs=alone))

    def admit_use(
        self, dag: DagFacts, what: str, *, reads: Iterable[str] = (), writes: Iterable[str] = ()
    ) -> None:
        """Refuse what reads or changes volumes that the team may not. :raises SpecError: it names the volume.

        :param reads: addresses; what is none is passed over. :param writes: names of volumes, or ``*`` for all.
        """


def site_teams() -> Teams:
    """Return the site's teams: of the file ``[muster] teams``, else of ``teams.toml`` beside the Dag folder, else none.

    :raises SpecError: the file is wrong or cannot be read.
    """
    from airflow.sdk import conf

    given = str(conf.get("muster", "teams", fallback="") or "").strip()
    file = Path(given).expanduser() if given else Path(conf.get("core", "dags_folder")).parent / FILE
    if not given and not file.is_file():
        return Teams()
    read = only(lambda each: each.teams, needed_by=f"teams are named by {file}")
    return cast("Teams", read(file))
