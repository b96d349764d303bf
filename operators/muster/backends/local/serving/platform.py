"""Deployments on one machine: a name, a port, a book in a file, and a keeper that puts it in force."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType

from muster.backends.local.serving import door
from muster.backends.local.serving.folder import DeploymentFolder
from muster.backends.local.serving.kept import start_keeper
from muster.backends.local.serving.state import Change, DeploymentState
from muster.backends.releases import inference
from muster.backends.releases.book import Book, BookEntry, pin_reason, stale, unpin as unpin_all
from muster.backends.releases.deployments import Deployments
from muster.backends.releases.figures import added, if_known, read_counts
from muster.backends.releases.inference import exchanged
from muster.backends.releases.platform import Limits, Observed
from muster.backends.releases.tokens import Tokens
from muster.backends.request_log import Predictions
from muster.core.deployment import FINISH_SECONDS, LOOPBACK, Answer, Counts, SmokeRequest
from muster.core.errors import BackendError, Corrupt, DeploymentError, SpecError
from muster.core.locks import locked
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.images.lock import LOCK
from muster.volumes.protocols import LocalStore

ASK_SECONDS = 10.0
LOOK_SECONDS = 2.0
# More than a keeper gives its servers to finish, unless answers in parts may take longer.
RETIRE_SECONDS = 45.0
_KILL_SECONDS = 60.0
KEY = "Muster-Key"  # muster_serving.clients reads it
_AT_ONCE = 8  # one that does not answer must not hold up all others


@dataclass(frozen=True, kw_only=True)
class LocalBook(Book):
    """A book as it was read, with what the keeper saw.

    :param state: the document; None where there is none yet.
    :param alive: whether a keeper lives.
    """

    state: DeploymentState | None = None
    alive: bool = False

    @classmethod
    def of(cls, state: DeploymentState, *, alive: bool) -> LocalBook:
        """Return the book of a state."""
        book = state.book
        return cls(**{each.name: getattr(book, each.name) for each in fields(book)}, state=state, alive=alive)

    @property
    def down(self) -> DeploymentState | None:
        """The state as it is now: without a keeper no server runs, and what it saw is not so any more."""
        if self.state is None or self.alive:
            return self.state
        return self.state.down([one.name for one in self.state.live], reason="its keeper is gone")


def local_deployments(settings: Settings, store: LocalStore, *, copies: bool = False) -> Deployments:
    """Return the deployments of one MUSTER_HOME on one machine.

    :param copies: the store is elsewhere and the keepers cannot reach it: they are given copies of the models.
    """
    return Deployments(LocalPlatform(settings, store, copies=copies), lambda: store)


class LocalPlatform:
    """Implements :class:`muster.backends.releases.platform.Platform` with one keeper for each deployment."""

    limits = Limits(place="on one machine", servers=("serve", "kserve"), history=50)

    def __init__(self, settings: Settings, store: LocalStore, *, copies: bool = False) -> None:
        self._settings = settings
        self._store = store
        self._copies = copies
        self._root = settings.home / "deployments"

    def names(self) -> list[str]:
        """Return the name of every deployment, sorted."""
        if not self._root.is_dir():
            return []
        return sorted(path.name for path in self._root.iterdir() if self._is_one(path.name))

    def load(self, names: Collection[str] | None = None) -> Mapping[str, LocalBook | Corrupt]:
        """Return the books of these deployments, or of all; leave out what does not exist or is being retired."""
        found: dict[str, LocalBook | Corrupt] = {}
        for name in self.names() if names is None else names:
            folder = self._folder(name)
            # Asked first: a keeper takes its lock after what the last one saw is forgotten.
            alive = folder.kept()
            try:
                state = folder.read()
            except Corrupt as error:
                found[name] = error
            else:
                if state and not state.retired:
                    found[name] = LocalBook.of(state, alive=alive)
        return found

    def blank(self, name: str) -> LocalBook:
        """Return a book for a deployment that does not exist yet; end a retirement of it that was interrupted."""
        folder = self._folder(name)
        state = folder.read()
        if state and state.retired:
            self._take_away(folder, folder.named(), partial(unpin_all, self._store, name))
        return LocalBook(name=name)

    def admit(self, book: LocalBook, entry: BookEntry) -> None:
        """Refuse an image without a lock; copy the model where the keeper cannot reach the store.

        :raises SpecError: this installation lacks its servers, or the image's snapshot holds no lock.
        """
        spec = entry.spec
        shipped("serving")
        if book.state and book.state.live and book.state.host != spec.host:
            raise SpecError(
                f"host is {spec.host}, and {spec.name} listens on {book.state.host} for as long as it lives: leave host as "
                f"it was, or `muster deployments retire {spec.name}` first"
            )
        if spec.tokens:
            self._folder(book.name).need_tokens()
        for digest in spec.image_digests:
            if not (self._lock(entry, digest) / LOCK).is_file():
                raise SpecError(f"image of {spec.name}: its snapshot {digest:.20}… holds no {LOCK}")
        if self._copies:
            self._store.pin(spec.model.address, reason=pin_reason(book.name))
            self._folder(book.name).keep_model(spec.model.digest, self._store.path(spec.model.address))

    def save(self, book: LocalBook, *, in_force: bool = False) -> LocalBook:  # noqa: ARG002 a moment later
        """Write a book, and have it kept; it is in force a moment later.

        Where its keeper is gone, what was ready when that one last looked is brought up again.
        """
        folder = self._folder(book.name)
        first = None if book.state else DeploymentState(name=book.name, port=0)

        def write(state: DeploymentState) -> DeploymentState:
            if book.token != ("" if state is first else state.book.token):
                raise stale(book.name)
            for entry in book.live:
                if entry.name not in state.specs:
                    for digest in entry.spec.image_digests:
                        folder.keep_lock(digest, self._lock(entry, digest))
            host = book.live[0].spec.host if book.live and not state.live else state.host
            return replace(state, host=host).with_book(book)

        state = self._change(folder, write, first=first)
        if state is None:
            raise stale(book.name)
        return LocalBook.of(state, alive=True)

    def bring_up(self, book: LocalBook, entry: BookEntry) -> None:  # noqa: ARG002 a keeper brings up all of them
        """See that a keeper lives: it brings up what the book names."""
        folder = self._folder(book.name)
        if not folder.kept():
            self._change(folder, lambda now: now, first=None)

    def clear(self, name: str) -> LocalBook | None:
        """Return the book: the keeper takes away what is over when it has answered what it was asked."""
        book = self.load([name]).get(name)
        return book if isinstance(book, LocalBook) else None

    def retire(self, name: str, unpin: Callable[[Iterable[str]], None]) -> None:
        """Take a deployment away, let its requests finish, and leave no process.

        :raises BackendError: its keeper does not end even when it is killed.
        """
        folder = self._folder(name)
        with folder.changing():
            named = folder.named()
            try:
                state = folder.read()
            except Corrupt:
                state = DeploymentState(name=name, port=0)  # one that cannot be read is ended all the same
            if state is None:
                return
            folder.write(replace(state, retired=True))
        self._take_away(folder, named, unpin)
        Predictions(self._settings, self._store).commit(name)

    def observe(self, books: Sequence[LocalBook], *, counts: bool = False) -> list[Observed]:
        """Report what the keepers saw last, and whether each deployment answers."""
        if len(books) == 1:
            return [self._observed(books[0], counts=counts)]
        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(books) or 1)) as pool:
            return list(pool.map(lambda book: self._observed(book, counts=counts), books))

    def counts(self, book: LocalBook) -> Mapping[str, Counts]:
        """Return what each revision has answered since its server came up."""
        state = book.down
        if state is None:
            return {}
        inside = self._inside(state)
        pages = {
            port: _page(LOOPBACK, port, "/metrics", inside) for port in sorted(set(state.ports.values()))
        }
        counted = added(read_counts(page, name=state.name) for page in pages.values() if page is not None)
        silent = [name for name, port in state.ports.items() if pages[port] is None]
        return {one.name: counted.get(one.name, Counts()) for one in state.live if one.name not in silent}

    def ask(self, book: LocalBook, entry: BookEntry, request: SmokeRequest) -> tuple[Answer, ...]:
        """Send one real request to the server that holds a revision, past the route."""
        state, revision = book.down, entry.name
        port = state.ports.get(revision) if state else None
        if state is None or port is None:
            one = state.called(revision) if state else None
            why = (one.reason or f"it is {one.state.value}") if one else "it is not written down"
            return (Answer(replica=revision, outputs=None, error=f"it is not loaded: {why}"),)
        model, inside = f"/v2/models/{state.name}/versions/{revision}", self._inside(state)
        exchange = partial(exchanged, (LOOPBACK, port), headers=inside, seconds=ASK_SECONDS)
        return (inference.ask(f"{LOOPBACK}:{port}", model, request, exchange),)

    def tokens(self, name: str) -> Tokens:
        """Return the tokens of a deployment's clients."""
        return self._folder(name).tokens() or Tokens()

    def change_tokens(self, name: str, change: Callable[[Tokens], Tokens]) -> Tokens:
        """Change them; the keeper tells the servers within a tenth of a second."""
        return self._folder(name).change_tokens(change)

    def _inside(self, state: DeploymentState) -> Mapping[str, str]:
        """The headers of muster's own requests: they carry the key that servers ask for once clients need tokens."""
        tokens = self._folder(state.name).tokens()
        return {KEY: tokens.key} if tokens else {}

    def announce(self, name: str, message: str, *, mended: bool = False) -> None:
        """Do nothing: a machine has no Events."""

    def pause(self, name: str, why: str) -> None:
        """Write it into a file of the deployment's folder."""
        self._folder(name).pause(why)

    def restore(self) -> tuple[tuple[str, str], ...]:
        """Do nothing: the deletion of a deployment's files is its retirement."""
        return ()

    def repair(self, book: LocalBook) -> tuple[str, ...]:
        """Bring a keeper up where it is gone, and with it the servers of all live revisions."""
        if book.alive or not book.live:
            return ()
        self.bring_up(book, book.live[0])
        return ("its keeper is brought up again",)

    def _observed(self, book: LocalBook, *, counts: bool) -> Observed:
        state = book.down
        assert state is not None
        assert book.state is not None
        drift = ""
        if state.live and not book.alive:
            drift = f"its keeper is gone: `muster deployments repair {state.name}` brings it back"
        ready = None
        if book.alive and state.shares:
            ready = _page(state.door, state.port, f"/v2/models/{state.name}/ready")
        return Observed(
            url=state.url,
            grpc=state.grpc,
            answers=ready is not None,
            revisions=state.live,
            # What was ready when the last keeper looked may have traffic: it is brought up for it.
            resumable=frozenset(one.name for one in book.state.live if one.ready and not book.alive),
            trouble=state.reason,
            drift=drift,
            paused=self._folder(book.name).paused,
            counts=if_known(lambda: self.counts(book)) if counts else None,
        )

    def _is_one(self, name: str) -> bool:
        """Whether a folder is a deployment's that is not being retired; also one whose state cannot be read."""
        try:
            state = self._folder(name).read()
        except SpecError:
            return False  # no deployment has such a name
        except Corrupt:
            return True
        return state is not None and not state.retired

    def _change(
        self, folder: DeploymentFolder, change: Change, *, first: DeploymentState | None
    ) -> DeploymentState | None:
        """Write the state, see that a keeper lives if there is anything to keep, and return what stands then.

        :param first: what is changed where there is nothing yet.
        :returns: None where the deployment is being retired, or does not exist.
        """
        with locked(self._root / ".locks" / "ports"), folder.changing(), contextlib.ExitStack() as opened:
            before = folder.read()
            known = before or first
            if known is None or known.retired:
                return None
            state = change(known)
            if before and state.live and not folder.kept():
                # For those who see that a keeper lives, as in its `claim`.
                folder.write(before.down([one.name for one in before.live], reason="it is being brought up"))
            handle = folder.claim_keeper() if state.live else None
            if handle is not None:  # what the last keeper saw is not so any more
                opened.callback(os.close, handle)
                state = state.down([one.name for one in state.live], reason="it is being brought up")
            bound = None
            # Nothing ever served on its port: another will do.
            if handle is not None and not (state.shares and state.port):
                taken = self._taken(state)
                bound = door.bind(self._settings.home, before=state.port, taken=taken, host=state.host)
                opened.enter_context(bound)
                state = replace(state, port=bound.getsockname()[1])
            if state.wants_grpc and not state.grpc_port:
                state = replace(state, grpc_port=self._free_port(state))
            if state != before:
                folder.write(state)
            if handle is not None:
                start_keeper(self._settings, folder, handle, bound)
            return state

    def _take_away(
        self, folder: DeploymentFolder, named: Collection[str], unpin: Callable[[Iterable[str]], None]
    ) -> None:
        """Return when nothing of a deployment runs, and remove its folder."""
        await_end(folder)
        with folder.changing():
            state = folder.read()
            if state and state.retired:
                unpin(named)
                shutil.rmtree(folder.path)

    def _lock(self, entry: BookEntry, digest: str) -> Path:
        """An image's lock and recipe: the deployment's own copy, or what the store holds."""
        kept = self._folder(entry.spec.name).lock(digest)
        return kept if kept.is_dir() else self._store.code(digest)

    def _free_port(self, state: DeploymentState) -> int:
        """Return a port for gRPC. The keeper binds it a moment later: one that runs inherits nothing any more."""
        taken = {state.port, *self._taken(state)}
        with door.bind(self._settings.home, before=0, taken=taken, host=state.host) as bound:
            port: int = bound.getsockname()[1]
            return port

    def _taken(self, state: DeploymentState) -> set[int]:
        """The ports of the other deployments, and this one's own of gRPC."""
        others = (self._ports(name) for name in self.names() if name != state.name)
        return {state.grpc_port}.union(*others)

    def _ports(self, name: str) -> tuple[int, ...]:
        """The ports of a deployment; none where its state cannot be read: its servers hold the ports themselves."""
        with contextlib.suppress(Corrupt):
            state = self._folder(name).read()
            return (state.port, state.grpc_port) if state else ()
        return ()

    def _folder(self, name: str) -> DeploymentFolder:
        return DeploymentFolder(self._settings.home, name)


def await_end(folder: DeploymentFolder) -> None:
    """Return when the keeper is gone, and its servers with it; one that takes too long is killed, and the next one ends them.

    :raises BackendError: it does not end even so.
    """
    longer = _longer_seconds(folder)
    deadline, killed = time.monotonic() + RETIRE_SECONDS + longer, False
    while folder.kept():
        if time.monotonic() > deadline:
            if killed:
                raise BackendError(f"deployment {folder.name}: its keeper does not end; see {folder.path}")
            if keeper := folder.keeper():
                keeper.kill()
            deadline, killed = time.monotonic() + _KILL_SECONDS + longer, True
        time.sleep(0.02)


def _longer_seconds(folder: DeploymentFolder) -> float:
    """How much longer than usual its servers may take to finish."""
    try:
        state = folder.read()
    except Corrupt:
        return 0.0  # what they finish is unknown
    return state.finish_seconds - FINISH_SECONDS if state else 0.0


def _page(host: str, port: int, path: str, headers: Mapping[str, str] = MappingProxyType({})) -> str | None:
    """Return a page; None where it cannot be had now."""
    try:
        status, text = exchanged((host, port), path, headers=headers, seconds=LOOK_SECONDS)
    except DeploymentError:
        return None
    return text.decode(errors="replace") if status == HTTPStatus.OK else None
