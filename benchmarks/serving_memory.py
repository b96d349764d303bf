"""Memory of our model server with two loaded versions, relative to the two models.

A model is one table, so its size is known to the byte. The server is measured empty, and with two versions that both
have a share and have answered; the second is another file of the same size. "By hand" is a process that opens the same
two files with ONNX Runtime and runs each once. Memory is Pss of ``/proc/PID/smaps_rollup`` (proc(5)), in which
shared memory counts in part.

``python -m benchmarks.serving_memory [--rounds N] [--mebibytes N] [--json]``
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path

from tests.serving import onnx_graph

from benchmarks.pairs import Ratio, compare, ratio, show
from benchmarks.serving_site import BY_HAND, JSON, NAME, ours, serve_image

LIMIT = 1.10
MIB = 1 << 20
ROW_BYTES = 4096
REQUESTS = 64  # one of two equal shares gets none of them once in 2^63 runs


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if the promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving_memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mebibytes", type=int, default=64, help="size of a model's table (default: 64)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        ratios = measure(Path(folder), rounds=options.rounds, mebibytes=options.mebibytes)
    return show("memory of two loaded versions", ratios, as_json=options.json)


def measure(root: Path, *, rounds: int, mebibytes: int) -> list[Ratio]:
    """Load both in turns; return the server's growth relative to their files and to two bare sessions."""
    python = serve_image(root)
    rows = mebibytes * MIB // ROW_BYTES
    models = [onnx_graph.write_big(root / name, rows=rows, value=float(name)) for name in ("1", "2")]
    turns = itertools.count()
    [(sessions, server)] = compare(
        lambda: [grown_by_hand(python, models)],
        lambda: [grown(python, root / f"server-{next(turns)}", models)],
        pairs=rounds,
    )
    files = sum((model / "model.onnx").stat().st_size for model in models) / MIB
    return [
        ratio("beside the two files", [files] * rounds, server, unit="MiB", limit=LIMIT),
        ratio("beside two bare sessions", sessions, server, unit="MiB", limit=LIMIT),
    ]


def grown(python: Path, folder: Path, models: Sequence[Path]) -> float:
    """Return by how many MiB our server grows with both versions."""
    with ours(python, folder) as (server, port):
        server.open()
        before = pss(server.pid)
        for model in models:
            server.load(model.name, model)
        server.share({model.name: 50 for model in models})
        connection = HTTPConnection("127.0.0.1", port)
        answered = {ask(connection) for _ in range(REQUESTS)}
        connection.close()
        if len(answered) < len(models):
            raise SystemExit(f"answered by {answered}: need an answer of both")
        return (pss(server.pid) - before) / MIB


def grown_by_hand(python: Path, models: Sequence[Path]) -> float:
    """Return by how many MiB a bare process grows."""
    words = [str(python), "-P", str(BY_HAND), "sessions", *map(str, models)]
    return int(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout) / MIB


def ask(connection: HTTPConnection) -> str:
    """Send one row; return the revision that answered."""
    row = {"name": "row", "datatype": "INT64", "shape": [1], "data": [1]}
    connection.request("POST", f"/v2/models/{NAME}/infer", json.dumps({"inputs": [row]}), JSON)
    answer = json.load(connection.getresponse())
    return str(answer["model_version"])


def pss(pid: int) -> int:
    """Return a process's memory in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
