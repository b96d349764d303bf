"""The files of each deployment of a home: one folder and its locks, read and written by all.

::

    HOME/deployments/NAME/state.json    host, port, book, every revision so far: a DeploymentState
                          tokens.json   of the clients, for their owner's eyes: a Tokens
                          paused        why it is not brought up again by itself; mostly there is none
                          keeper.json   who keeps it: pid, boot id, start time
                          locks/HEX/    the lock and recipe of each image that serves or did
                          models/HEX/   the models, where their store is not on this machine
                          *.log         what keeper and servers say
    HOME/deployments/.locks/            NAME.state: held to change the state
                                        NAME.keeper: held by the keeper as long as it lives
                                        NAME.models: held to copy a model
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from muster.backends.local.processes import Process
from muster.backends.local.serving.state import Change, DeploymentState
from muster.backends.releases.tokens import Tokens, new_token
from muster.core.errors import BackendError, Corrupt, NotFound, SpecError
from muster.core.locks import is_locked, locked, take
from muster.core.names import check_label
from muster.core.wire import dumps, loads
from muster.volumes.durability import sync_tree, write_whole

T = TypeVar("T")

_CLAIMS = 20
_CLAIM_SECONDS = 0.001


class DeploymentFolder:
    """The files of one deployment."""

    def __init__(self, home: Path, name: str) -> None:
        self.name = check_label("deployment", name)
        self.path = home / "deployments" / name
        self._locks = home / "deployments" / ".locks"
        self._state, self._tokens = self.path / "state.json", self.path / "tokens.json"

    def read(self) -> DeploymentState | None:
        """Return the state, or None where there is no such deployment.

        :raises Corrupt: another release of muster wrote it, or it is no state.
        """
        advice = (
            "another release of muster wrote it, or it was edited by hand. Put it back, or muster deployments retire "
            f"{self.name} and deploy it again"
        )
        return self._read(self._state, lambda text: loads(DeploymentState, text), advice)

    def _read(self, path: Path, parsed: Callable[[bytes], T], advice: str) -> T | None:
        """Return a document; None where there is none. :raises Corrupt: it cannot be read."""
        try:
            return parsed(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except SpecError as error:
            raise Corrupt(f"deployment {self.name}: {path} cannot be read ({error}): {advice}") from error

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Say which file cannot be written. :raises BackendError: the disk is full or not ours to write."""
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise BackendError(f"deployment {self.name}: {path} cannot be written ({why})") from error

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
        with self._writing(self._state):
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self._state, dumps(state))

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
        advice = "put it back, or delete it and make each client's token anew"
        return self._read(self._tokens, lambda text: loads(Tokens, text), advice)

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
        with self._writing(self._tokens):
            write_whole(self._tokens, dumps(tokens), mode=0o600)
        return tokens

    @property
    def paused(self) -> str:
        """Why it is not brought up again by itself; empty where it is."""
        with suppress(FileNotFoundError):
            return (self.path / "paused").read_text(encoding="utf-8", errors="replace")
        return ""

    def pause(self, why: str) -> None:
        """Write down why it is not to be brought up again by itself; an empty reason ends that."""
        with self._writing(self.path / "paused"):
            write_whole(self.path / "paused", why)

    def tokens_stamp(self) -> int:
        """Return a number that changes when the tokens are written; 0 where there are none."""
        return _stamp(self._tokens)

    def claim_keeper(self) -> int | None:
        """Take the keeper's lock if no keeper lives; the open file holds it, also in a child."""
        self._locks.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._locks / f"{self.name}.keeper", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for _ in range(_CLAIMS):
            if take(handle, wait=False):
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
        with self._writing(kept):
            part.mkdir(parents=True, exist_ok=True)
            for file in snapshot.iterdir():
                write_whole(part / file.name, file.read_text(encoding="utf-8"))
            part.rename(kept)

    def lock(self, digest: str) -> Path:
        """Return the folder of that copy."""
        return self.path / "locks" / digest.removeprefix("b3:")

    def keep_model(self, digest: str, source: Path) -> None:
        """Keep a copy of a model whose store the keeper cannot reach, whole or not at all.

        :raises BackendError: the disk is full or not ours to write.
        """
        kept = self.model(digest)
        part = kept.with_name(f".{kept.name}")
        with self._writing(kept), locked(self._locks / f"{self.name}.models"):
            if kept.is_dir():
                return
            shutil.rmtree(part, ignore_errors=True)
            for file in filter(Path.is_file, source.rglob("*")):
                target = part / file.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
            sync_tree(part)
            part.rename(kept)

    def model(self, digest: str) -> Path:
        """Return the folder of that copy."""
        return self.path / "models" / digest.removeprefix("b3:")

    @property
    def copies(self) -> bool:
        """Whether models were copied here, because their store is not on this machine."""
        return (self.path / "models").is_dir()


def _stamp(path: Path) -> int:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    return found.st_mtime_ns ^ found.st_ino
