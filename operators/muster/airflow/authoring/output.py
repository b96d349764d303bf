"""What an author writes for an output: as in a job's spec, but it may still hold Jinja."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where what the job writes under one name is committed.

    What stands in the Dag file as it is, is checked when the Dag is parsed; what holds Jinja, such as
    ``partition="{{ params.month }}"``, when the task runs.

    :param volume: ``flights/model``. (templated)
    :param partition: the partition it becomes; ``"*"`` makes every top-level folder that the job
        writes a version of its own, of the partition that the folder is named after. (templated)
    """

    volume: str
    partition: str | None = None
