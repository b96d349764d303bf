"""``python -m tests.cluster up|build|down|status|exec|test``: see ``--help``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.browser import chromium
from tests.cluster import (
    aftermath,
    clearing,
    cluster,
    environments,
    figures,
    inside,
    machine,
    network,
    programs,
    serving,
    sharing,
)
from tests.cluster.layout import NODES, Layout

from muster.core.errors import MusterError

_RUN_ANOTHER = ("exec", "test")
_OPTIONS = ("--root", "--clusters", "--json", "--help", "-h")
_WITH_VALUE = ("--root", "--clusters")
_MOST_CLUSTERS = 4


def main() -> int:
    """Do what the command line says."""
    ours, words = split(sys.argv[1:])
    asked = _parser().parse_args(ours, argparse.Namespace(words=words))
    try:
        layout = Layout.at(asked.root)
        return int(asked.do(layout, asked))
    except MusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
    except subprocess.CalledProcessError as error:  # it said why
        print(f"cluster: {' '.join(map(str, error.cmd))[:200]} failed: {error.returncode}", file=sys.stderr)
    return 1


def split(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return our own arguments, and those for the program that ``exec`` or ``test`` runs.

    They begin at the first that is not ours: argparse would take options among them for its own.
    """
    ours, words = list(given[:1]), list(given[1:])
    if ours and ours[0] not in _RUN_ANOTHER:
        return [*ours, *words], []
    while words and words[0].partition("=")[0] in _OPTIONS:
        ours.append(words.pop(0))
        if ours[-1] in _WITH_VALUE:
            ours += words[:1]
            del words[:1]
    return ours, words[words[:1] == ["--"] :]


def _up(layout: Layout, asked: argparse.Namespace) -> int:
    cluster.build(layout)
    if asked.serving:
        serving.build()
    cluster.up(layout, _say)
    if asked.serving:
        serving.up(layout)
        _say(f"KServe and Traefik are there: {serving.GATEWAY_URL}")
    if asked.json:
        _print(layout)
    return 0


def _packages(_layout: Layout, _: argparse.Namespace) -> int:
    print(*machine.missing())
    return 0


def _build(_layout: Layout, asked: argparse.Namespace) -> int:
    programs.build(programs=(*programs.PROGRAMS, *programs.TOOLS))
    environments.build()
    if asked.serving:
        serving.build()
    return 0


def _down(layout: Layout, _: argparse.Namespace) -> int:
    machine.check_root()
    for each in _side_by_side(layout, _MOST_CLUSTERS):  # the others are there if their tests were killed
        cluster.down(each)
    return 0


def _status(layout: Layout, asked: argparse.Namespace) -> int:
    if asked.json:
        _print(layout)
    else:
        running = cluster.parts(layout)
        for name, pids in running.items():
            print(f"{name:28} {'pid ' + str(pids[0]) if pids else 'does not run'}")
        print(f"{'up' if cluster.is_up(layout) else 'not up'} at {layout.root}")
    return 0 if cluster.is_up(layout) else 3


def _exec(layout: Layout, asked: argparse.Namespace) -> int:
    machine.check_root()
    network.enter(layout)
    words = asked.words or ["bash"]
    os.execvpe(words[0], words, inside.environment(layout))


def _test(layout: Layout, asked: argparse.Namespace) -> int:
    layouts = _side_by_side(layout, asked.clusters)
    programs.build(programs=programs.TOOLS)  # those of the chart: inside a cluster nothing can be had
    if serving.is_asked_for(asked.words):
        serving.build()
        if serving.kinds_are_asked_for(asked.words):
            serving.build_kinds()
        with suppress(chromium.NoChromium):  # the test that needs one says so
            chromium.find()
    plugins = [word for plugin in (figures, aftermath) for word in ("-p", plugin.__name__)]
    command = [sys.executable, "-m", "pytest", *plugins, "-m", "cluster and not soak"]
    with ExitStack() as stack:
        stack.enter_context(machine.more_watchers(clusters=len(layouts)))
        for each in layouts:
            stack.enter_context(_cleared(each))
        words = [*command, "--durations=15", *sharing.options(layouts), *asked.words]
        return subprocess.run(words, check=False, env=sharing.environment(layouts)).returncode


def _side_by_side(layout: Layout, count: int) -> list[Layout]:
    return [layout, *(layout.beside(number) for number in range(2, count + 1))]


@contextmanager
def _cleared(layout: Layout) -> Iterator[None]:
    """Have a cluster for tests: one that was up before is rid of what they leave, and of what killed ones left."""
    with cluster.borrowed(layout, _say) as stays:
        if stays:
            clearing.clear(layout)
        yield
        if stays and cluster.is_up(layout):
            network.enter(layout)  # of clusters side by side this thread is in that which came up last
            clearing.clear(layout)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print(layout: Layout) -> None:
    running = cluster.parts(layout)
    document = {
        "up": cluster.is_up(layout),
        "root": str(layout.root),
        "network": str(layout.network()),
        "kubeconfig": str(layout.kubeconfig),
        "claim": str(layout.claim),
        "nodes": [
            {"name": node.name, "gpu_class": node.gpu_class, "gpus": node.gpus, "address": node.address}
            for node in NODES
        ],
        "programs": running,
    }
    print(json.dumps(document, indent=2))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster", description="A Kubernetes for the tests."
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--root", type=Path, help="the cluster's folder (below MUSTER_CACHE unless given)")
    common.add_argument("--json", action="store_true", help="say where everything is, as JSON")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, do, text in (
        ("up", _up, "bring it up; the first time builds its programs"),
        ("build", _build, "build what the cache lacks: its programs and the jobs' environments"),
        ("down", _down, "clear it away, whatever is left of it"),
        ("status", _status, "what runs; exit code 3 where it is not up"),
        ("packages", _packages, "name the packages of Debian that it needs and the machine lacks"),
        ("exec", _exec, "run a command inside, such as kubectl get pods --all-namespaces; or a shell"),
        ("test", _test, "up, pytest -m cluster with these arguments, and down unless it was up before"),
    ):
        command = commands.add_parser(name, parents=[common], help=text, description=text, allow_abbrev=False)
        command.set_defaults(do=do)
        if do in (_up, _build):
            text = "with KServe and Traefik, which serve models"
            command.add_argument("--serving", action="store_true", help=text)
        if do is _test:
            text = "share the test files out among so many clusters, side by side (1 unless given)"
            numbers = range(1, _MOST_CLUSTERS + 1)
            command.add_argument("--clusters", type=int, default=1, choices=numbers, metavar="N", help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
