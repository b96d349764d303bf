"""What every backend promises about jobs, and those that keep it: processes of one machine, pods of a cluster."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import inside, queues, store as store_service
from tests.cluster.backend import SITE, WithoutKueue, connected
from tests.cluster.images import USER
from tests.cluster.layout import Layout
from tests.cluster.scripted import connection, may_group
from tests.contract.forked import forked, mark
from tests.contract.named import Named
from tests.waiting import GUARD_SECONDS, eventually, until

from muster.backends.base import Backend
from muster.backends.kubernetes import labels
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import JOB, JOB_SET, POD, Document, Kind
from muster.backends.local import nursery as nursery_module, processes
from muster.backends.local.limits import left_behind
from muster.backends.local.machine import Machine
from muster.backends.local.nursery import Nursery, open_nursery
from muster.backends.local.place import MachinePlace
from muster.backends.local.places import Places
from muster.core.cancelling import by_command, on_page, out_of_time
from muster.core.data import Input, OutputTarget
from muster.core.errors import CannotSchedule, ImageError, NotFound, SpecError
from muster.core.job import JobSpec, Launcher, Role, SecretRef
from muster.core.origin import Origin
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.status import JobEvent, JobState, JobStatus
from muster.core.tally import HourBudget, Tally
from muster.core.verdict import Cause
from muster.core.wire import loads
from muster.ext.usage.budgets import BudgetQuestion
from muster.ext.usage.service import ask_budgets
from muster.images.folders import find_image, image_folders, put_image
from muster.images.interpreter import look_at

QUEUE = "contract"
SMALL = Resources(memory_gib=0.5)
PRINT_RANK = "import os; print('rank', os.environ['MUSTER_RANK'], 'of', os.environ['MUSTER_WORLD_SIZE'])"
WRITE = "open('{outputs.made}/f', 'w').write('whole'); print('written')"
WRITE_BY_RANK = "import os; open('{outputs.made}/' + os.environ['MUSTER_RANK'], 'w').write('whole')"
SLEEP = "import time; print('up', flush=True); time.sleep(600)"

SmallDisk = Callable[[int], tuple[Path, Backend]]


async def events(backend: Backend, job_id: str, *, after: int = 0) -> list[JobEvent]:
    return [event async for event in backend.watch(job_id, after=after)]


def finish(backend: Backend, job_id: str, *, seconds: float = GUARD_SECONDS) -> tuple[JobStatus, list[str]]:
    """Watch a job to its end; return its last status and all of its log."""
    seen = asyncio.run(asyncio.wait_for(events(backend, job_id), timeout=seconds))
    assert seen[-1].status is not None
    return seen[-1].status, [line for event in seen for line in event.lines]


def files_below(root: Path) -> Iterator[Path]:
    """Every file there; what is deleted meanwhile may be left out."""
    return (Path(folder, name) for folder, _, names in os.walk(root) for name in names)


def content(path: Path) -> bytes:
    """What a file holds; nothing once it is deleted, as a job's folder is soon after its end."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def words(pid: int) -> bytes:
    """The command line of a process, which a fork shares."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.fixture
def job_on(tmp_path: Path) -> Callable[..., JobSpec]:
    """Makes a spec for a job that runs Python code on a backend."""

    def make(backend: Backend, code: str, **changes: Any) -> JobSpec:
        folders = image_folders(Settings(home=tmp_path, cache=tmp_path))
        image = put_image(backend.store, find_image("python", folders))
        role: dict[str, Any] = {"command": ("python", "-c", code), "resources": SMALL}
        role |= {name: changes.pop(name) for name in ("replicas", "ranks", "resources") if name in changes}
        given: dict[str, Any] = {"name": "test.job", "image": "python", "image_digest": image, **changes}
        return JobSpec(roles=(Role(**role),), **given)

    return make


@pytest.fixture
def job(backend: Backend, job_on: Callable[..., JobSpec]) -> Callable[..., JobSpec]:
    return functools.partial(job_on, backend)


def _die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


class BackendContract(Named):
    """Inherit it and give a `backend` with room for 4 GiB of memory and no GPU, `leftovers` and `touch`.

    :cvar pace: how much longer everything may take than on one machine.
    :cvar big: what each of two replicas asks for, so that there is room for one such gang and not for two.
    :cvar no_room: what the second says of that.
    :cvar whole: what one job may ask for, so that there is no room for a second such job.
    :cvar too_much: more memory than any job can have.
    :cvar no_such: more GPUs than any job can have.
    """

    pace = 1.0
    big = Resources(memory_gib=1.5)
    whole = Resources(memory_gib=4)
    too_much = Resources(memory_gib=9)
    no_such = Resources(gpus=1)
    no_room = "GiB"

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError

    def leftovers(self, job_id: str) -> Sequence[object]:
        """Whatever still runs on behalf of a job."""
        raise NotImplementedError

    def started(self, job_id: str) -> Sequence[object]:
        """Return what there is already of a job that waits."""
        return self.leftovers(job_id)

    def touch(self, backend: Backend, job_id: str, output: str, name: str) -> None:
        """Make an empty file where replica main-0 writes an output."""
        raise NotImplementedError

    def written(self, tmp_path: Path) -> Iterator[Path]:
        """Every file that a job may have left anywhere."""
        return files_below(tmp_path)

    def test_a_job_runs_and_what_it_wrote_becomes_a_version(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        made, one = self.own("a/made"), self.own("one")
        backend.submit(job(WRITE, outputs={"made": OutputTarget(volume=made)}), job_id=one, owner="ti-1")
        status, lines = finish(backend, one)
        assert status.state is JobState.SUCCEEDED
        assert status.result is not None
        assert dict(status.result.outputs) == {"made": (f"volume://{made}@1",)}
        assert (backend.store.path(f"volume://{made}@1") / "f").read_text() == "whole"
        assert "[rank 0] written" in lines
        assert status.owner == "ti-1"
        assert status.started is not None
        assert status.ended is not None
        assert status.submitted <= status.started <= status.ended

    def test_progress_and_links_are_in_the_status_while_it_runs_and_after(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        one = self.own("one")
        code = (
            "import time; from pathlib import Path\n"
            "print('muster: epoch=1/3 loss=nan'); print('muster: epoch=1/3 loss=0.5')\n"
            "print('muster: link MLflow=https://example.com/1')\n"
            "print('muster: link Bad=javascript:alert(1)', flush=True)\n"
            "while not Path('{outputs.made}/go').exists(): time.sleep(0.01)\n"
            "print('muster: epoch=3/3')"
        )
        backend.submit(job(code, outputs={"made": OutputTarget(volume=self.own("a/made"))}), job_id=one)
        eventually(lambda: backend.status(one).links)  # the lines before it may come in a read before
        status = backend.status(one)
        assert {name: str(number) for name, number in status.progress.items()} == {
            "epoch": "1/3",
            "loss": "0.5",
        }
        assert dict(status.links) == {"MLflow": "https://example.com/1"}
        self.touch(backend, one, "made", "go")
        status, lines = finish(backend, one)
        assert str(status.progress["epoch"]) == "3/3"
        assert status.result is not None
        assert dict(status.result.links) == {"MLflow": "https://example.com/1"}
        assert "[rank 0] muster: epoch=3/3" in lines
        told = {curve.name: curve for curve in backend.store.ledger.series(one).numbers}
        assert told["epoch"].values == (1.0, 1.0, 3.0)
        assert (told["loss"].values, told["loss"].steps, told["loss"].not_finite) == ((0.5,), (1.0,), 1)

    @pytest.mark.nightly_on("cluster")  # on one machine always: a worker's clock
    def test_one_rank_that_talks_is_enough_for_a_gang_not_to_hang(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        quiet = self.own("quiet")
        code = (
            "import os, time\n"
            "for step in range(30):\n"
            f"    time.sleep({0.1 * self.pace})\n"
            "    if os.environ['MUSTER_RANK'] == '0': print('step', step, flush=True)"
        )
        backend.submit(job(code, replicas=2, hang_timeout_seconds=2 * self.pace), job_id=quiet)
        status, _ = finish(backend, quiet)
        assert status.state is JobState.SUCCEEDED

    def test_a_hang_shows_every_stack_before_each_restart_and_is_final(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        hangs = self.own("hangs")
        code = (
            "import os, pathlib, time\n"
            "here = pathlib.Path('{checkpoints}')\n"
            "def waits():\n"
            "    (here / f\"{os.environ['MUSTER_RANK']}-{time.time_ns()}\").touch()\n"
            "    while len(list(here.iterdir())) % 2: print('alone', flush=True); time.sleep(0.1)\n"
            "    time.sleep(600)\n"
            "waits()"
        )
        spec = job(code, replicas=2, hang_timeout_seconds=2 * self.pace, max_restarts=1)
        backend.submit(spec, job_id=hangs)
        status, lines = finish(backend, hangs)
        assert status.verdict is not None
        assert status.verdict.cause is Cause.HANG
        assert status.restarts == 1
        stacks = [line for line in lines if line.endswith(" in waits") and line.startswith("[rank ")]
        again = next(i for i, line in enumerate(lines) if "starts again" in line)
        assert {line[:8] for line in lines[:again] if line in stacks} == {"[rank 0]", "[rank 1]"}
        assert {line[:8] for line in lines[again:] if line in stacks} == {"[rank 0]", "[rank 1]"}
        assert not self.leftovers(hangs)

    def test_the_next_job_reads_what_the_one_before_wrote(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        made, one, two = self.own("a/made"), self.own("one"), self.own("two")
        backend.submit(job(WRITE, outputs={"made": OutputTarget(volume=made)}), job_id=one)
        finish(backend, one)
        (version,) = backend.store.resolve(made)
        read = job(
            "print(open('{inputs.made}/f').read())", inputs={"made": Input(versions=(version.pinned,))}
        )
        backend.submit(read, job_id=two)
        assert "[rank 0] whole" in finish(backend, two)[1]

    def test_checkpoints_are_a_version_from_which_another_job_starts(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        saved, one, two = self.own("a/saved"), self.own("one"), self.own("two")
        trains = (
            "import os, pathlib\n"
            "here = pathlib.Path('{checkpoints}')\n"
            "rank = os.environ['MUSTER_RANK']\n"
            "begun = len(list(here.glob(f'{rank}-*')))\n"
            "print('begins with', begun, flush=True)\n"
            "(here / f'{rank}-{begun + 1}').write_text('weights')"
        )
        output = {"checkpoints": OutputTarget(volume=saved)}
        backend.submit(job(trains, replicas=2, outputs=output), job_id=one)
        assert finish(backend, one)[0].state is JobState.SUCCEEDED
        (version,) = backend.store.resolve(saved)
        assert len(backend.store.manifest(version.address)) == 2
        start = {"checkpoints": Input(versions=(version.pinned,))}
        backend.submit(job(trains, inputs=start, outputs=output), job_id=two)
        assert "[rank 0] begins with 1" in finish(backend, two)[1]
        (version,) = backend.store.resolve(saved)
        assert set(backend.store.manifest(version.address)) == {"0-1", "0-2", "1-1"}

    def test_all_replicas_of_a_gang_run(self, backend: Backend, job: Callable[..., JobSpec]) -> None:
        gang = self.own("gang")
        backend.submit(job(PRINT_RANK, replicas=2, ranks=2, launcher=Launcher.TORCHRUN), job_id=gang)
        _, lines = finish(backend, gang)
        assert {f"[rank {rank}] rank {rank} of 4" for rank in range(4)} <= set(lines)

    def test_the_same_job_id_twice_is_one_job(self, backend: Backend, job: Callable[..., JobSpec]) -> None:
        made, same = self.own("a/made"), self.own("same")
        spec = job(WRITE, outputs={"made": OutputTarget(volume=made)})
        backend.submit(spec, job_id=same)
        backend.submit(spec, job_id=same)
        status, lines = finish(backend, same)
        backend.submit(spec, job_id=same)
        assert backend.status(same) == status
        assert lines.count("[rank 0] written") == 1
        assert len(backend.store.versions(made)) == 1

    @pytest.mark.nightly_on("slow")  # `Backend` decides it, whatever runs below: the third place shows it
    def test_a_job_id_names_one_spec_for_ever(self, backend: Backend, job: Callable[..., JobSpec]) -> None:
        taken = self.own("taken")
        backend.submit(job("pass"), job_id=taken)
        with pytest.raises(SpecError, match="taken"):
            backend.submit(job("print(1)"), job_id=taken)
        finish(backend, taken)

    def test_no_such_job(self, backend: Backend) -> None:
        with pytest.raises(NotFound, match="no-such-job"):
            backend.status("no-such-job")
        with pytest.raises(NotFound, match="no-such-job"):
            backend.cancel("no-such-job")

    def test_a_gang_that_does_not_fit_waits_whole_and_says_why(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        first, second = self.own("first"), self.own("second")
        backend.submit(job(SLEEP, replicas=2, resources=self.big), job_id=first)
        eventually(lambda: backend.status(first).state is JobState.RUNNING)
        backend.submit(job(PRINT_RANK, replicas=2, resources=self.big), job_id=second)
        eventually(lambda: self.no_room in backend.status(second).reason)
        waiting = backend.status(second)
        assert waiting.state is JobState.QUEUED
        assert waiting.alive
        assert backend.store.ledger.read(second) == (b"", 0)
        assert not self.started(second)
        backend.cancel(first)
        assert finish(backend, second)[0].state is JobState.SUCCEEDED

    def test_a_job_beyond_its_budget_waits_until_that_is_raised(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        first, second, third, dag = (self.own(name) for name in ("first", "second", "third", "spender"))
        spec = replace(job(SLEEP), origin=Origin(dag_id=dag), budget=HourBudget(cpu_hours=1))
        backend.submit(spec, job_id=first)
        eventually(lambda: backend.status(first).state is JobState.RUNNING)
        none = HourBudget(cpu_hours=0)
        for job_id in (second, third):
            waits = replace(job(PRINT_RANK), origin=Origin(dag_id=dag), budget=none)
            backend.submit(waits, job_id=job_id)
            seen = backend.status(job_id)
            assert (seen.state, seen.alive) == (JobState.QUEUED, True)
            assert f"waits for its budget: dag {dag} has used " in seen.reason
            assert not self.started(job_id)
        backend.submit(spec, job_id=first)  # as by the next try of its task: what runs goes on
        assert backend.status(first).state is JobState.RUNNING
        backend.submit(waits, job_id=second)
        assert backend.statuses([second])[second].alive
        backend.cancel(third)
        assert finish(backend, third)[0].state is JobState.CANCELLED
        ask_budgets(backend.store, BudgetQuestion(given={f"dag:{dag}": None}), keep=True)
        assert not backend.status(second).alive  # its task submits it again
        backend.submit(waits, job_id=second)
        status, lines = finish(backend, second)
        assert (status.state, lines) == (JobState.SUCCEEDED, ["[rank 0] rank 0 of 1"])

    def test_a_job_whose_task_was_killed_as_it_entered_it_waits_for_its_budget_too(
        self, backend: Backend, job: Callable[..., JobSpec], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entered = self.own("entered")
        spec = replace(job(SLEEP), origin=Origin(dag_id=entered), budget=HourBudget(cpu_hours=0))
        with monkeypatch.context() as patch:
            patch.setattr(type(backend.store.ledger), "note_tally", _die)
            with pytest.raises(KeyboardInterrupt):
                backend.submit(spec, job_id=entered, tally=Tally(user="ada"))
        assert "waits for its budget: " in backend.status(entered).reason
        backend.submit(spec, job_id=entered)
        assert "waits for its budget: " in backend.status(entered).reason
        assert not self.started(entered)
        backend.cancel(entered)

    def test_a_job_that_waits_for_its_budget_for_too_long_is_ended(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        late = self.own("late")
        waits = replace(job(SLEEP), origin=Origin(dag_id=late), budget=HourBudget(cpu_hours=0))
        backend.submit(replace(waits, queue_timeout_seconds=0.2), job_id=late)
        status, _ = finish(backend, late)
        assert status.verdict is not None
        assert status.verdict.cause is Cause.QUEUE_TIMEOUT
        assert "queue_timeout of 0.2 s: waits for its budget: " in status.verdict.message

    def test_a_lost_rank_restarts_the_whole_gang_from_its_checkpoint(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        made, lost = self.own("a/made"), self.own("lost")
        code = (
            "import os, pathlib, signal, time\n"
            "rank, seen = os.environ['MUSTER_RANK'], pathlib.Path('{checkpoints}') / os.environ['MUSTER_RANK']\n"
            "before = seen.read_text() if seen.exists() else ''\n"
            "seen.write_text(before + 'x')\n"
            "print('starts', len(before) + 1, flush=True)\n"
            "if not before:\n"
            "    while len(list(seen.parent.iterdir())) < 2: time.sleep(0.01)\n"
            "    if rank == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
            "    time.sleep(600)\n"
            "open('{outputs.made}/' + rank, 'w').write('whole')\n"
        )
        spec = job(code, replicas=2, outputs={"made": OutputTarget(volume=made)}, grace_seconds=1)
        backend.submit(spec, job_id=lost)
        status, lines = finish(backend, lost)
        assert status.state is JobState.SUCCEEDED
        assert status.restarts == 1
        assert {"[rank 0] starts 2", "[rank 1] starts 2"} <= set(lines)
        assert any("rank lost" in line and "starts again" in line for line in lines)
        assert sorted(path.name for path in backend.store.path(made).iterdir()) == ["0", "1"]

    def test_a_gang_that_keeps_losing_ranks_fails(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        weak = self.own("weak")
        backend.submit(job("import os; os.kill(os.getpid(), 9)", max_restarts=1), job_id=weak)
        status, _ = finish(backend, weak)
        assert status.state is JobState.FAILED
        assert status.verdict is not None
        assert (status.verdict.cause, status.verdict.rank) == (Cause.RANK_LOST, 0)
        assert status.restarts == 1

    @pytest.mark.nightly_on("cluster")  # on one machine always: a worker's look
    def test_a_rank_that_leaves_while_another_waits_for_it_is_named_and_nothing_starts_again(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        early = self.own("early")
        code = (
            "import os, time\nif os.environ['MUSTER_RANK'] == '1': raise SystemExit(0)\n"
            "raise RuntimeError('[gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]')"
        )
        backend.submit(job(code, replicas=2, grace_seconds=1), job_id=early)
        status, _ = finish(backend, early)
        assert status.verdict is not None
        assert (status.verdict.cause, status.verdict.rank, status.restarts) == (Cause.USER_ERROR, 1, 0)
        assert status.verdict.message.startswith("ended with exit status 0 at ")

    def test_a_role_ends_with_the_one_that_it_serves(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        served = self.own("served")
        spec = job(SLEEP, hang_timeout_seconds=0)
        chief = replace(spec.roles[0], name="chief", command=("python", "-c", "print('trained')"))
        serves = replace(spec.roles[0], name="ps", ends_with="chief")
        backend.submit(replace(spec, roles=(chief, serves), grace_seconds=1), job_id=served)
        status, lines = finish(backend, served)
        assert status.state is JobState.SUCCEEDED, lines
        assert "[muster] role ps is told to stop: chief has ended well" in lines

    def test_an_authors_error_is_final_and_ends_the_log(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        wrong = self.own("wrong")
        code = (
            "import os, time\nif os.environ['MUSTER_RANK'] == '1': raise ValueError('boom')\ntime.sleep(600)"
        )
        asked = Origin(instance="i", dag_id="loop", run_id="muster__1", task_id="train")
        backend.submit(job(code, replicas=2, grace_seconds=1, origin=asked), job_id=wrong)
        status, lines = finish(backend, wrong)
        assert status.state is JobState.FAILED
        assert status.restarts == 0
        assert status.verdict is not None
        assert (status.verdict.cause, status.verdict.rank) == (Cause.USER_ERROR, 1)
        assert "ValueError: boom" in status.verdict.message
        assert "`muster run loop --resume`" in status.verdict.advice
        assert lines[-4:] == status.verdict.render(job_id=wrong).splitlines()
        assert not self.leftovers(wrong)

    def test_outputs_are_committed_all_or_none(self, backend: Backend, job: Callable[..., JobSpec]) -> None:
        half, volumes = self.own("half"), {self.own("a/left"), self.own("a/right")}
        code = (
            "import os\nopen('{outputs.left}/f', 'w').write('x')\n"
            "if os.environ['MUSTER_RANK'] == '1': raise SystemExit(3)\n"
        )
        outputs = {
            "left": OutputTarget(volume=self.own("a/left")),
            "right": OutputTarget(volume=self.own("a/right")),
        }
        backend.submit(job(code, replicas=2, outputs=outputs, grace_seconds=1), job_id=half)
        assert finish(backend, half)[0].state is JobState.FAILED
        assert not volumes.intersection(backend.store.volumes())

    def test_cancel_leaves_no_process(self, backend: Backend, job: Callable[..., JobSpec]) -> None:
        stop = self.own("stop")
        code = (
            "import os, subprocess, sys, time\n"
            "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
            "subprocess.Popen(sleep, start_new_session=True)\n"
            "subprocess.Popen(sleep, start_new_session=True, env=dict(), close_fds=False)\n"
            "print('up', flush=True)\ntime.sleep(600)\n"
        )
        backend.submit(job(code, ranks=2, grace_seconds=1), job_id=stop)
        eventually(lambda: backend.store.ledger.read(stop)[0].count(b"up") == 2)
        assert self.leftovers(stop)
        backend.cancel(stop, why=by_command("ada"))
        status = backend.status(stop)
        assert status.state is JobState.CANCELLED
        assert status.verdict == by_command("ada")
        assert not self.leftovers(stop)
        backend.cancel(stop)
        assert backend.status(stop) == status

    @pytest.mark.nightly_on("slow")  # `Backend` decides it, whatever runs below: the third place shows it
    def test_a_job_that_waits_is_cancelled_too(self, backend: Backend, job: Callable[..., JobSpec]) -> None:
        first, second = self.own("first"), self.own("second")
        backend.submit(job(SLEEP, resources=self.whole), job_id=first)
        backend.submit(job(SLEEP, resources=self.whole), job_id=second)
        backend.cancel(second, why=on_page("ada"))
        assert backend.status(second).state is JobState.CANCELLED
        assert backend.status(second).verdict == on_page("ada")
        backend.cancel(first)

    @pytest.mark.nightly_on("slow")  # `Backend` decides it, whatever runs below: the third place shows it
    def test_only_its_owner_cancels_a_job(self, backend: Backend, job: Callable[..., JobSpec]) -> None:
        owned = self.own("owned")
        backend.submit(job(SLEEP), job_id=owned, owner="ti-1")
        assert backend.store.ledger.own(owned, owner="ti-2", expected="ti-1")
        backend.cancel(owned, owner="ti-1")
        assert not backend.status(owned).state.ended
        backend.cancel(owned, owner="ti-2")
        assert backend.status(owned).state is JobState.CANCELLED

    @pytest.mark.nightly_on("slow")  # `Backend` decides it, whatever runs below: the third place shows it
    def test_a_job_that_is_adopted_while_its_owner_cancels_it_goes_on(
        self, backend: Backend, job: Callable[..., JobSpec], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its owner looks, another try adopts it, and only then the owner asks for its end."""
        adopted = self.own("adopted")
        backend.submit(job(SLEEP), job_id=adopted, owner="ti-1")
        ledger = backend.store.ledger
        look = ledger.status

        def stale(job_id: str) -> JobStatus:
            found = look(job_id)
            if found.owner == "ti-1":
                patched.setattr(ledger, "status", lambda _: found)
                assert ledger.own(job_id, owner="ti-2", expected="ti-1")
            return found

        with monkeypatch.context() as patched:
            patched.setattr(ledger, "status", stale)
            backend.cancel(adopted, owner="ti-1", wait=False)
        eventually(lambda: b"up" in ledger.read(adopted)[0])
        status = backend.status(adopted)
        assert (status.state, status.owner, status.verdict) == (JobState.RUNNING, "ti-2", None)
        backend.cancel(adopted, owner="ti-2")
        assert backend.status(adopted).state is JobState.CANCELLED

    def test_a_cancel_that_is_not_waited_for_comes_all_the_same(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        job_a = self.own("job-a")
        backend.submit(job(SLEEP), job_id=job_a)
        eventually(lambda: b"up" in backend.store.ledger.read(job_a)[0])
        backend.cancel(job_a, wait=False, why=out_of_time(timedelta(seconds=1)))
        backend.cancel(job_a, wait=False, why=by_command("late"))
        eventually(lambda: backend.status(job_a).state is JobState.FAILED)
        assert backend.status(job_a).verdict == out_of_time(timedelta(seconds=1)), "the first who asked"
        eventually(lambda: not self.leftovers(job_a))

    @pytest.mark.nightly_on("slow")  # `Backend` decides it, whatever runs below: the third place shows it
    def test_many_are_reported_as_each_is_alone(self, backend: Backend, job: Callable[..., JobSpec]) -> None:
        job_done, job_runs = self.own("job-done"), self.own("job-runs")
        backend.submit(job("pass"), job_id=job_done)
        finish(backend, job_done)
        backend.submit(job(SLEEP, resources=Resources(memory_gib=3)), job_id=job_runs)
        eventually(lambda: b"up" in backend.store.ledger.read(job_runs)[0])
        backend.submit(job(SLEEP, resources=Resources(memory_gib=3)), job_id=self.own("job-waits"))
        ids = [job_done, job_runs, self.own("job-waits")]

        def looked_at() -> list[dict[str, JobStatus]]:
            alone = {each: backend.status(each) for each in ids}
            many = dict(backend.statuses([*ids, self.own("job-unknown")]))
            again = {each: backend.status(each) for each in ids}
            return [many, alone] if alone == again else []  # why one waits may change between two looks

        many, alone = eventually(looked_at)
        assert many == alone

    def test_ranks_get_their_grace_to_save(self, backend: Backend, job: Callable[..., JobSpec]) -> None:
        graceful = self.own("graceful")
        code = (
            "import os, signal, sys, time\n"
            "def save(*_): os.write(1, b'saved\\n'); sys.exit(0)\n"  # a print may meet one that the signal interrupts
            "signal.signal(signal.SIGTERM, save)\nprint('up', flush=True)\ntime.sleep(600)\n"
        )
        backend.submit(job(code, grace_seconds=20), job_id=graceful)
        eventually(lambda: b"up" in backend.store.ledger.read(graceful)[0])
        backend.cancel(graceful)
        status, lines = finish(backend, graceful)
        assert status.state is JobState.CANCELLED
        assert "[rank 0] saved" in lines

    @pytest.mark.nightly_on("slow")  # `Backend` decides it, whatever runs below: the third place shows it
    def test_lines_keep_their_order_and_a_watch_goes_on_where_it_was_cut(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        numbers = self.own("numbers")
        backend.submit(job("for i in range(5000): print(i)"), job_id=numbers)
        first: list[JobEvent] = []

        async def cut() -> None:
            async for event in backend.watch(numbers):
                first.append(event)
                if event.lines:
                    return

        asyncio.run(cut())
        rest = asyncio.run(events(backend, numbers, after=first[-1].offset))
        lines = [line for event in (*first, *rest) for line in event.lines]
        assert [line for line in lines if line.startswith("[rank")] == [f"[rank 0] {i}" for i in range(5000)]
        assert rest[-1].status is not None
        assert rest[-1].status.state is JobState.SUCCEEDED

    def test_an_image_that_is_not_in_the_store_is_refused_at_once(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        imageless = self.own("imageless")
        with pytest.raises(ImageError, match="python"):
            backend.submit(job("pass", image_digest="b3:" + "0" * 64), job_id=imageless)
        with pytest.raises(NotFound):
            backend.status(imageless)

    def test_a_replica_that_outgrows_its_memory_is_named(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        big = self.own("big")
        code = "import os, time\nheld = b'x' * (600 << 20) if os.environ['MUSTER_RANK'] == '1' else b''\ntime.sleep(600)"
        spec = job(code, replicas=2, resources=Resources(memory_gib=0.25), grace_seconds=1)
        backend.submit(spec, job_id=big)
        status, lines = finish(backend, big)
        assert status.verdict is not None
        assert (status.verdict.cause, status.verdict.rank) == (Cause.OUT_OF_MEMORY, 1)
        assert "0.25 GiB" in status.verdict.message
        assert "memory_gib" in status.verdict.advice
        assert status.restarts == 0
        assert lines[-4:] == status.verdict.render(job_id=big).splitlines()
        assert not self.leftovers(big)

    def test_more_memory_than_there_can_be_is_refused_at_once(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        with pytest.raises(CannotSchedule, match=f"{self.too_much.memory_gib:g} GiB"):
            backend.submit(job("pass", resources=self.too_much), job_id=self.own("huge"))

    def test_a_gang_that_requires_gpus_is_refused(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        with pytest.raises(CannotSchedule, match=r"(?i)gpu"):
            backend.runner.check(job("pass", resources=self.no_such, require_gpus=True))

    def test_a_job_that_runs_too_long_is_ended(self, backend: Backend, job: Callable[..., JobSpec]) -> None:
        long = self.own("long")
        backend.submit(job(SLEEP, run_timeout_seconds=0.3, grace_seconds=1), job_id=long)
        status, _ = finish(backend, long)
        assert status.verdict is not None
        assert status.verdict.cause is Cause.RUN_TIMEOUT
        assert not self.leftovers(long)

    def test_a_job_that_waits_too_long_is_ended(self, backend: Backend, job: Callable[..., JobSpec]) -> None:
        first, second = self.own("first"), self.own("second")
        backend.submit(job(SLEEP, resources=self.whole), job_id=first)
        backend.submit(job("pass", resources=self.whole, queue_timeout_seconds=0.2), job_id=second)
        status, _ = finish(backend, second)
        assert status.verdict is not None
        assert status.verdict.cause is Cause.QUEUE_TIMEOUT
        assert "it waited longer than its queue_timeout of 0.2 s" in status.verdict.message
        backend.cancel(first)

    def test_a_secret_arrives_and_is_nowhere_else(
        self, backend: Backend, job: Callable[..., JobSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secretive = self.own("secretive")
        monkeypatch.setenv("TOKEN_HERE", "s3cr3t-value")
        spec = job(
            "import os; print('token', os.environ['TOKEN'], len(os.environ['TOKEN']))",
            secrets={"TOKEN": SecretRef(source="environment", name="TOKEN_HERE")},
        )
        backend.submit(spec, job_id=secretive)
        _, lines = finish(backend, secretive)
        assert "[rank 0] token *** 12" in lines
        assert [path for path in self.written(tmp_path) if b"s3cr3t-value" in content(path)] == []

    def test_what_reaches_mlflow_is_what_the_ranks_are_given(
        self, backend: Backend, job: Callable[..., JobSpec], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOKEN_HERE", "s3cret")
        assert not backend.runner.tracking(job("pass")).chosen
        spec = job(
            "pass",
            env={"MLFLOW_TRACKING_URI": "https://mlflow.example"},
            secrets={"MLFLOW_TRACKING_TOKEN": SecretRef(source="environment", name="TOKEN_HERE")},
        )
        found = backend.runner.tracking(spec)
        assert found.chosen
        wanted = {"MLFLOW_TRACKING_URI": "https://mlflow.example", "MLFLOW_TRACKING_TOKEN": "s3cret"}
        assert wanted.items() <= found.variables.items()
        assert not [name for name in found.variables if name.startswith("MUSTER_")]

    def test_a_secret_that_is_not_here_is_refused_by_name(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        spec = job("pass", secrets={"TOKEN": SecretRef(source="environment", name="NO_SUCH_VARIABLE")})
        with pytest.raises(SpecError, match="NO_SUCH_VARIABLE"):
            backend.submit(spec, job_id=self.own("poor"))

    def test_ranks_see_nothing_of_the_callers_environment(
        self, backend: Backend, job: Callable[..., JobSpec], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clean = self.own("clean")
        monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "private")
        code = "import os; print('leaks', [n for n in os.environ if 'AIRFLOW' in n], os.environ['ASKED'])"
        backend.submit(job(code, env={"ASKED": "for"}), job_id=clean)
        assert "[rank 0] leaks [] for" in finish(backend, clean)[1]

    @pytest.mark.slow
    @pytest.mark.nightly  # more jobs than fit are below; cluster/test_hundred_gangs.py has ten at once
    def test_ten_at_once(self, backend: Backend, job: Callable[..., JobSpec]) -> None:
        made = self.own("a/made")
        for number in range(10):
            spec = job(WRITE, outputs={"made": OutputTarget(volume=made)}, resources=Resources(memory_gib=1))
            backend.submit(spec, job_id=self.own(f"ten-{number}"))
        assert all(finish(backend, self.own(f"ten-{n}"))[0].state is JobState.SUCCEEDED for n in range(10))
        assert [version.number for version in backend.store.versions(made)] == list(range(1, 11))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


class OneMachine:
    """Where the jobs of this machine are."""

    @pytest.fixture
    def settings(self, tmp_path: Path, cache: Path) -> Settings:
        return Settings(home=tmp_path / "home", cache=cache)

    @pytest.fixture
    def backend(self, settings: Settings) -> Iterator[Backend]:
        self.places = Places(settings.home)
        backend = Backend(MachinePlace(settings, machine=Machine(memory_gib=4)))
        yield backend
        for job_id in backend.store.ledger.jobs():
            backend.cancel(job_id)
            assert not self.leftovers(job_id)
        # A supervisor outlives its job's end by the moment in which it lets the next one in.
        eventually(lambda: not [*settings.home.glob("claims/*.json"), *settings.home.glob("jobs/*")])

    def leftovers(self, job_id: str) -> list[int]:
        return processes.marked(self.places.mark(job_id))

    def cgroups(self, job_id: str) -> list[str]:
        prefix = f"muster.{self.places.mark(job_id)}."
        return [
            f"{folder}/{name}"
            for folder, inner, _ in os.walk("/sys/fs/cgroup")
            for name in inner
            if name.startswith(prefix)
        ]

    def touch(self, backend: Backend, job_id: str, output: str, name: str) -> None:
        staging = backend.store.staging(job_id)
        assert staging is not None
        (staging.output("main", 0, output) / name).touch()

    def supervisor(self, settings: Settings, job_id: str) -> processes.Process | None:
        try:
            text = Places(settings.home).job(job_id).supervisor.read_text()
        except FileNotFoundError:
            return None
        return loads(processes.Process, text) if text else None


@pytest.mark.slow
class TestLocalBackend(OneMachine, BackendContract):
    def test_an_image_that_cannot_be_built_is_a_verdict(
        self, backend: Backend, job: Callable[..., JobSpec], tmp_path: Path
    ) -> None:
        folder = tmp_path / "broken"
        folder.mkdir()
        (folder / "requirements.txt").write_text("!! this is no requirement\n")
        backend.submit(
            job("pass", image="broken", image_digest=put_image(backend.store, folder)), job_id="bad"
        )
        status, _ = finish(backend, "bad")
        assert status.verdict is not None
        assert status.verdict.cause is Cause.IMAGE_UNAVAILABLE
        assert "broken" in status.verdict.message

    def test_a_job_runs_with_an_interpreter_that_is_there_and_its_record_says_so(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        interpreter = look_at("python", Path(sys.executable))
        spec = job(
            "import sys; print(sys.executable); open('{outputs.made}/f', 'w').write('whole')",
            interpreter=interpreter,
            outputs={"made": OutputTarget(volume="a/made")},
        )
        backend.submit(spec, job_id="unlocked")
        status, lines = finish(backend, "unlocked")
        assert status.state is JobState.SUCCEEDED, lines
        assert lines[:2] == [
            f"[muster] image python: runs with {sys.executable} ({interpreter}), not with its lock",
            f"[rank 0] {sys.executable}",
        ]
        record = backend.store.record("volume://a/made@1")
        assert (record.image_digest, record.interpreter) == (spec.image_digest, interpreter)

    def test_an_interpreter_that_is_another_by_the_start_is_a_verdict(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        interpreter = replace(look_at("python", Path(sys.executable)), digest="b3:" + "1" * 64)
        backend.submit(job("pass", interpreter=interpreter), job_id="other")
        status, _ = finish(backend, "other")
        assert status.verdict is not None
        assert status.verdict.cause is Cause.IMAGE_UNAVAILABLE
        assert f"the interpreter of image python, {sys.executable}, was" in status.verdict.message

    def test_a_gang_without_gpus_runs_on_cpus_with_one_warning(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        spec = job(PRINT_RANK, replicas=2, resources=Resources(memory_gib=0.5, gpus=1))
        (warning,) = backend.runner.check(spec)
        assert "2 GPUs" in warning
        backend.submit(spec, job_id="cpus")
        status, lines = finish(backend, "cpus")
        assert status.state is JobState.SUCCEEDED
        assert len([line for line in lines if "GPU" in line]) == 1

    def test_a_job_that_waited_too_long_says_for_what(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        backend.submit(job(SLEEP, resources=Resources(memory_gib=4)), job_id="first")
        backend.submit(job("pass", queue_timeout_seconds=0.2), job_id="second")
        status, _ = finish(backend, "second")
        assert status.verdict is not None
        assert "GiB" in status.verdict.message

    def test_the_supervisor_is_no_child_of_its_caller(
        self, backend: Backend, settings: Settings, job: Callable[..., JobSpec]
    ) -> None:
        backend.submit(job(SLEEP), job_id="free")
        eventually(lambda: self.supervisor(settings, "free"))
        found = self.supervisor(settings, "free")
        assert found is not None
        assert os.getsid(found.pid) == found.pid
        assert found.pid not in processes.descendants(os.getpid())
        with pytest.raises(ChildProcessError):
            os.waitpid(found.pid, os.WNOHANG)

    def test_a_killed_supervisor_takes_its_ranks_along_and_is_replaced_on_submit(
        self, backend: Backend, settings: Settings, job: Callable[..., JobSpec]
    ) -> None:
        code = (
            "import pathlib, time\nseen = pathlib.Path('{checkpoints}/seen')\n"
            "if not seen.exists():\n    seen.touch(); print('up', flush=True); time.sleep(600)\n"
            "open('{outputs.made}/f', 'w').write('whole')\n"
        )
        spec = job(code, outputs={"made": OutputTarget(volume="a/made")}, max_restarts=0)
        backend.submit(spec, job_id="lost")
        eventually(lambda: b"up" in backend.store.ledger.read("lost")[0])
        found = self.supervisor(settings, "lost")
        assert found is not None
        os.kill(found.pid, signal.SIGKILL)
        eventually(lambda: not backend.status("lost").alive)
        eventually(lambda: not self.leftovers("lost"))
        assert "submit it again" in backend.status("lost").reason
        backend.submit(spec, job_id="lost")
        status, lines = finish(backend, "lost")
        assert status.state is JobState.SUCCEEDED
        assert status.restarts == 0
        assert any("taken up again" in line for line in lines)
        assert len(backend.store.versions("a/made")) == 1
        assert self.cgroups("lost") == []

    def test_a_long_log_is_watched_a_part_at_a_time(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        backend.submit(job("for _ in range(3000): print('x' * 1000)"), job_id="talks")
        eventually(lambda: backend.status("talks").state.ended)

        async def parts() -> list[int]:
            return [len(event.lines) async for event in backend.watch("talks") if event.lines]

        lines = asyncio.run(parts())
        assert len(lines) > 2
        assert sum(lines) >= 3000

    def test_the_ranks_of_a_running_job_are_known_by_their_pids(
        self, backend: Backend, settings: Settings, job: Callable[..., JobSpec]
    ) -> None:
        ranks = functools.partial(processes.ranks, Places(settings.home).mark("pids"))
        code = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
        backend.submit(job(code, replicas=2, ranks=2), job_id="pids")
        eventually(lambda: backend.store.ledger.read("pids")[0].count(b"pid ") == 4)
        said = [line.split() for line in backend.store.ledger.read("pids")[0].decode().splitlines()]
        by_rank = sorted((int(words[1].rstrip("]")), int(words[3])) for words in said if words[2] == "pid")
        assert ranks() == [pid for _, pid in by_rank]
        backend.cancel("pids")
        assert ranks() == []

    def test_a_lost_job_of_another_home_is_let_be(
        self, backend: Backend, job: Callable[..., JobSpec], tmp_path: Path
    ) -> None:
        other = Places(tmp_path / "other")
        other.home.mkdir()
        backend.submit(job(SLEEP), job_id="lost")
        eventually(lambda: b"up" in backend.store.ledger.read("lost")[0])
        processes.end_strays(other.mark("lost"), also=left_behind(other.mark("lost")))
        assert self.leftovers("lost"), "its supervisor, which is no stray, is not among them; its ranks are"
        assert backend.status("lost").alive

    @pytest.mark.parametrize(
        "stray",
        [
            "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)",
            # which closes nothing that it inherits
            "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(600)",
        ],
    )
    def test_a_lost_job_is_cancelled_without_a_supervisor(
        self, backend: Backend, settings: Settings, job: Callable[..., JobSpec], stray: str
    ) -> None:
        backend.submit(job(f"{stray}\n{SLEEP}"), job_id="lost")
        eventually(lambda: b"up" in backend.store.ledger.read("lost")[0])
        found = self.supervisor(settings, "lost")
        assert found is not None
        os.kill(found.pid, signal.SIGKILL)
        eventually(lambda: not backend.status("lost").alive)
        backend.cancel("lost")
        assert backend.status("lost").state is JobState.CANCELLED
        assert not self.leftovers("lost")
        assert self.cgroups("lost") == []

    def test_a_supervisor_that_is_told_to_go_leaves_the_job_to_the_next(
        self, backend: Backend, settings: Settings, job: Callable[..., JobSpec]
    ) -> None:
        code = (
            "import pathlib, signal, sys, time\nseen = pathlib.Path('{checkpoints}/seen')\n"
            "def save(*_): seen.write_text('saved'); sys.exit(1)\n"
            "signal.signal(signal.SIGTERM, save)\n"
            "if not seen.exists(): print('up', flush=True); time.sleep(600)\n"
            "print('found', seen.read_text())\n"
        )
        spec = job(code, grace_seconds=20)
        backend.submit(spec, job_id="gone")
        eventually(lambda: b"up" in backend.store.ledger.read("gone")[0])
        found = self.supervisor(settings, "gone")
        assert found is not None
        os.kill(found.pid, signal.SIGTERM)
        eventually(lambda: not backend.status("gone").alive)
        assert not backend.status("gone").state.ended
        backend.submit(spec, job_id="gone")
        status, lines = finish(backend, "gone")
        assert status.state is JobState.SUCCEEDED
        assert "[rank 0] found saved" in lines

    def test_what_two_replicas_wrote_under_one_name_is_told_and_can_be_fetched(
        self, backend: Backend, job: Callable[..., JobSpec], tmp_path: Path
    ) -> None:
        code = "import os; open('{outputs.made}/snapshot.pt', 'w').write(os.environ['RANK'])"
        outputs = {"made": OutputTarget(volume="a/made")}
        asked = Origin(instance="i", dag_id="loop", run_id="manual__1", task_id="train")
        spec = job(code, outputs=outputs, replicas=2, launcher=Launcher.TORCHRUN, origin=asked)
        backend.submit(spec, job_id="both")
        status, lines = finish(backend, "both")
        assert status.verdict is not None
        assert status.verdict.cause is Cause.USER_ERROR
        assert (
            "a script that lets LOCAL_RANK 0 write wants `ranks=2` in one replica" in status.verdict.message
        )
        assert status.verdict.advice.endswith("clear the task; what it wrote: muster jobs get both")
        assert [line for line in lines if line.startswith("[muster] warning: left behind")] == []
        assert backend.store.salvage("both", tmp_path / "written") == 2
        written = [(tmp_path / "written" / f"main-{n}/made/snapshot.pt").read_text() for n in range(2)]
        assert written == ["0", "1"]

    @pytest.mark.slow
    def test_killed_at_any_moment_the_job_ends_with_one_version(
        self, backend: Backend, settings: Settings, job: Callable[..., JobSpec]
    ) -> None:
        self.kill_at_random(backend, settings, job, rounds=3)

    @pytest.mark.soak
    def test_killed_at_many_moments_the_job_ends_with_one_version(
        self, backend: Backend, settings: Settings, job: Callable[..., JobSpec]
    ) -> None:
        self.kill_at_random(backend, settings, job, rounds=100)

    def kill_at_random(
        self, backend: Backend, settings: Settings, job: Callable[..., JobSpec], *, rounds: int
    ) -> None:
        chance = random.Random(20261121)
        for number in range(rounds):
            job_id = f"kill-{number}"
            outputs = {"made": OutputTarget(volume=f"a/made-{number}")}
            spec = job(WRITE_BY_RANK, outputs=outputs, replicas=2)
            backend.submit(spec, job_id=job_id)
            self.kill_after(chance.uniform(0.0, 0.4), settings, job_id)
            eventually(functools.partial(self.ended_or_lost, backend, job_id))
            backend.submit(spec, job_id=job_id)
            status, _ = finish(backend, job_id)
            assert status.state is JobState.SUCCEEDED
            assert [v.number for v in backend.store.versions(f"a/made-{number}")] == [1]
            assert not self.leftovers(job_id)

    def kill_after(self, seconds: float, settings: Settings, job_id: str) -> None:
        until(lambda: False, seconds=seconds)
        found = self.supervisor(settings, job_id)
        if found is not None:
            found.kill()

    def ended_or_lost(self, backend: Backend, job_id: str) -> bool:
        status = backend.status(job_id)
        return status.state.ended or not status.alive

    @pytest.fixture
    def small_disk(self, tmp_path: Path, cache: Path) -> Iterator[SmallDisk]:
        """Make a home on a disk of this size in MiB, and its backend."""
        if os.getuid() != 0:
            pytest.skip("only root may mount a small disk")
        home = tmp_path / "small"

        def mount(mib: int) -> tuple[Path, Backend]:
            home.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(home)], check=True)
            return home, Backend(
                MachinePlace(Settings(home=home, cache=cache), machine=Machine(memory_gib=4))
            )

        yield mount
        subprocess.run(["umount", "--lazy", str(home)], check=True)

    def test_a_full_disk_is_a_verdict_and_nothing_is_visible(
        self, small_disk: SmallDisk, job_on: Callable[..., JobSpec]
    ) -> None:
        home, backend = small_disk(4)
        fill = (
            "import os\nopen('{outputs.made}/f', 'w').write('x')\n"
            "try:\n    with open('{checkpoints}/fill', 'wb', buffering=0) as fill:\n"
            "        while True: fill.write(b'x' * 4096)\n"
            "except OSError: pass\n"
        )
        backend.submit(job_on(backend, fill, outputs={"made": OutputTarget(volume="a/made")}), job_id="full")
        status, _ = finish(backend, "full")
        assert status.state is JobState.FAILED
        assert status.verdict is not None
        assert status.verdict.cause is Cause.DISK_FULL
        assert "No space left" in status.verdict.message
        assert f"the disk at {home} has 0 B free of 4.0 MiB" in status.verdict.message
        assert "`muster jobs gc` shows what ended jobs still hold (checkpoints of this one:" in (
            status.verdict.advice
        )
        assert backend.store.volumes() == []
        (held,) = backend.store.held()
        assert held.checkpoints_bytes > 1 << 20
        assert backend.store.let_go(["full"]) >= held.checkpoints_bytes
        eventually(lambda: not list(home.glob("claims/*.json")))

    def test_a_job_that_fills_the_disk_gives_it_back_and_the_next_one_runs(
        self, small_disk: SmallDisk, job_on: Callable[..., JobSpec]
    ) -> None:
        home, backend = small_disk(8)
        large = "open('{outputs.made}/f', 'wb', buffering=0).write(b'x' * (64 << 20)) < 64 << 20 and exec('raise OSError(28, \\'No space left on device\\')')"
        outputs = {"made": OutputTarget(volume="a/made")}
        for job_id in ("full-1", "full-2"):
            backend.submit(job_on(backend, large, outputs=outputs), job_id=job_id)
            status, _ = finish(backend, job_id)
            assert status.verdict is not None
            assert (status.verdict.cause, status.verdict.rank) == (Cause.DISK_FULL, 0)
            assert f"the disk at {home} has" in status.verdict.message
            assert "mend the code" not in status.verdict.advice
        assert backend.store.held() == ()
        assert backend.store.room().free_bytes > 6 << 20
        small = "open('{outputs.made}/f', 'wb').write(b'x' * (4 << 20))"
        backend.submit(job_on(backend, small, outputs=outputs), job_id="small")
        assert finish(backend, "small")[0].state is JobState.SUCCEEDED

    def test_a_disk_too_full_to_start_is_a_verdict(
        self, small_disk: SmallDisk, job_on: Callable[..., JobSpec]
    ) -> None:
        home, backend = small_disk(4)
        spec = job_on(backend, "print('ran')")
        room = os.statvfs(home)
        with (home / "full").open("wb") as full:
            os.posix_fallocate(full.fileno(), 0, room.f_bavail * room.f_bsize - 100 * 1024)
        backend.submit(spec, job_id="full")
        status, lines = finish(backend, "full")
        assert status.state is JobState.FAILED
        assert status.verdict is not None
        assert f"No space left on device: '{home}" in status.verdict.message
        assert "room" in status.verdict.advice
        assert "[rank 0] ran" not in lines
        eventually(lambda: not list(home.glob("claims/*.json")))

    def test_every_replica_has_cards_of_its_own(
        self, settings: Settings, job_on: Callable[..., JobSpec]
    ) -> None:
        backend = Backend(MachinePlace(settings, machine=Machine(memory_gib=4, gpus=("0", "3", "5"))))
        code = "import os; print('cards', os.environ['CUDA_VISIBLE_DEVICES'])"
        with_cards = job_on(backend, code, replicas=2, resources=Resources(memory_gib=0.5, gpus=1))
        backend.submit(with_cards, job_id="cards")
        status, lines = finish(backend, "cards")
        assert status.state is JobState.SUCCEEDED
        assert {"[rank 0] cards 0", "[rank 1] cards 3"} <= set(lines)
        backend.submit(job_on(backend, code), job_id="none")
        assert "[rank 0] cards " in finish(backend, "none")[1]

    def test_more_jobs_than_fit_all_run_without_anybody_looking(
        self, backend: Backend, job: Callable[..., JobSpec]
    ) -> None:
        for number in range(3):
            backend.submit(job("pass", resources=Resources(memory_gib=3)), job_id=f"turn-{number}")
        eventually(lambda: all(backend.store.ledger.status(f"turn-{n}").state.ended for n in range(3)))

    def test_what_is_not_kept_here_is_said(self, backend: Backend, job: Callable[..., JobSpec]) -> None:
        spec = job(
            PRINT_RANK, queue="team-a", priority="urgent", resources=Resources(memory_gib=0.5, disk_gib=3)
        )
        warned = " ".join(backend.runner.check(spec))
        assert "queue team-a" in warned
        assert "priority urgent" in warned
        assert "disk_gib" in warned


@pytest.mark.slow
@pytest.mark.nightly
def test_libraries_that_report_home_write_nothing_there(tmp_path: Path) -> None:
    """Neither MLflow nor ONNX Runtime: each keeps a name of the machine in HOME unless told not to."""
    settings = Settings(home=tmp_path / "muster", cache=Settings.load().cache)
    backend = Backend(MachinePlace(settings, machine=Machine(memory_gib=4)))
    code = (
        "import mlflow, onnxruntime; from pathlib import Path\n"
        "with mlflow.start_run(): mlflow.log_metric('auc', 0.7)\n"
        "model = Path(onnxruntime.__file__).parent / 'datasets' / 'mul_1.onnx'\n"
        "onnxruntime.InferenceSession(str(model), providers=['CPUExecutionProvider']); print('both')"
    )
    spec = JobSpec(
        name="test.job",
        image="train",
        image_digest=put_image(backend.store, find_image("train", image_folders(settings))),
        roles=(Role(command=("python", "-c", code), resources=Resources(memory_gib=2)),),
        env={"HOME": str(tmp_path / "user")},
    )
    (tmp_path / "user").mkdir()
    backend.submit(spec, job_id="quiet")
    status, lines = finish(backend, "quiet")
    assert status.state is JobState.SUCCEEDED
    assert "[rank 0] both" in lines
    assert not list((tmp_path / "user").iterdir())


@pytest.fixture
def nursery(settings: Settings) -> Iterator[Nursery]:
    with open_nursery(settings.home):
        opened = nursery_module.nursery()
        assert opened is not None
        eventually(lambda: opened.ready)
        yield opened


@pytest.mark.data
@pytest.mark.nightly  # all of the contract once more; what a nursery makes different is below
@pytest.mark.usefixtures("nursery")
class TestLocalBackendWithNursery(TestLocalBackend):
    """Supervisors are forked by a process that has imported them, as those of ``muster run`` are."""


@pytest.mark.slow
@pytest.mark.usefixtures("nursery")
class TestNursery(OneMachine):
    """What only such a process makes different."""

    def test_supervisors_are_its_forks_and_go_on_without_it(
        self, backend: Backend, job: Callable[..., JobSpec], settings: Settings, nursery: Nursery
    ) -> None:
        backend.submit(job(SLEEP), job_id="one")
        supervisor = eventually(lambda: self.supervisor(settings, "one"))
        assert supervisor is not None
        assert words(supervisor.pid) == words(nursery.pid)
        os.kill(nursery.pid, signal.SIGKILL)
        os.waitid(os.P_PID, nursery.pid, os.WEXITED | os.WNOWAIT)
        assert backend.status("one").alive
        backend.cancel("one")

    @pytest.mark.parametrize("told", [signal.SIGKILL, signal.SIGSTOP])
    def test_where_it_does_not_answer_a_supervisor_is_started_and_the_claim_is_its_own(
        self,
        backend: Backend,
        job: Callable[..., JobSpec],
        settings: Settings,
        nursery: Nursery,
        monkeypatch: pytest.MonkeyPatch,
        told: signal.Signals,
    ) -> None:
        monkeypatch.setattr(nursery_module, "PATIENCE_SECONDS", 0.1)
        os.kill(nursery.pid, told)
        backend.submit(job(SLEEP), job_id="one")
        supervisor = eventually(lambda: self.supervisor(settings, "one"))
        assert supervisor is not None
        assert words(supervisor.pid) != words(nursery.pid)
        os.kill(supervisor.pid, signal.SIGKILL)
        eventually(lambda: not backend.status("one").alive)
        backend.cancel("one")


class TestForkBackend(BackendContract):
    """A third backend is small: ``tests/contract/forked.py`` is all of it."""

    @pytest.fixture
    def backend(self, tmp_path: Path, cache: Path) -> Iterator[Backend]:
        for backend in forked(tmp_path / "home", cache, memory_gib=4):
            self.there = backend
            yield backend

    def leftovers(self, job_id: str) -> list[int]:
        return processes.marked(mark(self.there.store, job_id))

    def touch(self, backend: Backend, job_id: str, output: str, name: str) -> None:
        staging = backend.store.staging(job_id)
        assert staging is not None
        (staging.output("main", 0, output) / name).touch()


@pytest.fixture(scope="module")
def here() -> Iterator[Layout]:
    """A cluster with a queue that has room for as much as the contract says."""
    with queues.with_room(QUEUE, memory_gib=4) as of:
        yield of


@pytest.fixture(scope="module")
def operator(here: Layout) -> Client:
    """What looks at the objects of jobs."""
    return Client(connection(here))


@pytest.mark.cluster
@pytest.mark.smoke
class TestKubernetesBackend(BackendContract):
    pace = 6.0
    no_room = "memory of flavor cpu"

    @pytest.fixture
    def backend(self, here: Layout, operator: Client, tmp_path: Path) -> Iterator[Backend]:
        self.here, self.client = here, operator
        backend = self.connected(here, tmp_path)
        yield backend
        for job_id in backend.store.ledger.jobs():
            if job_id.endswith(self.unique):
                backend.cancel(job_id)
                assert not self.leftovers(job_id)
                eventually(functools.partial(self.is_cleared, job_id))
        backend.close()

    def connected(self, here: Layout, folder: Path) -> Backend:
        return connected(here, folder, site=replace(SITE, queue=QUEUE))

    def leftovers(self, job_id: str) -> Sequence[object]:
        return [pod for pod in self.objects(POD, job_id) if pod["status"]["phase"] in ("Pending", "Running")]

    def objects(self, kind: Kind, job_id: str) -> Sequence[Document]:
        return self.client.find(kind, namespace=inside.NAMESPACE, labels=f"{labels.JOB}={job_id}")

    def is_cleared(self, job_id: str) -> bool:
        return not any(self.objects(kind, job_id) for kind in (JOB_SET, JOB, POD))

    def touch(self, backend: Backend, job_id: str, output: str, name: str) -> None:
        staging = backend.store.staging(job_id)
        assert staging is not None
        folder = self.here.claim / staging.output("main", 0, output).relative_to("/claim")
        (folder / name).touch()
        os.chown(folder / name, USER, USER)

    def written(self, tmp_path: Path) -> Iterator[Path]:
        roots = (tmp_path, self.here.claim / store_service.FOLDER)
        return (path for root in roots for path in files_below(root))


@pytest.mark.soak
class TestKubernetesBackendWithoutKueue(TestKubernetesBackend):
    """Kubernetes' own PodGroups: there are no queues, so a gang waits for nodes."""

    big = Resources(memory_gib=0.125, gpus=5, gpu_class=("gpu-a100",))
    no_room = "Insufficient nvidia.com/gpu"
    whole = Resources(memory_gib=0.125, gpus=4, gpu_class=("gpu-k80",))
    too_much = Resources(memory_gib=4096)
    no_such = Resources(gpus=9)

    @pytest.fixture(autouse=True)
    def rights(self, here: Layout) -> Iterator[None]:
        """Where there is no Kueue, the chart gives the right to PodGroups."""
        with may_group(here):
            yield

    def connected(self, here: Layout, folder: Path) -> Backend:
        return connected(here, folder, site=replace(SITE, queue=None), client=WithoutKueue)

    def started(self, job_id: str) -> Sequence[object]:  # its pods are there, for the scheduler to look at
        return [pod for pod in self.objects(POD, job_id) if pod["spec"].get("nodeName")]
