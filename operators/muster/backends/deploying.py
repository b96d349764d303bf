"""What every backend does about deployments: passes each step on to who keeps them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.backends.base import Deployments
    from muster.backends.releases.figures import Seen
    from muster.core.deployment import (
        Answer,
        Counts,
        DeploymentSpec,
        DeploymentStatus,
        Release,
        Revision,
        RevisionState,
        SmokeRequest,
    )
    from muster.core.job import Origin


class Deploying(ABC):
    """The half of a :class:`muster.backends.base.Backend` that is its :class:`muster.backends.base.Deployments`."""

    @property
    @abstractmethod
    def _deployments(self) -> Deployments:
        """Who keeps them."""

    @property
    def servers(self) -> tuple[str, ...]:
        """Which model servers a deployment may name."""
        return self._deployments.servers

    @property
    def only_whole(self) -> str:
        """Why traffic can only be moved as a whole; empty where it can be shared."""
        return self._deployments.only_whole

    def prepare(
        self,
        spec: DeploymentSpec,
        *,
        by: str,
        origin: Origin | None = None,
        allow_older: bool = True,
        token: str | None = None,
    ) -> Revision:
        """Begin a release: bring a revision up beside what serves, without traffic."""
        return self._deployments.prepare(spec, by=by, origin=origin, allow_older=allow_older, token=token)

    def deployment(self, name: str) -> DeploymentStatus:
        """Report a deployment as it is now."""
        return self._deployments.deployment(name)

    def deployments(self) -> list[str]:
        """Every deployment's name, sorted."""
        return self._deployments.deployments()

    def ask(self, name: str, revision: str, request: SmokeRequest) -> tuple[Answer, ...]:
        """Send one real request to every replica of a revision, past the route."""
        return self._deployments.ask(name, revision, request)

    def shift(self, name: str, shares: Mapping[str, int], *, token: str, release: Release | None) -> str:
        """Share the traffic out, in one write of the route."""
        return self._deployments.shift(name, shares, token=token, release=release)

    def counts(self, name: str) -> Mapping[str, Counts]:
        """What each revision has answered, by its name."""
        return self._deployments.counts(name)

    def look_at(self, names: Collection[str] | None = None) -> list[Seen]:
        """Report every deployment, or those of them, each with its counts."""
        return self._deployments.look_at(names)

    def repair(self, name: str) -> tuple[str, ...]:
        """Bring a deployment back to how muster left it, as far as that can be done now."""
        return self._deployments.repair(name)

    def withdraw(self, name: str, revision: str, *, state: RevisionState, reason: str) -> None:
        """Take a revision without traffic away."""
        self._deployments.withdraw(name, revision, state=state, reason=reason)

    def retire(self, name: str) -> None:
        """Take a deployment away with all its revisions; idempotent."""
        self._deployments.retire(name)
