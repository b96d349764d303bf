"""Deployments on one machine: a name, a port of 127.0.0.1, a route in a file, and a keeper that puts it in force."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from muster.backends.local.serving import asking, keeping, ports
from muster.backends.local.serving.folder import DeploymentFolder
from muster.backends.local.serving.state import (
    Change,
    DeploymentState,
    past_models,
    pin_reason,
)
from muster.backends.ordering import behind
from muster.backends.releases.figures import Seen, look_each
from muster.core.address import Address
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
from muster.core.errors import Behind, Conflict, Corrupt, NotFound, SpecError
from muster.core.job import Origin
from muster.core.locks import locked
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.core.wire import dumps, loads
from muster.images.lock import LOCK
from muster.volumes.base import Version
from muster.volumes.protocols import LocalStore

SERVERS = ("kserve",)


class LocalDeployments:
    """The deployments of one MUSTER_HOME on one machine.

    :param copies: the store is elsewhere, and who keeps a deployment cannot reach it: it is given a copy
        of the model.
    """

    def __init__(self, settings: Settings, store: LocalStore, *, copies: bool = False) -> None:
        self._settings = settings
        self._store = store
        self._copies = copies
        self._root = settings.home / "deployments"

    @property
    def servers(self) -> tuple[str, ...]:
        """The model servers that run as processes of this machine."""
        return SERVERS

    @property
    def only_whole(self) -> str:
        """Empty: servers share the traffic out among themselves."""
        return ""

    def prepare(
        self,
        spec: DeploymentSpec,
        *,
        by: str,
        origin: Origin | None = None,
        allow_older: bool = True,
        token: str | None = None,
    ) -> Revision:
        """Begin a release: have a revision brought up beside what serves; do not wait. Idempotent.

        Also what brings a deployment back after the machine was restarted.

        :raises Behind: it must not be older than what serves or will, and is.
        :raises Conflict: somebody else has written the route since `token`.
        :raises SpecError: no such server, or the image's snapshot holds no lock.
        :raises NotFound: the model's version or the image's lock is not in the store.
        """
        spec = loads(DeploymentSpec, dumps(spec))  # as it will be read back, so that the same is the same
        model = self._check(spec)
        folder = self._folder(spec.name)
        found: list[Revision] = []

        def check_order(state: DeploymentState) -> None:
            if not allow_older and (why := behind(self._store, model, state.revisions, state.release)):
                raise Behind(f"{model.address} would take {spec.name} back in time: {why}")

        if self._copies:
            if (now := folder.read()) is not None:
                check_order(now)  # before it is pinned and copied: nobody would take that back
            self._copy(folder, spec)

        def change(state: DeploymentState) -> DeploymentState:
            if token not in (None, state.token):
                raise Conflict(f"deployment {spec.name}: its route was written by somebody else meanwhile")
            check_order(state)
            state, revision = state.prepared(spec, by=by, origin=origin)
            folder.keep_lock(spec.image_digest, self._lock(spec))
            found[:] = [revision]
            return state

        while self._change(folder, change, first=DeploymentState(name=spec.name, port=0)) is None:
            self.retire(spec.name)  # somebody is at it, or was killed before it was cleared away
        return found[0]

    def shift(self, name: str, shares: Mapping[str, int], *, token: str, release: Release | None) -> str:
        """Share the traffic out; it is in force a moment later.

        Where its keeper is gone, what was ready when that one last looked may have traffic: it is brought up for it.
        """
        return self._existing(name, lambda now: now.shifted(shares, token=token, release=release)).token

    def repair(self, name: str) -> tuple[str, ...]:
        """Bring a keeper up where it is gone, and with it the servers of all revisions that there are."""
        kept = self._folder(name).kept()
        state = self._existing(name, lambda now: now)
        return () if kept or not state.live else ("its keeper is brought up again",)

    def withdraw(self, name: str, revision: str, *, state: RevisionState, reason: str) -> None:
        """Take a revision without traffic away, when what it was asked before is answered."""
        self._existing(name, lambda now: now.withdrawn(revision, state=state, reason=reason))

    def ask(self, name: str, revision: str, request: SmokeRequest) -> tuple[Answer, ...]:
        """Send one real request to a revision, past the route."""
        return asking.ask(self._known(name), revision, request)

    def counts(self, name: str) -> Mapping[str, Counts]:
        """What each revision has answered since its server came up."""
        return asking.counts(self._known(name))

    def look_at(self, names: Collection[str] | None = None) -> list[Seen]:
        """Report every deployment, or those of them, each with its counts; leave out what is not there."""
        return look_each(self, self.deployments() if names is None else names)

    def deployment(self, name: str) -> DeploymentStatus:
        """Report a deployment as it is now. :raises NotFound: no such deployment."""
        state = self._known(name)
        kept = self._folder(name).kept()
        reason, drift = state.reason, ""
        if not kept and state.live:
            reason = drift = _bring_back(state)
        return DeploymentStatus(
            name=name,
            url=state.url,
            ready=kept and bool(state.shares) and asking.answers(state),
            token=state.token,
            revisions=state.revisions,
            release=state.release,
            reason=reason or _last_refusal(state),
            drift=drift,
        )

    def deployments(self) -> list[str]:
        """Every deployment's name, sorted."""
        if not self._root.is_dir():
            return []
        return sorted(path.name for path in self._root.iterdir() if self._is_one(path.name))

    def retire(self, name: str) -> None:
        """Take a deployment away, let its requests finish, and leave no process; idempotent.

        :raises BackendError: its keeper does not end even when it is killed.
        """
        folder = self._folder(name)
        with folder.changing():
            named = folder.named()
            try:
                state = folder.read()
            except Corrupt:
                state = DeploymentState(name=name, port=0)  # what nobody can read is ended all the same
            if state is None:
                return
            folder.write(replace(state, retired=True))
        keeping.await_end(folder)
        with folder.changing():
            state = folder.read()
            if state and state.retired:
                self._remove(folder, named)

    def _is_one(self, name: str) -> bool:
        """Whether a folder is a deployment's that is not being retired; also one whose state nobody can read."""
        try:
            state = self._folder(name).read()
        except SpecError:
            return False  # whatever it is, no deployment is called so
        except Corrupt:
            return True
        return state is not None and not state.retired

    def _known(self, name: str) -> DeploymentState:
        """Return the state of a deployment as it is now. :raises NotFound: no such deployment."""
        folder = self._folder(name)
        kept = folder.kept()  # asked first: a keeper takes its lock after what the last one saw is forgotten
        state = folder.read()
        if state is None or state.retired:
            known = ", ".join(self.deployments()) or "none"
            raise NotFound(f"no deployment {name!r}; known are: {known}")
        if kept:
            return state
        # All servers are gone with it, and what it saw is not so any more.
        return state.down([one.name for one in state.live], reason="its keeper is gone")

    def _existing(self, name: str, change: Change) -> DeploymentState:
        """Change a deployment that there is. :raises NotFound: there is none."""
        self._known(name)
        state = self._change(self._folder(name), change, first=None)
        if state is None:
            raise NotFound(f"no deployment {name!r}: it was retired just now")
        return state

    def _change(
        self, folder: DeploymentFolder, change: Change, *, first: DeploymentState | None
    ) -> DeploymentState | None:
        """Write the route, see that a keeper lives if there is anything to keep, and return what stands then.

        :param first: what is changed where there is nothing yet.
        :returns: None where the deployment is being retired, or is not there.
        """
        with locked(self._root / ".locks" / "ports"), folder.changing(), contextlib.ExitStack() as opened:
            before = folder.read()
            if (before is None and first is None) or (before is not None and before.retired):
                return None
            known = before or first
            assert known is not None
            state = change(known)
            if (
                before and state.live and not folder.kept()
            ):  # for those who see that a keeper lives, as in its `claim`
                folder.write(before.down([one.name for one in before.live], reason="it is being brought up"))
            handle = folder.claim_keeper() if state.live else None
            if handle is not None:  # what the last keeper saw is not so any more
                opened.callback(os.close, handle)
                state = state.down([one.name for one in state.live], reason="it is being brought up")
            door = self._bind(state) if handle is not None and not state.shares else None
            if door:
                opened.enter_context(door)
                state = replace(state, port=door.getsockname()[1])
            if state != before:
                folder.write(state)
            if handle is not None:
                keeping.start(self._settings, folder, handle, door)
            return state

    def _copy(self, folder: DeploymentFolder, spec: DeploymentSpec) -> None:
        """Pin the version and fetch it; give the pins of those back that serve no more."""
        self._store.pin(spec.model.address, reason=pin_reason(spec.name))
        folder.keep_model(spec.model.digest, self._store.path(spec.model.address))
        state = folder.read()
        for model in past_models(state) if state else ():
            if model != spec.model:
                with contextlib.suppress(NotFound):  # gc took it, so nothing pinned it
                    self._store.unpin(model.address, reason=pin_reason(spec.name))

    def _check(self, spec: DeploymentSpec) -> Version:
        if spec.server not in SERVERS:
            raise SpecError(f"server {spec.server!r}: on one machine there is {', '.join(SERVERS)}")
        shipped("serving")
        if not (self._lock(spec) / LOCK).is_file():
            raise SpecError(f"image {spec.image!r}: its snapshot {spec.image_digest:.20}… holds no {LOCK}")
        (version,) = self._store.resolve(spec.model.address)
        if version.digest != spec.model.digest:
            raise SpecError(
                f"{spec.model.address} is {version.digest:.20}…, the spec says {spec.model.digest:.20}…: "
                "it was written for another store"
            )
        return version

    def _lock(self, spec: DeploymentSpec) -> Path:
        """The image's lock and recipe: the deployment's own copy, or what the store holds."""
        kept = self._folder(spec.name).lock(spec.image_digest)
        return kept if kept.is_dir() else self._store.code(spec.image_digest)

    def _bind(self, state: DeploymentState) -> socket.socket:
        """Return a socket bound to the deployment's port, or to another where nothing ever served on it."""
        taken = {self._port(name) for name in self.deployments() if name != state.name}
        return ports.bind(self._settings.home, before=state.port, taken=taken)

    def _port(self, name: str) -> int:
        """The port of another deployment; 0 where nobody can say, and whoever serves on it holds it."""
        with contextlib.suppress(Corrupt):
            state = self._folder(name).read()
            return state.port if state else 0
        return 0

    def _remove(self, folder: DeploymentFolder, named: Iterable[str]) -> None:
        for address in named:
            with contextlib.suppress(NotFound):  # gc took it, so nothing pinned it
                self._store.unpin(address, reason=pin_reason(folder.name))
        shutil.rmtree(folder.path)

    def _folder(self, name: str) -> DeploymentFolder:
        return DeploymentFolder(self._settings.home, name)


def _bring_back(state: DeploymentState) -> str:
    """Say what to do where nobody keeps a deployment: any write of its route has it kept again."""
    return f"its keeper is gone: `muster deployments repair {state.name}` brings it back"


def _last_refusal(state: DeploymentState) -> str:
    """Say why the newest revision was refused, if it was."""
    newest = state.revisions[0] if state.revisions else None
    if newest is None or newest.state not in (RevisionState.REFUSED, RevisionState.FAILED):
        return ""
    return f"@{Address.parse(newest.model.address).value} was refused: {newest.reason}"
