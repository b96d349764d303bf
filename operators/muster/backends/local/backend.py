"""The backend of one machine: jobs and deployments as processes, a store in a folder."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from muster.backends.jobs.checks import Resolve, from_environment
from muster.backends.jobs.lifecycle import Lifecycle
from muster.backends.local.machine import Machine
from muster.backends.local.places import Places
from muster.backends.local.processes import ranks
from muster.backends.local.runner import LocalRunner
from muster.backends.stores import folder_store
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.backends.releases.deployments import Deployments


class LocalBackend(Lifecycle):
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
        super().__init__(store, LocalRunner(settings, store, machine=machine, resolve=resolve))

    def ranks(self, job_id: str) -> list[int]:
        """Return the pids of a job's ranks that run now, in the order of the ranks; those of this user."""
        return ranks(Places(self._settings.home).mark(job_id))

    @cached_property
    def deployments(self) -> Deployments:
        """The deployments of this machine."""
        from muster.backends.local.serving.platform import local_deployments  # jobs need none of it

        return local_deployments(self._settings, self._store)
