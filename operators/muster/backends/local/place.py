"""One machine: jobs and deployments are processes, the store is a folder; see :class:`muster.backends.place.Place`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING

from muster.backends.jobs.checks import Resolve, from_environment
from muster.backends.stores import folder_store
from muster.core.errors import SpecError
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.backends.local.capacity import LocalCapacity
    from muster.backends.local.machine import Machine
    from muster.backends.local.runner import LocalRunner
    from muster.backends.releases.deployments import Deployments
    from muster.core.check import Check
    from muster.volumes.base import Version
    from muster.volumes.folder import FolderStore


class MachinePlace:
    """A machine, with the folder MUSTER_HOME.

    :param machine: what there is to claim; looked up where it is not given.
    :param resolve: returns the values of secrets that this process has, KeyError for others.
    """

    name, here, package = "machine", True, "muster.backends.local"

    def __init__(
        self, settings: Settings, *, machine: Machine | None = None, resolve: Resolve = from_environment
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._resolve = resolve

    @property
    def used(self) -> bool:
        """Whether there is a store."""
        return self._settings.store.is_dir()

    @cached_property
    def store(self) -> FolderStore:
        """The store, made where there is none."""
        self._settings.make_home()
        return folder_store(self._settings)

    @cached_property
    def runner(self) -> LocalRunner:
        """What runs jobs. :raises SpecError: this is not Linux."""
        _check_system()
        from muster.backends.local.runner import LocalRunner

        return LocalRunner(self._settings, self.store, machine=self._machine, resolve=self._resolve)

    @cached_property
    def capacity(self) -> LocalCapacity:
        """The cards and the queue; to look at them makes nothing."""
        from muster.backends.local.capacity import LocalCapacity

        return LocalCapacity(self._settings, machine=self._machine)

    @cached_property
    def deployments(self) -> Deployments:
        """The deployments. :raises SpecError: this is not Linux."""
        _check_system()
        from muster.backends.local.serving.platform import local_deployments

        return local_deployments(self._settings, self.store)

    def expecting_jobs(self) -> AbstractContextManager[None]:
        """Have a process ready of which jobs are born."""
        from muster.backends.local.nursery import open_nursery

        return open_nursery(self._settings.home)

    def commit_requests(
        self,
        name: str,  # noqa: ARG002
        made: Callable[[Version], None],  # noqa: ARG002
        *,
        progress: Callable[[str], None],  # noqa: ARG002
    ) -> tuple[str, ...]:
        """Do nothing: all requests are kept on this machine."""
        return ()

    def checks(self) -> Iterator[Check]:
        """Yield what is looked at of this machine as one that runs jobs."""
        from muster.backends.local.checks import machine_checks

        return machine_checks(self._settings)

    def evidence(self) -> tuple[()]:
        """Return nothing: doctor, jobs and deployments say all of a machine."""
        return ()

    def secrets(self) -> tuple[()]:
        """Return nothing: one machine has no token of a store service."""
        return ()

    def close(self) -> None:
        """Close the store, if it is open."""
        if store := self.__dict__.get("store"):
            store.close()


def _check_system() -> None:
    if sys.platform != "linux":
        raise SpecError(
            f"muster runs jobs on Linux, this is {sys.platform}: use WSL2 on Windows, "
            "a Linux virtual machine elsewhere, or a cluster"
        )
