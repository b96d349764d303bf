"""One search of recorded curves on this machine, as ``benchmarks.search_peers`` asks for it: JSON on stdin, JSON on stdout.

A trial is a job with a checkpoint, which sleeps where it would train. The machine has room for as many as there are slots.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from muster.backends.base import Backend
from muster.backends.local.machine import Machine
from muster.backends.local.place import MachinePlace
from muster.core.data import OutputTarget
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.patience import Patience
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.core.wire import loads
from muster.ext.search.driver import SearchDriver
from muster.ext.search.spec import Search, SearchSpec
from muster.ext.search.stored import begin_search
from muster.images.folders import find_image, put_image

LONGEST_SECONDS, LOOK_SECONDS = 1200.0, 0.25
EACH = Resources(cpus=0.1, memory_gib=0.25)
TRIAL = """\
import json, sys, time
from pathlib import Path
point, epochs, saved, curves, sleep = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3], "epoch"), sys.argv[4], float(sys.argv[5])
curve = json.loads(Path(curves).read_text())[point]
epoch = int(saved.read_text()) if saved.exists() else 0
while epoch < epochs:
    time.sleep(sleep)  # the epoch itself
    epoch += 1
    saved.with_suffix(".part").write_text(str(epoch))
    saved.with_suffix(".part").replace(saved)
    print(f"muster: epoch={epoch}/{len(curve)} auc={curve[epoch - 1]}", flush=True)
Path(sys.argv[6], "point").write_text(point)
"""


def main() -> None:
    """Search as stdin asks; print how long it took, and what it found."""
    asked = json.load(sys.stdin)
    spec = loads(SearchSpec, json.dumps(asked["spec"]))
    with tempfile.TemporaryDirectory(prefix="muster-search-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "curves.json").write_text(json.dumps(asked["curves"]))
        settings = Settings(home=folder / "home", cache=Settings.load().cache)
        backend = Backend(
            MachinePlace(settings, machine=Machine(memory_gib=asked["slots"] * EACH.memory_gib))
        )
        words = [",".join(f"{{params.{each}}}" for each in spec.space), "{params.epochs}", "{checkpoints}"]
        words += [str(folder / "curves.json"), str(asked["sleep"]), "{outputs.model}"]
        trial = JobSpec(
            name="benchmark.search",
            image="python",
            image_digest=put_image(backend.store, find_image("python", [shipped("images")])),
            roles=(Role(command=("python", "-c", TRIAL, *words), resources=EACH),),
            params={**dict.fromkeys(spec.space, 0), "epochs": int(spec.rungs[-1])},
            outputs={"model": OutputTarget(volume="benchmark/model")},
            priority="low",
            origin=Origin(instance="here", dag_id="benchmark", run_id="one", task_id="search"),
        )
        began = time.monotonic()
        begin_search(backend.store, "s-1", Search(spec=spec, trial=trial, began=time.time()))
        driver, patience = SearchDriver(backend, "s-1"), Patience(LONGEST_SECONDS, first=LOOK_SECONDS)
        while (ended := driver.step()) is None:
            if not patience.wait():
                raise RuntimeError(f"the search has not ended after {LONGEST_SECONDS:g} s")
        seconds = time.monotonic() - began
        if ended.trial is None:
            raise RuntimeError(f"the search ended without a trial: {ended.reason}")
        best = driver.state.trials[ended.trial].value
    print(json.dumps({"seconds": seconds, "epochs": driver.state.resource, "best": best}))


if __name__ == "__main__":
    main()
