"""Which commands start ranks of their own, and what is said to an author who gives one to a gang."""

from __future__ import annotations

import pytest

from muster.airflow.authoring.entrypoints import check_launch, find_launch
from muster.core.errors import SpecError
from muster.core.job import Launcher

LAUNCHES = {
    "torchrun": ["torchrun", "--nproc-per-node=2", "t.py"],
    "its path": ["/opt/venv/bin/torchrun", "--nproc_per_node", "2", "t.py"],
    "its module": ["python3.11", "-u", "-m", "torch.distributed.run", "--nproc-per-node=2", "t.py"],
    "the old module": ["python", "-m", "torch.distributed.launch", "--nproc-per-node=2", "t.py"],
    "horovodrun": ["horovodrun", "-np", "2", "python", "t.py"],
    "mpirun": ["mpirun", "-np", "2", "-H", "localhost:2", "python", "t.py"],
    "deepspeed": ["deepspeed", "--num_gpus=2", "t.py"],
    "accelerate": ["accelerate", "launch", "--num_processes", "2", "t.py"],
    "accelerate's module": ["python", "-m", "accelerate.commands.launch", "--num-processes=2", "t.py"],
    "env": ["env", "-i", "-u", "HOME", "OMP_NUM_THREADS=1", "torchrun", "--nproc-per-node=2", "t.py"],
    "uv run": ["uv", "run", "--with", "rich", "--no-project", "torchrun", "--nproc-per-node=2", "t.py"],
    "a shell": ["sh", "-c", "cd src && OMP_NUM_THREADS=1 exec torchrun --nproc-per-node=2 t.py; echo done"],
    "a login shell": ["bash", "-lc", "set -e\ntorchrun --nproc-per-node 2 t.py"],
    "nested": ["nice", "-n", "5", "env", "A=b", "bash", "-c", "env C=d python -m torch.distributed.run t.py"],
}
OTHERS = {
    "a script": ["python", "t.py"],
    "a script of that name": ["python", "torchrun.py"],
    "an argument": ["python", "t.py", "torchrun"],
    "another module": ["python", "-m", "flights.train", "-m", "torch.distributed.run"],
    "a text in a shell": ["sh", "-c", "echo torchrun; grep torchrun t.py"],
    "accelerate without a number": ["accelerate", "launch", "t.py"],
    "accelerate's settings": ["accelerate", "config", "--num_processes", "2"],
    "a shell's file": ["bash", "torchrun"],
    "an open quote": ["sh", "-c", "torchrun 't.py"],
    "wrappers alone": ["env", "-u", "HOME"],
}


@pytest.mark.parametrize("command", LAUNCHES.values(), ids=LAUNCHES)
def test_a_launcher_is_found(command: list[str]) -> None:
    with pytest.raises(SpecError, match="each rank would train alone") as caught:
        check_launch(command, Launcher.TORCHRUN)
    assert "command=['python', 't.py'" in str(caught.value)


@pytest.mark.parametrize("command", OTHERS.values(), ids=OTHERS)
def test_other_commands_are_free(command: list[str]) -> None:
    assert find_launch(command) is None


def test_the_words_to_write_instead() -> None:
    with pytest.raises(SpecError) as caught:
        check_launch(["torchrun", "--nproc-per-node=2", "t.py", "--lr", "0.1"], Launcher.HOROVOD)
    assert str(caught.value) == (
        "torchrun starts ranks of its own, and launcher 'horovod' starts the ranks of this gang: each rank would train "
        "alone. Write command=['python', 't.py', '--lr', '0.1'], ranks=2; where one torchrun in each replica is meant, "
        "add launcher='plain'"
    )


def test_a_plain_launcher_starts_what_it_is_given() -> None:
    check_launch(["torchrun", "--nproc-per-node=2", "t.py"], Launcher.PLAIN)
