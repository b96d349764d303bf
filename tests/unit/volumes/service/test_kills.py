"""The service killed at random moments, while gangs run and people put things in: nothing lost, nothing twice."""

import random
import subprocess
import sys
import threading
from contextlib import suppress

import httpx
import pytest
from tests.namespaces import on_a_small_disk
from tests.unit.volumes.service.gang import Gang, make_spec
from tests.unit.volumes.service.process import Service, until
from tests.waiting import GUARD_SECONDS, eventually

from muster.core.status import JobState
from muster.core.wire import loads
from muster.volumes.folder import FolderStore
from muster.volumes.service.calls import Count

REPLICAS = 2


def test_what_was_sealed_when_it_died_is_committed_by_the_next(tmp_path):
    with Service(tmp_path) as service, Gang(service, "a-1", make_spec()) as gang:
        gang.finish({"out/x": b"1"})
        service.kill()
        service.start()
        with service.client() as store:
            status = until(lambda: store.ledger.status("a-1"), lambda status: status.state.ended)
            assert status.state is JobState.SUCCEEDED
            assert store.count("flights/features") == 1


def persist(ask):
    """As a pod does: ask again while nothing answers, or a proxy in between says so."""

    def answered():
        with suppress(httpx.TransportError):
            answer = ask()
            return answer.status_code < 500 and [answer]

    (answer,) = eventually(answered)
    return answer


class Pod:
    """One replica from its start to its seal, undaunted."""

    def __init__(self, gang, index):
        self.gang, self.index = gang, index
        self.lines = [b"[rank %d] line %d\n" % (index, number) for number in range(20)]

    def run(self):
        gang, index = self.gang, self.index
        persist(lambda: gang.bundle(index)).raise_for_status()
        files = {f"out/part-{index}": b"%d" % index * 3000, f"own/{index}": b"1"}
        gang.write(files, index=index)
        held = 0
        for line in self.lines:
            held = self._send(line, held)
        answer = persist(lambda: gang.seal(gang.sealing(files, index=index), index=index))
        assert answer.is_success, answer.text

    def _send(self, line, offset):
        path = f"{self.gang.path(self.index)}/lines"
        answer = persist(lambda: self.gang.pods.post(path, params={"offset": offset}, content=line))
        return loads(Count, answer.content).count


def work(service, folder, name, numbers):
    """What one person's Airflow does: jobs one after the other, a volume put in, lines of its own."""
    (folder / name).mkdir()
    (folder / name / "x").write_bytes(name.encode() * 1000)
    store = service.client(f"cache-{name}", patience_seconds=60)
    for number in numbers:
        job_id = f"{name}-{number}"
        with Gang(
            service, job_id, make_spec(replicas=REPLICAS, outputs={"out": "shared", "own": name})
        ) as gang:
            pods = [Pod(gang, index) for index in range(REPLICAS)]
            threads = [threading.Thread(target=pod.run) for pod in pods]
            for thread in threads:
                thread.start()
            for line in range(5):
                store.ledger.append(job_id, b"[airflow] %d\n" % line)
            store.add(f"put-{name}", folder / name)
            for thread in threads:
                thread.join()
            until(lambda: store.ledger.status(job_id), lambda status: status.state.ended)  # noqa: B023


def soak(folder, *, people, jobs, mean_seconds):
    chance = random.Random(5)
    failed = []

    def person(name):
        try:
            work(service, folder, name, range(jobs))
        except BaseException as error:
            failed.append(error)
            raise

    with Service(folder) as service:
        threads = [threading.Thread(target=person, args=(f"p{n}",)) for n in range(people)]
        for thread in threads:
            thread.start()
        kills = 0
        while alive := [thread for thread in threads if thread.is_alive()]:
            alive[0].join(chance.expovariate(1 / mean_seconds))  # a long life comes too, on any machine
            service.kill()
            service.start()
            kills += 1
        assert not failed
        check(FolderStore(service.root), *people * [jobs])
    return kills


def check(store, *jobs):
    """:param jobs: how many each person ran."""
    assert store.count("shared") == sum(jobs)
    assert store.check(deep=True).clean
    for n, count in enumerate(jobs):
        assert (store.count(f"p{n}"), store.count(f"put-p{n}")) == (count, count)
        for number in range(count):
            status = store.ledger.status(f"p{n}-{number}")
            assert status.state is JobState.SUCCEEDED, status
            log = store.ledger.read(f"p{n}-{number}")[0].splitlines(keepends=True)
            said = [b"[rank %d] line %d\n" % (rank, line) for rank in range(REPLICAS) for line in range(20)]
            assert sorted(log) == sorted(said + [b"[airflow] %d\n" % line for line in range(5)])


@pytest.mark.slow
def test_kills_at_random_moments(tmp_path):
    assert soak(tmp_path, people=2, jobs=6, mean_seconds=0.2) > 3


@pytest.mark.soak
def test_hundreds_of_kills_at_random_moments(tmp_path):
    assert soak(tmp_path, people=3, jobs=100, mean_seconds=0.3) > 100


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path):
    words = (sys.executable, "-m", "tests.unit.volumes.service.full_disk", tmp_path)
    command = on_a_small_disk(tmp_path, 4, *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=GUARD_SECONDS)
    assert done.returncode == 0, done.stderr
