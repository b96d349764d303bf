"""The chart in a namespace of its own on the test cluster, as who administers that would install it.

::

    with release(layout) as installed:
        installed.helm("test", "shop", "--logs")

What it makes of the whole cluster is called after the release, or after the team of its values, so it stands beside
the objects that the other tests use.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from tests.cluster import backend, images, kubectl
from tests.cluster.authority import Authority
from tests.cluster.layout import CLAIM, Layout

from muster.backends.base import Backend
from muster.backends.kubernetes.api.access import connect
from muster.backends.kubernetes.api.client import Client
from muster.core.errors import MusterError
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.tokens import operator_token, read_keys

CHART = Path(__file__).parents[2] / "helm" / "muster"
NAME = "shop"  # of the release, its namespace and its team
PAGE = ("muster", "team-a")  # the release of the page on installing, and its namespace
_DAY_SECONDS = 86_400.0
_SECONDS = 240

VALUES: dict[str, Any] = {
    "image": "localhost/muster:1",
    "claim": {"size": "1Gi", "storageClassName": "shared"},
    "store": {"nodeSelector": {"muster.dev/gpu-class": "cpu"}},
    "queues": {
        "topology": {"name": NAME},
        "flavors": [{"name": f"{NAME}-cpu", "gpuClass": "cpu"}],
        "teams": [{"name": NAME, "quotas": [{"flavor": f"{NAME}-cpu", "cpu": 16, "memory": "16Gi"}]}],
        "priorities": [{"name": f"{NAME}-high", "value": 1000}],
    },
    "metrics": {"enabled": True},
    "networkPolicy": {
        "dns": {"peers": [{"ipBlock": {"cidr": "10.77.0.1/32"}}]},
        "scrapers": [{"ipBlock": {"cidr": "10.77.0.0/24"}}],
    },
}


@dataclass(frozen=True)
class Release:
    """The chart in its namespace. :param folder: for what is kept on this side."""

    layout: Layout
    folder: Path

    def helm(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run helm in its namespace, as the cluster's administrator."""
        return helm(self.layout, self.folder, *words, _NAMESPACE)

    def install(self, *words: str, command: str = "install", **values: Any) -> None:
        """Install, or upgrade, and return when all of it runs."""
        done = self.helm(command, NAME, str(CHART), *self._values(values), *_WAIT, *words)
        assert done.returncode == 0, done.stdout + done.stderr

    def refused(self, **values: Any) -> str:
        """Return with which words the chart is refused here."""
        done = self.helm("install", f"{NAME}-2", str(CHART), *self._values(values))
        assert done.returncode != 0, done.stdout
        return done.stderr

    def secret(self) -> bytes:
        """The keys as they are in the cluster."""
        found = kubectl.get(self.layout, "secret", f"muster-{NAME}-store", _NAMESPACE)
        return base64.b64decode(found["data"]["keys"])

    def token(self) -> str:
        """An operator's token, made with those keys."""
        path = self.folder / "keys"
        path.touch(mode=0o600)
        path.write_bytes(self.secret())
        return operator_token(read_keys(path), lifetime_seconds=_DAY_SECONDS)

    def url(self) -> str:
        """Where the store service is for who is beside the cluster: there is no name there."""
        return self.address("store")

    def address(self, service: str) -> str:
        """Where a Service of the release is for who is beside the cluster."""
        found = kubectl.get(self.layout, "service", f"{NAME}-{service}", _NAMESPACE)
        return f"http://{found['spec']['clusterIP']}"

    def store(self, *, token: str | None = None) -> ServiceStore:
        """Open the store as an operator."""
        return ServiceStore(self.url(), token=token or self.token(), cache=self.folder / "cache")

    @contextmanager
    def backend(self) -> Iterator[Backend]:
        """Run jobs in its namespace, with its operator's rights."""
        site = replace(
            backend.SITE,
            namespace=NAME,
            claim=f"{NAME}-store",
            store_url=self.url(),
            queue=NAME,
            service_account=f"{NAME}-job",
        )
        client = Client(connect(kubeconfig=self.kubeconfig("operator")))
        with closing(backend.on(self.store(), client, self.folder, site=site)) as made:
            yield made

    def kubeconfig(self, account: str) -> Path:
        """Write the kubeconfig of an account of the release, good for a day, and return it."""
        words = ("create", "token", f"{NAME}-{account}", _NAMESPACE, "--duration=24h")
        told = {"token": kubectl.run(self.layout, *words).strip()}
        authority = Authority(folder=self.layout.credentials)
        return authority.write_kubeconfig(f"{NAME}-{account}", told, namespace=NAME)

    def may(self, account: str, verb: str, resource: str, *, namespace: str | None = NAME) -> bool:
        """Whether an account of the release may do something; in the whole cluster where `namespace` is None."""
        where = "--all-namespaces" if namespace is None else f"--namespace={namespace}"
        who = f"--as=system:serviceaccount:{NAME}:{NAME}-{account}"
        kind, _, part = resource.partition("/")  # kubectl would take the part for an object's name
        words = ("auth", "can-i", verb, kind, f"--subresource={part}", where, who)
        return kubectl.ask(self.layout, *words) == "yes"

    def _values(self, changes: dict[str, Any]) -> tuple[str, ...]:
        path = self.folder / "values.yaml"
        path.write_text(yaml.safe_dump({**VALUES, **changes}))
        return (f"--values={path}",)


_NAMESPACE = f"--namespace={NAME}"
_WAIT = ("--wait", f"--timeout={_SECONDS}s")


@contextmanager
def release(of: Layout, folder: Path) -> Iterator[Release]:
    """Have the chart installed in its own namespace; nothing of it is left afterwards."""
    with place(of, folder, release=NAME, namespace=NAME):
        metadata = {"name": NAME, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
        kubectl.apply(of, [{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}])
        installed = Release(of, folder)
        installed.install()
        yield installed


@contextmanager
def place(of: Layout, folder: Path, *, release: str, namespace: str) -> Iterator[None]:
    """Have room for a release: a folder of the shared file system, as a volume that waits for its claim.

    Before and afterwards there is nothing of the release, nor its namespace.
    """
    _clear(of, folder, release, namespace)
    claim = of.claim / namespace
    claim.mkdir(mode=0o700)
    os.chown(claim, images.USER, images.USER)
    kubectl.apply(of, [volume(namespace, namespace=namespace, claim=f"{release}-store")])
    try:
        yield
    finally:
        _clear(of, folder, release, namespace)


def clear(of: Layout) -> bool:
    """Take away what tests that were killed have installed. Whether there was any."""
    left = [
        (release, namespace)
        for release, namespace in ((NAME, NAME), PAGE)
        if kubectl.ask(of, "get", "persistentvolume", namespace, "--ignore-not-found", "--output=name")
    ]
    with tempfile.TemporaryDirectory() as folder:
        for release, namespace in left:
            _clear(of, Path(folder), release, namespace)
    return bool(left)


@contextmanager
def asked(store: ServiceStore, address: str) -> Iterator[Counter[str]]:
    """Have a store asked for a version over and over meanwhile; what came of it is counted by what was said."""
    said: Counter[str] = Counter()
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            try:
                said[store.resolve(address)[0].address] += 1
            except MusterError as error:
                said[str(error)] += 1

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        yield said
    finally:
        over.set()
        asker.join()


def helm(of: Layout, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run helm as the cluster's administrator. :param folder: for what it keeps on this side."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(of.kubeconfig)}
    command = [str(of.programs / "helm"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def _clear(of: Layout, folder: Path, release: str, namespace: str) -> None:
    done = helm(
        of,
        folder,
        "uninstall",
        release,
        f"--namespace={namespace}",
        "--ignore-not-found",
        "--no-hooks",
        *_WAIT,
    )
    assert done.returncode == 0, done.stderr
    words = ("delete", "--ignore-not-found", "--wait", f"--timeout={_SECONDS}s")
    kubectl.run(of, *words, "namespace", namespace)
    kubectl.run(of, *words, "persistentvolume", namespace)
    shutil.rmtree(of.claim / namespace, ignore_errors=True)


def volume(name: str, *, namespace: str, claim: str, folder: str = "") -> dict[str, Any]:
    """Return a volume that waits for a claim. :param folder: of the shared file system; the namespace's own if not given."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Ti"},
            "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "shared",
            "hostPath": {"path": str(CLAIM / (folder or namespace)), "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": claim},
        },
    }
