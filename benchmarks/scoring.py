"""The memory of a ScoreOperator's job, whatever the number of rows, and whether it answers what the endpoint answers.

``python -m benchmarks.scoring [--rows N] [--shards N] [--json]``, by default 4 million rows. ``--rows 100_000_000`` takes some ten minutes of two cores, most of
them to make the rows and to ask for some, and 1.4 GB below the folder for temporary files, which are deleted at the end.

One job makes rows for a model of the flights model's shape, another is that of ``ScoreOperator(shards=…, resources=Resources(cpus=2, memory_gib=4))``.
Its memory is the sum of the proportional set sizes of its processes, looked at five times a second. Then a model server is asked for 10,000 of the rows, a
hundred in each of a hundred places.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.serving import onnx_graph

from benchmarks.engines_equal import memory_mib
from benchmarks.serving_site import await_answer, ours, serve_image
from muster.airflow.authoring.code import serving_code
from muster.backends.base import Backend
from muster.backends.local import processes
from muster.backends.local.place import MachinePlace
from muster.backends.local.places import Places
from muster.core.data import Input, OutputTarget
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.ext.predictions.score import ENTRYPOINT
from muster.images.folders import find_image, image_folders, put_image

MEMORY_GIB, CPUS = 4, 2
LOOK_SECONDS = 0.2
SAMPLE = 10_000
SCRIPT = Path(__file__).with_name("scoring_in_image.py")
ROOT = SCRIPT.parent.parent


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What came of one scoring.

    :param rows: of the predictions; `wanted` were to be scored.
    :param seconds: from its submission to the version of predictions. :param peak_mib: of memory, at most.
    :param equal: of `sampled` predictions, those that the endpoint answers bit by bit.
    """

    wanted: int
    rows: int
    seconds: float
    peak_mib: float
    sampled: int
    equal: int

    @property
    def kept(self) -> bool:
        """Whether the promise was kept."""
        whole = self.rows == self.wanted and self.equal == self.sampled > 0
        return whole and self.peak_mib <= 1024 * MEMORY_GIB


class Scoring:
    """A store and a backend of their own, below a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._python = serve_image(root)
        self._settings = Settings(home=root / "home", cache=Settings.load().cache)
        self._backend = Backend(MachinePlace(self._settings))
        self._store = self._backend.store
        self._image = put_image(self._store, find_image("serve", image_folders(self._settings)))
        self._model = onnx_graph.write_delays(root / "model")

    def run(self, rows: int, shards: int) -> Scored:
        """Make rows, score them, and ask the endpoint for some."""
        words = ("python", str(SCRIPT), "rows", str(self._model), "{outputs.rows}", str(rows))
        self._done("rows", Role(command=words), outputs={"rows": OutputTarget(volume="scoring/rows")})
        model = self._store.add("scoring/model", self._model).pinned
        (made,) = self._store.resolve("scoring/rows@1")
        seconds, peak = self._done(
            "score",
            Role(entrypoint=ENTRYPOINT, resources=Resources(cpus=CPUS, memory_gib=MEMORY_GIB)),
            code=serving_code().put(self._store),
            inputs={"model": Input(versions=(model,)), "rows": Input(versions=(made.pinned,), many=True)},
            outputs={"predictions": OutputTarget(volume="scoring/predictions")},
            params={"shards": shards, "processes": CPUS, "keep": [], "rows_at_once": None},
        )
        found = self._sampled(self._store.path("scoring/rows@1"), self._store.path("scoring/predictions@1"))
        return Scored(wanted=rows, seconds=seconds, peak_mib=peak, **found)

    def _done(self, name: str, role: Role, **fields: object) -> tuple[float, float]:
        """Run a job; return its seconds and its peak of memory in MiB. :raises RuntimeError: it failed."""
        spec = JobSpec(name=name, image="serve", image_digest=self._image, roles=(role,), **fields)  # type: ignore[arg-type]
        began, peak = time.perf_counter(), 0.0
        self._backend.submit(spec, job_id=name)
        mark, ledger = Places(self._settings.home).mark(name), self._store.ledger
        while not ledger.status(name).state.ended:
            peak = max(peak, sum(map(memory_mib, processes.marked(mark))))
            time.sleep(LOOK_SECONDS)  # the pace of looking
        if ledger.status(name).result is None:
            raise RuntimeError(f"{name} did not succeed:\n{ledger.read(name)[0].decode()[-3000:]}")
        return time.perf_counter() - began, peak

    def _sampled(self, rows: Path, predictions: Path) -> dict[str, int]:
        """Ask a server for some rows; return how many predictions there are, how many were asked for, and how many are equal."""
        with ours(self._python, self._root / "server") as (server, port):
            server.load("1", self._model)
            server.share({"1": 100})
            server.open()
            await_answer(port, lambda: True, self._root / "server" / "server.log")
            words = [self._python, SCRIPT, "sample", self._model, rows, predictions, port, SAMPLE]
            environment = {**os.environ, "PYTHONPATH": f"{shipped('serving')}:{ROOT}"}
            done = subprocess.run(
                [*map(str, words)], env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
        return dict(json.loads(done.stdout.splitlines()[-1]))


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if the promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoring")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="muster-scoring-") as folder:
        found = Scoring(Path(folder)).run(options.rows, options.shards)
    if options.json:
        print(json.dumps({**asdict(found), "kept": found.kept}))
    else:
        print(
            f"{found.rows:,} of {found.wanted:,} rows scored in {found.seconds:.0f} s, at most {found.peak_mib:,.0f} MiB (promised: {MEMORY_GIB} GiB); "
            f"{found.equal:,} of {found.sampled:,} are what the endpoint answers{'' if found.kept else '  MISSED'}"
        )
    return 0 if found.kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
