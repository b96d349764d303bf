"""RollbackOperator: a release is taken back by hand, from a Dag or from Airflow's page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muster.airflow.assets import add_deployment, announce_served
from muster.airflow.authoring.checks import check_name, check_one, check_text, optional
from muster.airflow.authoring.keywords import keyword
from muster.airflow.links import DeploymentLink, EndpointLink
from muster.airflow.operators.base import MusterOperator
from muster.airflow.operators.releasing import admit_deployment, asker, one_version, serving
from muster.core.address import short
from muster.core.errors import NotFound

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.airflow.authoring.references import VersionReference
    from muster.backends.base import Backend
    from muster.core.deployment import DeploymentStatus, Revision


class RollbackOperator(MusterOperator):
    """Give the traffic back: of a release under way to its champion, else to the revision that is kept.

    It takes seconds, and one write moves the traffic. The revision is marked refused and removed. A retry of the task
    means the same revision, and goes back no further; a cleared task looks anew. The task returns ``version``, which
    serves now, and ``rolled_back``, which was taken back.
    """

    ui_color = "#fce8e6"
    operator_extra_links = (DeploymentLink(), EndpointLink())

    name: str = keyword(check=check_name)
    """The deployment."""
    model: str | VersionReference | None = keyword(
        default=None, check=optional(check_one), templated=True, reads=True
    )
    """The version to take back: the one being released or, if there is no release, the one that serves. If it is
    neither, the task is skipped. Where not given, whichever version that is."""
    reason: str | None = keyword(default=None, check=optional(check_text), templated=True)
    """One line; it is kept with the revision."""

    def check_together(self) -> None:
        """Announce the deployment's asset."""
        add_deployment(self)

    def perform(self, context: Context) -> dict[str, Any]:
        """Take it back, and return what serves from now on."""
        from muster.airflow.attempts.attempt import Remembered
        from muster.airflow.attempts.run import TaskRun
        from muster.backends.releases.manual import roll_back

        task = TaskRun.of(self, context)
        admit_deployment(task, self.name)
        deployments, begun = task.backend.deployments, Remembered(task, "rollback")
        before = deployments.deployment(self.name)
        named = begun.recall()
        meant = before.called(named) if named else self._meant(task.backend, before)
        if meant is None:
            raise NotFound(
                f"deployment {self.name} has no revision {named} any more, which was to be rolled back"
            )
        begun.remember(meant.name)
        by, why = asker(task.origin), self.reason or ""
        roll_back(deployments, self.name, by=by, reason=why, revision=meant.name, seen=before)
        after = deployments.deployment(self.name)
        if after.champion and (warning := deployments.warning(after.champion.model.address)):
            self.warn(warning)
        return self._told(context, after, meant)

    def _meant(self, backend: Backend, status: DeploymentStatus) -> Revision:
        """What is to be taken back. :raises AirflowSkipException: it is not there to be."""
        from airflow.sdk.exceptions import AirflowSkipException

        from muster.backends.releases.manual import to_be_rolled_back

        meant = (
            status.called(to_be_rolled_back(status).revision)
            if self.model is None
            else self._under_way(status)
        )
        if meant is None or (self.model is not None and meant.model.address != self._address(backend)):
            wanted, there = short(str(self.model)), short(meant.model.address) if meant else "nothing"
            text = f"nothing is rolled back: {wanted} is wanted back, and it is {there} that could be"
            self.log.warning("%s", text)  # Airflow itself says only that the task is skipped
            raise AirflowSkipException(text)
        return meant

    @staticmethod
    def _under_way(status: DeploymentStatus) -> Revision | None:
        """The revision of a release under way, else what serves."""
        if status.release and status.release.champion not in (None, status.release.revision):
            return status.called(status.release.revision)
        return status.champion

    def _address(self, backend: Backend) -> str:
        return one_version(backend.store, self.model, what="model ", rule="one can be rolled back").address

    def told(self, result: Mapping[str, Any]) -> str:
        """Say what was taken back, and what serves."""
        serves = short(result["version"]) if result["version"] else "nothing"
        return f"{self.name}: {short(result['rolled_back'])} is taken back; {serves} serves"

    def _told(self, context: Context, status: DeploymentStatus, taken: Revision) -> dict[str, Any]:
        champion = status.champion
        self.log.info("%s is rolled back; %s", short(taken.model.address), serving(status))
        announce_served(context, status, champion, rolled_back=taken.model.address)
        return {
            "name": self.name,
            "version": champion.model.address if champion else None,
            "revision": champion.name if champion else None,
            "rolled_back": taken.model.address,
        }
