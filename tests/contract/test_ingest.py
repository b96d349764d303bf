"""Jobs that ingest: a version is the whole source as it is now, made of what changed and of the version before."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import queues
from tests.cluster.layout import Layout
from tests.contract.named import Named
from tests.contract.one_machine import one_machine
from tests.contract.test_backend import finish
from tests.ingest.s3 import EXTRAS, ObjectStore
from tests.waiting import eventually

from muster.backends.base import Backend
from muster.backends.local import processes
from muster.backends.local.places import Places
from muster.core.data import CHECKPOINTS
from muster.core.ingest import BEFORE, ENTRYPOINT, PACKAGE, Source
from muster.core.job import JobSpec, Role, SecretRef
from muster.core.settings import Settings
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause
from muster.images.folders import find_image, image_folders, put_image
from muster.volumes.base import Version
from muster.volumes.beginning import begin_with_last

pytestmark = [pytest.mark.slow, pytest.mark.data, pytest.mark.smoke]

QUEUE = "ingests"
Made = Callable[..., JobSpec]


class IngestContract(Named):
    """What holds wherever jobs run. Give a `backend`, and a `source` of a few small files."""

    @pytest.fixture
    def secrets(self) -> dict[str, SecretRef]:
        """The places of the source's connection."""
        return {}

    @pytest.fixture
    def spec(self, backend: Backend, source: str, secrets: dict[str, SecretRef]) -> Made:
        """A job that ingests now."""
        root = find_image("ingest", image_folders(Settings.load()))
        files = [f"{PACKAGE}/{path.name}" for path in (root / PACKAGE).glob("*.py")]
        code = backend.store.put(root, files)
        digest = put_image(backend.store, root)

        def made(url: str = "", *, what: Any = None, volume: str = "raw") -> JobSpec:
            before, output = begin_with_last(backend.store, self.own(volume), None, name=BEFORE)
            extras = EXTRAS if secrets else ()
            given = {
                **Source(url=url or source, streams=4, patience_seconds=20).param(),
                "extras": list(extras),
                **(what or {}),
            }
            return JobSpec(
                name="a.raw",
                image="ingest",
                image_digest=digest,
                code=code,
                roles=(Role(entrypoint=ENTRYPOINT),),
                inputs={BEFORE: before},
                outputs={CHECKPOINTS: output},
                params={"what": given},
                secrets=secrets,
            )

        return made

    @pytest.fixture
    def run(self, backend: Backend, spec: Made) -> Callable[..., tuple[JobStatus, str]]:
        """Ingest; return how it ended, and its log."""
        count = iter(range(100))

        def run(*arguments: Any, **named: Any) -> tuple[JobStatus, str]:
            job_id = self.own(f"raw-{next(count)}")
            backend.submit(spec(*arguments, **named), job_id=job_id)
            status, log = finish(backend, job_id)
            return status, "\n".join(log)

        return run

    def version(self, backend: Backend, status: JobStatus) -> Version:
        assert status.result is not None, status.verdict
        (address,) = status.result.outputs[CHECKPOINTS]
        (version,) = backend.store.resolve(address)
        return version

    def test_a_second_ingest_of_the_same_keeps_the_version(self, backend: Backend, run: Any) -> None:
        first, log = run()
        made = self.version(backend, first)
        assert made.files > 1, log
        assert backend.store.record(made.address).params["what"]["source"]
        again, log = run()
        assert self.version(backend, again) == made
        assert "holds nothing new" in log
        assert backend.store.count(self.own("raw")) == 1

    def test_of_two_at_once_one_is_made(self, backend: Backend, spec: Made) -> None:
        jobs = [self.own("one"), self.own("two")]
        specs = [spec(), spec()]
        for job_id, each in zip(jobs, specs, strict=True):
            backend.submit(each, job_id=job_id)
        ended = [finish(backend, job_id)[0] for job_id in jobs]
        assert sorted(each.state.value for each in ended) == ["failed", "succeeded"]
        (refused,) = (each.verdict for each in ended if each.verdict is not None)
        assert refused.cause is Cause.COMMIT_FAILED
        assert refused.cause.retried
        assert "was to come the first of its volume" in refused.message
        assert backend.store.count(self.own("raw")) == 1


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


class TestIngestOnThisMachine(IngestContract):
    @pytest.fixture
    def places(self, tmp_path: Path) -> Places:
        return Places(tmp_path / "home")

    @pytest.fixture
    def backend(self, places: Places, cache: Path) -> Iterator[Backend]:
        yield from one_machine(places, cache, memory_gib=8)

    @pytest.fixture
    def lake(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
        """An S3 server, whose credentials are in this process's environment."""
        with ObjectStore(tmp_path / "s3") as lake:
            for name, text in lake.variables().items():
                monkeypatch.setenv(name, text)
            yield lake

    @pytest.fixture
    def source(self, lake: ObjectStore) -> str:
        for name in ("a", "d/b", "d/e/c"):
            lake.put(f"lake/events/{name}", name)
        lake.put("lake/other/x", "beside")
        return "s3://lake/events"

    @pytest.fixture
    def secrets(self, lake: ObjectStore) -> dict[str, SecretRef]:
        return {name: SecretRef(source="environment", name=name) for name in lake.variables()}

    def contents(self, backend: Backend, status: JobStatus) -> dict[str, str]:
        folder = backend.store.path(self.version(backend, status).address)
        found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
        return {name: path.read_text() for name, path in found.items() if not name.startswith(".muster")}

    def test_only_what_changed_is_fetched_and_the_rest_is_shared(
        self, backend: Backend, run: Any, lake: ObjectStore
    ) -> None:
        first, _ = run()
        assert self.contents(backend, first) == {"a": "a", "d/b": "d/b", "d/e/c": "d/e/c"}
        lake.put("lake/events/a", "new")
        (lake.folder / "lake/events/d/e/c").unlink()
        lake.put("lake/events/f", "f")
        second, log = run()
        assert self.contents(backend, second) == {"a": "new", "d/b": "d/b", "f": "f"}
        assert second.result is not None
        told = second.result.metrics
        assert [told[name] for name in ("files", "fetched", "kept", "gone")] == [3, 2, 1, 1]
        before, after = (
            backend.store.path(self.version(backend, each).address) / "d/b" for each in (first, second)
        )
        assert before.stat().st_ino == after.stat().st_ino
        assert not backend.store.check(deep=True).problems
        record = backend.store.record(self.version(backend, second).address)
        assert record.inputs == {}
        assert record.params["what"]["source"] == "s3://lake/events"
        for word in lake.variables().values():
            assert word == "us-east-1" or word not in f"{log}{record}"

    def test_a_killed_job_goes_on_from_what_it_had(
        self, backend: Backend, run: Any, spec: Made, lake: ObjectStore, places: Places
    ) -> None:
        for number in range(200):
            lake.put(f"lake/many/{number}", "x" * 20_000)
        job_id = self.own("killed")
        backend.submit(spec("s3://lake/many", what={"streams": 1}), job_id=job_id)
        staging = eventually(lambda: backend.store.staging(job_id))
        eventually(lambda: len(list(staging.checkpoints.glob("*"))) > 30)
        rank = max(processes.marked(places.mark(job_id)))
        os.kill(rank, signal.SIGKILL)
        status, log = finish(backend, job_id)
        assert status.state is JobState.SUCCEEDED, log
        (line,) = [line for line in log if "goes on from" in line]
        assert int(line.split()[5].replace(",", "")) >= 25, line
        assert self.version(backend, status).files == 201

    def test_a_source_that_comes_back_is_waited_for(
        self, backend: Backend, spec: Made, lake: ObjectStore
    ) -> None:
        for number in range(200):
            lake.put(f"lake/many/{number}", "x" * 20_000)
        job_id = self.own("away")
        backend.submit(spec("s3://lake/many", what={"streams": 2}), job_id=job_id)
        staging = eventually(lambda: backend.store.staging(job_id))
        eventually(lambda: len(list(staging.checkpoints.glob("*"))) > 30)
        lake.stop()
        lake.start()
        status, log = finish(backend, job_id)
        assert status.state is JobState.SUCCEEDED, log
        assert self.version(backend, status).files == 201

    def test_a_source_that_stays_away_loses_nothing(
        self, backend: Backend, spec: Made, run: Any, lake: ObjectStore
    ) -> None:
        first, _ = run()
        lake.stop()
        status, log = run(what={"patience_seconds": 1})
        assert log.count("asking again for up to 1 s") == 1
        assert "Traceback" not in log
        assert status.verdict is not None
        assert "SourceAway: s3://lake/events does not answer" in status.verdict.message
        assert status.verdict.advice == "run again once the source answers; what was fetched is kept"
        assert backend.store.versions(self.own("raw")) == [self.version(backend, first)]

    def test_wrong_credentials_are_named_and_not_shown(
        self, run: Any, lake: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("INGEST_PASSWORD", "a-wrong-word")
        status, log = run(what={"connection": "lake"})
        assert status.verdict is not None
        assert status.verdict.cause is Cause.USER_ERROR
        assert "s3://lake/events refuses connection 'lake'" in status.verdict.message
        assert status.verdict.advice.startswith("mend what the message names and run again")
        assert "a-wrong-word" not in log

    @pytest.mark.parametrize(
        ("url", "said"), [("s3://nowhere/x", "is not there"), ("s3://lake/none", "is not there")]
    )
    def test_a_bucket_or_prefix_that_is_not_there_is_called_that(self, run: Any, url: str, said: str) -> None:
        status, _ = run(url)
        assert status.verdict is not None
        assert said in status.verdict.message

    def test_an_object_that_is_a_file_and_a_folder_is_refused(
        self, run: Any, lake: ObjectStore, tmp_path: Path
    ) -> None:
        long = "n" * 250
        lake.put(f"lake/odd/{long}", "x")
        status, _ = run("s3://lake/odd")
        assert status.verdict is not None
        assert "has a name of more than 240 bytes" in status.verdict.message


@pytest.mark.cluster
@pytest.mark.nightly
class TestIngestOnCluster(IngestContract):
    @pytest.fixture
    def source(self) -> str:
        return "file:///usr/share/base-files"  # of the machine, which each image of the test cluster has

    @pytest.fixture
    def backend(self, here: Layout, tmp_path: Path) -> Iterator[Backend]:
        with queues.backend_in(QUEUE, here, tmp_path, unique=self.unique) as backend:
            yield backend


@pytest.fixture(scope="module")
def here() -> Iterator[Layout]:
    """A cluster with the store service, and with a queue in which two jobs have room."""
    with queues.with_room(QUEUE, memory_gib=8) as of:
        yield of
