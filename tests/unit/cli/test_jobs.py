"""``muster jobs`` on a real ledger."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from muster.core.data import Input, OutputTarget
from muster.core.job import JobSpec, Role
from muster.core.progress import heard
from muster.core.status import JobResult, JobState
from muster.core.verdict import Cause, Verdict
from muster.volumes.folder import FolderStore
from muster.volumes.series import NAME

Run = Callable[..., Any]
DIGEST = "b3:" + "0" * 64
FAILED, DONE, RUNNING = "train-aa-1", "train-ab-1", "features-1"


def spec(name: str) -> JobSpec:
    return JobSpec(
        name=name,
        image="train",
        image_digest=DIGEST,
        roles=(Role(entrypoint="flights.train:train", replicas=2),),
        inputs={"features": Input(versions=(), many=True)},
        outputs={"model": OutputTarget(volume="flights/model")},
        params={"epochs": 5},
    )


def enter(store: FolderStore, job_id: str, state: JobState, *, log: str = "", **changes: Any) -> None:
    store.ledger.create(job_id, spec(f"flights.{job_id.partition('-')[0]}"))
    store.ledger.append(job_id, log.encode())
    store.ledger.update(replace(store.ledger.status(job_id), state=state, **changes))


@pytest.fixture
def jobs(store: FolderStore) -> FolderStore:
    now = time.time()
    log = "".join(f"[rank {n % 2}] step {n}\n" for n in range(200)) + "[rank 1] \x1b[2Jx\x1b]0;t\x07\n"
    result = JobResult(outputs={"model": ("volume://flights/model@1",)}, metrics={"auc": 0.7241})
    enter(store, DONE, JobState.SUCCEEDED, log=log, started=now - 90, ended=now, result=result)
    verdict = Verdict(
        cause=Cause.USER_ERROR, message="ValueError: [bold]no[/bold]", advice="mend train.py", rank=1
    )
    enter(store, FAILED, JobState.FAILED, verdict=verdict, started=now - 2, ended=now)
    enter(store, RUNNING, JobState.RUNNING, started=now)
    return store


@pytest.mark.usefixtures("jobs")
class TestReading:
    def test_ls_is_newest_first_and_says_why(self, muster: Run) -> None:
        _, running, failed, done = muster("jobs", "ls").out.splitlines()
        assert running.split()[:3] == [RUNNING, "flights.features", "running"]
        assert "its supervisor is gone" in running
        assert failed.endswith("user error, rank 1: ValueError: [bold]no[/bold]")
        assert "1 min 30 s" in done

    def test_ls_by_state(self, muster: Run) -> None:
        assert [job["job_id"] for job in muster("jobs", "ls", "--state", "failed", "--json").json()] == [
            FAILED
        ]
        assert "no jobs queued" in muster("jobs", "ls", "--state", "queued").err

    def test_ls_json_of_everything(self, muster: Run) -> None:
        running, failed, done = muster("jobs", "ls", "--json").json()
        assert running["alive"] is False
        assert failed["verdict"]["cause"] == "user error"
        assert done["result"]["outputs"] == {"model": ["volume://flights/model@1"]}
        assert len(muster("jobs", "ls", "--json", "-n", "1").json()) == 1

    def test_show_has_spec_result_and_verdict(self, muster: Run) -> None:
        done = muster("jobs", "show", DONE).out
        for known in (
            "volume://flights/model@1",
            "auc=0.7241",
            "flights.train:train",
            "2 x 1 ranks",
            "epochs",
        ):
            assert known in done
        failed = muster("jobs", "show", FAILED).out.splitlines()
        assert failed[-4:] == [
            "user error, rank 1",
            "ValueError: [bold]no[/bold]",
            "mend train.py",
            f"full log: muster jobs logs {FAILED}",
        ]

    def test_progress_and_links_are_shown(self, muster: Run, jobs: FolderStore) -> None:
        told = heard(
            b"[rank 0] muster: epoch=3/10 loss=0.25\n[rank 0] muster: link MLflow=https://a.example/1\n"
        )
        status = jobs.ledger.status(RUNNING)
        jobs.ledger.update(replace(status, progress=told.progress, links=told.links))
        shown = muster("jobs", "show", RUNNING).out
        assert "epoch=3/10 loss=0.25" in shown
        assert "https://a.example/1" in shown
        document = muster("jobs", "show", RUNNING, "--json").json()["status"]
        assert document["progress"]["epoch"] == {"value": 3.0, "total": 10.0}
        assert document["links"] == {"MLflow": "https://a.example/1"}

    def test_numbers_are_drawn_as_curves(self, muster: Run, jobs: FolderStore) -> None:
        for epoch, loss in enumerate(("0.8", "0.4", "nan", "0.1")):
            jobs.ledger.append(RUNNING, f"[rank 0] muster: epoch={epoch}/4 loss={loss}\n".encode())
        jobs.ledger.append(RUNNING, b"[use main-0] muster: cpu_cores=1.5\n")
        shown = muster("jobs", "show", RUNNING).out.splitlines()
        (loss,) = [line for line in shown if line.startswith("loss ")]
        assert loss.split()[1:] == ["█▄▁", "0.8", "→", "0.1", "1", "not", "finite"]
        assert any(line.split() == ["cpu_cores,", "main-0", "▁", "1.5"] for line in shown)
        document = muster("jobs", "show", RUNNING, "--json").json()["series"]
        assert [curve["values"] for curve in document["numbers"]] == [[0, 1, 2, 3], [0.8, 0.4, 0.1]]
        assert [curve["source"] for curve in document["use"]] == ["main-0"]

    def test_a_job_is_shown_without_curves_that_cannot_be_read(self, muster: Run, jobs: FolderStore) -> None:
        jobs.ledger.append(RUNNING, b"[rank 0] muster: epoch=1/4 loss=0.4\n")
        (jobs.layout.job(RUNNING) / NAME).write_text("{")
        answer = muster("jobs", "show", RUNNING)
        assert (answer.code, "running" in answer.out, "loss" in answer.out) == (0, True, False)
        assert f"{NAME} cannot be read" in answer.err
        assert muster("jobs", "show", RUNNING, "--json").json()["series"]["numbers"] == []

    def test_a_running_job_has_its_ranks(self, muster: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        from muster.backends.local import capacity

        monkeypatch.setattr(capacity, "ranks", lambda mark: [41, 42] if mark.startswith(RUNNING) else [])
        shown = [line.split() for line in muster("jobs", "show", RUNNING).out.splitlines()]
        assert ["rank", "0", "pid", "41"] in shown
        assert ["rank", "1", "pid", "42"] in shown
        document = muster("jobs", "show", RUNNING, "--json").json()
        assert document["parts"] == [
            {"name": "rank 0", "process": "pid 41", "node": ""},
            {"name": "rank 1", "process": "pid 42", "node": ""},
        ]
        monkeypatch.setattr(capacity, "ranks", lambda _: [42])
        assert "a rank     pid 42" in muster("jobs", "show", RUNNING).out
        assert muster("jobs", "show", DONE, "--json").json()["parts"] == []

    def test_show_json(self, muster: Run) -> None:
        document = muster("jobs", "show", FAILED, "--json").json()
        assert document["spec"]["params"] == {"epochs": 5}
        assert document["status"]["state"] == "failed"

    def test_logs_are_whole_and_harmless(self, muster: Run) -> None:
        lines = muster("jobs", "logs", DONE).out.splitlines()
        assert len(lines) == 201
        assert lines[3] == "[rank 1] step 3"
        assert lines[-1] == r"[rank 1] \x1b[2Jx\x1b]0;t\x07"

    def test_logs_tail(self, muster: Run) -> None:
        assert muster("jobs", "logs", DONE, "--tail", "2").out.splitlines()[0] == "[rank 1] step 199"
        none = muster("jobs", "logs", DONE, "--tail", "0")
        assert (none.out, none.err) == ("", "")

    @pytest.mark.parametrize("words", [(), ("--tail", "5"), ("-f",)])
    def test_a_job_that_printed_nothing_is_said_to(self, words: Any, muster: Run) -> None:
        answer = muster("jobs", "logs", FAILED, *words)
        assert (answer.code, answer.out) == (0, "")
        assert answer.err.endswith(f"{FAILED} printed nothing\n")

    def test_a_running_job_has_printed_nothing_yet(self, muster: Run) -> None:
        assert muster("jobs", "logs", RUNNING).err == f"{RUNNING} has printed nothing yet\n"

    def test_json_speaks_for_itself(self, muster: Run) -> None:
        answer = muster("jobs", "logs", FAILED, "--json")
        assert (answer.json()["lines"], answer.err) == ([], "")

    def test_logs_json(self, muster: Run) -> None:
        document = muster("jobs", "logs", DONE, "--tail", "1", "--json").json()
        assert document == {"job_id": DONE, "lines": ["[rank 1] \x1b[2Jx\x1b]0;t\x07"]}

    def test_following_an_ended_job_prints_it_all_and_ends(self, muster: Run) -> None:
        answer = muster("jobs", "logs", DONE, "-f")
        assert answer.code == 0
        assert len(answer.out.splitlines()) == 201
        assert "succeeded" in answer.err

    @pytest.mark.parametrize("words", [("--json",), ("--tail", "3")])
    def test_following_takes_neither_json_nor_tail(self, words: Any, muster: Run) -> None:
        assert muster("jobs", "logs", DONE, "-f", *words).code == 2


@pytest.mark.usefixtures("jobs")
class TestPrefixes:
    def test_the_only_one_that_begins_so(self, muster: Run) -> None:
        assert muster("jobs", "show", "train-ab", "--json").json()["status"]["job_id"] == DONE

    @pytest.mark.parametrize("words", [("show",), ("logs",), ("logs", "-f")])
    def test_of_one_task_the_newest_is_read(self, words: Any, muster: Run) -> None:
        named, meant = muster("jobs", *words, "train"), muster("jobs", *words, FAILED)
        assert named.code == 0
        assert named.out == meant.out
        assert named.err == f"the newest of 2 jobs: {FAILED}\n{meant.err}"

    @pytest.mark.parametrize("word", ["show", "logs"])
    def test_several_tasks_are_named(self, word: str, muster: Run, jobs: FolderStore) -> None:
        jobs.ledger.create("train-evaluation-1", spec("flights.train-evaluation"))
        answer = muster("jobs", word, "train")
        assert answer.code == 1
        assert "is the beginning of 3 jobs" in answer.err
        assert DONE in answer.err
        assert FAILED in answer.err

    def test_only_one_exact_job_is_cancelled(self, muster: Run) -> None:
        answer = muster("jobs", "cancel", "train")
        assert answer.code == 1
        assert "is the beginning of 2 jobs" in answer.err

    def test_of_several_the_one_that_goes_on_is_cancelled(self, muster: Run, jobs: FolderStore) -> None:
        jobs.ledger.create("train-zz-1", spec("flights.train"))
        assert muster("jobs", "cancel", "train").out == "train-zz-1: cancelled\n"

    def test_none_names_the_newest(self, muster: Run) -> None:
        assert f"the newest is {RUNNING}" in muster("jobs", "show", "zzz").err

    def test_nothing_is_no_prefix(self, muster: Run) -> None:
        assert muster("jobs", "cancel", "").code == 1


@pytest.mark.usefixtures("jobs")
class TestCancel:
    def test_a_user_without_a_name_cancels_too(
        self, muster: Run, jobs: FolderStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unnamed(uid: int) -> NoReturn:
            raise KeyError(f"getpwuid(): uid not found: {uid}")

        monkeypatch.setattr("pwd.getpwuid", unnamed)  # as in a container that runs under any user's id
        for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
            monkeypatch.delenv(variable, raising=False)
        assert muster("jobs", "cancel", RUNNING).out == f"{RUNNING}: cancelled\n"
        verdict = jobs.ledger.status(RUNNING).verdict
        assert verdict is not None
        assert verdict.message == f"user {os.getuid()} cancelled it with `muster jobs cancel`"

    def test_a_job_without_supervisor_is_cancelled(self, muster: Run, jobs: FolderStore) -> None:
        assert muster("jobs", "cancel", RUNNING).out == f"{RUNNING}: cancelled\n"
        assert jobs.ledger.status(RUNNING).state is JobState.CANCELLED

    def test_an_ended_job_stays_as_it_is(self, muster: Run, jobs: FolderStore) -> None:
        answer = muster("jobs", "cancel", DONE)
        assert answer.code == 0
        assert "succeeded already" in answer.err
        assert jobs.ledger.status(DONE).state is JobState.SUCCEEDED
