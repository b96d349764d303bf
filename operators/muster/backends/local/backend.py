"""The backend of one machine: jobs and deployments as processes, a store in a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.backends.base import Backend
from muster.backends.jobs.checks import Resolve, from_environment
from muster.backends.local.machine import Machine
from muster.backends.local.places import Places
from muster.backends.local.processes import ranks
from muster.backends.local.runner import LocalRunner
from muster.backends.stores import folder_store
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.backends.releases.deployments import Deployments
    from muster.volumes.folder import FolderStore


class LocalBackend(Backend):
    """Where jobs and deployments run on one machine; see :class:`muster.backends.base.Backend`.

    :param machine: what there is to claim; looked up where it is not given.
    :param resolve: returns the values of secrets that this process has, KeyError for others.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        machine: Machine | None = None,
        resolve: Resolve = from_environment,
    ) -> None:
        self._settings = settings
        settings.make_home()
        store = folder_store(settings)
        runner = LocalRunner(settings, store, machine=machine, resolve=resolve)
        super().__init__(store, runner, lambda: _deployments(settings, store))

    def ranks(self, job_id: str) -> list[int]:
        """Return the pids of a job's ranks that run now, in the order of the ranks; those of this user."""
        return ranks(Places(self._settings.home).mark(job_id))


def _deployments(settings: Settings, store: FolderStore) -> Deployments:
    from muster.backends.local.serving.platform import local_deployments  # jobs need none of it

    return local_deployments(settings, store)
