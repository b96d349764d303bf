"""The keeper of one deployment: a detached process that holds up the revisions of its state, and their shares.

It decides nothing about releases: it brings up what the state names, puts the shares in force that stand
there, brings a server back that died or hangs, and goes when there is nothing left to keep. All it knows is
in the deployment's folder, so the next keeper, which its guardian starts, goes on where one was killed. It has one
thread, because the kernel ends the servers with it, and never waits for one thing alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, TypeVar

from muster.backends.local.processes import Process
from muster.backends.local.serving.collecting import LocalCollecting
from muster.backends.local.serving.door import Door
from muster.backends.local.serving.folder import DeploymentFolder
from muster.backends.local.serving.kept import Guardian, KeptNumbers, start_keeper
from muster.backends.local.serving.process import keep_short, try_apart
from muster.backends.local.serving.shares import ModelServers
from muster.backends.local.serving.state import Change, DeploymentState, ServerKey, past_models
from muster.backends.releases.book import pin_reason
from muster.backends.releases.tokens import Tokens
from muster.core.data import Pinned
from muster.core.deployment import DeploymentSpec, Revision, RevisionState
from muster.core.errors import BackendError, Corrupt, MusterError, NotFound
from muster.core.linux import watched
from muster.core.settings import Settings
from muster.core.wire import plain
from muster.images.environment import Environments
from muster.volumes.folder import FolderStore
from muster.volumes.protocols import LocalStore
from muster.volumes.spool import Spool

T = TypeVar("T")

LOOK_SECONDS = 0.1
IDLE_SECONDS = 1.0  # a server is asked every other second whether it lives
_MEET_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 10.0
REPEAT_SECONDS = 60.0
TROUBLE_SECONDS = 1.0


class Keeper:
    """Keeps one deployment until it is retired or has nothing to serve."""

    def __init__(
        self,
        folder: DeploymentFolder,
        store: LocalStore,
        environments: Environments,
        servers: ModelServers,
        settings: Settings,
        *,
        grpc: socket.socket,
    ) -> None:
        self._settings = settings
        self._collecting = LocalCollecting(settings, folder.name, self.say)
        self._folder = folder
        self._store = store
        self._environments = environments
        self._grpc = grpc
        self.servers = servers
        self.arriving: dict[str, Generator[None, None, None]] = {}
        self._failures: dict[str, tuple[float, float]] = {}  # the pause before the next try, and until when
        self._unpinned: set[Pinned] = set()
        self._read: tuple[int, DeploymentState | None] = (0, None)
        self._lost: list[tuple[set[str], str]] = []
        self._said: dict[str, float] = {}
        self._troubles: dict[str, str] = {}
        self._tokens: tuple[int, Tokens | None] = (0, None)
        self._watched: int | None = None

    def run(self, handle: int, guardian: Guardian) -> None:
        """Keep the deployment; `handle` is the open file that holds the keeper's lock."""
        try:
            self._meet_servers()
            while not self.is_over(handle, guardian):
                self._be_guarded(guardian)
                try:
                    self.look()
                except Exception as error:  # whatever it meets, what serves goes on
                    self.say(f"trying again: {_told(error)}")
                    time.sleep(TROUBLE_SECONDS)
        finally:
            self.stop()

    def _meet_servers(self) -> None:
        """Take charge of what the last keeper left; one that is up may be about to say so."""
        state, deadline = self._state(), time.monotonic() + _MEET_SECONDS
        ports = state.ports.values() if state else ()
        while self.servers.adopt(ports) and time.monotonic() < deadline:
            self.servers.wait(LOOK_SECONDS)

    def _be_guarded(self, guardian: Guardian) -> None:
        try:
            guardian.replace_lost()
        except OSError as error:
            self.say(
                f"nothing starts this keeper again if it is killed now: no guardian can be started ({error})"
            )

    def is_over(self, handle: int, guardian: Guardian) -> bool:
        """Whether there is nothing to keep; then the servers are stopped and the lock is given back."""
        if _keeps(self._state()):
            return False
        self.stop()
        if self._folder.lost:
            guardian.dismiss()
            return True
        with self._folder.changing():
            if _keeps(self._state()):
                return False
            guardian.dismiss()
            os.close(handle)
            return True

    def _state(self) -> DeploymentState | None:
        """Return the state, read again where it was written; where it cannot be read, as it was before."""
        self._read = self._again(self._read, self._folder.stamp, self._folder.read)
        return self._read[1]

    def _again(self, before: tuple[int, T], stamp: Callable[[], int], read: Callable[[], T]) -> tuple[int, T]:
        """Return what a file holds, after its stamp; where it was not written since, or cannot be read, what was read before."""
        try:
            now = stamp()
            return before if now == before[0] else (now, read())
        except (Corrupt, OSError) as error:
            self.say(f"what was read before stands: {error}")
            return before

    def _record(self, change: Change) -> bool:
        """Write down what was seen; whether it could be. Users do not wait until a disk has room again."""
        try:
            self._folder.change(change)
        except (BackendError, Corrupt, OSError) as error:
            self.say(f"not written down: {error}")
            return False
        return True

    def look(self) -> None:
        """Do what is to be done now, of everything."""
        for log in ("server.log", "keeper.log"):
            keep_short(self._folder.path / log)
        self._lost += self.servers.lost()
        while self._lost and self._lose(*self._lost[0]):
            del self._lost[0]
        state = self._state()
        if state is None or state.retired:
            return
        self.servers.limit_memory(state)
        self.servers.admit(self._admission(state))
        if state.grpc_port and not self.servers.grpc_door:
            self.servers.grpc_door = Door(state.grpc_port, self._grpc, host=state.host)
        self._arrive(state)
        self._publish(state)
        self._hear(state)
        self.servers.direct(state, waiting=self._waiting(state))
        self.servers.clear(state)
        self.unpin_past(state)
        if not self._folder.copies:  # else the store is out of this process's reach
            self._collecting.look()
        if state.reason and self.servers.up().keys() >= state.shares.keys() and not self._troubles:
            self._note("")  # all that has traffic is up
        self._wait()

    def _wait(self) -> None:
        """Return when something may be to be done: a file was written, a server has something to say, or time has passed."""
        if self._watched is None:
            # Of these a user may have no more: then it is looked at again and again.
            with contextlib.suppress(OSError):
                self._watched = watched(str(self._folder.path))
        busy = self.arriving or self._lost or self._failures or self.servers.restless
        seconds = LOOK_SECONDS if busy or self._watched is None else IDLE_SECONDS
        self.servers.wait(seconds, [self._watched] if self._watched is not None else [])
        with contextlib.suppress(BlockingIOError):
            while self._watched is not None:
                os.read(self._watched, 1 << 16)

    def _admission(self, state: DeploymentState) -> dict[str, Any]:
        """What servers are told of who may ask, and how much; where the tokens cannot be read, those read before stand.

        The revision that leads says whether users need a token; servers ask for the key of muster's own requests as soon
        as any revision does. An address that others reach is never open to all, whatever a spec says.
        """
        terms = state.terms
        limits = terms.limits.order() if terms and terms.limits else None
        needed = bool(terms and terms.tokens) or not IPv4Address(state.host).is_loopback
        if not needed and not any(spec.tokens for spec in state.specs.values()):
            return {"needed": False, "limits": limits}
        self._tokens = self._again(self._tokens, self._folder.tokens_stamp, self._folder.tokens)
        found = self._tokens[1]
        if found is None:
            return {"needed": needed, "limits": limits, "key": "", "tokens": []}
        return {"needed": needed, "limits": limits, "key": found.key, "tokens": plain(found.tokens)}

    def _lose(self, names: set[str], why: str) -> bool:
        self.say(why)
        return self._record(lambda state: replace(state.down(names, reason=why, died=True), reason=why))

    def _arrive(self, state: DeploymentState) -> None:
        """Bring up what is not, a bit further; the one that leads alone, as long as that is down."""
        up = self.servers.up()
        for name in self.arriving.keys() - {one.name for one in state.live}:
            self.arriving.pop(name).close()
        for one in state.live:
            if one.name in up or one.state is RevisionState.FAILED:
                continue
            if (
                one.name not in self.arriving
                and time.monotonic() >= self._failures.get(one.name, (0.0, 0.0))[1]
            ):
                self.arriving[one.name] = self._bring_up(
                    one.name,
                    state.specs[one.name],
                    key=state.server_key(one.name),
                    tried=one.name in state.tried,
                )
            if one.name in self.arriving:
                self._go_on(one, state)
                if one.percent and one is state.live[0] and one.name in self.arriving:
                    return

    def _go_on(self, one: Revision, state: DeploymentState) -> None:
        """Let one revision come up a bit further."""
        arriving = self.arriving.pop(one.name)
        try:
            next(arriving)
        except StopIteration:
            self._failures.pop(one.name, None)
        except (OSError, BackendError) as error:  # a full disk, say
            self._try_again(one, str(error))
        except Exception as error:  # whatever a revision meets, the others go on
            reason = _told(error)
            if _expendable(state, one):
                self.say(f"{one.name} failed: {reason}")
                self._record(lambda now: now.failed(one.name, reason=reason))
            else:
                self._try_again(one, reason)
        else:
            self.arriving[one.name] = arriving

    def _publish(self, state: DeploymentState) -> None:
        """Write down what is up, and where."""
        up = {name: server.port for name, server in self.servers.up().items()}
        for one in state.live:
            port = up.get(one.name)
            if port is not None and (not one.ready or state.ports.get(one.name) != port):
                self._record(lambda now, name=one.name, port=port: now.up(name, port=port))  # type: ignore[misc]
        lost = [one.name for one in state.live if one.ready and one.name not in up]
        if lost:
            self._record(lambda now: now.down(lost, reason="it is being brought back"))

    def _bring_up(
        self, name: str, spec: DeploymentSpec, *, key: ServerKey, tried: bool
    ) -> Generator[None, None, None]:
        """Load a revision into its server; one that never was up is tried apart first."""
        python = yield from self._python(name, spec.image, spec.image_digest)
        setup = spec.worker_setup()
        if setup is not None and spec.workers is not None:
            theirs = yield from self._python(name, spec.workers.image, spec.workers.image_digest)
            setup["python"] = str(theirs)
        deadline = time.monotonic() + spec.load_timeout_seconds
        model = self.model(spec)
        if not tried:
            self._progress(name, "it is tried in a process of its own")
            yield from try_apart(
                spec, python, model, self._folder.path, revision=name, deadline=deadline, setup=setup
            )
        server = self.servers.server(spec.name, python, key=key)
        self._progress(name, "it is being loaded")
        order: dict[str, Any] = {"model": spec.model.address, "log": self._log_order(spec)}
        if setup:
            order["setup"] = setup
        if spec.counts_inputs:
            order["counts_inputs"] = True
        yield from server.load(name, model, deadline=deadline, order=order)
        self._troubles.pop(name, None)

    def _python(self, name: str, image: str, digest: str) -> Generator[None, None, Path]:
        """Return the Python of an image's environment, once it is built."""
        return self._environments.ensure_apart(
            image,
            self._folder.lock(digest),
            digest,
            lambda line: self._progress(name, line),
            log=self._folder.path / f"image-{name}.log",
        )

    def _log_order(self, spec: DeploymentSpec) -> dict[str, Any] | None:
        """What the server is told of the log of a revision's requests; None where it keeps none."""
        if spec.log is None:
            return None
        spool, order = Spool(self._settings.home, spec.name), plain(spec.log)
        try:
            order["key"] = spool.begin()
        except OSError as error:  # users are served all the same; the server says what it cannot keep
            self.say(f"the log of requests has no key: {error}; columns that are to be hashed are left out")
            order |= {"key": "", "hashed": [], "leave_out": [*order["leave_out"], *order["hashed"]]}
        return {"folder": str(spool.path), "clients": spec.tokens, **order}

    def _try_again(self, one: Revision, reason: str) -> None:
        """Wait a while before the next try. Clients wait as well at first; from now on they are refused."""
        pause, _ = self._failures.get(one.name, (LOOK_SECONDS / 2, 0.0))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        self._failures[one.name] = pause, time.monotonic() + pause
        if not self.servers.up():
            self.servers.refuse()
        self._note(f"{one.model.address} cannot be served: {reason}; trying again")

    def _waiting(self, state: DeploymentState) -> set[str]:
        """The revisions for which clients are to wait: those that are coming up, and never failed to."""
        return {
            one.name
            for one in state.live
            if one.state is not RevisionState.FAILED and one.name not in self._failures
        }

    def _hear(self, state: DeploymentState) -> None:
        """Write down how the workers of the revisions are."""
        live = {one.name for one in state.live}
        for told in self.servers.news():
            if told.revision not in live:
                continue
            self.say(f"{told.revision}: {told.what or 'its workers are up'}")
            self._troubles[told.revision] = told.what
            self._record(
                lambda now, told=told: now.told(told.revision, reason=told.what, ended=told.ended)  # type: ignore[misc]
            )
        self._troubles = {name: what for name, what in self._troubles.items() if what and name in live}
        for name in state.shares.keys() & self._troubles.keys():
            self._note(f"{name}: {self._troubles[name]}")

    def _progress(self, name: str, line: str) -> None:
        """Record how far a revision is."""
        self._record(lambda state: state.down([name], reason=line))

    def _note(self, reason: str) -> None:
        """Record what is wrong with the deployment."""
        state = self._state()
        if state and state.reason != reason:
            self.say(reason or "all is well")
            self._record(lambda now: replace(now, reason=reason))

    def model(self, spec: DeploymentSpec) -> Path:
        """Pin the version and return its folder; a copy's version was pinned when the copy was made."""
        self._unpinned.discard(spec.model)
        if (copy := self._folder.model(spec.model.digest)).is_dir():
            return copy
        version = self._store.pin(spec.model.address, reason=pin_reason(spec.name))
        if version.digest != spec.model.digest:
            raise Corrupt(f"{version.address} is {version.digest}, expected {spec.model.digest}")
        return self._store.path(spec.model.address)

    def unpin_past(self, state: DeploymentState) -> None:
        """Let gc have the versions that no revision needs any more."""
        for model in past_models(state):
            if model in self._unpinned:
                continue
            if (copy := self._folder.model(model.digest)).is_dir():
                # The process that withdrew it gave its pin back: only that one sees the store.
                shutil.rmtree(copy)
            else:
                with contextlib.suppress(NotFound):  # gc took it, so nothing pinned it
                    self._store.unpin(model.address, reason=pin_reason(self._folder.name))
            self._unpinned.add(model)

    def say(self, line: str) -> None:
        """Say it in the log, the same at most once a minute."""
        now = time.monotonic()
        recently = {said: when for said, when in self._said.items() if now - when < REPEAT_SECONDS}
        self._said = {line: now} | recently
        if line not in recently:
            with contextlib.suppress(OSError):  # the disk may be full, and users are served all the same
                print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}", file=sys.stderr, flush=True)  # noqa: T201 its log

    def stop(self) -> None:
        """Close the ports and stop every server."""
        for arriving in self.arriving.values():
            arriving.close()
        self.arriving = {}
        self._collecting.stop()
        self.servers.stop()


def _keeps(state: DeploymentState | None) -> bool:
    return state is not None and not state.retired and bool(state.live)


def _expendable(state: DeploymentState, one: Revision) -> bool:
    """Whether a revision fails where it does not come up, rather than being tried again."""
    release = state.release
    if one.name not in state.tried:
        return True
    return release is not None and release.revision == one.name and release.champion not in (None, one.name)


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, MusterError) else f"{type(error).__name__}: {error}"


def begin_anew(settings: Settings, folder: DeploymentFolder) -> None:
    """Start another keeper where there is something to keep and none keeps it: its servers are gone with the last one."""
    with folder.changing():
        state = folder.read()
        if state is None or not _keeps(state) or (lock := folder.claim_keeper()) is None:
            return
        folder.write(state.down([one.name for one in state.live], reason="it is being brought back"))
        start_keeper(settings, folder, lock)
        os.close(lock)


def main() -> None:
    """Keep a deployment. Arguments: ``HOME CACHE NAME GUARDIAN FD…``, the last ones as in :class:`.kept.KeptNumbers`."""
    home, cache, name, pid, *numbers = sys.argv[1:]
    settings = Settings(home=Path(home), cache=Path(cache))
    folder = DeploymentFolder(settings.home, name)
    if not numbers:  # a guardian from before an upgrade, which holds nothing open
        begin_anew(settings, folder)
        os.kill(int(pid), signal.SIGKILL)
        return
    kept = KeptNumbers(*map(int, numbers))
    for number in kept:
        os.set_inheritable(number, False)
    try:
        state = folder.read()
    except Corrupt as error:  # the guardian has it looked at again, until it can be read or is retired
        sys.exit(str(error))
    with contextlib.suppress(OSError):  # the disk may be full, and users are served all the same
        folder.write_keeper(Process.me())
    public, grpc, mailbox = (
        socket.socket(fileno=number) for number in (kept.public, kept.grpc, kept.mailbox)
    )
    mailbox.setblocking(False)
    door = Door(state.port, public, host=state.host) if state else Door(0, public)
    servers = ModelServers(folder.path, door, mailbox=mailbox, post=kept.post, leash=kept.leash)
    store, environments = FolderStore(settings.store), Environments(settings.cache)
    keeper = Keeper(folder, store, environments, servers, settings, grpc=grpc)
    keeper.run(kept.lock, Guardian(settings, name, int(pid), kept))


if __name__ == "__main__":
    main()
