"""The command against a cluster, as a person at a laptop has it: a file, a kubeconfig and a token."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import accounts, kubectl, store
from tests.cluster.inside import NAMESPACE, layout
from tests.cluster.layout import Layout
from tests.cluster.scripted import CLAIM, SMALL, WAIT, Jobs, job, jobs

from muster.backends.kubernetes.state.observe import observe
from muster.core.job import JobSpec, Role
from muster.core.status import JobState
from muster.volumes.service.client import ServiceStore

pytestmark = pytest.mark.cluster

MUSTER = Path(sys.executable).with_name("muster")
UNIQUE = secrets.token_hex(3)  # the claim keeps what was stored, and this may run again
HAS, WAITS, ENDS = (f"{name}-{UNIQUE}" for name in ("has", "waits", "ends"))
VOLUME = f"raw/command-{UNIQUE}"
CARDS = replace(SMALL, gpus=8, gpu_class=("gpu-a100",))


@dataclass(frozen=True)
class Answer:
    """How one run of the command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def rows(self, head: str) -> list[list[str]]:
        """The rows of the table whose first columns are called so, split at two spaces or more."""
        lines, names = self.out.splitlines(), head.split()
        start = next(n for n, line in enumerate(lines) if line.split()[: len(names)] == names)
        rows = []
        for line in lines[start + 1 :]:
            if not line:
                break
            rows.append([cell.strip() for cell in line.split("  ") if cell.strip()])
        return rows


@dataclass(frozen=True)
class Laptop:
    """Where the command is run, with a cluster's file."""

    folder: Path
    settings: dict[str, object]

    def changed(self, **changes: object) -> Laptop:
        """Return one whose file says something else."""
        return Laptop(self.folder, self.settings | changes)

    def __call__(self, *words: object) -> Answer:
        file = self.folder / "cluster.toml"
        file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in self.settings.items()))
        environment = os.environ | {
            "MUSTER_CLUSTER": str(file),
            "MUSTER_HOME": str(self.folder / "home"),
            "MUSTER_CACHE": str(self.folder / "cache"),
        }
        command = [str(MUSTER), *map(str, words)]
        done = subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=60
        )
        return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def here() -> Layout:
    return layout()


@pytest.fixture(scope="module")
def served(here: Layout) -> None:
    store.deploy(here)


@pytest.fixture
def muster(here: Layout, served: None, tmp_path: Path) -> Laptop:
    (tmp_path / "token").write_text(store.operator_token(here))
    settings = {
        "namespace": NAMESPACE,
        "claim": CLAIM,
        "store_url": store.URL,
        "token_file": "token",
        "kubeconfig": str(accounts.kubeconfig(here, accounts.OPERATOR)),
        "queue": "team-a",
        "image_prefix": "localhost",
    }
    return Laptop(tmp_path, settings)


@pytest.fixture
def running(here: Layout) -> Iterator[Jobs]:
    with jobs(here) as found:
        yield found
        found.clear()


def gang(name: str) -> JobSpec:
    """Two replicas that take all the new cards."""
    return job(name, Role(replicas=2, entrypoint="probe:run", resources=CARDS), queue="team-a")


@pytest.fixture(scope="class")
def crowd(here: Layout) -> Iterator[None]:
    """One gang that has all the new cards, and one that waits for them."""
    with jobs(here) as running:
        running.start(HAS, gang("has"), WAIT)
        running.until(HAS, "runs", lambda seen: observe(seen, gang("has")).state is JobState.RUNNING)
        running.start(WAITS, gang("waits"), WAIT)
        running.until(WAITS, "waits", lambda seen: "16 more" in observe(seen, gang("waits")).reason)
        yield
        running.clear()


@pytest.mark.usefixtures("crowd")
class TestWhatThereIs:
    def test_gpus(self, muster: Laptop) -> None:
        found = muster("gpus", "--json").json()
        assert found["classes"] == [
            {"name": "gpu-a100", "total": 16, "used": 16, "free": 0},
            {"name": "gpu-k80", "total": 4, "used": 0, "free": 4},
        ]
        assert [(node["name"], node["used"], node["ready"]) for node in found["nodes"]] == [
            ("a100-0", 8, True),
            ("a100-1", 8, True),
            ("k80-0", 0, True),
        ]
        shares = {(share["team"], share["flavor"]): share for share in found["teams"]}
        of_a = shares["team-a", "gpu-a100"]
        assert (of_a["quota"], of_a["used"], of_a["borrowed"]) == (12, 16, 4)
        assert found["holders"] == [{"name": f"{NAMESPACE}/team-a", "used": 16}]
        shown = muster("gpus")
        assert shown.rows("class") == [["gpu-a100", "16", "16", "0"], ["gpu-k80", "4", "0", "4"]]
        assert ["team-a", "gpu-a100", "12", "16", "4"] in shown.rows("team")
        assert "may not list pods in the whole cluster" in shown.err

    def test_queue(self, muster: Laptop) -> None:
        found = muster("queue", "--json").json()
        assert [(line["name"], line["waiting"], line["running"]) for line in found["queues"]] == [
            ("team-a", 1, 1),
            ("team-b", 0, 0),
        ]
        (waits,) = found["waiting"]
        assert (waits["job_id"], waits["title"], waits["queue"]) == (WAITS, "probes.waits", "team-a")
        assert waits["place"] == {"number": 1, "of": 1}
        assert waits["why"] == "needs 16 more nvidia.com/gpu of flavor gpu-a100"
        assert waits["needs"]["nvidia.com/gpu"] == 16
        (row,) = muster("queue").rows("queue place")
        assert row[:4] == ["team-a", "1 of 1", WAITS, "probes.waits"]
        assert row[-1] == waits["why"]

    def test_a_job_is_shown_with_its_pods(self, muster: Laptop) -> None:
        with ServiceStore(store.URL, token=token(muster), cache=muster.folder / "own") as service:
            service.ledger.create(HAS, gang("has"))
        found = muster("jobs", "show", HAS, "--json").json()
        assert found["status"]["state"] == "running"
        assert {(part["name"], part["node"]) for part in found["parts"]} in (
            {("main-0", "a100-0"), ("main-1", "a100-1")},
            {("main-0", "a100-1"), ("main-1", "a100-0")},
        )
        assert [each["job_id"] for each in muster("jobs", "ls", "--state", "running", "--json").json()] == [
            HAS
        ]


def token(muster: Laptop) -> str:
    return (muster.folder / "token").read_text()


class TestVolumes:
    def test_a_version_comes_and_goes(self, muster: Laptop, tmp_path: Path) -> None:
        (tmp_path / "rows").mkdir()
        addresses = []
        for number in range(3):
            (tmp_path / "rows" / "a.csv").write_text(f"row {number}\n")
            addresses.append(muster("volumes", "put", "rows", VOLUME, "--partition", "2013-01").out)
        first, second, third = (address.strip().removeprefix("volume://") for address in addresses)
        assert VOLUME in [row[0] for row in muster("volumes", "ls").rows("volume")]
        assert [each["address"] for each in muster("volumes", "log", VOLUME, "--json").json()] == [
            f"volume://{each}" for each in (third, second, first)
        ]
        shown = muster("volumes", "show", third, "--json").json()
        assert [entry["path"] for entry in shown["entries"]] == ["a.csv"]
        assert shown["path"] is None  # it is not fetched to be shown
        assert muster("volumes", "diff", first, third).out.startswith("~ a.csv")
        assert muster("volumes", "pin", first, "--reason", "in the paper").code == 0
        plan = muster("volumes", "gc", VOLUME, "--keep", "1", "--json").json()["plan"]
        assert plan["versions"] == [f"volume://{second}"]
        assert plan["kept"][f"volume://{first}"] == "pinned: in the paper"
        assert muster("volumes", "gc", VOLUME, "--keep", "1", "--yes").code == 0
        assert muster("volumes", "get", f"{third}/a.csv", "copy.csv").code == 0
        assert (tmp_path / "copy.csv").read_text() == "row 2\n"
        assert "gc" in muster("volumes", "show", second).out
        assert muster("volumes", "fsck", "--deep", "--json").json()["clean"] is True
        assert muster("volumes", "unpin", first, "--reason", "in the paper").code == 0

    def test_what_is_not_there(self, muster: Laptop) -> None:
        answer = muster("volumes", "show", "raw/nowhere@1")
        assert answer.code == 1
        assert "raw/nowhere" in answer.err

    def test_another_token(self, muster: Laptop) -> None:
        (muster.folder / "token").write_text("x.y")
        answer = muster("volumes", "ls")
        assert (answer.code, answer.out) == (1, "")
        assert "the token is not one of this store service" in answer.err


class TestDoctor:
    def states(self, answer: Answer) -> dict[str, str]:
        return {check["name"]: check["state"] for check in answer.json()["checks"]}

    def test_all_is_well(self, muster: Laptop) -> None:
        answer = muster("doctor", "--json")
        found = self.states(answer)
        assert (answer.code, found.pop("store token")) == (0, "warn")  # it counts for a day
        assert set(found.values()) == {"ok"}
        assert found.keys() >= {
            "connection",
            "rights",
            "claim",
            "gangs",
            "queue",
            "flavors",
            "GPUs",
            "a gang",
        }

    def test_an_account_without_rights(self, muster: Laptop, here: Layout) -> None:
        config = accounts.kubeconfig(here, accounts.REAPER)
        answer = muster.changed(kubeconfig=str(config))("doctor", "--json")
        assert answer.code == 1
        checks = {check["name"]: check for check in answer.json()["checks"]}
        assert checks["rights"]["state"] == "bad"
        assert "create jobsets" in checks["rights"]["found"]
        assert (
            'resources: ["jobsets"], verbs: [get, list, watch, create, delete]' in checks["rights"]["advice"]
        )
        assert checks["reading"]["state"] == "warn"

    @pytest.mark.parametrize(
        ("change", "name", "said"),
        [
            ({"queue": "team-z"}, "queue", "has no queue team-z; there are team-a, team-b"),
            ({"claim": "elsewhere"}, "claim", "has no PersistentVolumeClaim elsewhere"),
            ({"store_url": "http://10.96.0.99"}, "store service", "does not answer"),
            ({"image_prefix": ""}, "images", "no image_prefix"),
            ({"context": "stranger"}, "cluster file", "stranger"),
            ({"gpu_resource": "amd.com/gpu"}, "GPUs", "no node has amd.com/gpu"),
        ],
    )
    def test_what_is_wrong_is_named(
        self, change: dict[str, str], name: str, said: str, muster: Laptop
    ) -> None:
        answer = muster.changed(**change)("doctor", "--json")
        found = next(check for check in answer.json()["checks"] if check["name"] == name)
        assert found["state"] != "ok"
        assert said in found["found"]
        assert found["advice"]

    def test_an_api_server_that_does_not_answer(self, muster: Laptop, here: Layout) -> None:
        config = accounts.kubeconfig(here, accounts.OPERATOR)
        away = muster.folder / "away.kubeconfig"
        away.write_text(config.read_text().replace(":6443", ":6444"))
        answer = muster.changed(kubeconfig=str(away))("doctor", "--json")
        found = next(check for check in answer.json()["checks"] if check["name"] == "connection")
        assert "does not answer" in found["found"]
        assert answer.json()["checks"][-1] == found  # nothing more is asked of it
        assert "does not answer" in muster.changed(kubeconfig=str(away))("gpus").err


class TestJobs:
    def test_a_job_is_listed_and_cancelled(self, muster: Laptop, running: Jobs) -> None:
        spec = job("ends")
        with ServiceStore(store.URL, token=token(muster), cache=muster.folder / "own") as service:
            service.ledger.create(ENDS, spec)
            service.ledger.append(ENDS, b"[rank 0] a line\n")
        running.start(ENDS, spec, WAIT)
        running.until(ENDS, "runs", lambda seen: observe(seen, spec).state is JobState.RUNNING)
        assert muster("jobs", "logs", ENDS).out == "[rank 0] a line\n"
        assert muster("jobs", "ls", "--state", "running", "--json").json()[0]["job_id"] == ENDS
        answer = muster("jobs", "cancel", ENDS)
        assert (answer.code, answer.out) == (0, f"{ENDS}: cancelled\n")
        kubectl.until("its pods are gone", lambda: not running.seen(ENDS).pods)
        running.started.clear()
        assert "was cancelled already" in muster("jobs", "cancel", ENDS).err
        assert muster("jobs", "show", ENDS, "--json").json()["parts"] == []
