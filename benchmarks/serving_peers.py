"""Models of scikit-learn and XGBoost in workers beside MLServer with the same model, in turns: one row of twelve numbers a request.

64 connections ask, and both answer probabilities. CPU is user and system time of all processes of a server. MLServer runs
with its defaults but for `parallel_workers=0`, which costs it less: the model is in the server's process then, and ours
in another one. Its environment, the lock in ``mlserver/``, is built into the cache as an image's.

``python -m benchmarks.serving_peers [--pairs N] [--requests N] [--kinds KIND …] [--json]``
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.ports import free_port

from benchmarks.pairs import LEFT_OUT, Ratio, compare, ratio, show
from benchmarks.serving_site import NAME, await_answer, serve_image
from benchmarks.serving_workers import CONNECTIONS, REQUEST, Server, fit, in_workers
from muster.core.errors import ImageError
from muster.core.settings import Settings
from muster.images.environment import Environments
from muster.images.folders import put_image
from muster.volumes.folder import FolderStore

LOCK = Path(__file__).with_name("mlserver")
IMPLEMENTATIONS = {"sklearn": "mlserver_sklearn.SKLearnModel", "xgboost": "mlserver_xgboost.XGBoostModel"}
PROBABILITIES: dict[str, dict[str, Any]] = {  # a booster's prediction is one, of this objective
    "sklearn": {"outputs": [{"name": "predict_proba"}]},
    "xgboost": {},
}
THROUGHPUT_LIMIT, LATENCY_LIMIT = 2.0, 1.0


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving_peers")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--kinds", nargs="+", choices=IMPLEMENTATIONS, default=list(IMPLEMENTATIONS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        try:
            peer = Environments(Settings.load().cache).ensure(
                "mlserver", LOCK, put_image(FolderStore(root / "peers"), LOCK), _say
            )
        except ImageError as error:
            print(f"left out: MLServer cannot be installed here ({error})", file=sys.stderr)
            return LEFT_OUT
        rows = measure(root, peer, options.kinds, pairs=options.pairs, requests=options.requests)
        return show("models in workers beside MLServer", rows, as_json=options.json)


def measure(root: Path, peer: Path, kinds: Sequence[str], *, pairs: int, requests: int) -> Iterator[Ratio]:
    """Yield the ratios of each kind of model. :param peer: the Python of MLServer's environment."""
    serve, tables = serve_image(root), serve_image(root, "tables")
    fit(root, tables)
    for kind in kinds:
        models = root / "models"
        with ExitStack() as running:
            theirs = running.enter_context(mlserver(peer, models / f"peer-{kind}", root, kind))
            mine = running.enter_context(in_workers(serve, root, models / kind, kind, tables))
            throughput, latency = compare(_asked(theirs, requests), _asked(mine, requests), pairs=pairs)
        yield ratio(
            f"{kind}: requests a CPU second", *throughput, unit="1/s", limit=THROUGHPUT_LIMIT, at_least=True
        )
        yield ratio(f"{kind}: p99 at {CONNECTIONS} connections", *latency, unit="ms", limit=LATENCY_LIMIT)


def _asked(server: Server, requests: int) -> Callable[[], Sequence[float]]:
    return partial(_ask, server, requests)


def _ask(server: Server, requests: int) -> Sequence[float]:
    asked = server.measure(requests, connections=CONNECTIONS)
    return 1e6 / asked.cpu_microseconds, asked.p99_milliseconds


@contextmanager
def mlserver(python: Path, model: Path, root: Path, kind: str) -> Iterator[Server]:
    """Run MLServer with one model while the block runs. :param model: a folder that holds its file."""
    port, folder = free_port(), root / f"mlserver-{kind}"
    folder.mkdir()
    (file,) = model.iterdir()
    settings = {"debug": False, "http_port": port, "grpc_port": free_port(), "parallel_workers": 0}
    settings |= {"metrics_port": free_port(), "host": "127.0.0.1"}
    (folder / "settings.json").write_text(json.dumps(settings))
    told = {"name": NAME, "implementation": IMPLEMENTATIONS[kind], "parameters": {"uri": str(file)}}
    (folder / "model-settings.json").write_text(json.dumps(told))
    asked = {**REQUEST, **PROBABILITIES[kind]}
    log = root / f"mlserver-{kind}.log"
    with log.open("wb") as out:
        words = [python, "-c", "from mlserver.cli import main; main()", "start", folder]
        process = subprocess.Popen(
            words, stdout=out, stderr=out, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    try:
        await_answer(port, lambda: process.poll() is None, log, asked)
        yield Server(process.pid, port, asked)
    finally:
        process.terminate()
        process.wait()


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
