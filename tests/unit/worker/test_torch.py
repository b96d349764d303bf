"""Real torch: the environment equals torchrun's own, gloo ranks meet by it alone, and faults are told apart."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.ports import free_port

from muster.core.verdict import Cause, ExitCode

pytestmark = pytest.mark.slow

SHOW = """
import json, os, sys
with open(os.path.join(sys.argv[1], os.environ["RANK"] + ".json"), "w") as file:
    json.dump(dict(os.environ), file)
"""

GANG = """
import sys, time
print("importing")
import torch, torch.distributed as dist

print("imported")  # a line: what follows is no part of the same silence
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(f"sum {total.item():.0f}")
if dist.get_rank() == 1 and "fail" in sys.argv:
    raise ValueError("bad row")
if "hang" in sys.argv and dist.get_rank() == 1:
    time.sleep(600)
dist.all_reduce(total)
dist.destroy_process_group()
"""


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def torch_bench(bench, image_python):
    bench.python = image_python("train")
    bench.code(show=SHOW, gang=GANG)
    return bench


def environments(folder: Path) -> list[dict[str, str]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_a_script_finds_what_torchrun_would_give_it(torch_bench, port: int, tmp_path: Path) -> None:
    for name in ("torchrun", "ours"):
        (tmp_path / name).mkdir()
    theirs = subprocess.run(
        [
            *(torch_bench.python, "-m", "torch.distributed.run", "--nproc-per-node=2", "--nnodes=1"),
            *("--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={port}"),
            *(str(tmp_path / "code" / "show.py"), str(tmp_path / "torchrun")),
        ],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert theirs.returncode == 0, theirs.stderr
    ended = torch_bench.run(
        command=("python", "show.py", str(tmp_path / "ours")), launcher="torchrun", ranks=2, port=port
    )
    assert ended.code == ExitCode.SEALED, ended.log
    differs = {
        "TORCHELASTIC_RUN_ID",  # the job's id against one that torchrun makes up
        "TORCHELASTIC_MAX_RESTARTS",  # ours are the gang's
        "TORCHELASTIC_ERROR_FILE",
        "TORCHELASTIC_USE_AGENT_STORE",  # rank 0 holds the store, there is no agent
        "ROLE_NAME",  # "default" where no role has a name
        "TORCHELASTIC_SIGNALS_TO_HANDLE",  # to torchrun itself
        "PATH",
        "HOME",
        "LC_CTYPE",
        "TMPDIR",
    }
    for wanted, found in zip(
        environments(tmp_path / "torchrun"), environments(tmp_path / "ours"), strict=True
    ):
        assert {k: v for k, v in wanted.items() if k not in differs} == {
            k: v for k, v in found.items() if k in wanted and k not in differs
        }
        assert {k for k in wanted if k.startswith(("TORCH", "ROLE"))} <= set(found) | {
            "TORCHELASTIC_SIGNALS_TO_HANDLE"
        }


@pytest.mark.nightly  # contract/test_backend.py has such ranks without torch
def test_the_rank_that_raised_is_told_from_the_one_that_lost_it(torch_bench, port: int) -> None:
    ended = torch_bench.run(command=("python", "gang.py", "fail"), launcher="torchrun", ranks=2, port=port)
    assert ended.code == ExitCode.USER_ERROR, ended.log
    assert ended.report.verdict.rank == 1
    assert ended.lines[-1] == "rank 1: ValueError: bad row"
    assert {"[rank 0] sum 3", "[rank 1] sum 3"} <= set(ended.lines)  # they had met
    shown = [line for line in ended.lines if "bad row" in line]  # the traceback is told as it came, and once
    assert shown == [
        '[rank 1]     raise ValueError("bad row")',
        "[rank 1] ValueError: bad row",
        ended.lines[-1],
    ]


def test_a_rank_that_never_enters_a_collective_is_a_hang_that_shows_both_stacks(
    torch_bench, port: int
) -> None:
    ended = torch_bench.run(
        command=("python", "gang.py", "hang"),
        launcher="torchrun",
        ranks=2,
        port=port,
        hang_timeout_seconds=20,  # of an import by two ranks at once, beside other tests
    )
    assert ended.report.verdict.cause is Cause.HANG, ended.log
    assert ended.report.verdict.message.count("gang.py:") == 2
