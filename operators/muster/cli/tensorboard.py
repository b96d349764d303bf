"""``muster tensorboard``: shows the event files of model versions and of running jobs, in the TensorBoard of an image."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from muster.cli.command import open_store
from muster.cli.foreground import check_port, python_of_image, serve, temporary_folder
from muster.cli.jobs import find_newest
from muster.cli.screen import note, safe, say
from muster.core.errors import MusterError, NotFound
from muster.core.interpreters import python_command

if TYPE_CHECKING:
    from muster.volumes.base import Version
    from muster.volumes.protocols import LocalStore


EVENTS = "events.out.tfevents."
EVERY_SECONDS = 5.0  # as often as TensorBoard itself looks for more


class EventFollower:
    """A thread that looks every few seconds until the job has ended, as long as the context lasts.

    :param folder: where the copies go, ``REPLICA/OUTPUT/…`` below it.
    :param begins: what the names of event files begin with.
    """

    def __init__(
        self, store: LocalStore, job_id: str, folder: Path, *, begins: tuple[str, ...] = (EVENTS,)
    ) -> None:
        self._store, self._job_id, self._folder, self._begins = store, job_id, folder, begins
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event-files", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        said = ""
        while not self._over.is_set():
            try:
                if self.look():
                    note(f"{self._job_id} has ended: this is all of it")
                    return
                said = ""
            except MusterError as error:  # the next look may succeed
                if str(error) != said:
                    note(f"warning: {safe(error)}")
                said = str(error)
            self._over.wait(EVERY_SECONDS)

    def look(self) -> bool:
        """Copy what has come since the last look; return whether the job has ended."""
        status = self._store.ledger.status(self._job_id)
        if not status.state.ended:
            self._follow()
            return False
        if status.result is None:  # its event log may have been kept, and ends with what told of the failure
            self._follow()
            return True
        for output, addresses in status.result.outputs.items():
            for address in addresses:
                self._complete(output, address)
        self._drop_stale()
        return True

    def _follow(self) -> None:
        for begins in self._begins:
            self._store.follow(self._job_id, self._folder, begins=begins)
            self._drop_stale()

    def _drop_stale(self) -> None:
        """Delete copies of files that were renamed: with ``.inprogress``, an application of Spark's would never end."""
        for stale in self._folder.rglob("*.inprogress"):
            if stale.with_suffix("").exists():
                stale.unlink()

    def _complete(self, output: str, address: str) -> None:
        """Add what was written between the last look and the commit: it is in the version."""
        from muster.volumes.tree import lengthen  # slow to import, and not yet needed

        for path in self._store.manifest(address):
            name = path.rpartition("/")[2]
            # a name holds its time, machine and process: there is one of each
            if name.startswith(self._begins):
                beside = next(self._folder.glob(f"*/{output}"), self._folder / output)
                copy = next(self._folder.glob(f"*/{output}/**/{escape(name)}"), beside / path)
                with self._store.path(f"{address}/{path}").open("rb") as file:
                    lengthen(copy, file)


def tensorboard(
    shown: Annotated[
        str | None,
        typer.Argument(
            metavar="ADDRESS|JOB",
            help="A volume or version, or a job's id or its beginning; by default all versions.",
        ),
    ] = None,
    *,
    image: Annotated[str, typer.Option(help="The image with TensorBoard.")] = "train",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Its port on 127.0.0.1.")] = 6006,
) -> None:
    """Show curves of versions or of a running job, until Ctrl-C.

    A running job's curves grow as its ranks write event files into an output.
    """
    store = open_store()
    job_id = find_newest(store.ledger, shown) if shown and _names_a_job(store, shown) else None
    follows = job_id is not None and not store.ledger.status(job_id).state.ended
    runs = (
        {} if follows else dict(_runs(store, _made_by(store, job_id) if job_id else _versions(store, shown)))
    )
    if not runs and not follows:
        raise NotFound(
            f"no TensorBoard events in {shown or 'any volume'}: a stage writes them into its output"
        )
    check_port(port)
    python = python_of_image(image)
    with ExitStack() as opened:
        folder = opened.enter_context(temporary_folder("muster-tensorboard-"))
        for name, path in runs.items():
            (folder / name).symlink_to(path)
        if job_id is not None and follows:
            opened.enter_context(EventFollower(store, job_id, folder / job_id))
            note(f"{job_id} goes on: its curves are looked at every few seconds")
        else:
            note(f"{len(runs)} run{'s' * (len(runs) != 1)}: {safe(', '.join(runs))}")
        say(f"http://127.0.0.1:{port}/   Ctrl-C ends it")
        where = ("--logdir", str(folder), "--host", "127.0.0.1", "--port", str(port))
        serve("TensorBoard", python_command("-m", "tensorboard.main", *where, of=python, isolated=True))


def _names_a_job(store: LocalStore, text: str) -> bool:
    """Whether the text names no volume and no version: most volumes have a slash in their names, all addresses an @."""
    return not any(mark in text for mark in "/@") and text not in store.volumes()


def _runs(store: LocalStore, versions: list[Version]) -> Iterator[tuple[str, Path]]:
    """Yield a name and a folder for each version with event files."""
    for version in versions:
        if any(path.rpartition("/")[2].startswith(EVENTS) for path in store.manifest(version.address)):
            yield f"{version.volume.replace('/', '.')}@{version.number}", store.path(version.address)


def _versions(store: LocalStore, address: str | None) -> list[Version]:
    if address is None:
        return [version for name in store.volumes() for version in store.versions(name)]
    if "@" in address:
        return list(store.resolve(address))
    return store.versions(address) or list(store.resolve(address))


def _made_by(store: LocalStore, job_id: str) -> list[Version]:
    made = store.ledger.status(job_id).addresses
    return [version for address in made for version in store.resolve(address)]
