"""A person, or an Airflow, whose jobs go to the test cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster import accounts, reaper, store
from tests.cluster.inside import NAMESPACE
from tests.cluster.layout import Layout
from tests.cluster.scripted import CLAIM


@contextmanager
def served(of: Layout) -> Iterator[None]:
    """Have the store service and the reaper in the cluster; they stay for the tests that follow."""
    store.deploy(of)
    reaper.deploy(of)
    yield


def settings() -> dict[str, object]:
    """What is said of the cluster wherever it is written down."""
    return {
        "claim": CLAIM,
        "store_url": store.URL,
        "queue": "team-a",
        "image_prefix": "localhost",
        "service_account": accounts.JOB,
    }


def write_file(of: Layout, folder: Path, /, **change: object) -> Path:
    """Write ``cluster.toml``, with the token beside it, and return it."""
    (folder / "token").write_text(store.operator_token(of))
    kubeconfig = str(accounts.kubeconfig(of, accounts.OPERATOR))
    said = {**settings(), "namespace": NAMESPACE, "token_file": "token", "kubeconfig": kubeconfig, **change}
    file = folder / "cluster.toml"
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in said.items()))
    return file


def connection(of: Layout, /, **change: object) -> tuple[str, ...]:
    """The words of ``airflow connections add`` behind its id. :param change: of what is said of the cluster."""
    extras: dict[str, Any] = {
        "kube_config_path": str(accounts.kubeconfig(of, accounts.OPERATOR)),
        "namespace": NAMESPACE,
        "muster": {**settings(), **change},
    }
    password = store.operator_token(of)
    return ("--conn-type", "kubernetes", "--conn-password", password, "--conn-extra", json.dumps(extras))
