"""What a supervisor is told by the process that starts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster.backends.local.machine import Machine
from muster.backends.local.places import Places
from muster.backends.local.processes import JOB_VARIABLE, MARK_VARIABLE
from muster.backends.local.queue import Claim
from muster.backends.local.spawn import STDIN
from muster.backends.local.variables import variables
from muster.core.job import JobSpec
from muster.core.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Orders:
    """All that a supervisor is told.

    :param worker: the folder that the image's Python runs in each replica.
    :param claim_handle: the open file that holds the claim's lock.
    """

    claim: Claim
    machine: Machine
    home: str
    cache: str
    worker: str
    claim_handle: int
    compare: bool = False
    mirror: str = ""

    @property
    def job_id(self) -> str:
        """The job to bring to its end."""
        return self.claim.job_id

    @property
    def mark(self) -> str:
        """What the job's processes and cgroups are known by."""
        return self.places.mark(self.job_id)

    @property
    def places(self) -> Places:
        """Where the backend's files lie."""
        return Places(Path(self.home))

    @property
    def settings(self) -> Settings:
        """The submitter's settings, as far as a supervisor needs them."""
        return Settings(
            home=Path(self.home), cache=Path(self.cache), compare=self.compare, mirror=self.mirror
        )

    def variables(self, job: JobSpec, python: Path, secrets: Mapping[str, str]) -> dict[str, str]:
        """What a worker finds in its environment: its job and mark, too, by which it is found where its supervisor is lost."""
        found = variables(job, python=python, settings=self.settings, secrets=secrets)
        return {**found, JOB_VARIABLE: self.job_id, MARK_VARIABLE: self.mark}

    def command(self, python: Path) -> list[str]:
        """How a worker is started; it reads what it is from its stdin."""
        return [str(python), self.worker, STDIN]
