"""A whole cluster, brought up and cleared away.

What is there is read from the kernel, by the cluster's name, and from nothing that was written down:
so a start that was killed half-way, or a cluster of which half was killed, is cleared away like any.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import (
    control_plane,
    daemons,
    environments,
    extensions,
    furniture,
    groups,
    images,
    kubectl,
    machine,
    network,
    nodes,
    programs,
    proxy,
)
from tests.cluster.daemons import Daemon
from tests.cluster.layout import NODES, Layout

from muster.core.locks import locked

Progress = Callable[[str], None]
MANIFESTS = Path(__file__).with_name("manifests")


@dataclass(frozen=True, kw_only=True)
class Left:
    """What is there of a cluster outside its folder."""

    processes: tuple[int, ...]
    namespaces: tuple[str, ...]
    mounts: tuple[str, ...]
    groups: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.processes or self.namespaces or self.mounts or self.groups)


def build(layout: Layout) -> None:
    """Build what a cluster is made of and the cache lacks, unless it is up.

    :raises BackendError: the machine cannot hold one, and why.
    """
    if not is_up(layout):
        machine.check()
        programs.build()
        environments.build()


@contextmanager
def borrowed(layout: Layout, progress: Progress) -> Iterator[bool]:
    """Have a cluster for a block of code, built if need be; the block is told whether it was up before.

    It goes down afterwards unless it was up before, and so does half of one that could not be brought up.
    """
    was_up = is_up(layout)
    build(layout)
    try:
        up(layout, progress)
        yield was_up
    finally:
        if not was_up:
            down(layout)


def up(layout: Layout, progress: Progress) -> None:
    """Bring a cluster up, unless it is; what is left of a broken one is cleared away first.

    Afterwards this thread is in the control plane's network namespace.

    :raises BackendError: a part did not start; the rest stays as it is, to be looked at.
    """
    layout.root.parent.mkdir(parents=True, exist_ok=True)
    with locked(layout.lock):
        if is_up(layout):
            progress(f"is up already at {layout.root}")
            network.enter(layout)
            return
        if left(layout) or layout.root.exists():
            progress("clearing away what was left")
            _clear(layout)
        _Start(layout=layout, progress=progress, began=time.monotonic()).run()


def down(layout: Layout) -> None:
    """Clear a cluster away, whatever is left of it: processes, namespaces, mounts, groups, folder."""
    layout.root.parent.mkdir(parents=True, exist_ok=True)
    with locked(layout.lock):
        _clear(layout)


def is_up(layout: Layout) -> bool:
    """Whether a cluster came up whole, and every program of it runs."""
    return _marker(layout).exists() and all(parts(layout).values())


def parts(layout: Layout) -> dict[str, list[int]]:
    """Return the processes of every program, by its name."""
    return {name: daemons.running(layout, name) for name in _names()}


def left(layout: Layout) -> Left:
    """Return what is there of a cluster outside its folder."""
    return Left(
        processes=(*groups.pids(layout.group()), *network.processes(layout)),
        namespaces=tuple(map(str, network.namespaces(layout))),
        mounts=tuple(_mounts(layout)),
        groups=tuple(map(str, groups.left(layout.group()))),
    )


def daemon(layout: Layout, name: str) -> Daemon:
    """Return a program of the control plane by its name."""
    return {one.name: one for one in _control_plane(layout)}[name]


def restart(layout: Layout, name: str) -> None:
    """Kill a program of the control plane if it runs, start it, and return when it works."""
    daemons.stop(layout, name)
    start(layout, name)


def start(layout: Layout, name: str) -> None:
    """Start a program of the control plane, and return when it works."""
    one = daemon(layout, name)
    daemons.start(layout, one)
    daemons.wait(layout, one)


def furnish(layout: Layout) -> None:
    """Make what is not there of the queues, the claim and the accounts that the tests use."""
    for name in ("namespace", "visibility", "volume"):
        kubectl.run(layout, "apply", "--server-side", f"--filename={MANIFESTS / name}.yaml")
    kubectl.apply(layout, furniture.standing())


def _names() -> list[str]:
    control = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns")
    return [
        *(*control, "kube-proxy", "jobset", "kueue"),
        *(f"{node.name}.{program}" for node in NODES for program in nodes.PROGRAMS),
    ]


def _control_plane(layout: Layout) -> tuple[Daemon, ...]:
    return (
        control_plane.etcd(layout),
        control_plane.api_server(layout),
        control_plane.controllers(layout),
        control_plane.scheduler(layout),
        control_plane.dns(layout),
        proxy.proxy(layout),
        extensions.jobset(layout),
        extensions.kueue(layout),
    )


@dataclass(frozen=True, kw_only=True)
class _Start:
    """One start: what does not wait for one another goes on at the same time."""

    layout: Layout
    progress: Progress
    began: float

    def run(self) -> None:
        self._prepare()
        network.enter(self.layout)  # and so are the threads below
        with ThreadPoolExecutor() as pool:
            machines = [pool.submit(nodes.switch_on, self.layout, node) for node in NODES]
            self._begin("etcd", "kube-apiserver")
            self._say("API server answers")
            kinds = [pool.submit(self._extend, module) for module in ("jobset", "kueue")]
            rest = [
                pool.submit(self._begin, name)
                for name in ("kube-controller-manager", "kube-scheduler", "coredns", "kube-proxy")
            ]
            _all_of(machines)
            self._say("container runtimes answer")
            for node in NODES:
                nodes.start(self.layout, node)
            _all_of([*kinds, *rest])
            self._say("controllers, scheduler, DNS, JobSet and Kueue are ready")
            queues = pool.submit(furnish, self.layout)
            _all_of([pool.submit(nodes.wait_ready, self.layout, node) for node in NODES])
            self._say(f"nodes are ready: {', '.join(node.name for node in NODES)}")
            _all_of([queues])
        _marker(self.layout).touch()
        self._say("queues, claim and accounts are there: up")

    def _prepare(self) -> None:
        layout = self.layout
        layout.root.mkdir(parents=True)
        layout.claim.mkdir(mode=0o700)
        os.chown(layout.claim, images.USER, images.USER)
        control_plane.prepare(layout)
        extensions.prepare(layout)
        images.write_archive(layout)
        network.create(layout)
        nodes.make_room(layout)
        for node in NODES:
            nodes.prepare(layout, node)
            nodes.furnish(layout, node)
        self._say("credentials and network are made")

    def _begin(self, *names: str) -> None:
        for name in names:
            start(self.layout, name)

    def _extend(self, module: str) -> None:
        extensions.apply_kinds(self.layout, module)
        self._begin(module)

    def _say(self, what: str) -> None:
        self.progress(f"{time.monotonic() - self.began:5.1f} s  {what}")


def _all_of(futures: Sequence[Future[None]]) -> None:
    for future in as_completed(futures):
        future.result()


def _marker(layout: Layout) -> Path:
    return layout.root / "up"


def _clear(layout: Layout) -> None:
    groups.kill(layout.group())
    groups.end(f"network {layout.name}", lambda: network.processes(layout))
    for mount in reversed(_mounts(layout)):
        subprocess.run(["umount", "--lazy", mount], check=True)
    for namespace in network.namespaces(layout):
        network.remove(namespace)
    groups.remove(layout.group())
    if layout.root.exists():
        shutil.rmtree(layout.root)


def _mounts(layout: Layout) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    targets = (line.split()[4] for line in lines)
    return [target for target in targets if Path(target).is_relative_to(layout.root)]
