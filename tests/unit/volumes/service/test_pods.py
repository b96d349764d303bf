"""What pods ask for: their bundle, lines and seals, in whatever order and as often as they do."""

import io
import os
import tarfile

import pytest
from tests.unit.volumes.service.gang import WORKER, Gang, make_spec
from tests.unit.volumes.service.process import until

from muster.core.errors import Conflict
from muster.core.progress import Progress
from muster.core.replica import Report
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause, ExitCode
from muster.core.wire import dumps


def ended(store, job_id):
    return until(lambda: store.ledger.status(job_id), lambda status: status.state.ended)


def names(answer):
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        return {member.name: member.mode & 0o777 for member in tar}


class TestBundle:
    def test_holds_the_worker_and_the_code(self, service, store, tmp_path):
        (tmp_path / "run.sh").write_text("true\n")
        (tmp_path / "run.sh").chmod(0o755)
        (tmp_path / "pkg").mkdir()
        (tmp_path / "pkg" / "étl.py").write_text("x = 1\n")
        code = store.put(tmp_path, ["run.sh", "pkg/étl.py"])
        with Gang(service, "bundle-1", make_spec(code=code)) as gang:
            answer = gang.bundle()
            assert names(answer) == {"worker.pyz": 0o644, "code/run.sh": 0o755, "code/pkg/étl.py": 0o644}
            with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
                assert tar.extractfile("worker.pyz").read() == WORKER
            assert (answer.headers["muster-attempt"], gang.bundle().content) == ("1", answer.content)

    def test_what_pods_mount_is_there_before_they_start(self, gang):
        gang.bundle().raise_for_status()
        assert str(gang.root().readlink()) == "1"
        assert sorted(path.name for path in gang.root().iterdir()) == [
            "checkpoints",
            "gang",
            "made",
            "main-0",
            "main-1",
            "pods",
            "sealed",
        ]
        assert (gang.root() / "main-1" / "out").is_dir()

    def test_the_first_pod_of_a_restarted_gang_begins_the_next_attempt(self, gang, store):
        gang.bundle(0).raise_for_status()
        (gang.root() / "checkpoints" / "step").write_bytes(b"weights")
        assert gang.bundle(1, restart="1").headers["muster-attempt"] == "2"
        assert gang.bundle(0, restart="1").headers["muster-attempt"] == "2"
        assert store.staging(gang.job_id).attempt == 2
        assert (gang.root("1") / "checkpoints" / "step").read_bytes() == b"weights"

    def test_a_pod_of_an_earlier_start_is_refused(self, gang):
        gang.bundle(0, restart="1-0").raise_for_status()
        gang.bundle(0, restart="1-1").raise_for_status()
        for restart in ("0-0", "1-0", "0-1"):
            assert gang.bundle(1, restart=restart).status_code == 409

    def test_a_gang_that_an_operator_started_again_is_refused(self, gang, store):
        gang.bundle(0).raise_for_status()
        store.stage(gang.job_id)
        assert gang.bundle(0).status_code == gang.bundle(0, restart="1").status_code == 409

    def test_there_is_one_pod_for_a_replica(self, gang):
        gang.bundle(0, pod="uid-1").raise_for_status()
        gang.bundle(0, pod="uid-1").raise_for_status()
        answer = gang.bundle(0, pod="uid-2")
        assert answer.status_code == 409
        assert "another pod is replica main-0" in answer.json()["message"]
        gang.bundle(0, restart="1", pod="uid-2").raise_for_status()

    @pytest.mark.parametrize(
        ("asked", "status"),
        [
            ({"restart": "x"}, 400),
            ({"restart": "../.."}, 400),
            ({"restart": "1" * 300}, 400),
            ({"index": 2}, 404),
            ({"pod": "../../x"}, 400),
            ({"pod": "x" * 5000}, 400),
        ],
    )
    def test_what_no_cluster_asks_is_refused(self, gang, store, asked, status):
        assert gang.bundle(**asked).status_code == status
        assert store.staging(gang.job_id).attempt == 1

    def test_a_job_without_a_worker_says_so(self, gang, service):
        (service.root / "jobs" / gang.job_id / "worker.pyz").unlink()
        answer = gang.bundle()
        assert (answer.status_code, answer.json()["error"]) == (404, "NotFound")
        assert "no worker yet" in answer.json()["message"]


class TestLines:
    def test_lines_of_two_replicas_are_in_the_log_once(self, gang, store):
        assert gang.lines(b"one\ntwo\n") == 8
        assert gang.lines(b"two\nthree\n", offset=4) == 14
        assert gang.lines(b"other\n", index=1) == 6
        assert gang.lines(b"one\ntwo\nthree\nfour\n") == 19
        assert store.ledger.read(gang.job_id)[0] == b"one\ntwo\nthree\nother\nfour\n"

    def test_a_terminal_is_not_steered(self, gang, store):
        sent = "drü \x1b[31m\x9b\tok\r\n".encode()
        assert gang.lines(sent) == len(sent)
        assert store.ledger.read(gang.job_id)[0].decode() == "drü ?[31m??\tok?\n"

    def test_an_earlier_attempt_is_refused(self, gang, store):
        gang.bundle()
        old = gang.path()
        gang.bundle(restart="1")
        answer = gang.pods.post(f"{old}/lines", params={"offset": 0}, content=b"late\n")
        assert (answer.status_code, answer.json()["error"]) == (409, "Conflict")
        assert "attempt 1 is fenced, the current one is 2" in answer.json()["message"]
        assert store.ledger.read(gang.job_id)[0] == b""

    def test_too_much_at_once_is_refused(self, gang, store):
        for data in (b"x" * (4 << 20) + b"\n", b"x\n" * (20 << 20)):
            answer = gang.pods.post(f"{gang.path()}/lines", params={"offset": 0}, content=data)
            assert (answer.status_code, answer.json()["error"]) == (400, "SpecError")
            assert "longer than the 4194304 bytes" in answer.json()["message"]
        assert store.ledger.read(gang.job_id)[0] == b""

    def test_how_far_a_job_is_stands_in_its_status(self, gang, store):
        gang.lines(b"[rank 0] muster: epoch=1/3\n[rank 0] muster: epoch=2/3 loss=0.5\n")
        gang.lines(b"[rank 1] muster: link Run=https://x.example/1\n", index=1)
        told = {"epoch": Progress(value=2, total=3), "loss": Progress(value=0.5)}
        for status in (store.ledger.status(gang.job_id), *store.ledger.statuses([gang.job_id])):
            assert (dict(status.progress), dict(status.links)) == (told, {"Run": "https://x.example/1"})
        store.ledger.update(JobStatus(job_id=gang.job_id, state=JobState.FAILED, submitted=1.0))
        assert dict(store.ledger.status(gang.job_id).progress) == told

    def test_last_words_are_heard_after_the_end(self, gang, store):
        store.ledger.update(JobStatus(job_id=gang.job_id, state=JobState.FAILED, submitted=1.0))
        gang.lines(b"last words\n")
        assert store.ledger.read(gang.job_id)[0] == b"last words\n"


class TestSeal:
    def test_with_the_last_seal_the_job_is_committed(self, gang, store, volume):
        gang.lines(b"[rank 0] muster: link MLflow=https://mlflow.example/1\n")
        for index in range(2):
            assert store.ledger.status(gang.job_id).state is JobState.QUEUED
            files = {f"out/part-{index}": b"x" * index}
            gang.bundle(index)
            gang.write(files, index=index)
            gang.seal(gang.sealing(files, index=index, metrics={"auc": 0.7}), index=index).raise_for_status()
        status = ended(store, gang.job_id)
        assert status.state is JobState.SUCCEEDED
        assert dict(status.result.outputs) == {"out": (f"volume://{volume}@1",)}
        assert (dict(status.result.metrics), status.result.modules) == ({"auc": 0.7}, ("etl.py",))
        assert dict(status.result.links) == {"MLflow": "https://mlflow.example/1"}
        assert store.record(f"{volume}@1").metrics == {"auc": 0.7}
        assert sorted(store.manifest(f"{volume}@1")) == ["part-0", "part-1"]

    def test_a_seal_that_is_sent_again_is_one(self, gang, store, volume):
        gang.bundle()
        gang.write({"out/x": b"1"})
        body = gang.sealing({"out/x": b"1"})
        for _ in range(3):
            gang.seal(body).raise_for_status()
        gang.finish({"out/y": b"2"}, index=1)
        for _ in range(3):
            assert gang.seal(body).is_success
        ended(store, gang.job_id)
        assert gang.seal(body).is_success
        assert store.count(volume) == 1

    def test_another_seal_of_the_same_replica_is_refused(self, gang):
        gang.bundle()
        gang.seal(gang.sealing({"out/x": b"1"})).raise_for_status()
        answer = gang.seal(gang.sealing({"out/x": b"22"}))
        assert (answer.status_code, answer.json()["error"]) == (409, "Conflict")

    def test_an_earlier_attempt_is_refused(self, gang):
        gang.bundle()
        body = gang.sealing({"out/x": b"1"})
        old = gang.path()
        gang.bundle(restart="1")
        assert gang.pods.put(f"{old}/seal", content=body).status_code == 409

    @pytest.mark.parametrize("damage", ["another replica", "no report", "a failure", "not JSON", "empty"])
    def test_what_is_no_seal_of_this_replica_is_refused(self, gang, store, damage):
        gang.bundle()
        body = gang.sealing({"out/x": b"1"})
        failure = dumps(Report(exit_code=ExitCode.USER_ERROR)).encode()
        answer = gang.seal(
            {
                "another replica": gang.sealing({"out/x": b"1"}, index=1),
                "no report": body.partition(b"\n")[2],
                "a failure": failure + b"\n" + body.partition(b"\n")[2],
                "not JSON": b"\xff\n\xff",
                "empty": b"",
            }[damage]
        )
        assert (answer.status_code, answer.json()["error"]) == (400, "SpecError")
        assert store.sealed(gang.job_id) is None

    def test_a_seal_of_too_many_files_is_refused(self, gang, store):
        gang.bundle()
        answer = gang.seal(b"x" * (33 << 20))
        assert (answer.status_code, answer.json()["error"]) == (400, "SpecError")
        assert "the list of the replica's files, which is its seal, is longer" in answer.json()["message"]
        assert store.sealed(gang.job_id) is None

    def test_nobody_else_ends_a_job_that_has_sealed(self, gang, store):
        for index in range(2):
            gang.finish({f"out/{index}": b"1"}, index=index)
        store.ledger.update(JobStatus(job_id=gang.job_id, state=JobState.FAILED, submitted=1.0))
        store.ledger.update(JobStatus(job_id=gang.job_id, state=JobState.RUNNING, submitted=1.0))
        assert ended(store, gang.job_id).state is JobState.SUCCEEDED
        with pytest.raises(Conflict, match="has ended"):
            store.stage(gang.job_id)
        assert gang.bundle(restart="1").status_code == 410

    def test_a_cancelled_job_is_not_sealed(self, gang, store):
        gang.bundle()
        store.ledger.update(JobStatus(job_id=gang.job_id, state=JobState.CANCELLED, submitted=1.0))
        assert gang.seal(gang.sealing({"out/x": b"1"})).status_code == 410

    def test_what_cannot_become_a_version_ends_the_job_with_a_verdict(self, gang, store, volume, tmp_path):
        for index in range(2):
            gang.finish({"out/same": b"1"}, index=index)
        status = ended(store, gang.job_id)
        assert (status.state, status.verdict.cause) == (JobState.FAILED, Cause.USER_ERROR)
        assert "both wrote 'same'" in status.verdict.message
        assert status.verdict.advice.endswith(f"clear the task; what it wrote: muster jobs get {gang.job_id}")
        assert store.salvage(gang.job_id, tmp_path / "written") == 2
        assert (tmp_path / "written" / "main-1" / "out" / "same").read_bytes() == b"1"
        assert store.ledger.read(gang.job_id)[0].decode() == status.verdict.render(job_id=gang.job_id) + "\n"
        assert store.count(volume) == 0

    def test_a_folder_of_seals_that_a_rank_tampered_with_decides_nothing(self, gang, store):
        gang.bundle()
        os.mkfifo(gang.root() / "sealed" / "main-1.json")
        gang.seal(gang.sealing({"out/x": b"1"})).raise_for_status()
        assert store.ledger.status(gang.job_id).state is JobState.QUEUED
