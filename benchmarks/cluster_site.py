"""The site of the cluster's benchmarks: the test cluster, with their own store service in it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.cluster import accounts, cluster, kubectl, reaper, store
from tests.cluster.backend import SITE, connected
from tests.cluster.layout import Layout

from muster.backends.base import Backend
from muster.backends.kubernetes.site import ClusterSite
from muster.core.shipped import shipped
from muster.images.folders import find_image, put_image

FOLDER = "benchmark"  # of the claim
MUSTER = Path(sys.executable).with_name("muster")
_OURS = f"--namespace={accounts.NAMESPACE}"
_SETTINGS = ("namespace", "claim", "folder", "store_url", "image_prefix", "queue", "service_account")


@dataclass(frozen=True, kw_only=True)
class Site:
    """A cluster with a store.

    :param folder: for local files: at first a token and a kubeconfig.
    """

    layout: Layout
    folder: Path
    backend: Backend
    cluster: ClusterSite

    @property
    def settings(self) -> dict[str, Any]:
        """The cluster's settings, as in a cluster file or a connection."""
        written = {name: getattr(self.cluster, name) for name in _SETTINGS}
        return written | {"token_file": str(self.folder / "token")}

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which commands use the cluster."""
        kept = {
            name: text for name, text in os.environ.items() if not name.startswith(("AIRFLOW", "MUSTER_HOME"))
        }
        return kept | {"MUSTER_HOME": str(self.folder / ".muster"), "MUSTER_CLUSTER": str(self._file())}

    def digest(self, image: str) -> str:
        """Return the digest of an image's lock, and make it known to the store."""
        return put_image(self.backend.store, find_image(image, [shipped("images")]))

    def clear(self) -> None:
        """Delete all gangs; return once nothing of them is left."""
        kubectl.run(self.layout, "delete", "jobsets", "--all", _OURS, "--wait=true")
        words = ("get", "pods", "--selector=jobset.sigs.k8s.io/jobset-name", _OURS, "--output=name")
        kubectl.until("no gang is left", lambda: not kubectl.ask(self.layout, *words), seconds=300)

    def _file(self) -> Path:
        path = self.folder / "cluster.toml"
        given = self.settings | {"kubeconfig": str(self.folder / "kubeconfig")}
        path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items()))
        return path


@contextmanager
def site(root: Path | None) -> Iterator[Site]:
    """Yield the test cluster at `root`, started if needed; delete afterwards what was made in it."""
    layout = Layout.at(root)
    with (
        tempfile.TemporaryDirectory(prefix="muster-cluster-") as folder,
        cluster.borrowed(layout, lambda line: print(line, file=sys.stderr)),
    ):
        store.deploy(layout, folder=FOLDER)
        reaper.deploy(layout)
        made = _site(layout, Path(folder))
        try:
            yield made
        finally:
            made.clear()
            made.backend.close()
            reaper.remove(layout)
            store.remove(layout)
            shutil.rmtree(layout.claim / FOLDER, ignore_errors=True)  # nothing was stored


def _site(layout: Layout, folder: Path) -> Site:
    (folder / "token").write_text(store.operator_token(layout))
    shutil.copy(accounts.kubeconfig(layout, accounts.OPERATOR), folder / "kubeconfig")
    own = replace(SITE, folder=FOLDER)
    backend = connected(layout, folder, site=own)
    return Site(layout=layout, folder=folder, backend=backend, cluster=own)
