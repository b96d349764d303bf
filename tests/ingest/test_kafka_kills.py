"""Whatever is killed while messages pour in, a version holds each of them once: the consumer, its worker, what commits, the broker."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from tests.contract.one_machine import one_machine
from tests.contract.test_backend import finish
from tests.ingest.broker import Broker
from tests.ingest.conftest import IMAGE
from tests.waiting import eventually, until

from muster.backends.base import Backend
from muster.backends.local import processes
from muster.backends.local.places import Places
from muster.core.data import CHECKPOINTS
from muster.core.ingest import BEFORE, ENTRYPOINT, PACKAGE, Source
from muster.core.job import JobSpec, Role, SecretRef
from muster.core.settings import Settings
from muster.core.status import JobState
from muster.core.wire import loads
from muster.images.folders import put_image
from muster.volumes.beginning import begin_with_last

pytestmark = [pytest.mark.slow, pytest.mark.data, pytest.mark.smoke]

HERE = Path(__file__).parent
TOPIC, PARTITIONS, VOLUME = "clicks", 4, "events/clicks"
LONGEST_SECONDS = 4.0
PROCESSES = ("consumer", "worker", "store")
TOGETHER = 5
"""Every so many-th ingest has another one beside it."""


class Stream:
    """A topic into which messages pour, and the jobs that ingest it."""

    def __init__(self, python: Path, broker: Broker, backend: Backend, places: Places) -> None:
        self._python, self.broker, self.backend, self._places = python, broker, backend, places
        self._code = backend.store.put(
            IMAGE, [f"{PACKAGE}/{path.name}" for path in (IMAGE / PACKAGE).glob("*.py")]
        )
        self._digest = put_image(backend.store, IMAGE)

    @contextmanager
    def pouring(self) -> Iterator[None]:
        """Have messages pour into the topic meanwhile, where one is already."""
        self._steps(["create", [TOPIC, PARTITIONS], {}])
        words = [
            self._python,
            HERE / "topic.py",
            self.broker.url,
            json.dumps([["pour", [TOPIC, PARTITIONS, 2], {}]]),
        ]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            # An ingest of a topic without a message fails, as it should.
            assert process.stdout.readline()
            yield
            process.stdin.close()
            assert process.wait(600) == 0

    def submit(self, job_id: str) -> JobSpec:
        """Begin an ingest of all that is there."""
        before, output = begin_with_last(self.backend.store, VOLUME, None, name=BEFORE)
        source = Source(url=f"kafka://events/{TOPIC}", values="json")
        spec = JobSpec(
            name="clicks",
            image="ingest",
            image_digest=self._digest,
            code=self._code,
            roles=(Role(entrypoint=ENTRYPOINT),),
            inputs={BEFORE: before},
            outputs={CHECKPOINTS: output},
            params={"what": source.param(kind="kafka", extras=["bootstrap.servers"])},
            secrets={"INGEST_EXTRA_0": SecretRef(source="environment", name="INGEST_EXTRA_0")},
        )
        self.backend.submit(spec, job_id=job_id)
        return spec

    def kill(self, what: str, job_id: str) -> bool:
        """Kill something; return whether it was there."""
        if what == "broker":
            self.broker.stop()
            self.broker.start()
            return True
        mark = self._places.mark(job_id)
        found: list[int] = []
        if what == "consumer":
            found = processes.ranks(mark)
        elif what == "worker":
            found = [pid for pid in processes.marked(mark) if pid not in processes.ranks(mark)]
        else:
            with suppress(FileNotFoundError):
                text = self._places.job(job_id).supervisor.read_text()
                found = [loads(processes.Process, text).pid] if text else []
        with suppress(ProcessLookupError):
            for pid in found[:1]:
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def ended_or_lost(self, job_id: str) -> bool:
        """Whether nothing goes on by itself."""
        status = self.backend.status(job_id)
        return status.state.ended or not status.alive

    def end(self, job_id: str, spec: JobSpec) -> JobState:
        """Bring a job to its end, as a task does that follows it."""
        eventually(partial(self.ended_or_lost, job_id))
        self.backend.submit(spec, job_id=job_id)
        status, log = finish(self.backend, job_id)
        if status.state is JobState.FAILED:
            assert status.verdict is not None
            assert status.verdict.cause.retried, (status.verdict, log)
        return status.state

    def ledger(self) -> dict[str, int]:
        """How the last version differs from the topic."""
        (version,) = self.backend.store.newest(VOLUME, limit=1)
        words = [
            self._python,
            HERE / "kafka_ledger.py",
            self.broker.url,
            TOPIC,
            self.backend.store.path(version.address),
        ]
        return dict(json.loads(subprocess.check_output(words, text=True)))

    def _steps(self, *steps: object) -> None:
        subprocess.run(
            [self._python, HERE / "topic.py", self.broker.url, json.dumps(steps)], check=True, timeout=120
        )


@pytest.fixture
def stream(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    places = Places(tmp_path / "home")
    with Broker(tmp_path / "kafka") as broker:
        monkeypatch.setenv("INGEST_EXTRA_0", broker.url)
        for backend in one_machine(places, Settings.load().cache, memory_gib=8):
            yield Stream(python, broker, backend, places)


def killed(stream: Stream, count: int, seed: int) -> Counter[str]:
    """Ingest again and again, and kill something at a random moment of each, until there were so many kills."""
    chance, kills = random.Random(seed), Counter[str]()
    # Restarts of a broker are the long ones: one in ten.
    weights = {"consumer": 4, "worker": 2, "store": 3, "broker": 1}
    number, longest = 0, LONGEST_SECONDS
    while kills.total() < count:
        number += 1
        jobs = {
            f"clicks-{number}-{each}": stream.submit for each in range(2 if number % TOGETHER == 0 else 1)
        }
        specs = {job_id: submit(job_id) for job_id, submit in jobs.items()}
        until(lambda: False, seconds=chance.uniform(0.0, longest))
        (what,) = chance.choices(list(weights), list(weights.values()))
        job_id = chance.choice(list(specs))
        # A process that is not there at this moment gives its turn to one that is.
        for victim in [what, *(each for each in PROCESSES if each != what)]:
            if stream.kill(victim, job_id):
                kills[victim] += 1
                break
        else:  # the ingest had ended: moments are drawn so that about one in five is as late
            longest *= 0.8
        longest = min(LONGEST_SECONDS, 1.05 * longest)
        ended = Counter(stream.end(job_id, spec) for job_id, spec in specs.items())
        assert ended[JobState.SUCCEEDED] <= 1, "two that began with one version were both made"
    return kills


# A thousand are four times 250, each at a broker of its own: `-n 4` has them beside each other.
@pytest.mark.parametrize(
    "count",
    [
        10,
        pytest.param(50, marks=pytest.mark.nightly),
        *(pytest.param(250, id=f"{part} of 4 times 250", marks=pytest.mark.soak) for part in range(1, 5)),
    ],
)
def test_no_message_is_lost_or_doubled_whatever_is_killed(
    stream: Stream, count: int, record_property: Callable[[str, object], None]
) -> None:
    with stream.pouring():
        kills = killed(stream, count, seed=23 if count == 10 else random.SystemRandom().randrange(1 << 16))
    spec = stream.submit("last")
    assert stream.end("last", spec) is JobState.SUCCEEDED
    told = stream.ledger()
    assert told["messages"] > 100
    assert (told["lost"], told["doubled"], told["other"]) == (0, 0, 0), (told, kills)
    assert not stream.backend.store.check(deep=True).problems
    of = ", ".join(f"{number} of {what}" for what, number in kills.most_common())
    record_property("Kafka: what was killed, and what came of it", f"{of}: {told}")
