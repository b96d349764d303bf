"""The code that travels with a job, a snapshot of the Dag's folder, and the image that its tasks name.

``dags/flights/dag.py`` sends ``flights/`` and its functions are ``flights.train:train``. A Dag file
that lies directly in the bundle's root travels alone: the root belongs to all Dags.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.core.errors import NotFound, SpecError
from muster.core.shipped import shipped
from muster.volumes.changes import changed, files_below, read_below

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from muster.core.settings import Settings
    from muster.volumes.base import Record
    from muster.volumes.protocols import LocalStore


@dataclass(frozen=True, kw_only=True)
class Code:
    """Files that become a code snapshot.

    :param root: what the paths of `files` are relative to, and the import path inside a job.
    :param texts: files of them that travel with this text, and not as they lie on disk.
    """

    root: Path
    files: tuple[str, ...]
    texts: Mapping[str, str] = field(default_factory=dict)

    def put(self, store: LocalStore) -> str:
        """Keep them in the store and return the snapshot's digest."""
        return store.put(self.root, self.files, texts=self.texts)

    def read(self, file: str) -> bytes:
        """Return what a file holds inside a job. :raises OSError: it cannot be read."""
        text = self.texts.get(file)
        return (self.root / file).read_bytes() if text is None else text.encode()

    def content(self, file: str) -> bytes | None:
        """Return what a file holds inside a job, or the names in a folder, which ends in ``/``; None where there is none."""
        if file.endswith("/"):
            start = "" if file == "./" else file
            names = {name[len(start) :].partition("/")[0] for name in self.files if name.startswith(start)}
            return "\n".join(sorted(names)).encode() if names else None
        try:
            return self.read(file)
        except OSError:
            return None

    def having(self, file: str, text: str) -> Code:
        """The same with a file of that text, in place of one of that name or beside the others."""
        files = tuple(dict.fromkeys([*self.files, file]))
        return replace(self, files=files, texts={**self.texts, file: text})


@dataclass(frozen=True, kw_only=True)
class DagFolder:
    """A Dag's file, and the bundle that it was found in."""

    file: Path
    bundle: Path

    @classmethod
    def of(cls, dag: DAG) -> DagFolder:
        """Read both from a parsed Dag."""
        file = Path(dag.fileloc).absolute()
        relative = getattr(dag, "relative_fileloc", None)
        if relative and not Path(relative).is_absolute() and file.as_posix().endswith("/" + relative):
            return cls(file=file, bundle=Path(*file.parts[: len(file.parts) - len(Path(relative).parts)]))
        return cls(file=file, bundle=_configured_root(file))

    @property
    def path(self) -> Path:
        """The Dag's own folder: beside its code lie its suites and smoke requests."""
        return self.file.parent

    @property
    def root(self) -> Path:
        """The import path: above the Dag's folder, or the bundle's root for a Dag that lies in it."""
        return self.path if self.path == self.bundle else self.path.parent

    def code(self, more: Sequence[str] = ()) -> Code:
        """Collect what travels.

        :param more: further files or folders, relative to the Dag's folder.
        :raises SpecError: one of them is missing, or lies above the import path.
        """
        from muster.volumes.snapshot import collect

        if self.path == self.bundle:
            files = [self.file.name]
        else:
            files = [f"{self.path.name}/{name}" for name in collect(self.path)]
        for name in more:
            files += self._further(name)
        return Code(root=self.root, files=tuple(dict.fromkeys(files)))

    def read(self, name: str, *, what: str) -> str:
        """Return the text of a file of the Dag's folder.

        :raises SpecError: it is not there, lies outside the folder or is no text.
        """
        path = (self.path / name).resolve()
        if not path.is_relative_to(self.path.resolve()):
            raise SpecError(f"{what} {name!r} lies outside the Dag's folder {self.path}")
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"{what} {name!r} cannot be read from {self.path}: {error}") from error

    def image(self, name: str, settings: Settings) -> Path:
        """Find an image: ``images/`` of the Dag's folder, of the bundle, of the folder above it, then further ones.

        :raises SpecError: it is not there, not locked, or its lock is out of date.
        """
        from muster.images.folders import find_image, image_folders

        folders = image_folders(settings, self.path, self.bundle, self.bundle.parent)
        return find_image(name, folders, others=sorted(self.bundle.glob("*/images")))

    def _further(self, name: str) -> list[str]:
        from muster.volumes.snapshot import collect

        path, root = (self.path / name).resolve(), self.root.resolve()
        if not path.exists():
            raise SpecError(f"code {name!r}: nothing is there; it is looked for from {self.path}")
        if not path.is_relative_to(root) or path == root:
            raise SpecError(f"code {name!r} must lie below {root}, the import path of the job")
        below = path.relative_to(root).as_posix()
        return [below] if path.is_file() else [f"{below}/{file}" for file in collect(path)]


def serving_code() -> Code:
    """The model server's code, which makes smoke requests and scores. :raises SpecError: this installation lacks it."""
    root = shipped("serving")
    found = tuple(sorted(str(file.relative_to(root)) for file in root.glob("muster_serving/**/*.py")))
    if not found:
        raise SpecError(f"{root} holds no muster_serving: install muster again")
    return Code(root=root, files=found)


def records(result: Mapping[str, Any], store: LocalStore) -> Iterator[Record]:
    """The record of each commit that a task's result names, as far as the store still knows it."""
    for addresses in result.get("versions", {}).values():
        for address in [addresses] if isinstance(addresses, str) else addresses[:1]:
            with suppress(NotFound):
                yield store.record(address)


def differing(
    digest: str | None, modules: Sequence[str] | None, code: Code, store: LocalStore
) -> tuple[str, ...]:
    """Name the files that a job imported and that read differently now, sorted.

    :param digest: of the snapshot that the job ran; None where it had none.
    :param modules: what it imported; where that is not known, every file of the snapshot counts.
    """
    if digest is None:
        return ()
    then = store.code(digest)
    files = {*files_below(then), *code.files} if modules is None else set(modules)
    return changed(files, partial(read_below, then), code.content)


def _configured_root(file: Path) -> Path:
    from airflow.sdk import conf

    folder = Path(conf.get("core", "dags_folder")).absolute()
    return folder if file.is_relative_to(folder) else file.parent
