"""Extra links on the tasks: from a task instance to its job or its search, and to the versions that were made.

A worker computes them when its process lets go of a task, also of one that failed or waits from then
on, and Airflow keeps them as XComs. The job's own is there from the moment it is submitted, because
:func:`push_job_link` puts it there, and so is a search's; all others are found through it, in the ledger.

Airflow sends an XCom for each link that an operator declares, empty or not, which for a short task is much of what it
costs. So a process replaces an operator's links by those that are left to send (:func:`left`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink

from muster.core.address import short
from muster.core.errors import NotFound

if TYPE_CHECKING:
    from muster.volumes.protocols import LocalStore

# What a version that is meant to be looked at holds, the likeliest first.
DOCUMENTS = ("index.html", "docs/index.html", "card.html", "report.html")

_jobs: dict[str, str] = {}  # of the tries of this process, by the id of the task instance


def push_job_link(ti: Any, job_id: str) -> None:
    """Put the job's link on its task while it runs.

    :param ti: the task instance of this process.
    """
    _jobs[str(ti.id)] = job_id
    ti.xcom_push(key=JobLink.KEY, value=page(f"#/jobs/{job_id}"))


def push_run_link(ti: Any) -> None:
    """Have the link *Job* of a task that failed before it had a job lead to its run on the page, which says why it failed."""
    if str(ti.id) not in _jobs:
        run = "/".join(quote(name, safe="") for name in (ti.dag_id, ti.run_id))
        ti.xcom_push(key=JobLink.KEY, value=page(f"#/runs/{run}"))


class _KnownLink(BaseOperatorLink):
    """A link that has been computed."""

    name = ""

    def __init__(self, link: BaseOperatorLink, value: str) -> None:
        self.name, self._key, self._value = link.name, link.xcom_key, value

    @property
    def xcom_key(self) -> str:
        """The key of the declared link."""
        return self._key

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow passes it
        """Return the link."""
        return self._value


def left(links: Iterable[BaseOperatorLink], operator: Any, ti: Any) -> tuple[BaseOperatorLink, ...]:
    """Return the links that lead somewhere in this try, without those that the task itself has put there.

    A link that cannot be computed is returned as it is: Airflow asks again, and logs what is wrong.
    """
    found = list[BaseOperatorLink]()
    for link in links:
        if isinstance(link, (JobLink, PushedLink)):
            continue
        try:
            value = link.get_link(operator, ti_key=ti)
        except Exception:  # Airflow's own call logs it, with its traceback
            found.append(link)
        else:
            found += [_KnownLink(link, value)] if value else []
    return tuple(found)


def job_of(ti_key: Any) -> str:
    """Return the job that a task has had in this try, by the link that it announced; empty where it had none."""
    from airflow.sdk import BaseXCom

    known = _jobs.get(str(ti_key.id))
    if known is None:
        link = BaseXCom.get_value(ti_key=ti_key, key=JobLink.KEY)
        known = _jobs[str(ti_key.id)] = str(link).partition("#/jobs/")[2]
    return known


def returned(ti_key: Any) -> Mapping[str, Any]:
    """Return what a task has put into XCom; empty where that is nothing, or no mapping."""
    from airflow.sdk import BaseXCom

    result = BaseXCom.get_value(ti_key=ti_key, key="return_value")
    return result if isinstance(result, Mapping) else {}


def page(place: str) -> str:
    """The address of a place of muster's page, inside Airflow's UI.

    Airflow shows in its frame whatever path follows the plugin's own.
    """
    from airflow.sdk import conf

    root = urlsplit(str(conf.get("api", "base_url", fallback=""))).path.rstrip("/")
    return f"{root}/plugin/muster{root}/muster/{place}"


def seen_at(job_id: str) -> str:
    """Where a browser shows a job, to follow the command that shows its log; empty where Airflow does not say its own address."""
    from airflow.sdk import conf

    base = urlsplit(str(conf.get("api", "base_url", fallback="")))
    return f", or {base.scheme}://{base.netloc}{page(f'#/jobs/{job_id}')}" if base.netloc else ""


class _JobsLink(BaseOperatorLink):
    """A link that follows from the task's job; empty where there is no page for it."""

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow passes it
        """Return the link of a task instance, in its worker."""
        job_id = job_of(ti_key)
        return self.of_job(job_id) if job_id else ""

    @abstractmethod
    def of_job(self, job_id: str) -> str:
        """Return the link of a job as it stands now."""


class JobLink(_JobsLink):
    """The job on muster's page: its state, progress, verdict and log, live."""

    KEY: ClassVar[str] = "muster_job"
    name = "Job"

    @property
    def xcom_key(self) -> str:
        """The key under which :func:`push_job_link` puts it."""
        return self.KEY

    def of_job(self, job_id: str) -> str:
        """Return the job's place on the page."""
        return page(f"#/jobs/{job_id}")


class PushedLink(BaseOperatorLink):
    """A link that the task itself puts into XCom while it runs, so that it is there however the task ends."""

    KEY: ClassVar[str] = ""

    @property
    def xcom_key(self) -> str:
        """The key under which it is put."""
        return self.KEY

    @classmethod
    def push(cls, ti: Any, place: str) -> None:
        """Put the link on the task instance of this process. :param place: of muster's page."""
        ti.xcom_push(key=cls.KEY, value=page(place))

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow passes it
        """Return the link that was put there; empty where the task has not come so far."""
        from airflow.sdk import BaseXCom

        return str(BaseXCom.get_value(ti_key=ti_key, key=self.KEY) or "")


class CandidateLink(PushedLink):
    """The model that a gate judges, on muster's page."""

    KEY = "muster_candidate"
    name = "Candidate"


class ChampionLink(PushedLink):
    """Candidate and champion beside each other, where a gate has compared them."""

    KEY = "muster_champion"
    name = "Compared with the champion"


class VersionsLink(_JobsLink):
    """The page of the version that the job wrote, with its lineage as a picture."""

    name = "Versions and lineage"

    def of_job(self, job_id: str) -> str:
        """Return the first output's version."""
        return next((page(f"#/volumes/{short(address)}") for address in _made(job_id)), "")


class ReportLink(_JobsLink):
    """A document that the job wrote, such as a model card."""

    name = "Report"

    def of_job(self, job_id: str) -> str:
        """Return the first document of the first version that holds one."""
        for address in _made(job_id):
            held = _store().manifest(address)
            for name in DOCUMENTS:
                if name in held:
                    return page(f"#/files/{short(address)}/{name}")
        return ""


class DataDocsLink(ReportLink):
    """The results of Great Expectations."""

    name = "Data Docs"


class TrackingLink(_JobsLink):
    """The run in MLflow: that of which the job told, by MLflow's own line or one such as ``muster: link MLflow=https://…``,
    or the one that it tracked on this machine, which ``muster mlflow`` shows.
    """

    name = "MLflow run"

    def of_job(self, job_id: str) -> str:
        """Return the first link under a title that begins with MLflow, or where the job's run is shown here."""
        from muster.airflow.site import mlflow_url
        from muster.backends.tracking import run_link
        from muster.core.settings import Settings

        return run_link(_store().ledger, job_id, home=Settings.load().home, shown_at=mlflow_url())


class DeploymentLink(BaseOperatorLink):
    """The deployment on muster's page: its revisions and their shares."""

    name = "Deployment"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow passes it
        """Return the deployment's place on the page."""
        return page(f"#/deployments/{quote(operator.name, safe='')}")


class EndpointLink(BaseOperatorLink):
    """Where the model answers: its description in the Open Inference Protocol."""

    name = "Endpoint"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow passes it
        """Return the model's address; empty where nothing serves under the name."""
        from muster.airflow.site import connect

        try:
            url = connect().deployments.deployment(operator.name).url
        except NotFound:
            return ""
        return f"{url}/v2/models/{quote(operator.name, safe='')}" if url else ""


def _made(job_id: str) -> tuple[str, ...]:
    return _store().ledger.status(job_id).addresses


def _store() -> LocalStore:
    from muster.airflow.site import connect

    return connect().store
