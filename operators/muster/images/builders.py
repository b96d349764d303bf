"""The program that builds and pushes container images: buildah, podman or docker, and what its failures mean."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.core.errors import MusterError, SpecError

_BUILDERS = ("buildah", "podman", "docker")
_LAST_LINES = 15
_LONGEST_LINE = 400

Progress = Callable[[str], None]


class ContainerError(MusterError):
    """An image cannot be built, or not pushed."""


@dataclass(frozen=True, kw_only=True)
class Builder:
    """A program that builds and pushes images."""

    program: str
    path: str

    @classmethod
    def find(cls, wanted: str | None = None) -> Builder:
        """Return the one that is asked for, or the first that is there.

        :raises ContainerError: it is not there; SpecError: it is not known.
        """
        if wanted is not None and wanted not in _BUILDERS:
            raise SpecError(f"builder {wanted!r:.40}: known are {', '.join(_BUILDERS)}")
        for program in (wanted,) if wanted else _BUILDERS:
            path = shutil.which(program)
            if path:
                return cls(program=program, path=path)
        raise ContainerError(
            f"no {wanted or ', '.join(_BUILDERS[:-1]) + ' or ' + _BUILDERS[-1]} here: container images are built with "
            "one of them; install one, such as Debian's package buildah, or build on a machine that has it"
        )

    def build(self, context: Path, tags: Sequence[str], options: Sequence[str], tell: Progress) -> str:
        """Build a context under some names, without times in it, and return the image's id."""
        told = [word for tag in tags for word in ("--tag", tag)]
        with tempfile.TemporaryDirectory(prefix="muster-image-") as folder:
            id_file = Path(folder) / "id"
            times = () if self.program == "docker" else ("--timestamp=0",)
            words = ("build", *times, *told, *options, f"--iidfile={id_file}", str(context))
            self._run(words, doing=f"building {tags[0]}", tell=tell)
            return id_file.read_text().strip()

    def push(self, reference: str, tell: Progress) -> None:
        """Send an image to its registry."""
        self._run(("push", reference), doing=f"pushing {reference}", tell=tell)

    def size(self, reference: str) -> str:
        """Return how large an image is, in words."""
        words = (self.path, "images", "--format", "{{.Size}}", reference)
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.stdout.partition("\n")[0].strip()

    def _run(self, words: Sequence[str], *, doing: str, tell: Progress) -> None:
        """Run it, and pass on what it says. :raises ContainerError: it failed, with its last words."""
        environment = os.environ | {
            "DOCKER_BUILDKIT": "1",
            "SOURCE_DATE_EPOCH": "0",
            "BUILDKIT_PROGRESS": "plain",
        }
        said: list[str] = []
        tell(doing)
        with subprocess.Popen(
            (self.path, *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip():
                    said = [*said, line.rstrip()][-_LAST_LINES:]
                    tell(f"{doing}: {line.strip()[:160]}")
        if process.returncode:
            raise ContainerError(_failure(self.program, doing, process.returncode, said))


def _failure(program: str, doing: str, code: int, said: Sequence[str]) -> str:
    text = "\n".join(said).lower()
    shown = "\n".join(f"  {_cut(line)}" for line in said)
    advice = next(
        (words for signs, words in _ADVICE if any(sign in text for sign in signs)), "see its words above"
    )
    return f"{program} failed while {doing} (exit code {code})\n{shown}\n{advice.format(program=program)}"


def _cut(line: str) -> str:
    """A line's head and tail: builders put what they did before what was wrong."""
    return (
        line
        if len(line) <= _LONGEST_LINE
        else f"{line[: _LONGEST_LINE // 3]} … {line[-_LONGEST_LINE // 2 :]}"
    )


_ADVICE = (
    (("no space left",), "Its disk is full: `{program} system prune` or `{program} rmi --prune` frees some"),
    (
        ("unauthorized", "authentication required", "denied", "forbidden"),
        "The registry does not let you in: log in with `{program} login REGISTRY`, and see that you may push there",
    ),
    (
        ("no such host", "connection refused", "i/o timeout", "network is unreachable", "server misbehaving"),
        "The registry cannot be reached: see its name, and the network",
    ),
    (
        ("x509", "certificate"),
        "The registry's certificate is not trusted here: see the builder's certs.d folder",
    ),
    (
        (
            "short-name",
            "manifest unknown",
            "name unknown",
            "pull access denied",
            "error creating build container",
        ),
        "The base image cannot be had: name one that is, with --base",
    ),
    (("hashes",), "The lock and what the index has differ: lock anew, with `muster images lock NAME`"),
)
