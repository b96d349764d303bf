"""A topic of Kafka as Parquet, by an ingest and by a bare consumer that writes the same files; and how long a small ingest takes from the job's start to its version.

``python -m benchmarks.kafka [--pairs N] [--messages N] [--json]``

The broker, Kafka 4.1, runs on the same machine and shares its cores with both.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.contract.one_machine import one_machine
from tests.contract.test_backend import finish
from tests.ingest.broker import Broker
from tests.ingest.conftest import IMAGE
from tests.ingest.kafka.java import NoMaven, kafka

from benchmarks.pairs import LEFT_OUT, Ratio, compare, ratio, show
from muster.backends.base import Backend
from muster.backends.local.places import Places
from muster.core.data import CHECKPOINTS
from muster.core.ingest import BEFORE, ENTRYPOINT, PACKAGE, Source
from muster.core.job import JobSpec, Role, SecretRef
from muster.core.settings import Settings
from muster.core.status import JobState
from muster.images.environment import Environments
from muster.images.folders import put_image
from muster.volumes.beginning import begin_with_last
from muster.volumes.folder import FolderStore

ROOT = Path(__file__).parents[1]
AT_LEAST, SECONDS = 0.8, 5.0
SMALL = 1_000


def measure(folder: Path, *, pairs: int, messages: int) -> Iterator[Ratio]:
    """Measure both."""
    store = FolderStore(folder / "store")
    python = Environments(Settings.load().cache).ensure("ingest", IMAGE, put_image(store, IMAGE))
    with Broker(folder / "kafka") as broker:

        def run(verb: str, topic: str, count: int = 0) -> float:
            words = [
                python,
                ROOT / "benchmarks" / "kafka_in_image.py",
                verb,
                broker.url,
                topic,
                str(count),
                folder / "target",
            ]
            environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(IMAGE)}
            return float(subprocess.check_output(words, env=environment, text=True).splitlines()[-1])

        run("fill", "many", messages)
        ((base, ours),) = compare(
            lambda: [messages / run("bare", "many")], lambda: [messages / run("ingest", "many")], pairs=pairs
        )
        yield ratio(
            f"{messages:,} messages of JSON, a bare consumer",
            base,
            ours,
            unit="messages/s",
            limit=AT_LEAST,
            at_least=True,
        )
        run("fill", "few", SMALL)
        os.environ["INGEST_EXTRA_0"] = broker.url
        for backend in one_machine(Places(folder / "home"), Settings.load().cache, memory_gib=8):
            took = [_start_to_version(backend, number) for number in range(pairs + 1)][1:]
        yield ratio(
            f"job's start to version, {SMALL:,} messages, to {SECONDS:g} s",
            [SECONDS] * pairs,
            took,
            unit="s",
            limit=1.0,
        )


def _start_to_version(backend: Backend, number: int) -> float:
    """Return the seconds from the submitting of a job to its version."""
    code = backend.store.put(IMAGE, [f"{PACKAGE}/{path.name}" for path in (IMAGE / PACKAGE).glob("*.py")])
    before, output = begin_with_last(backend.store, f"few/run-{number}", None, name=BEFORE)
    source = Source(url="kafka://events/few", values="json")
    spec = JobSpec(
        name="few",
        image="ingest",
        image_digest=put_image(backend.store, IMAGE),
        code=code,
        roles=(Role(entrypoint=ENTRYPOINT),),
        inputs={BEFORE: before},
        outputs={CHECKPOINTS: output},
        params={"what": source.param(kind="kafka", extras=["bootstrap.servers"])},
        secrets={"INGEST_EXTRA_0": SecretRef(source="environment", name="INGEST_EXTRA_0")},
    )
    began = time.perf_counter()
    backend.submit(spec, job_id=f"few-{number}")
    status, log = finish(backend, f"few-{number}")
    assert status.state is JobState.SUCCEEDED, log
    return time.perf_counter() - began


def main(arguments: Sequence[str]) -> int:
    """Measure and print; 1 if a promise is missed, LEFT_OUT if this machine has no Kafka and cannot fetch it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        kafka()
    except NoMaven as error:
        print(error, file=sys.stderr)
        return LEFT_OUT
    with tempfile.TemporaryDirectory(prefix="muster-kafka-") as folder:
        measured = measure(Path(folder), pairs=options.pairs, messages=options.messages)
        return show("Kafka on this machine", measured, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
