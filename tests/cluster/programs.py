"""Builds the programs of a test cluster from their Go modules, once, into the cache.

Each folder of ``go/`` is a module that pins one program and all it is made from. The first build takes
a quarter of an hour on two cores; what has not changed since is not built again.

    python -m tests.cluster.programs
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import golang

from muster.core.locks import locked, locked_if_free
from muster.core.settings import Settings

KUBERNETES = "v1.37.0"
_VERSION = {"gitVersion": KUBERNETES, "gitMajor": "1", "gitMinor": "37"}


@dataclass(frozen=True, kw_only=True)
class Program:
    """One binary.

    :param module: its folder in ``go/``.
    :param package: what is built there.
    :param names: what it is called by; a binary may be several programs.
    :param variables: texts that are linked in, by variable.
    :param tags: of Go's, which leave parts of a program out.
    """

    module: str
    package: str = "."
    names: tuple[str, ...]
    variables: Mapping[str, str]
    tags: tuple[str, ...] = ()

    def digest(self) -> str:
        """What its build depends on, beside Go itself."""
        files = sorted((golang.GO / self.module).iterdir())
        parts = [
            f"{self.package} {self.names} {dict(self.variables)}{self.tags or ''}".encode(),
            *(f.read_bytes() for f in files),
        ]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    def flags(self) -> str:
        """The linker's: no symbols, which are a third of the size."""
        return " ".join(["-s", "-w", *(f"-X {name}={text}" for name, text in self.variables.items())])


PROGRAMS = (
    Program(
        module="kubernetes",
        names=(
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
            "kubectl",
        ),
        variables={
            f"k8s.io/{package}.{name}": text
            for package in ("component-base/version", "client-go/pkg/version")
            for name, text in _VERSION.items()
        },
    ),
    Program(module="etcd", package="go.etcd.io/etcd/server/v3", names=("etcd",), variables={}),
    Program(module="jobset", package="sigs.k8s.io/jobset", names=("jobset",), variables={}),
    Program(module="kueue", package="sigs.k8s.io/kueue/cmd/kueue", names=("kueue",), variables={}),
    Program(module="coredns", names=("coredns",), variables={}),
    Program(module="pause", names=("pause",), variables={}),
)
SERVING = (
    Program(module="kserve", package="github.com/kserve/kserve/cmd/manager", names=("kserve",), variables={}),
    Program(
        module="traefik",
        package="github.com/traefik/traefik/v3/cmd/traefik",
        names=("traefik",),
        variables={},
    ),
    Program(
        module="metrics-server",
        package="sigs.k8s.io/metrics-server/cmd/metrics-server",
        names=("metrics-server",),
        variables={},
    ),
)  # built only where models are served: 10 minutes

TOOLS = (
    Program(module="helm", package="helm.sh/helm/v4/cmd/helm", names=("helm",), variables={}),
    Program(
        module="kubeconform",
        package="github.com/yannh/kubeconform/cmd/kubeconform",
        names=("kubeconform",),
        variables={},
    ),
    Program(
        module="promtool",
        package="github.com/prometheus/prometheus/cmd/promtool",
        names=("promtool",),
        variables={},
        tags=("remove_all_sd",),  # it finds no targets: without the clients of a dozen clouds
    ),
)
"""What the chart is installed and looked at with; no cluster needs them to run."""


S3 = (
    Program(
        module="versitygw",
        package="github.com/versity/versitygw/cmd/versitygw",
        names=("versitygw",),
        variables={},
    ),
)
"""A server of Amazon's S3 over a folder, which the tests of ingest and mirrors ask."""

GCS = (
    Program(
        module="fake-gcs-server",
        package="github.com/fsouza/fake-gcs-server",
        names=("fake-gcs-server",),
        variables={},
    ),
)
"""A server of Google's Cloud Storage in memory, which the tests of ingest ask."""


def build(cache: Path | None = None, *, programs: Sequence[Program] = PROGRAMS) -> Path:
    """Build what is not there yet, and return the folder of the programs.

    :param cache: where programs and Go's own caches are kept; that of the settings where not given.
    :param programs: which; those of a cluster where not given.
    :raises BackendError: there is no Go, nor can it be had.
    :raises subprocess.CalledProcessError: Go said why, on the terminal.
    """
    root = (cache or Settings.load().cache) / "cluster"
    root.mkdir(parents=True, exist_ok=True)
    if not all(_is_built(program, root) for program in programs):
        with locked_if_free(root / "build.lock") as free:
            if not free:
                print(f"another build has {root / 'build.lock'}: waiting for it", file=sys.stderr, flush=True)
        with locked(root / "build.lock"):
            go = golang.command(root)
            for program in programs:
                _build(program, root, go)
    return root / "bin"


def _is_built(program: Program, root: Path) -> bool:
    made = _made(program, root)
    return made.exists() and all((root / "bin" / name).resolve() == made for name in program.names)


def _made(program: Program, root: Path) -> Path:
    return root.resolve() / "programs" / f"{program.module}-{program.digest()}"


def _build(program: Program, root: Path, go: Path) -> None:
    made = _made(program, root)
    if not made.exists():
        made.parent.mkdir(exist_ok=True)
        _compile(program, root, go, to=made.with_name(f".{made.name}"))
        made.with_name(f".{made.name}").replace(made)
    (root / "bin").mkdir(exist_ok=True)
    for name in program.names:
        link = root / "bin" / f".{name}"
        link.unlink(missing_ok=True)
        link.symlink_to(made)
        link.replace(root / "bin" / name)


def _compile(program: Program, root: Path, go: Path, *, to: Path) -> None:
    began = time.monotonic()
    print(f"building {', '.join(program.names)}", file=sys.stderr, flush=True)
    tags = [f"-tags={','.join(program.tags)}"] if program.tags else []
    words = ("-mod=readonly", "-trimpath", *tags, "-ldflags", program.flags(), "-o", to, program.package)
    subprocess.run(
        [go, "build", *words],
        cwd=golang.GO / program.module,
        env=go_environment(root),
        check=True,
    )
    print(f"  {time.monotonic() - began:.0f} s, {to.stat().st_size >> 20} MiB", file=sys.stderr, flush=True)


def go_environment(root: Path) -> dict[str, str]:
    """Return what Go is run with: its caches are ours, and nothing is taken from a C library.

    :param root: the cluster's folder in the cache.
    """
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOMODCACHE": str(root / "go" / "mod"),
        "GOCACHE": str(root / "go" / "build"),
    }


if __name__ == "__main__":
    print(build())
