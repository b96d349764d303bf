from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from tests.ports import free_port

from muster.core.job import Launcher, Role
from muster.core.resources import Resources
from muster.core.verdict import Cause
from muster.worker.launchers import engine
from muster.worker.launchers.launcher import launcher_of, rank_environment

ROLES = (
    Role(name="chief", replicas=1, ranks=2, command=("x",), resources=Resources(cpus=5)),
    Role(name="workers", replicas=3, ranks=1, command=("x",)),
)


def environment(bench, local_rank: int = 0, **given) -> dict[str, str]:
    base = {"PATH": "/usr/bin", "HOME": "/home/me", "SECRET": "s"}
    found = rank_environment(bench.replica(**given), local_rank, base=base)
    assert found.pop("PATH").endswith(":/usr/bin")
    return found


def common(tmp_path: Path, rank: int, world: int) -> dict[str, str]:
    return {
        "HOME": "/home/me",
        "SECRET": "s",
        "MUSTER_JOB_ID": "train-abc-1",
        "MUSTER_RANK": str(rank),
        "MUSTER_WORLD_SIZE": str(world),
        "MUSTER_ATTEMPT": "2",
        "MUSTER_CHECKPOINTS": str(tmp_path / "checkpoints"),
        "TMPDIR": str(tmp_path / "scratch"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "MLFLOW_RUN_CONTEXT": '{"muster.job_id": "train-abc-1"}',
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "TP_SOCKET_IFNAME": "lo",
    }


def test_plain_names_the_rank_and_no_more(bench, tmp_path: Path) -> None:
    found = environment(bench, 1, roles=ROLES, role="chief", attempt=2, gpus=("0", "3"))
    assert found == {**common(tmp_path, 1, 5), "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0,3"}


def test_tags_for_mlflow_stand_beside_those_of_the_author(bench) -> None:
    given = {"MLFLOW_RUN_CONTEXT": '{"team": "ana"}'}
    found = environment(bench, 1, roles=ROLES, role="chief", attempt=2, env=given)["MLFLOW_RUN_CONTEXT"]
    assert json.loads(found) == {"team": "ana", "muster.job_id": "train-abc-1"}
    broken = environment(bench, 1, roles=ROLES, role="chief", attempt=2, env={"MLFLOW_RUN_CONTEXT": "no"})
    assert json.loads(broken["MLFLOW_RUN_CONTEXT"]) == {"muster.job_id": "train-abc-1"}


def test_torchrun_counts_ranks_over_all_roles(bench, tmp_path: Path) -> None:
    found = environment(
        bench, roles=ROLES, role="workers", index=2, attempt=2, launcher="torchrun", port=29501
    )
    assert found == {
        **common(tmp_path, 4, 5),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "LOCAL_RANK": "0",
        "RANK": "4",
        "GROUP_RANK": "3",
        "ROLE_RANK": "2",
        "ROLE_NAME": "workers",
        "LOCAL_WORLD_SIZE": "1",
        "WORLD_SIZE": "5",
        "GROUP_WORLD_SIZE": "4",
        "ROLE_WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29501",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "train-abc-1",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": str(tmp_path / "scratch" / "rank-4-error.json"),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def test_horovod_places_a_rank_within_and_across_hosts(bench, tmp_path: Path) -> None:
    found = environment(
        bench, roles=ROLES, role="workers", index=1, attempt=2, launcher="horovod", port=29501
    )
    assert found == {
        **common(tmp_path, 3, 5),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "29501",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "600",
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_HOSTNAME": "replica-2",
        "HOROVOD_RANK": "3",
        "HOROVOD_SIZE": "5",
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": "2",
        "HOROVOD_CROSS_SIZE": "4",
    }


def test_a_local_rank_that_few_hosts_have_crosses_only_those(bench) -> None:
    found = environment(bench, 1, roles=ROLES, role="chief", launcher="horovod")
    assert (found["HOROVOD_CROSS_RANK"], found["HOROVOD_CROSS_SIZE"]) == ("0", "1")


def test_an_author_may_set_threads_but_not_the_rank(bench) -> None:
    found = environment(bench, command=("x",), launcher="torchrun", env={"OMP_NUM_THREADS": "7", "RANK": "9"})
    assert (found["OMP_NUM_THREADS"], found["RANK"]) == ("7", "0")


@pytest.mark.parametrize("launcher", ["plain", "torchrun"])
def test_what_the_author_sets_counts_where_the_backend_does_not_pass_it_on(bench, launcher: str) -> None:
    given = {"PATH": "/own", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    replica = bench.replica(command=("x",), launcher=launcher, env=given)
    found = rank_environment(replica, 0, base={"PATH": "/usr/bin"})
    assert found["PATH"].endswith(":/own")
    assert found["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ({}, "warning"),
        ({"DASK_LOGGING__DISTRIBUTED": "info"}, "info"),
        ({"DASK_LOGGING_FILE_CONFIG": "own.ini"}, None),  # Dask takes no other setting of logs beside a file
    ],
)
def test_dask_tells_warnings_unless_the_author_says_what(bench, given, level) -> None:
    found = environment(bench, roles=(Role(replicas=2, command=("x",)),), launcher="dask", env=given)
    assert found.get("DASK_LOGGING__DISTRIBUTED") == level


def test_an_image_without_horovod_is_told_by_its_ranks_not_by_the_meeting_place(bench) -> None:
    bench.code(
        t="""
        import os
        def f():
            while len(open("/proc/%d/task/%d/children" % (os.getppid(), os.getppid())).read().split()) > 1:
                pass  # until the meeting place, which needs horovod too, has ended
            import horovod.torch
        """
    )
    ended = bench.run(entrypoint="t:f", launcher="horovod", port=free_port())
    assert ended.report.verdict.cause is Cause.USER_ERROR
    assert ended.report.verdict.message == "ModuleNotFoundError: No module named 'horovod'"


def test_tensorflow_tells_each_rank_all_addresses_and_its_own_task(bench) -> None:
    roles = (Role(name="chief", command=("x",)), Role(name="train", replicas=2, ranks=2, command=("x",)))
    peers = tuple(f"host-{rank}:2222" for rank in range(5))
    replica = replace(bench.replica(roles=roles, role="train", index=1, launcher="tensorflow"), peers=peers)
    told = rank_environment(replica, 1, base={})["TF_CONFIG"]
    assert json.loads(told) == {
        "cluster": {"chief": [peers[0]], "worker": list(peers[1:])},
        "task": {"type": "worker", "index": 3},
    }


def test_ray_names_its_head_on_loopback_and_asks_for_a_token(bench) -> None:
    roles = (Role(replicas=3, command=("x",), resources=Resources(cpus=2, memory_gib=4)),)
    told = environment(bench, roles=roles, role="main", index=1, launcher="ray", port=29600)
    assert {name: text for name, text in told.items() if name.startswith("RAY_")} == {
        "RAY_ADDRESS": "127.0.0.2:29600",
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_COLOR_PREFIX": "0",
        "RAY_SCHEDULER_EVENTS": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }


def test_replicas_of_an_engine_share_a_secret_that_no_other_user_reads(bench) -> None:
    roles = (Role(replicas=2, command=("x",)),)
    first, second = (bench.replica(roles=roles, role="main", index=i, launcher="ray") for i in (0, 1))
    Path(first.sealed).parent.mkdir(parents=True, exist_ok=True)
    made = engine.make_secret(first)
    assert len(made) == 64
    assert engine.read_secret(second) == made
    (file,) = [path for path in Path(first.sealed).parent.iterdir() if path.read_text() == made]
    assert file.stat().st_mode & 0o777 == 0o600
    assert engine.make_secret(first) != made  # each start has its own


def test_a_long_folder_is_reached_by_a_path_that_is_short_enough_for_sockets(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 60) / ("y" * 60)
    short = engine.reachable(str(long))
    name = f"{short}/session_2026-11-26_06-51-02_744157_4194304/sockets/plasma_store"
    assert len(name) <= 107
    Path(name).parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(name)
    assert len(list(long.glob("*/sockets/plasma_store"))) == 1


@pytest.mark.parametrize("launcher", Launcher)
def test_each_launcher_is_a_module_with_a_page(launcher: Launcher) -> None:
    assert launcher_of(launcher).environment.__doc__
    page = Path(__file__).parents[3] / "docs" / "howto" / "launchers.md"
    assert f"| `{launcher.value}` |" in page.read_text()
