"""The place: where jobs and deployments run, and where their versions lie. A machine is one, a cluster another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from muster.core.errors import SpecError

if TYPE_CHECKING:
    from socket import socket

    from muster.backends.capacity import Capacity
    from muster.backends.jobs.runner import Runner
    from muster.backends.releases.deployments import Deployments
    from muster.core.check import Check
    from muster.volumes.base import Version
    from muster.volumes.protocols import LocalStore


class NoAccess(SpecError):
    """Nothing tells this process where its cluster is: it reaches the store alone."""


class RankSession(NamedTuple):
    """A rank, ``pid 8754`` or ``pod NAME``: what runs a command there, and returns its exit code, and what opens a port of it."""

    where: str
    run: Callable[[], int]
    connect: Callable[[], socket]


class Place(Protocol):
    """Where jobs and deployments run, and where their versions lie.

    To open one asks nothing over the network and starts nothing; each part is made when it is first asked for, so that a look
    at deployments imports nothing of jobs. The life of a job (:class:`muster.backends.base.Backend`) and the rules of a release
    (:mod:`muster.backends.releases`) are the same in every place. It may be shared between threads.

    :ivar name: what metrics call it.
    :ivar here: whether jobs are processes of this machine, and versions are files on it.
    :ivar package: its own modules: a process that waits for its jobs for hours imports them at its start.
    """

    name: str
    here: bool
    package: str

    @property
    def used(self) -> bool:
        """Whether anything was ever kept here; True where only asking would tell."""

    @property
    def store(self) -> LocalStore:
        """The store that jobs read and write. :raises SpecError: a setting is wrong."""

    @property
    def runner(self) -> Runner:
        """What starts, shows and stops jobs. :raises SpecError: a setting is wrong, or none can run on this system."""

    @property
    def capacity(self) -> Capacity:
        """What there is to run on, who has it and who waits. What is away is not waited for as long as by a job."""

    @property
    def deployments(self) -> Deployments:
        """The deployments, kept without the rest of the place."""

    def expecting_jobs(self) -> AbstractContextManager[None]:
        """Have the jobs that this process and its forks start in the block begin sooner, where that can be had."""

    def commit_requests(
        self, name: str, made: Callable[[Version], None], *, progress: Callable[[str], None]
    ) -> Iterable[str]:
        """Commit the requests of a deployment that model servers keep elsewhere than on this machine.

        :param name: of the deployment; empty: of all. :param made: takes each version.
        :return: what went wrong, each as it happens: iterate to go on.
        """

    def checks(self) -> Iterable[Check]:
        """Yield the doctor's checks of this place, each made as it is asked for; nothing is created."""

    def evidence(self) -> Iterable[tuple[str, Callable[[], object]]]:
        """Return what a person who helps from afar is to see of this place beside its store: a file's name, and what collects it."""

    def secrets(self) -> Iterable[str]:
        """Return the secret values that this place itself uses, as far as they can be read."""

    def close(self) -> None:
        """Give back what was opened; jobs and deployments go on."""
