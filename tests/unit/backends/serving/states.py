"""States of a deployment on one machine, as the rules of releases write them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from muster.backends.local.serving.platform import LocalBook
from muster.backends.local.serving.state import DeploymentState
from muster.backends.releases.book import begin, share, withdraw
from muster.core.deployment import DeploymentSpec, Release, Revision, RevisionState

HISTORY = 50


def new(name: str = "f") -> DeploymentState:
    return DeploymentState(name=name, port=1)


def prepared(
    state: DeploymentState, spec: DeploymentSpec, *, by: str = "task"
) -> tuple[DeploymentState, Revision]:
    """Begin a release."""
    book = state.book
    failed = {one.name for one in state.live if one.state is RevisionState.FAILED}
    begun, entry = begin(book, spec, by=by, now=time.time(), failed=failed)
    after = state if begun is book else state.with_book(begun)
    return after, after.called(entry.name)


def shifted(
    state: DeploymentState, shares: Mapping[str, int], *, release: Release | None = None
) -> DeploymentState:
    """Share the traffic out."""
    return state.with_book(share(state.book, shares, release=release, now=time.time()))


def withdrawn(before: DeploymentState, name: str, *, state: RevisionState, reason: str) -> DeploymentState:
    """Take a revision away."""
    book = before.book
    after = withdraw(book, name, state=state, reason=reason, now=time.time(), history=HISTORY)
    return before if after is book else before.with_book(after)


def read(state: DeploymentState, *, alive: bool = True) -> LocalBook:
    """A state as the platform reads it."""
    return LocalBook.of(state, alive=alive)
