"""What a gang of a data engine survived: from the line of a replica to the end of its job."""

from __future__ import annotations

import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.waiting import GUARD_SECONDS

from muster.backends.jobs.ending import record
from muster.core.errors import EmptyOutput
from muster.core.job import JobSpec, Launcher, Role
from muster.core.replica import Replica
from muster.core.verdict import Cause, Verdict
from muster.volumes.folder import FolderStore
from muster.volumes.survived import LAST_BYTES, Losses, bad_output, losses, survived, with_survived
from muster.worker.launchers import engine

SPARK = JobSpec(
    name="a.b",
    image="spark",
    image_digest="b3:" + "0" * 64,
    launcher=Launcher.SPARK,
    roles=(Role(command=("count",), replicas=3),),
)
LOST = (
    "[rank {}] the engine's worker was lost at 2026-11-26 14:03:22 UTC (killed by SIGKILL), and the driver goes on: "
    "another one begins\n"
)
EXECUTOR = "[rank {}] an executor of Spark's was lost at 2026-11-26 14:03:22 UTC (exit status {}), and its worker goes on: another one begins\n"
AT = "2026-11-26 14:03:22 UTC"
WRONG = Verdict(cause=Cause.USER_ERROR, message="ValueError: no rows", advice="mend it", rank=0)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    store = FolderStore(tmp_path)
    store.ledger.create("job-1", SPARK)
    return store


def fails(store: FolderStore, verdict: Verdict) -> str:
    """The message of a job that ends with this verdict, which is in its log, too."""
    record(store.ledger, store.ledger.status("job-1"), verdict)
    ended = store.ledger.status("job-1")
    assert ended.verdict is not None
    assert ended.verdict.message.encode() in store.ledger.read("job-1", limit_bytes=1 << 22)[0]
    return ended.verdict.message


@pytest.mark.parametrize(
    "line",
    [
        "[rank 2] the engine's worker ended with exit status 1: another one begins\n",  # as the driver had ended
        LOST.format(2).removeprefix("[rank 2] "),
        LOST.format(2).replace("SIGKILL", "\x1b[31m"),
        LOST.format(0),  # the driver is no worker
        LOST.format(2).replace("killed by SIGKILL", "the secret sauce"),
        LOST.format(2).replace("[rank 2]", "[rank 0] it said: [rank 2]"),
        EXECUTOR.format(0, 137),
        EXECUTOR.format(2, "Executor app-1/0"),
        EXECUTOR.format(2, "52, out of memory"),  # no executor's line says how a status is read
        EXECUTOR.format(2, 137).replace("its worker", "the driver"),
        LOST.format(2).replace("the driver", "its worker"),
    ],
)
def test_other_lines_name_no_lost_worker(line: str) -> None:
    assert list(losses(line.encode())) == []


def test_a_lost_worker_is_named_with_its_replica_and_time(store: FolderStore) -> None:
    store.ledger.append("job-1", f"[rank 0] counted\n{LOST.format(2)}[rank 0] done\n".encode())
    line = f"the worker of replica 2 was lost at {AT} (killed by SIGKILL), and the driver went on without it"
    assert str(survived(store.ledger, "job-1")) == line
    assert fails(store, WRONG) == f"ValueError: no rows; before, {line}"


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (137, "killed by SIGKILL"),
        (52, "exit status 52, out of memory"),
        (50, "exit status 50"),
        (255, "exit status 255"),
    ],
)
def test_a_lost_executor_is_named_as_a_lost_worker_is(store: FolderStore, status: int, how: str) -> None:
    store.ledger.append("job-1", EXECUTOR.format(2, status).encode())
    line = f"an executor of replica 2 was lost at {AT} ({how}), and the driver went on without it"
    assert str(survived(store.ledger, "job-1")) == line
    assert fails(store, WRONG) == f"ValueError: no rows; before, {line}"


def test_workers_and_executors_are_counted_apart(store: FolderStore) -> None:
    lines = [EXECUTOR.format(1, 137), LOST.format(2), EXECUTOR.format(3, 137)]
    store.ledger.append("job-1", "".join(lines[:2]).encode())
    named = [f"replica {number} at {AT} (killed by SIGKILL)" for number in (1, 2, 3)]
    assert str(survived(store.ledger, "job-1")).startswith(
        "1 worker and 1 executor were lost, and the driver went on: "
    )
    store.ledger.append("job-1", lines[2].encode())
    found = survived(store.ledger, "job-1")
    assert str(found) == f"1 worker and 2 executors were lost, and the driver went on: {', '.join(named)}"
    assert found.short == f"1 worker and 2 executors were lost, the first an executor of {named[0]}"
    assert survived(store.ledger, "job-1", but=3) == found, "its executor is not the end of a rank"
    assert str(survived(store.ledger, "job-1", but=2)).startswith("2 executors were lost, ")


def test_many_lost_workers_are_counted_and_a_verdict_names_the_first_of_them(store: FolderStore) -> None:
    store.ledger.append("job-1", b"".join(LOST.format(number).encode() for number in (1, 2, 1, 3, 2)))
    named = ", ".join(f"replica {number} at {AT} (killed by SIGKILL)" for number in (1, 2, 1))
    found = survived(store.ledger, "job-1")
    assert str(found) == f"5 workers were lost, and the driver went on: {named}, and 2 more"
    message = fails(store, WRONG)
    first = f"replica 1 at {AT} (killed by SIGKILL)"
    assert message == f"ValueError: no rows; before, 5 workers were lost, the first of {first}"


@pytest.mark.parametrize("times", [1, 100_000])
def test_most_of_a_long_message_stays(store: FolderStore, times: int) -> None:
    line = LOST.format(999_999).replace("killed by SIGKILL", "killed by SIGVTALRM, out of memory")
    store.ledger.append("job-1", line.encode() * times)
    verdict = with_survived(replace(WRONG, message="x" * 400), store.ledger, "job-1")
    assert verdict.message.startswith("x" * 239)
    assert len(verdict.message) == 400


def test_of_the_rank_at_fault_only_the_last_loss_is_left_out(store: FolderStore) -> None:
    """The one before is of an earlier attempt, and the gang survived it."""
    first, last = (LOST.format(2).replace("14:03:22", at) for at in ("14:01:01", "14:09:09"))
    store.ledger.append("job-1", f"{first}[muster] attempt 2\n{LOST.format(1)}{last}".encode())
    found = survived(store.ledger, "job-1", but=2)
    assert found.count == 2
    assert [(loss.replica, loss.at) for loss in found.first] == [(2, AT.replace("03:22", "01:01")), (1, AT)]
    message = fails(store, replace(WRONG, rank=2))
    assert message.startswith("ValueError: no rows; before, 2 workers were lost, the first of replica 2 at ")
    assert "14:01:01" in message


def test_a_last_loss_of_the_rank_at_fault_that_is_not_named_is_not_counted(store: FolderStore) -> None:
    store.ledger.append("job-1", b"".join(LOST.format(number).encode() for number in (1, 1, 1, 1, 1, 2)))
    found = survived(store.ledger, "job-1", but=2)
    assert (found.count, [loss.replica for loss in found.first]) == (5, [1, 1, 1])


def test_a_worker_at_fault_survived_nothing_and_a_cancelled_job_needs_no_more_words(
    store: FolderStore,
) -> None:
    store.ledger.append("job-1", LOST.format(2).encode())
    assert survived(store.ledger, "job-1", but=2) == Losses()
    assert fails(store, Verdict(cause=Cause.CANCELLED, message="by hand", advice="-")) == "by hand"


def test_the_end_of_a_job_that_a_look_records_reads_only_the_end_of_its_log(store: FolderStore) -> None:
    line = LOST.format(2)
    store.ledger.append("job-1", LOST.format(1).encode() + b"x" * 79 + b"\n")
    store.ledger.append("job-1", (b"x" * 79 + b"\n") * (LAST_BYTES // 80 - 10))
    store.ledger.append("job-1", line.encode() + (b"x" * 79 + b"\n") * 8)
    assert survived(store.ledger, "job-1").count == 2
    assert "before, the worker of replica 2 was lost" in fails(store, WRONG)


def test_a_line_that_begins_before_what_is_read_names_no_lost_worker(store: FolderStore) -> None:
    line = LOST.format(2)
    store.ledger.append("job-1", f"[rank 0] it said: {line}".encode())
    assert survived(store.ledger, "job-1", last_bytes=len(line)).count == 0


def test_the_log_of_another_gang_is_not_read(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.ledger.create(
        "job-1", JobSpec(name="a.b", image="a", image_digest=SPARK.image_digest, roles=SPARK.roles)
    )
    store.ledger.append("job-1", LOST.format(2).encode())
    assert survived(store.ledger, "job-1") == Losses()


@pytest.mark.slow  # a worker is begun again a second after its end
@pytest.mark.parametrize(
    ("lives", "ends", "status"),
    [
        (True, "kill -KILL $$", ""),
        (False, "kill -KILL $$", "-9"),
        (True, "exit 3", "3"),
    ],  # the last one may never have come
)
def test_a_replica_says_that_its_worker_was_lost_while_the_engines_head_listens(
    tmp_path: Path, *, lives: bool, ends: str, status: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        if not lives:
            head.close()
        sealed = tmp_path / "main-1.json"
        replica = Replica(
            job_id="job-1",
            spec=SPARK,
            attempt=1,
            role="main",
            index=1,
            code=None,
            inputs={},
            staging={},
            checkpoints="",
            scratch=str(tmp_path),
            sealed=str(sealed),
            report="",
            master_port=port,
        )
        begun = tmp_path / "begun"
        once = f"[ -e {begun} ] && exec sleep 60; touch {begun}; {ends}"
        words = engine.kept(replica, ("sh", "-c", once), host="127.0.0.1")
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as rank:
            assert rank.stdout is not None
            said = rank.stdout.readline()
            (tmp_path / "main-0.json").touch()  # the first replica has sealed
            assert rank.wait(GUARD_SECONDS) == 0
    found = losses(f"[rank 1] {said}".encode())
    assert [(loss.replica, loss.how) for loss in found] == ([] if status else [(1, "killed by SIGKILL")])
    assert not status or said == f"the engine's worker ended with exit status {status}: another one begins\n"


def test_an_empty_output_is_told_with_what_rank_0_said_last_as_far_as_it_is_read(store: FolderStore) -> None:
    def told() -> str:
        return bad_output(EmptyOutput("output 'x' is empty"), store.ledger, "job-1").message

    assert told().endswith("the last lines of rank 0: none near the end of the log")
    store.ledger.append("job-1", b"[rank 0] no rows today\n[rank 1] other\n")
    assert told().endswith("the last lines of rank 0: no rows today")
    store.ledger.append("job-1", b"[rank 1] very loud\n" * 1000)
    assert told().endswith("the last lines of rank 0: none near the end of the log")
