"""What a job reads and writes: the versions of its inputs, where its outputs go, and how the words of a command name them.

The placeholders are ``{inputs.NAME}``, ``{outputs.NAME}``, ``{params.NAME}`` and ``{checkpoints}``: the Dag's parser refuses a
name that the job does not have, and the worker fills them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from muster.core.address import Address, Select
from muster.core.errors import SpecError
from muster.core.names import check_digest, check_partition, check_volume, check_whole

KINDS = ("inputs", "outputs", "params")
PLACE = re.compile(r"\{(?:(inputs|outputs|params)\.([^{}]*)|checkpoints)\}")
EVERY_PARTITION = "*"
CHECKPOINTS = "checkpoints"
"""The name of the folder that outlives a restart. An output of this name commits it, an input of it fills it at first."""
RESERVED = frozenset({CHECKPOINTS})
CARRIED = ".muster-carried"
"""The file at the top of an output with a base: the paths that its version takes over from the base, one a line."""
UNKNOWN = "stand-in"
"""The volume of an output that only the run tells, in a draft of its job."""


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """One version, fixed before the job was submitted and kept by adoption and retries."""

    address: str
    digest: str
    partition: str | None = None

    def __post_init__(self) -> None:
        if Address.parse(self.address).select is not Select.NUMBER:
            raise SpecError(f"input {self.address!r} is not pinned: a job takes exact versions such as @7")
        check_digest("version", self.digest)


@dataclass(frozen=True, kw_only=True)
class Input:
    """The version or versions that a job gets under one input name.

    :param many: the job gets ``list[Path]``, also of one version or none.
    :param path: the folder in the version from which checkpoints are filled; empty: the whole version.
    """

    versions: tuple[Pinned, ...]
    many: bool = False
    path: str = ""

    def __post_init__(self) -> None:
        if self.path:
            Address.parse(f"{self.versions[0].address}/{self.path}" if self.versions else "")
        if not self.many and len(self.versions) != 1:
            raise SpecError(f"an input of one version was given {len(self.versions)}")


@dataclass(frozen=True, kw_only=True)
class OutputTarget:
    """Where the files that a job writes under one output name are committed.

    :param partition: the partition of the new version; ``"*"`` commits every top-level folder that the job
        writes as a version of its own, in the partition that the folder is named after.
    :param after: the number of the last version of this volume and partition, 0 before the first, retired and deleted ones included. The
        commit is refused if another version came since. None: it does not matter.
    :param base: the input whose version this output begins with. The job names the files that stay in :data:`CARRIED`; the commit
        shares them with that version. A job that writes nothing makes no version: the base is its result.
    :param retires: the numbers of versions of this volume and partition that the new one replaces; its commit retires them. None of
        them comes after `after`, which says that no other version came since they were chosen.
    """

    volume: str
    partition: str | None = None
    after: int | None = None
    base: str | None = None
    retires: tuple[int, ...] = field(default=(), metadata={"later": True})

    def __post_init__(self) -> None:
        check_volume(self.volume)
        if self.partition is not None and self.partition != EVERY_PARTITION:
            check_partition(self.partition)
        if self.after is not None and (isinstance(self.after, bool) or self.after < 0):
            raise SpecError(
                f"output to {self.volume}: after is {self.after!r}, need the number of a version, or 0"
            )
        if self.partition == EVERY_PARTITION and (self.after is not None or self.base is not None):
            raise SpecError(
                f"output to {self.volume}: one with partition '*' follows no version and has no base"
            )
        self._check_retires()

    def _check_retires(self) -> None:
        object.__setattr__(self, "retires", tuple(self.retires))
        for number in self.retires:
            check_whole(f"output to {self.volume}: each number in retires", number, 1)
            if number > (self.after or 0):
                raise SpecError(
                    f"output to {self.volume}: retires {number!r}, after is {self.after!r}: only versions up to the one that the output "
                    "comes after are retired"
                )


def check_word(word: str, known: Mapping[str, Collection[str]]) -> None:
    """Refuse a word that holds a name that the job does not have.

    :param known: the job's names by kind; a kind that is missing is not checked.
    :raises SpecError: names the word and the known names.
    """
    for place in PLACE.finditer(word):
        kind, name = place[1], place[2]
        if kind in known and name not in known[kind]:
            raise unknown_place(word, kind, name, known[kind])


def unknown_place(word: str, kind: str, name: str, known: Collection[str]) -> SpecError:
    """Return the error for a name of `kind` that is not `known`."""
    names = ", ".join(sorted(known)) or "none"
    return SpecError(
        f"command word {word!r:.80}: the job has no {kind[:-1]} {name!r:.60}; its {kind} are: {names}"
    )
