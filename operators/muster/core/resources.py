"""The resources that one replica needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from muster.core.errors import SpecError
from muster.core.names import check_label, check_whole


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources that one replica needs.

    :param cpus: a share, not a guarantee; a machine with fewer is slower, but runs it.
    :param memory_gib: a limit; a replica that exceeds it is killed, and the verdict says so.
    :param gpus: whole cards.
    :param gpu_class: classes of card in order of preference, or the name of one; empty takes any.
    :param disk_gib: scratch space beside the volumes.
    """

    cpus: float = 1.0
    memory_gib: float = 2.0
    gpus: int = 0
    gpu_class: tuple[str, ...] = ()
    disk_gib: float = 0.0

    def __post_init__(self) -> None:
        for field in ("cpus", "memory_gib", "disk_gib"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise SpecError(f"{field} is {value!r}, need a number")
            object.__setattr__(self, field, float(value))
        if self.cpus <= 0 or self.memory_gib <= 0 or self.disk_gib < 0:
            raise SpecError(
                f"cpus is {self.cpus:g}, memory_gib {self.memory_gib:g}, disk_gib {self.disk_gib:g}: "
                "cpus and memory_gib must be above 0, disk_gib 0 or more"
            )
        check_whole("gpus", self.gpus, 0)
        given: object = self.gpu_class  # a Dag's author may give a str despite the annotation
        classes = (given,) if isinstance(given, str) else self.gpu_class
        object.__setattr__(self, "gpu_class", tuple(check_label("GPU class", each) for each in classes))
        if self.gpu_class and not self.gpus:
            raise SpecError(f"gpu_class {', '.join(self.gpu_class)} is asked for, but gpus is 0")
