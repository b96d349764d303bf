"""What a person sees of deployments: each as it is now, and the figures of its revisions beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from muster.backends.releases.counting import added, percentile, since
from muster.core.deployment import Counts, DeploymentStatus
from muster.core.errors import BackendError, Corrupt, NotFound, Unavailable

if TYPE_CHECKING:
    from muster.backends.base import Deployments

_P95 = 0.95
_AT_ONCE = 8  # one that does not answer must not hold up all others

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was answered: how many requests, how many of them failed, and within what 95 % were answered.

    :param p95_seconds: None where there were no requests.
    """

    requests: int
    failed: int
    p95_seconds: float | None

    @classmethod
    def of(cls, counts: Counts) -> Figures:
        """Read them from counts."""
        return cls(requests=counts.requests, failed=counts.failed, p95_seconds=percentile(counts, _P95))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One deployment at one moment.

    :param counts: what each revision has answered since its replicas came up; None where nobody could say.
    """

    status: DeploymentStatus
    counts: Mapping[str, Counts] | None = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, Figures]:
        """The figures of each revision that answered anything."""
        return {name: Figures.of(each) for name, each in (self.counts or {}).items()}

    @property
    def total(self) -> Figures | None:
        """Those of all revisions together; None where nobody could say."""
        if self.counts is None:
            return None
        together = added({"": each} for each in self.counts.values())
        return Figures.of(together.get("", Counts()))

    def after(self, before: Seen) -> Seen:
        """The same with only what was answered after an earlier look."""
        if self.counts is None or before.counts is None:
            return self
        grown = {name: since(before.counts.get(name), now) for name, now in self.counts.items()}
        return Seen(status=self.status, counts=grown)


def look(deployments: Deployments, name: str) -> Seen:
    """Look at one deployment. :raises NotFound: there is none."""
    for seen in deployments.look_at([name]):
        return seen
    known = ", ".join(deployments.deployments()) or "none"
    raise NotFound(f"no deployment {name!r}; known are: {known}")


def look_each(deployments: Deployments, names: Iterable[str]) -> list[Seen]:
    """Look at several at once, each by itself; what is not there is left out."""

    def seen(name: str) -> Seen | None:
        try:
            status = deployments.deployment(name)
        except NotFound:
            return None
        except Corrupt as error:
            return unreadable(name, error)
        return seen_with(status, if_known(lambda: deployments.counts(name)))

    wanted = list(names)
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(wanted) or 1)) as pool:
        return [each for each in pool.map(seen, wanted) if each is not None]


def seen_with(status: DeploymentStatus, counts: Mapping[str, Counts] | None) -> Seen:
    """A deployment and its counts; nobody can say where those of one with traffic are missing."""
    whole = counts is not None and counts.keys() >= status.shares.keys()
    return Seen(status=status, counts=counts if whole else None)


def if_known(ask: Callable[[], T]) -> T | None:
    """Return what servers are asked for; None where they cannot say, which a :class:`Seen` then says."""
    with suppress(BackendError, NotFound, Unavailable):
        return ask()
    return None


def unreadable(name: str, error: Corrupt) -> Seen:
    """A deployment whose state nobody can read: it is down, and says so."""
    status = DeploymentStatus(name=name, url="", ready=False, token="", reason=str(error))
    return Seen(status=status, counts=None)
