"""The keeper of one deployment: a detached process that has a model server run and serve what is wanted.

It brings a server that died or hangs back with what served, carries a wanted revision from load to
traffic, and goes when there is nothing left to keep. All it knows is in the deployment's folder, so the next
keeper goes on where one was killed. It has one thread, because the kernel ends the server with it.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from muster.backends.local.deployment_door import Door
from muster.backends.local.deployment_server import ModelServer, try_apart
from muster.backends.local.deployment_state import (
    DeploymentFolder,
    DeploymentState,
    past_models,
    pin_reason,
    same_server,
)
from muster.backends.local.environments import Environments
from muster.backends.local.processes import Process
from muster.core.deployment import DeploymentSpec
from muster.core.errors import BackendError, Corrupt, DeploymentError, MusterError, NotFound
from muster.core.settings import Settings
from muster.volumes.base import Store
from muster.volumes.folder import FolderStore

LOOK_SECONDS = 0.2
COMMAND_SECONDS = 30.0
DRAIN_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 10.0


class Keeper:
    """Keeps one deployment until it is retired or has nothing to serve."""

    def __init__(
        self,
        folder: DeploymentFolder,
        store: Store,
        environments: Environments,
        door: Door,
    ) -> None:
        self._folder = folder
        self._store = store
        self._environments = environments
        self._door = door
        self._server: ModelServer | None = None
        self._leaving: list[tuple[float, ModelServer]] = []
        self._pause = LOOK_SECONDS
        self._revive_at = 0.0
        self._settled = False

    def run(self, handle: int) -> None:
        """Keep the deployment; `handle` is the open file that holds the keeper's lock."""
        try:
            while not self._over(handle):
                try:
                    self._step()
                except (MusterError, OSError) as error:  # a full disk, say; what serves goes on
                    _say(f"trying again: {error}")
                    self._look_away(LONGEST_PAUSE_SECONDS)
        finally:
            self._stop()

    def _over(self, handle: int) -> bool:
        """Whether there is nothing to keep; then the servers are stopped and the lock is given back."""
        if _keeps(self._folder.read()):
            return False
        self._stop()
        with self._folder.changing():
            if _keeps(self._folder.read()):
                return False
            os.close(handle)
            return True

    def _step(self) -> None:
        if not self._settled:
            self._unpin_past()
        state = self._tend()
        if state and state.wanted:
            self._settled = False
            self._release(state.wanted)
        else:
            self._look_away(LOOK_SECONDS)

    def _tend(self) -> DeploymentState | None:
        """Keep up what serves, and return the state."""
        now = time.monotonic()
        self._leaving = [(due, server) for due, server in self._leaving if not server.leave(since=now - due)]
        if self._server and not self._server.alive():
            _say(f"restarting: {self._server.ended()}")
            self._server.close()
            self._server = None
        state = self._folder.read()
        if state and state.serving and not state.retired and not self._server and now >= self._revive_at:
            self._revive(state.serving)
        if state and state.serving and self._server and now >= self._revive_at and not self._server.answers():
            self._relieve(self._server, state.serving)
        return state

    def _look_away(self, seconds: float) -> None:
        """Let time pass, but not longer than the server lives."""
        if self._server:
            self._server.wait(seconds)
        else:
            time.sleep(seconds)

    def _revive(self, spec: DeploymentSpec) -> None:
        """Bring up what served. Clients that connect meanwhile wait, unless it fails: then they are refused."""
        try:
            self._server = self._bring_up(spec)
        except MusterError as error:
            self._door.close()
            self._wait_longer()
            self._note(f"{spec.model.address} cannot be served: {error}; trying again")
        else:
            self._pause = LOOK_SECONDS
            self._note("")

    def _relieve(self, hung: ModelServer, spec: DeploymentSpec) -> None:
        """Have another server take over from one that hangs, which may still finish what it can."""
        self._note("the model server does not answer: another one is brought up beside it")
        try:
            self._server = self._bring_up(spec)
        except MusterError as error:
            self._wait_longer()
            self._note(f"the model server does not answer, and no other can be brought up: {error}")
        else:
            self._leaving.append((time.monotonic(), hung))
            self._pause = LOOK_SECONDS
            self._note("")

    def _wait_longer(self) -> None:
        self._revive_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def _bring_up(self, spec: DeploymentSpec) -> ModelServer:
        python = self._python(spec, self._note)
        model = self._model(spec)
        deadline = time.monotonic() + spec.load_timeout_seconds
        server = ModelServer(spec, python, self._folder.path, self._door.bound())
        try:
            revision = server.load(spec.model, model, deadline=deadline)
            self._door.open()
            server.promote(revision, deadline=deadline)
        except MusterError:
            server.stop()
            raise
        return server

    def _release(self, spec: DeploymentSpec) -> None:
        """Carry a wanted revision from load to traffic, or refuse it; what serves is not touched before."""
        server: ModelServer | None = None
        try:
            python = self._python(spec, lambda line: self._progress(spec, line))
            deadline = time.monotonic() + spec.load_timeout_seconds
            model = self._model(spec)
            try_apart(
                spec, python, model, self._folder.path, deadline=deadline, idle=lambda: self._insist(spec)
            )
            self._insist(spec)
            server = self._beside(spec) or ModelServer(spec, python, self._folder.path, self._door.bound())
            revision = server.load(spec.model, model, deadline=deadline)
            self._change(spec, DeploymentState.smoking)
            self._smoke(server, revision, spec, deadline=deadline)
            self._door.open()
        except OSError:
            raise  # a full disk, say: it is tried again
        except Exception as error:  # whatever a release meets, what serves goes on
            reason = str(error) if isinstance(error, MusterError) else f"{type(error).__name__}: {error}"
            self._discard(server, spec)
            self._change(spec, lambda state: state.refused(reason))
        else:
            self._promote(server, revision, spec)

    def _beside(self, spec: DeploymentSpec) -> ModelServer | None:
        """Return the server that runs if it can also hold `spec`."""
        if self._server and same_server(self._server.spec, spec):
            self._server.limit_memory(max(self._server.spec.resources.memory_gib, spec.resources.memory_gib))
            return self._server
        return None

    def _smoke(self, server: ModelServer, revision: str, spec: DeploymentSpec, *, deadline: float) -> None:
        for request in spec.smoke:
            try:
                server.smoke(revision, request, deadline=deadline)
            except DeploymentError as error:
                raise DeploymentError(f"smoke request {request.name!r:.80}: {error}") from error

    def _promote(self, server: ModelServer, revision: str, spec: DeploymentSpec) -> None:
        """Write down that it serves, then give it the traffic: a keeper after us can only go forward."""
        try:
            recorded = self._change(spec, DeploymentState.promoted)
        except BackendError:
            self._discard(server, spec)
            raise
        if not recorded:
            self._discard(server, spec)
            return
        deadline = time.monotonic() + COMMAND_SECONDS
        old, self._server = self._server, server
        if old and old is not server:  # first, so that it goes even where the new one dies of its promotion
            self._leaving.append((time.monotonic() + DRAIN_SECONDS, old))
        try:
            server.promote(revision, deadline=deadline)
            server.spec = spec
            if old is server:
                server.unload_others(revision, deadline=deadline)
            elif old:
                old.drain(deadline=deadline)
        except DeploymentError as error:
            _say(f"after promotion: {error}")  # a server that died is seen, and revived, by the next look

    def _discard(self, server: ModelServer | None, spec: DeploymentSpec) -> None:
        """Forget a revision that takes no traffic."""
        if server is None:
            return
        if server is not self._server:
            server.stop()
            return
        try:
            server.unload_others(server.serving, deadline=time.monotonic() + COMMAND_SECONDS)
        except DeploymentError as error:
            _say(f"{spec.model.address} stays loaded until the server is restarted: {error}")

    def _python(self, spec: DeploymentSpec, progress: Callable[[str], None]) -> Path:
        lock = self._folder.lock(spec.image_digest)
        return self._environments.ensure(spec.image, lock, spec.image_digest, progress)

    def _model(self, spec: DeploymentSpec) -> Path:
        """Pin the version and return its folder; a copy was pinned by whoever made it."""
        if (copy := self._folder.model(spec.model.digest)).is_dir():
            return copy
        version = self._store.pin(spec.model.address, reason=pin_reason(spec.name))
        if version.digest != spec.model.digest:
            raise Corrupt(f"{version.address} is {version.digest}, expected {spec.model.digest}")
        return self._store.path(spec.model.address)

    def _unwanted(self, spec: DeploymentSpec) -> bool:
        """Keep up what serves, and tell whether `spec` is not wanted any more."""
        state = self._tend()
        return state is None or state.retired or state.wanted != spec

    def _progress(self, spec: DeploymentSpec, line: str) -> None:
        """Pass a line of a build on, and end the build where nobody wants it any more."""
        self._note(line)
        self._insist(spec)

    def _insist(self, spec: DeploymentSpec) -> None:
        if self._unwanted(spec):
            raise DeploymentError("it is not wanted any more")

    def _change(self, spec: DeploymentSpec, change: Callable[[DeploymentState], DeploymentState]) -> bool:
        """Change the state if `spec` is still what is wanted; whether that was so."""
        with self._folder.changing():
            state = self._folder.read()
            if state is None or state.retired or state.wanted != spec:
                return False
            self._folder.write(change(state))
            return True

    def _note(self, reason: str) -> None:
        """Let everybody know what it waits for or suffers from."""
        with self._folder.changing():
            state = self._folder.read()
            if state and state.reason != reason:
                _say(reason or "all is well")
                self._folder.write(replace(state, reason=reason))

    def _unpin_past(self) -> None:
        """Let gc have the versions that neither serve nor are wanted."""
        state = self._folder.read()
        for model in past_models(state) if state else ():
            if (copy := self._folder.model(model.digest)).is_dir():
                shutil.rmtree(copy)  # its pin goes with the next release: only that sees the store
                continue
            try:
                self._store.unpin(model.address, reason=pin_reason(self._folder.name))
            except NotFound:
                continue  # gc took it, so nothing pinned it
        self._settled = True

    def _stop(self) -> None:
        self._door.close()
        servers = [server for _, server in self._leaving] + ([self._server] if self._server else [])
        self._leaving, self._server = [], None
        for server in servers:
            server.stop()


def _keeps(state: DeploymentState | None) -> bool:
    return state is not None and not state.retired and (state.serving or state.wanted) is not None


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}", file=sys.stderr, flush=True)  # noqa: T201 its log


def main() -> None:
    """Keep a deployment. Arguments: ``HOME CACHE NAME``, the lock's file and perhaps the port's socket."""
    home, cache, name, handle, *door = sys.argv[1:]
    settings = Settings(home=Path(home), cache=Path(cache))
    folder = DeploymentFolder(settings.home, name)
    me = Process.find(os.getpid())
    assert me is not None
    folder.write_keeper(me)
    for number in (handle, *door):
        os.set_inheritable(int(number), False)
    state = folder.read()
    assert state is not None
    public = Door(state.port, socket.socket(fileno=int(door[0])) if door else None)
    Keeper(folder, FolderStore(settings.store), Environments(settings.cache), public).run(int(handle))


if __name__ == "__main__":
    main()
