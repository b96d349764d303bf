"""A task is marked failed, or cleared, at its hand-over to the triggerer: seconds until its job is cancelled.

``python -m benchmarks.hand_over [--times N] [--json]``

Each round uses an Airflow without other waiting tasks. The task is marked as soon as its state is `deferred`,
before a trigger waits for its job. Every second round clears the task instead.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.site import Site
from tests.waiting import until

from muster.core.status import JobState, JobStatus
from muster.volumes.folder import FolderStore

TIMES = 10
PROMISED_SECONDS = 10.0

DAG = """
    from datetime import datetime, timedelta
    from airflow.sdk import dag
    from muster.airflow import JobOperator, Resources

    @dag(schedule=None, start_date=datetime(2024, 1, 1), params={"seconds": 60})
    def hand_over():
        JobOperator(
            task_id="train", image="python", entrypoint="hand_over.steps:train", outputs={"model": "slow/model"},
            params={"seconds": "{{ params.seconds }}"}, resources=Resources(cpus=0.2, memory_gib=0.2),
            retry_delay=timedelta(seconds=1),
        )

    hand_over()
"""
STEPS = """
    import time
    from pathlib import Path

    def train(model: Path, seconds: int) -> None:
        time.sleep(seconds)  # a training that still runs when its task is ended
        (model / "weights").write_text("a model that a person had failed")
"""


def once(site: Site, store: FolderStore, *, cleared: bool) -> dict[str, object]:
    """Begin a run, end its task at the hand-over, and return the end of its job and the number of its versions."""
    run = site.trigger("hand_over")
    site.wait_task("hand_over", run, "train", ("deferred",))
    (job_id,) = [each for each in store.ledger.jobs() if store.ledger.spec(each).origin.run_id == run]
    began = time.monotonic()
    if cleared:
        site.clear("hand_over", run, "train")
    else:
        site.mark("hand_over", run, "train", "failed")
    ended = until(lambda: store.ledger.status(job_id).state.ended, seconds=120)
    seconds = time.monotonic() - began
    if cleared:  # its next try runs, and is not measured
        site.mark_run("hand_over", run, "failed")
        assert until(lambda: all(each.state.ended for each in _of(store, run))), "the next try's job goes on"
    status = store.ledger.status(job_id)
    versions = store.versions("slow/model") if "slow/model" in store.volumes() else []
    return {
        "how": "cleared" if cleared else "marked failed",
        "seconds": round(seconds, 1),
        "state": status.state.value,
        "verdict": status.verdict.message if status.verdict else "",
        "versions": len([each for each in versions if each.retired is None]),
        "held": ended
        and status.state is JobState.CANCELLED
        and seconds <= PROMISED_SECONDS
        and not any(each.retired is None for each in versions),
    }


def _of(store: FolderStore, run: str) -> list[JobStatus]:
    ledger = store.ledger
    return [ledger.status(each) for each in ledger.jobs() if ledger.spec(each).origin.run_id == run]


def main(arguments: Sequence[str]) -> int:
    """Run all rounds, print each, and return 1 if one misses the promise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hand_over")
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found = []
    with tempfile.TemporaryDirectory(prefix="muster-hand-over-") as folder, Site(Path(folder)) as site:
        site.write("hand_over", DAG, steps=STEPS)
        site.set("muster", inline_wait=0.5)
        site.up()
        store = FolderStore(site.home / "store")
        for number in range(options.times):
            found.append(once(site, store, cleared=bool(number % 2)))
            if not options.json:
                print(
                    "{how:>13}: {state} after {seconds:4} s, {versions} versions left; {verdict}".format(
                        **found[-1]
                    )
                )
    held = sum(bool(each["held"]) for each in found)
    print(
        json.dumps(found)
        if options.json
        else f"{held} of {len(found)} held (promised: {PROMISED_SECONDS:g} s)"
    )
    return 0 if held == len(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
