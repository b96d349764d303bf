"""The files of each deployment of a home: one folder and two locks, read and written by all.

What people and drivers write (the shares, the release under way, what is over) is the book, and each write of it
counts `generation` up. What the keeper sees (what is up, where, how often it died) does not.

::

    HOME/deployments/NAME/state.json    host, port, book, every revision so far: a DeploymentState
                          tokens.json   of the clients, for their owner's eyes: a Tokens
                          keeper.json   who keeps it: pid, boot id, start time
                          locks/HEX/    the lock and recipe of each image that serves or did
                          models/HEX/   the models, where their store is not on this machine
                          *.log         what keeper and servers say
    HOME/deployments/.locks/            NAME.state: held to change the state
                                        NAME.keeper: held by the keeper as long as it lives
                                        NAME.models: held to copy a model
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from muster.backends.local.processes import Process
from muster.backends.releases.book import Book, Entry, number
from muster.backends.releases.tokens import Tokens, new_token
from muster.core.deployment import (
    FINISH_SECONDS,
    LOOPBACK,
    DeploymentSpec,
    Release,
    Revision,
    RevisionState,
)
from muster.core.errors import BackendError, Corrupt, NotFound, SpecError
from muster.core.job import Pinned
from muster.core.locks import is_locked, locked
from muster.core.names import check_label
from muster.core.wire import dumps, loads
from muster.volumes.durability import sync_tree, write_whole

_CLAIMS = 20
_CLAIM_SECONDS = 0.001
EVERYWHERE = "0.0.0.0"  # noqa: S104 it is compared with
_UP = (RevisionState.READY, RevisionState.SERVING)

ServerKey = tuple[str, str, str, bool]


@dataclass(frozen=True, kw_only=True)
class DeploymentState:
    """One deployment as it was last written down.

    :param grpc_port: where it answers gRPC; 0 where no revision ever asked for that.
    :param generation: how often the route was written.
    :param made: how many revisions there ever were, of which the latest that are over are remembered.
    :param revisions: newest first.
    :param specs: of the revisions that are not over, by name.
    :param tried: those of them that have been up, and are tried apart no more when they come up again.
    :param ports: where the servers of those that are up answer in private, by name.
    :param reason: what it suffers from now.
    :param host: the address that it listens on; it stays as long as a revision lives.
    """

    name: str
    port: int
    generation: int = 0
    made: int = 0
    revisions: tuple[Revision, ...] = ()
    specs: Mapping[str, DeploymentSpec] = field(default_factory=dict)
    tried: tuple[str, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)
    release: Release | None = None
    reason: str = ""
    retired: bool = False
    host: str = LOOPBACK
    grpc_port: int = field(default=0, metadata={"later": True})

    @property
    def door(self) -> str:
        """The address at which this machine asks: loopback where it listens on all of them."""
        return LOOPBACK if self.host == EVERYWHERE else self.host

    @property
    def url(self) -> str:
        """Where it answers, for this machine."""
        return f"http://{self.door}:{self.port}"

    @property
    def grpc(self) -> str:
        """Where it answers gRPC, for this machine; empty where the revision that leads does not."""
        return f"{self.door}:{self.grpc_port}" if self.leads_grpc else ""

    @property
    def terms(self) -> DeploymentSpec | None:
        """The spec that says who may ask and how much: that of the revision that leads. None where nothing has traffic."""
        return self.specs.get(self.lead) if self.lead else None

    @property
    def wants_grpc(self) -> bool:
        """Whether a revision that is not over answers gRPC."""
        return any(spec.grpc for spec in self.specs.values())

    @property
    def finish_seconds(self) -> float:
        """How long its servers give requests under way at their end."""
        return max((spec.finish_seconds for spec in self.specs.values()), default=FINISH_SECONDS)

    @property
    def leads_grpc(self) -> bool:
        """Whether users are answered over gRPC: as the revision says that leads."""
        return self.lead is not None and self.specs[self.lead].grpc

    @property
    def book(self) -> Book:
        """What the rules of releases are about."""
        live = [one for one in self.revisions if not one.state.over]
        return Book(
            name=self.name,
            made=self.made,
            live=tuple(Entry(name=one.name, spec=self.specs[one.name], since=one.since) for one in live),
            over=tuple(one for one in self.revisions if one.state.over),
            shares={one.name: one.percent for one in live if one.percent or one.kept},
            release=self.release,
            token=str(self.generation),
        )

    def with_book(self, book: Book) -> DeploymentState:
        """The state once this book is written; of revisions that stay, what the keeper saw stays."""
        before = {one.name: one for one in self.revisions}
        live = [_live(one, before.get(one.name), book) for one in book.live]
        over = [_over(one, before.get(one.name, one)) for one in book.over]
        names = {one.name for one in live}
        return replace(
            self,
            generation=self.generation + 1,
            made=book.made,
            revisions=tuple(sorted((*live, *over), key=lambda one: number(one.name), reverse=True)),
            specs={one.name: one.spec for one in book.live},
            tried=tuple(name for name in self.tried if name in names),
            ports={name: port for name, port in self.ports.items() if name in names},
            release=book.release,
        )

    @property
    def shares(self) -> dict[str, int]:
        """Percent by revision, of those that have any."""
        return {one.name: one.percent for one in self.revisions if one.percent}

    @property
    def lead(self) -> str | None:
        """Whom the others leave what they cannot answer; None where nothing has a share.

        The champion of a release, as long as it has any share: another one is only being tried. Else the greatest.
        """
        shares, champion = self.shares, self.release.champion if self.release else None
        return max(shares, key=lambda name: (name == champion, shares[name]), default=None)

    @property
    def live(self) -> tuple[Revision, ...]:
        """The revisions that are not over: the one that leads first, then by their shares, then the newest."""
        lead = self.lead
        there = (one for one in self.revisions if not one.state.over)
        return tuple(sorted(there, key=lambda one: (one.name != lead, -one.percent)))

    def server_key(self, name: str) -> ServerKey:
        """What tells which revisions share a server process: those of one environment that answer the same protocols.

        One whose process has died comes back in its own, so that it takes no other with it a second time. A model with
        workers runs in them, and can take no server with it.
        """
        spec = self.specs[name]
        suspect = spec.workers is None and self.called(name).restarts
        return spec.server, spec.image_digest, name if suspect else "", spec.grpc

    def called(self, name: str) -> Revision:
        """The revision of a name. :raises NotFound: there is none, or it is over and gone."""
        for one in self.revisions:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.live) or "none"
        raise NotFound(f"deployment {self.name} has no revision {name!r:.60}; there is {known}")

    # what the keeper sees

    def up(self, name: str, *, port: int) -> DeploymentState:
        """A revision is loaded and answers on a private port."""
        one = self.called(name)
        if one.state.over:
            return self
        state = RevisionState.SERVING if one.percent else RevisionState.READY
        since = one.since if name in self.tried else time.time()
        found = replace(one, state=state, ready=1, reason="", since=since)
        tried = self.tried if name in self.tried else (*self.tried, name)
        return replace(self._with({name: found}), ports={**self.ports, name: port}, tried=tried)

    def down(self, names: Iterable[str], *, reason: str, died: bool = False) -> DeploymentState:
        """Revisions are not up, or not any more; `died` where they did."""
        several = {
            one.name: replace(
                one,
                ready=0,
                reason=reason,
                restarts=one.restarts + died,
                state=RevisionState.STARTING if one.state in _UP else one.state,
            )
            for one in self.live
            if one.name in names and (one.ready or died or one.reason != reason)
        }
        ports = {name: port for name, port in self.ports.items() if name not in several}
        return replace(self._with(several), ports=ports) if several else self

    def told(self, name: str, *, reason: str, ended: bool) -> DeploymentState:
        """A server says how the workers of a revision are.

        :param reason: what is wrong with them; empty where nothing is.
        :param ended: whether one has just ended.
        """
        one = self.called(name)
        if one.state.over:
            return self
        return self._with({name: replace(one, reason=reason, restarts=one.restarts + ended)})

    def failed(self, name: str, *, reason: str) -> DeploymentState:
        """A revision cannot be brought up."""
        one = self.called(name)
        if one.state.over:
            return self
        one = replace(one, state=RevisionState.FAILED, ready=0, reason=reason, since=time.time())
        return self._with({name: one})

    def _with(self, several: Mapping[str, Revision]) -> DeploymentState:
        return replace(self, revisions=tuple(several.get(one.name, one) for one in self.revisions))


Change = Callable[[DeploymentState], DeploymentState]


def _live(entry: Entry, seen: Revision | None, book: Book) -> Revision:
    """A revision as it is once a book is written; `seen` as it was before, None where it is new."""
    percent = book.shares.get(entry.name)
    if seen is None:
        seen = Revision(
            name=entry.name, model=entry.spec.model, state=RevisionState.STARTING, since=entry.since
        )
    state = seen.state
    if state in _UP:
        state = RevisionState.SERVING if percent else RevisionState.READY
    since = seen.since if seen.percent == (percent or 0) else book.moved
    return replace(seen, percent=percent or 0, kept=percent == 0, state=state, since=since)


def _over(ended: Revision, seen: Revision) -> Revision:
    """A revision that is over, with how often it died."""
    return replace(
        seen, state=ended.state, reason=ended.reason, since=ended.since, ready=0, percent=0, kept=False
    )


def past_models(state: DeploymentState) -> list[Pinned]:
    """Return the versions that served once or were tried, but for those of the revisions that are not over."""
    kept = {one.model for one in state.live}
    return [model for model in dict.fromkeys(one.model for one in state.revisions) if model not in kept]


class DeploymentFolder:
    """The files of one deployment."""

    def __init__(self, home: Path, name: str) -> None:
        self.name = check_label("deployment", name)
        self.path = home / "deployments" / name
        self._locks = home / "deployments" / ".locks"

    def read(self) -> DeploymentState | None:
        """Return the state, or None where there is no such deployment.

        :raises Corrupt: another release of muster wrote it, or it is no state.
        """
        try:
            return loads(DeploymentState, self._state.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except SpecError as error:
            raise Corrupt(
                f"deployment {self.name}: {self._state} cannot be read ({error}): another release of muster wrote "
                f"it, or it was edited by hand. Put it back, or muster deployments retire {self.name} and deploy it again"
            ) from error

    @property
    def lost(self) -> bool:
        """Whether the home was deleted, and with it the locks that others would look at."""
        return not self._locks.is_dir()

    def named(self) -> set[str]:
        """Return the versions that the state names, also where another release of muster wrote it."""
        try:
            text = self._state.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return set()
        return set(re.findall(r'volume://[^"@\\]+@[0-9]+', text))

    def write(self, state: DeploymentState) -> None:
        """Record a state, whole and durably. Call it within :meth:`changing`.

        :raises BackendError: the disk is full or not ours to write; what was recorded before stands.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self._state, dumps(state))
        except OSError as error:
            raise BackendError(
                f"deployment {self.name}: {self._state} cannot be written ({error.strerror or error})"
            ) from error

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the state's lock: no other process changes it meanwhile, and no keeper comes or goes."""
        with locked(self._locks / f"{self.name}.state"):
            yield

    def change(self, change: Change) -> DeploymentState | None:
        """Change the state, if there is one that is not being retired, and return it as it is then."""
        with self.changing():
            before = self.read()
            if before is None or before.retired:
                return before
            after = change(before)
            if after != before:
                self.write(after)
            return after

    def stamp(self) -> int:
        """Return a number that changes when the state is written; 0 where there is none."""
        return _stamp(self._state)

    def tokens(self) -> Tokens | None:
        """Return the tokens of the clients; None where there never were any.

        :raises Corrupt: they cannot be read.
        """
        try:
            return loads(Tokens, self._tokens.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except SpecError as error:
            raise Corrupt(
                f"deployment {self.name}: {self._tokens} cannot be read ({error}): put it back, or delete it and make "
                f"each client's token anew"
            ) from error

    def change_tokens(self, change: Callable[[Tokens], Tokens]) -> Tokens:
        """Change the tokens, in a file that its owner alone may read, and return them as they are then.

        :raises NotFound: the deployment is gone; :raises BackendError: the disk is full or not ours to write.
        """
        with self.changing():
            state = self.read()
            if state is None or state.retired:
                raise NotFound(f"no deployment {self.name!r}")
            return self._write_tokens(change(self.tokens() or Tokens(key=new_token())))

    def need_tokens(self) -> None:
        """See that there is a key for muster's own requests. Call it before a revision is written that needs it."""
        with self.changing():
            if self.tokens() is None:
                self.path.mkdir(parents=True, exist_ok=True)
                self._write_tokens(Tokens(key=new_token()))

    def _write_tokens(self, tokens: Tokens) -> Tokens:
        try:
            write_whole(self._tokens, dumps(tokens), mode=0o600)
        except OSError as error:
            raise BackendError(
                f"deployment {self.name}: {self._tokens} cannot be written ({error.strerror or error})"
            ) from error
        return tokens

    def tokens_stamp(self) -> int:
        """Return a number that changes when the tokens are written; 0 where there are none."""
        return _stamp(self._tokens)

    def claim_keeper(self) -> int | None:
        """Take the keeper's lock if no keeper lives; the open file holds it, also in a child."""
        self._locks.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._locks / f"{self.name}.keeper", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for _ in range(_CLAIMS):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return handle
            keeper = self.keeper()
            if keeper is not None and keeper.alive:
                break
            time.sleep(_CLAIM_SECONDS)  # the lock's holder may only be looking whether a keeper lives
        os.close(handle)
        return None

    def kept(self) -> bool:
        """Whether a keeper lives. Asked with a shared lock, within :meth:`changing` or for a glance."""
        return is_locked(self._locks / f"{self.name}.keeper")

    def write_keeper(self, process: Process) -> None:
        """Record who the keeper is."""
        write_whole(self.path / "keeper.json", dumps(process), durable=False)

    def keeper(self) -> Process | None:
        """Return the process that is the keeper, or was it last; None where it is unknown."""
        try:
            return loads(Process, (self.path / "keeper.json").read_bytes())
        except (FileNotFoundError, SpecError):  # it need not have survived a power cut
            return None

    def keep_lock(self, digest: str, snapshot: Path) -> None:
        """Keep a copy of an image's lock: the environment may have to be built again when gc has taken it.

        :raises BackendError: the disk is full or not ours to write.
        """
        kept = self.lock(digest)
        if kept.is_dir():
            return
        part = kept.with_name(f".{kept.name}")
        try:
            part.mkdir(parents=True, exist_ok=True)
            for file in snapshot.iterdir():
                write_whole(part / file.name, file.read_text(encoding="utf-8"))
            part.rename(kept)
        except OSError as error:
            raise BackendError(f"deployment {self.name}: {kept} cannot be written ({error})") from error

    def lock(self, digest: str) -> Path:
        """Return the folder of that copy."""
        return self.path / "locks" / digest.removeprefix("b3:")

    def keep_model(self, digest: str, source: Path) -> None:
        """Keep a copy of a model whose store the keeper cannot reach, whole or not at all.

        :raises BackendError: the disk is full or not ours to write.
        """
        kept = self.model(digest)
        part = kept.with_name(f".{kept.name}")
        try:
            with locked(self._locks / f"{self.name}.models"):
                if kept.is_dir():
                    return
                shutil.rmtree(part, ignore_errors=True)
                for file in filter(Path.is_file, source.rglob("*")):
                    target = part / file.relative_to(source)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, target)
                sync_tree(part)
                part.rename(kept)
        except OSError as error:
            raise BackendError(f"deployment {self.name}: {kept} cannot be written ({error})") from error

    def model(self, digest: str) -> Path:
        """Return the folder of that copy."""
        return self.path / "models" / digest.removeprefix("b3:")

    @property
    def copies(self) -> bool:
        """Whether models were copied here, because their store is not on this machine."""
        return (self.path / "models").is_dir()

    @property
    def _state(self) -> Path:
        return self.path / "state.json"

    @property
    def _tokens(self) -> Path:
        return self.path / "tokens.json"


def _stamp(path: Path) -> int:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    return found.st_mtime_ns ^ found.st_ino
