"""The page on installing, typed as it stands into an empty cluster, to the uninstall; it is upgraded while users ask.

What the page calls a site's own is this cluster's (:data:`OURS`). Its first step, images that are built and pushed,
needs a registry: the nodes here have theirs.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import pytest
from tests.cluster import chart, cluster, furniture, kubectl, serving
from tests.cluster.inside import layout
from tests.cluster.layout import Layout
from tests.docs.page import DOCS, ROOT, File, Typed, missing, steps
from tests.e2e.author import MUSTER, Author
from tests.serving.load import Load
from tests.waiting import eventually

from muster.volumes.service.client import ServiceStore

pytestmark = [pytest.mark.cluster, pytest.mark.soak]

PAGE = DOCS / "howto" / "install-on-a-cluster.md"
RELEASE, NAMESPACE = chart.PAGE
OURS = {
    "registry.example/team-a/muster:0123456789ab-01234567": "localhost/muster:1",
    "registry.example/team-a": "localhost",
    "https://{name}.models.example": serving.GATEWAY_URL,
    "https://flights.models.example": serving.GATEWAY_URL,
    "muster-model: ": "Muster-Model: ",  # HTTP/2 has small letters; this cluster's Gateway speaks HTTP/1.1, without TLS
}
OF_OURS = (
    "pods,persistentvolumeclaims,secrets,services,deployments.apps,cronjobs.batch,roles,jobsets.jobset.x-k8s.io,"
    "inferenceservices.serving.kserve.io,httproutes.gateway.networking.k8s.io"
)
SECONDS = 1800  # a training on a machine that other things share


class Terminal:
    """One shell, in which a person types one command after another; as a context it ends with what it left running."""

    def __init__(self, author: Author) -> None:
        self._shell = subprocess.Popen(
            ["bash"],
            cwd=author.folder,
            env=author.environment | {"PATH": f"{MUSTER.parent}:{author.environment['PATH']}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.__exit__(kind, error, trace)

    def type(self, command: str) -> tuple[str, float]:
        """Type a command that succeeds; return what it said, and its seconds."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        began, end, said = time.monotonic(), secrets.token_hex(), ""
        watch = threading.Timer(SECONDS, os.killpg, (self._shell.pid, signal.SIGKILL))
        watch.start()
        try:
            self._shell.stdin.write(f"{{ {command}\n}} </dev/null\necho {end} $?\n")
            self._shell.stdin.flush()
            while end not in said:
                line = self._shell.stdout.readline()
                assert line, f"{command}\n{said[-4000:]}"
                said += line
        finally:
            watch.cancel()
        said, _, code = said.partition(end)
        assert int(code) == 0, f"{command}\n{said[-4000:]}"
        return said, time.monotonic() - began


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Layout]:
    """A cluster with KServe and a Gateway, and with no object of the whole cluster that the page makes."""
    of = layout()
    serving.up(of)
    try:
        with chart.place(of, tmp_path, release=RELEASE, namespace=NAMESPACE):
            kubectl.delete(of, furniture.of_the_whole_cluster())
            yield of
    finally:
        cluster.furnish(of)


def test_from_an_empty_cluster_to_a_prediction_and_to_the_next_version(
    empty: Layout, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    (tmp_path / "helm").symlink_to(ROOT / "helm")
    shutil.copytree(ROOT / "dags", tmp_path / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    with Author(tmp_path) as author, Terminal(author) as terminal:
        for step in steps(PAGE):
            if isinstance(step, File):
                with (tmp_path / step.path).open("a") as file:  # a second time it is "in addition"
                    file.write(ours(step.text))
            elif "registry" not in step.note:
                heading = "from an empty cluster to a prediction: seconds of each command"
                said = ""
                for command in commands(step):
                    more, seconds = terminal.type(command)
                    said += more
                    record_property(heading, f"{seconds:6.1f}  {command}")
                assert missing(ours(step.prints), said) == [], f"{step.commands}\n{said[-4000:]}"
                if "muster doctor" in step.commands:  # "every line should begin with ok"
                    assert re.findall(r"^(?:warn|bad) .*", said, re.MULTILINE) == []
        upgrade_and_rollback(empty, tmp_path, terminal, record_property)
        uninstall(empty, terminal, record_property)


def upgrade_and_rollback(
    of: Layout, folder: Path, terminal: Terminal, record_property: Callable[[str, object], None]
) -> None:
    """The page's own words, with another store service each time, and values that the page adds on its way."""
    upgrade, back = re.findall(r"^- \*\*(?:Upgrade|Back)\*\*: `([^`]+)`", PAGE.read_text(), re.MULTILINE)
    body = json.loads((folder / ".muster" / "examples" / "flights.json").read_text())
    service = kubectl.get(of, "service", f"{RELEASE}-store", f"--namespace={NAMESPACE}")
    url, token = f"http://{service['spec']['clusterIP']}", (folder / "token").read_text().strip()
    with (
        ServiceStore(url, token=token, cache=folder / "cache") as store,
        chart.asked(store, "flights/model@latest") as said,
        Load(serving.PORT, "/v1/models/flights:predict", body) as load,
    ):
        eventually(lambda: load.sent > 100)
        _, there = terminal.type(f"{upgrade} --set store.resources.requests.cpu=90m --wait")
        _, again = terminal.type(f"{back} --wait")
        sent = load.sent
        eventually(lambda: load.sent > sent + 100)
    record_property(
        "upgrade and rollback of the chart while users ask",
        f"{there:.1f} s and {again:.1f} s: {load.sent} predictions, {sum(load.failed.values())} lost; "
        f"{said.total()} calls of the store, answers: {dict(said)}",
    )
    assert load.failed == {}
    assert len(said) == 1
    assert next(iter(said)).startswith("volume://flights/model@")


def uninstall(of: Layout, terminal: Terminal, record_property: Callable[[str, object], None]) -> None:
    """The page's own words again; nothing is left of muster in the namespace."""
    page = PAGE.read_text()
    (forward,) = re.findall(r"^kubectl port-forward .*", page, re.MULTILINE)
    (end,) = re.findall(r"`(kill [^`]+)`", page)  # it goes to the pod that was there before the upgrade
    typed = re.findall(r"`((?:muster|helm|kubectl) [^`]+)`", page[page.index("- **Uninstall**") :])
    assert len(typed) == 3, typed
    for command in (f"{end} && wait", forward, *typed):  # a person is slower than it
        _, seconds = terminal.type(command.replace("NAME", "flights"))
        record_property(
            "uninstalling, to the last version: seconds of each command", f"{seconds:6.1f}  {command}"
        )
    words = ("get", OF_OURS, f"--namespace={NAMESPACE}", "--output=name")
    kubectl.until("nothing of it is left", lambda: kubectl.run(of, *words) == "")  # what goes last is pods


def ours(text: str) -> str:
    """What the page says, of this site."""
    for theirs, here in OURS.items():
        text = text.replace(theirs, here)
    return text


def commands(typed: Typed) -> list[str]:
    """The commands of a block, one by one."""
    return [each for each in re.split(r"(?<!\\)\n", ours(typed.commands)) if each]
