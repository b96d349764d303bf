"""Gangs on a real cluster, from their job_id to a committed version, and what they said on the way."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import kubectl, store
from tests.cluster.backend import SITE, WithoutKueue, backend, connected
from tests.cluster.environments import has_compiler
from tests.cluster.inside import NAMESPACE, layout
from tests.cluster.layout import Layout
from tests.cluster.scripted import may_group
from tests.horovod.test_horovod import SCRIPT as HOROVOD_SCRIPT
from tests.keras.reference import SCRIPT as KERAS_SCRIPT, losses

from muster.backends.base import Backend
from muster.backends.kubernetes import labels
from muster.core.data import Input, OutputTarget, Pinned
from muster.core.job import JobSpec, Launcher, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause
from muster.images.environment import Environments
from muster.images.folders import find_image, image_folders, put_image
from muster.volumes.service.client import ServiceStore

pytestmark = [pytest.mark.cluster, pytest.mark.smoke]

SMALL = Resources(cpus=0.1, memory_gib=0.125)
LARGE = Resources(cpus=0.25, memory_gib=1)
SECONDS = 240.0


@dataclass
class Site:
    """Submits jobs as an operator does, and waits for what becomes of them."""

    layout: Layout
    backend: Backend
    folder: Path
    submitted: list[str] = field(default_factory=list)

    @property
    def store(self) -> ServiceStore:
        return self.backend.store

    def submit(self, name: str, *roles: Role, image: str = "python", code: str = "", **changes: Any) -> str:
        """Submit a job with one output ``out`` and its code in ``t.py``; return its job_id."""
        job_id = f"{name}-{os.urandom(3).hex()}"
        source = self.folder / job_id
        source.mkdir()
        (source / "t.py").write_text(textwrap.dedent(code))
        folder = find_image(image, image_folders(Settings.load()))
        job = JobSpec(
            name=f"gangs.{name}",
            image=image,
            image_digest=put_image(self.store, folder),
            roles=roles,
            code=self.store.put(source, ["t.py"]),
            outputs={"out": OutputTarget(volume=f"gangs/{name}")},
            **{"grace_seconds": 5.0, "run_timeout_seconds": 600.0, **changes},
        )
        self.backend.submit(job, job_id=job_id)
        self.submitted.append(job_id)
        return job_id

    def ended(self, job_id: str) -> JobStatus:
        found: list[JobStatus] = []

        def look() -> bool:
            found[:] = [self.backend.status(job_id)]
            return found[0].state.ended

        kubectl.until(f"{job_id} has ended", look, seconds=SECONDS)
        return found[0]

    def succeeded(self, job_id: str) -> JobStatus:
        status = self.ended(job_id)
        assert status.state is JobState.SUCCEEDED, "\n".join([str(status.verdict), *self.log(job_id)[-40:]])
        return status

    def files(self, status: JobStatus) -> dict[str, bytes]:
        """What the version holds that a job made."""
        assert status.result is not None
        (address,) = status.result.outputs["out"]
        root = self.store.path(address)
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def log(self, job_id: str) -> list[str]:
        """The lines in the ledger, and nothing of what a node may know beside."""
        text, after = b"", 0
        while True:
            more, after = self.store.ledger.read(job_id, after=after)
            if not more:
                return text.decode().splitlines()
            text += more

    def until_logged(self, job_id: str, pattern: str) -> None:
        def look() -> bool:
            return any(re.search(pattern, line) for line in self.log(job_id))

        kubectl.until(f"{job_id} says {pattern}", look, seconds=SECONDS)

    def pods(self, job_id: str) -> list[str]:
        words = (f"--selector={labels.JOB}={job_id}", f"--namespace={NAMESPACE}")
        return [pod["metadata"]["name"] for pod in kubectl.get(self.layout, "pods", *words)["items"]]

    def clear(self) -> None:
        for job_id in self.submitted:
            self.backend.cancel(job_id)
            kubectl.until(f"{job_id} has left no pod", lambda job_id=job_id: not self.pods(job_id))
        self.submitted.clear()


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    here, folder = layout(), tmp_path_factory.mktemp("gangs")
    with backend(here, folder) as made:
        yield Site(layout=here, backend=made, folder=folder)


@pytest.fixture
def site(everywhere: Site) -> Iterator[Site]:
    yield everywhere
    everywhere.clear()


@pytest.fixture
def without_kueue(everywhere: Site, tmp_path: Path) -> Iterator[Site]:
    own = connected(everywhere.layout, tmp_path, site=replace(SITE, queue=None), client=WithoutKueue)
    site = Site(layout=everywhere.layout, backend=own, folder=tmp_path)
    with may_group(everywhere.layout):
        yield site
        site.clear()
        own.close()


TORCH = """
    import os
    import sys
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        x = torch.full((4, 1), float(rank))
        loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} rank {rank} of {world}")
    if rank == 0:
        torch.save(model.module.state_dict(), Path(sys.argv[1], "model.pt"))
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch 2.15 now and then aborts while the interpreter ends
"""


def whole(lines: list[str], rank: int, wanted: list[str]) -> bool:
    """Whether what a rank said is in the log once, and in its order."""
    tagged = [f"[rank {rank}] {line}" for line in wanted]
    return [line for line in lines if line in set(tagged)] == tagged


def test_a_torchrun_gang_of_a_plain_script(site: Site) -> None:
    role = Role(replicas=2, ranks=2, command=("python", "t.py", "{outputs.out}"), resources=LARGE)
    job_id = site.submit("torch", role, image="train", launcher=Launcher.TORCHRUN, code=TORCH)
    assert list(site.files(site.succeeded(job_id))) == ["model.pt"]
    log = site.log(job_id)
    for rank in range(4):
        assert whole(log, rank, [f"step {step} rank {rank} of 4" for step in range(20)]), log


def test_a_gang_that_the_scheduler_keeps_together(without_kueue: Site) -> None:
    site = without_kueue
    code = """
        import os
        import sys
        from pathlib import Path

        Path(sys.argv[1], os.environ["MUSTER_RANK"]).write_text(os.environ["MUSTER_WORLD_SIZE"])
    """
    role = Role(replicas=2, command=("python", "t.py", "{outputs.out}"), resources=SMALL)
    job_id = site.submit("grouped", role, code=code)
    group = kubectl.get(site.layout, "podgroups.scheduling.k8s.io", job_id, f"--namespace={NAMESPACE}")
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    assert site.files(site.succeeded(job_id)) == {"0": b"2", "1": b"2"}


def test_the_rank_that_raises_is_at_fault_and_not_those_that_lost_it(site: Site) -> None:
    raises = 'if (step, rank) == (5, 3):\n            raise ValueError("the loss is NaN")'
    code = TORCH.replace("optimizer.zero_grad()", f"{raises}\n        optimizer.zero_grad()")
    role = Role(replicas=2, ranks=2, command=("python", "t.py", "{outputs.out}"), resources=LARGE)
    job_id = site.submit("raises", role, image="train", launcher=Launcher.TORCHRUN, code=code)
    status = site.ended(job_id)
    assert status.verdict is not None
    found = (status.verdict.cause, status.verdict.rank, status.verdict.message, status.restarts)
    assert found == (Cause.USER_ERROR, 3, "ValueError: the loss is NaN", 0), site.log(job_id)
    assert "rank 3: ValueError: the loss is NaN" in site.log(job_id)


@pytest.mark.nightly  # tests/horovod runs it, and torchrun's above has the pods
def test_a_horovod_gang_of_a_plain_script(site: Site) -> None:
    folder = find_image("horovod", image_folders(Settings.load()))
    digest = put_image(site.store, folder)
    if Environments(Settings.load().cache).find("horovod", digest) is None:
        assert not has_compiler(), "python -m tests.cluster down and up: that builds the image of horovod"
        pytest.skip("there is no C++ compiler, so the image of horovod cannot be built here")
    keep = "\nimport pathlib, sys\nif hvd.rank() == 0: pathlib.Path(sys.argv[1], 'sum').write_text(f'{total:.0f}')\n"
    role = Role(replicas=2, ranks=2, command=("python", "t.py", "{outputs.out}"), resources=LARGE)
    code = HOROVOD_SCRIPT + keep
    job_id = site.submit("horovod", role, image="horovod", launcher=Launcher.HOROVOD, code=code)
    assert site.files(site.succeeded(job_id)) == {"sum": b"10"}
    said = sorted(line for line in site.log(job_id) if " sum " in line)
    assert said == [f"[rank {r}] rank {r}/4 local {r % 2}/2 cross {r // 2}/2 sum 10" for r in range(4)]


def test_two_ranks_of_tensorflow_train_as_one(site: Site) -> None:
    """The script and the losses of tests/keras, on one machine."""
    role = Role(replicas=2, command=("python", "t.py", "{outputs.out}"), resources=LARGE)
    job_id = site.submit(
        "keras", role, image="keras", launcher=Launcher.TENSORFLOW, code=KERAS_SCRIPT.read_text()
    )
    files = site.files(site.succeeded(job_id))
    assert json.loads(files["losses.json"]) == pytest.approx(losses(), rel=1e-4)
    said = sorted(line for line in site.log(job_id) if " of 2" in line)
    assert said == ["[rank 0] worker 0 of 2", "[rank 1] worker 1 of 2"]


ROLES = """
    import json
    import os
    import socket
    from pathlib import Path

    def run(out: Path):
        told = json.loads(os.environ["TF_CONFIG"])
        (chief,), task = told["cluster"]["chief"], told["task"]
        host, port = chief.rsplit(":", 1)
        if task["type"] == "chief":
            serve(int(port), out, len(told["cluster"]["worker"]))
        else:
            report(host, int(port), f"{task['type']} {task['index']}")
            (out / f"worker-{task['index']}").write_text(told["cluster"]["worker"][task["index"]])

    def serve(port, out, count):
        with socket.create_server(("", port)) as server:
            found = [server.accept()[0].makefile().read() for _ in range(count)]
        print("heard of", *sorted(found))
        (out / "heard").write_text(" ".join(sorted(found)))

    def report(host, port, text):
        while True:
            try:
                with socket.create_connection((host, port), timeout=5) as chief:
                    chief.sendall(text.encode())
                return
            except OSError:
                __import__("time").sleep(0.1)
"""


def test_a_gang_of_two_roles(site: Site) -> None:
    chief = Role(name="chief", entrypoint="t:run", resources=SMALL)
    cards = Resources(cpus=0.1, memory_gib=0.125, gpus=1, gpu_class=("gpu-a100", "gpu-k80"))
    worker = Role(name="worker", replicas=2, entrypoint="t:run", resources=cards)
    job_id = site.submit("roles", chief, worker, code=ROLES)
    made = site.files(site.succeeded(job_id))
    assert made["heard"] == b"worker 0worker 1" or made["heard"] == b"worker 0 worker 1"
    assert made["worker-1"] == f"{job_id}-worker-0-1.{job_id}:2222".encode()
    assert "[rank 0] heard of worker 0 worker 1" in site.log(job_id)


# It writes whole lines: a signal may come in the middle of a `print`.
COUNT = """
    import os
    import signal
    import sys
    import time
    from pathlib import Path

    def say(line: str):
        os.write(1, f"{line}\\n".encode())

    def run(out: Path, checkpoints: Path):
        rank = os.environ["MUSTER_RANK"]
        done = checkpoints / f"done-{rank}"
        first = int(done.read_text()) if done.exists() else 0
        signal.signal(signal.SIGTERM, lambda *_: (say("saved"), sys.exit(1)))
        for number in range(first, 200):
            say(f"line {number}")
            part = checkpoints / f".part-{rank}"
            part.write_text(str(number + 1))
            part.rename(done)
            time.sleep(0.05)
        (out / rank).write_text(str(first))
        return {"first": float(first)}
"""


def counting(site: Site, name: str) -> str:
    role = Role(replicas=2, ranks=2, entrypoint="t:run", resources=SMALL)
    job_id = site.submit(name, role, code=COUNT)
    for rank in range(4):
        site.until_logged(job_id, rf"\[rank {rank}\] line 20$")
    return job_id


def numbers(log: list[str], rank: int) -> list[int]:
    prefix = f"[rank {rank}] line "
    return [int(line.removeprefix(prefix)) for line in log if line.startswith(prefix)]


def test_a_store_service_that_is_killed_loses_no_line(site: Site) -> None:
    job_id = counting(site, "killed")
    store.kill(site.layout)
    status = site.succeeded(job_id)
    assert status.restarts == 0
    log = site.log(job_id)
    assert [numbers(log, rank) for rank in range(4)] == [list(range(200))] * 4


def test_a_store_service_that_is_away_at_the_end_is_waited_for(site: Site) -> None:
    job_id = counting(site, "away")
    pods = site.pods(job_id)
    _scale(site, 0)
    try:
        for pod in pods:
            kubectl.until(f"{pod} is done", lambda pod=pod: _printed(site, pod).count("line 199\n") == 2)
        assert site.pods(job_id) == pods
    finally:
        _scale(site, 1)
    assert site.succeeded(job_id).restarts == 0
    log = site.log(job_id)
    assert [numbers(log, rank) for rank in range(4)] == [list(range(200))] * 4


def _scale(site: Site, replicas: int) -> None:
    words = ("deployment", "muster-store", f"--replicas={replicas}", f"--namespace={NAMESPACE}")
    kubectl.run(site.layout, "scale", *words)
    kubectl.until("the store service is there or not", lambda: store.is_ready(site.layout) == bool(replicas))


def _printed(site: Site, pod: str) -> str:
    return kubectl.run(site.layout, "logs", pod, "--container=base", f"--namespace={NAMESPACE}")


def test_a_pod_that_is_deleted_starts_the_gang_again_from_its_checkpoint(site: Site) -> None:
    job_id = counting(site, "deleted")
    pod = next(name for name in site.pods(job_id) if "-main-0-1-" in name)
    kubectl.run(site.layout, "delete", "pod", pod, f"--namespace={NAMESPACE}", "--wait=false")
    status = site.succeeded(job_id)
    assert status.restarts == 1
    made, log = site.files(status), site.log(job_id)
    assert {"[rank 2] saved", "[rank 3] saved"} <= set(log)
    for rank in range(4):
        said, first = numbers(log, rank), int(made[str(rank)])
        assert first > 0
        assert sorted(set(said)) == list(range(200)), (first, said)
        assert said[-(200 - first) :] == list(range(first, 200))


def test_a_job_of_one_pod_reads_its_input_and_goes_on_when_its_rank_is_killed(site: Site) -> None:
    code = """
        import os
        import signal
        from pathlib import Path

        def run(rows: Path, out: Path, checkpoints: Path):
            mark = checkpoints / "killed"
            if not mark.exists():
                mark.touch()
                print("begins", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            print("goes on", flush=True)
            (out / "rows.txt").write_bytes((rows / "rows.txt").read_bytes())
            try:
                (rows / "rows.txt").write_text("changed")
            except OSError as error:
                print("not changed:", error.strerror)
    """
    source = site.folder / "rows.txt"
    source.write_text("1 2 3")
    version = site.store.add("gangs/rows", source)
    given = Input(versions=(Pinned(address=version.address, digest=version.digest),))
    role = Role(entrypoint="t:run", resources=SMALL)
    job_id = site.submit("one", role, code=code, inputs={"rows": given})
    status = site.succeeded(job_id)
    assert status.restarts == 1
    assert site.files(status) == {"rows.txt": b"1 2 3"}
    said = [line for line in site.log(job_id) if line.startswith("[rank 0] ")]
    assert said == ["[rank 0] begins", "[rank 0] goes on", "[rank 0] not changed: Read-only file system"]


@pytest.mark.nightly  # contract/test_backend.py has it
def test_memory_that_outgrows_its_limit_is_final(site: Site) -> None:
    code = """
        import os, time
        def run(out):
            print("begun", flush=True)
            if os.environ["MUSTER_RANK"] != "0":  # else the first to grow ends the others before they have said a word
                time.sleep(600)
            held = [bytearray(1 << 20) for _ in range(1000)]
    """
    role = Role(replicas=2, ranks=2, entrypoint="t:run", resources=SMALL)
    job_id = site.submit("memory", role, code=code)
    status = site.ended(job_id)
    assert status.verdict is not None
    assert status.verdict.cause is Cause.OUT_OF_MEMORY, status.verdict
    assert "outgrew its memory limit of 0.125 GiB" in status.verdict.message
    assert "[rank 0] begun" in site.log(job_id)


@pytest.mark.nightly  # contract/test_backend.py has it
def test_an_authors_error_is_final_and_whole_in_the_log(site: Site) -> None:
    code = "def run(out):\n    raise KeyError('day')\n"
    role = Role(replicas=2, entrypoint="t:run", resources=SMALL)
    job_id = site.submit("error", role, code=code)
    status = site.ended(job_id)
    assert status.verdict is not None
    assert (status.verdict.cause, status.verdict.message) == (Cause.USER_ERROR, "KeyError: 'day'")
    assert status.restarts == 0
    assert [line for line in site.log(job_id) if line.endswith(": KeyError: 'day'")]
