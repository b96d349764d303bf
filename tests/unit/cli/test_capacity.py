"""``muster gpus`` and ``muster queue``, on a machine and against a cluster's API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.backends.kubernetes.site_api import SiteApi, kubeconfig, site_api
from tests.unit.backends.kubernetes.state.test_capacity import in_namespace, reserve, root, waits
from tests.unit.backends.kubernetes.state.test_queueing import pod

from muster.backends import base
from muster.backends.local.machine import Machine
from muster.backends.local.places import Places
from muster.backends.local.queue import JobQueue, Ticket
from muster.cli.capacity import needs

Run = Callable[..., Any]


@pytest.fixture
def site(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SiteApi]:
    """A cluster that MUSTER_CLUSTER names."""
    with site_api() as (site, server):
        kubeconfig(tmp_path / "config", server.host)
        (tmp_path / "token").write_text("x.y\n")
        (tmp_path / "cluster.toml").write_text(
            'namespace = "muster-jobs"\nclaim = "muster-store"\nstore_url = "http://127.0.0.1:9"\n'
            'token_file = "token"\nkubeconfig = "config"\n'
        )
        monkeypatch.setenv("MUSTER_CLUSTER", str(tmp_path / "cluster.toml"))
        monkeypatch.setattr(base, "LOOK_SECONDS", 0.1)  # there is no store service to wait for
        yield site


class TestMachine:
    def test_without_gpus(self, muster: Run, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        answer = muster("gpus")
        assert (answer.code, answer.out, answer.err) == (0, "", "no GPUs here\n")
        assert muster("gpus", "--json").json()["nodes"] == []
        assert not home.exists()

    def test_with_two(self, muster: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        assert muster("gpus").out.splitlines()[:2] == ["class  GPUs  used  free", "-         2     0     2"]

    def test_nothing_waits(self, muster: Run, home: Path) -> None:
        answer = muster("queue")
        assert answer.out.splitlines()[1].split() == ["local", "-", "0", "0", "open"]
        assert answer.err == "nothing waits\n"
        assert not home.exists()

    def test_what_waits(self, muster: Run, store: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from tests.unit.cli.conftest import make_spec

        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        store.ledger.create("train-1", make_spec())
        now = time.time()
        JobQueue(Places(home), Machine.here()).enter(
            Ticket(job_id="train-1", submitted=now - 65, deadline=now + 100, memory_gib=1 << 20, gpus=0)
        )
        head, row = muster("queue").out.splitlines()[-2:]
        assert head.split() == ["queue", "place", "job", "name", "needs", "waited", "why"]
        assert row.startswith("local  1 of 1  train-1  flights.train  1.049e+06 GiB  1 min 05 s  waits for")
        (waiting,) = muster("queue", "--json").json()["waiting"]
        assert (waiting["job_id"], waiting["place"]) == ("train-1", {"number": 1, "of": 1})

    def test_what_waits_for_a_budget(self, muster: Run, store: Any, home: Path) -> None:
        from tests.unit.cli.conftest import make_spec

        waits = "waits for its budget: team vision has used 4 of 0 CPU-hours"
        store.ledger.create("train-1", make_spec(), kept=waits)
        store.ledger.create("lost", make_spec())
        assert not muster("queue", "--json").json()["waiting"]  # no budget is used up, so it may start by now
        assert muster("budget", "team:vision", "--cpu-hours", "0").code == 0
        row = muster("queue").out.splitlines()[-1]
        assert row.split()[:4] == ["-", "-", "train-1", "flights.train"]
        assert row.endswith(waits)
        (waiting,) = muster("queue", "--json").json()["waiting"]
        assert (waiting["job_id"], waiting["place"], waiting["why"]) == ("train-1", None, waits)


class TestCluster:
    def test_gpus(self, muster: Run, site: SiteApi) -> None:
        site.documents.append(in_namespace(pod("a100-0", cards=8)))
        reserve(site, "team-a", "gpu-a100", 8)
        assert muster("gpus").out.splitlines() == [
            "class     GPUs  used  free",
            "gpu-a100    16     8     8",
            "gpu-k80      4     0     4",
            "",
            "node    class     GPUs  used  free  state",
            "a100-0  gpu-a100     8     8     0  ok",
            "a100-1  gpu-a100     8     0     8  ok",
            "k80-0   gpu-k80      4     0     4  ok",
            "",
            "team    class     quota  used  borrowed",
            "team-a  gpu-a100     12     8         -",
            "team-a  gpu-k80       4     0         -",
            "team-b  gpu-a100      4     0         -",
        ]
        document = muster("gpus", "--json").json()
        assert document["classes"][0] == {"name": "gpu-a100", "total": 16, "used": 8, "free": 8}
        assert document["holders"] == [{"name": "muster-jobs/team-a", "used": 8}]

    def test_what_it_cannot_see_is_said_beside_the_answer(self, muster: Run, site: SiteApi) -> None:
        site.refused.add(("list", "pods!"))
        assert "may not list pods in the whole cluster" in muster("gpus").err

    def test_without_quotas_teams_are_who_holds_cards(self, muster: Run, site: SiteApi) -> None:
        site.documents = [each for each in site.documents if each["kind"] != "ClusterQueue"]
        site.documents.append(in_namespace(pod("a100-0", cards=8)))
        assert muster("gpus").out.splitlines()[-2:] == [
            "team                used",
            "muster-jobs/team-a     8",
        ]

    def test_no_rights_is_one_message(self, muster: Run, site: SiteApi) -> None:
        site.refused.add(("list", "nodes!"))
        answer = muster("gpus")
        assert (answer.code, answer.out) == (1, "")
        assert "ann may not list nodes in the whole cluster: give it a ClusterRole" in answer.err

    def test_queue(self, muster: Run, site: SiteApi) -> None:
        site.documents += [waits("old", minute=1), root("old", title="flights.train")]
        site.places["team-a"] = ["jobset-old-d8f1a"]
        lines = muster("queue").out.splitlines()
        assert lines[:3] == [
            "queue   team    waiting  running  state",
            "team-a  team-a        1        0  open",
            "team-b  team-b        0        0  open",
        ]
        assert lines[5].startswith("team-a  1 of 1  old  flights.train  6 GPUs, 1.5 CPUs, 3 GiB  ")
        assert lines[5].endswith("  needs 4 more nvidia.com/gpu of flavor gpu-a100")
        assert muster("queue", "--json").json()["waiting"][0]["title"] == "flights.train"

    def test_hostile_names_do_not_reach_the_terminal(self, muster: Run, site: SiteApi) -> None:
        site.documents += [waits("old", minute=1), root("old", title="\x1b[2Jbad\n")]
        assert r"\x1b[2Jbad\n" in muster("queue").out

    def test_a_cluster_file_that_is_not_there(
        self, muster: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("MUSTER_CLUSTER", str(tmp_path / "nowhere.toml"))
        for asked in ("gpus", "queue"):
            answer = muster(asked)
            assert (answer.code, answer.out) == (1, "")
            assert "nowhere.toml cannot be read" in answer.err


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        ({}, "-"),
        ({"nvidia.com/gpu": 1.0}, "1 GPU"),
        ({"cpu": 1.0, "memory": 2.0**30, "nvidia.com/gpu": 16.0}, "16 GPUs, 1 CPU, 1 GiB"),
        ({"rdma/hca": 2.0, "cpu": 0.5, "ephemeral-storage": 2.0**30}, "0.5 CPUs, 2 rdma/hca"),
    ],
)
def test_needs_in_words(amounts: dict[str, float], said: str) -> None:
    assert needs(amounts) == said
