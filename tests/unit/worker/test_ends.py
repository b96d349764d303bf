"""The table of ends in :mod:`muster.worker.faults`: each line is played by a gang of small processes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from muster.core.errors import SpecError
from muster.core.job import Launcher, Role
from muster.core.verdict import Cause, ExitCode

LOST = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:123"
# Rank 1 does what its case says; rank 0 goes on once the process of rank 1 is gone.
SCRIPT = """
import os, pathlib, signal, sys, time

peer = pathlib.Path({checkpoints!r}, "peer")

def until(holds):
    while not holds():
        time.sleep(0.01)

def leave():
    peer.with_suffix(".part").write_text(str(os.getpid()))
    os.replace(peer.with_suffix(".part"), peer)
    {leaves}

def stay():
    until(peer.exists)
    if {gone}:
        until(lambda: not pathlib.Path("/proc", peer.read_text()).exists())
    {then}

def f():
    (leave if os.environ["MUSTER_RANK"] == "1" else stay)()

if __name__ == "__main__":
    f()
"""
COMPLAINS = f"raise RuntimeError({LOST!r})"
NEVER_MET = (
    "raise type('DistStoreError', (RuntimeError,), {})('Timed out waiting for clients. 1/2 clients joined')"
)
WAITS = "time.sleep(600)"
AT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
LEFT = rf"ended with exit status 0 at {AT}, while rank 0 still waited for it at t\.py:\d+: "
ELSEWHERE = (
    rf"ended with exit status 0 at {AT}, while others still waited for it: no line .*rank 0 at t\.py:\d+"
)


@dataclass(frozen=True)
class End:
    """One line: what rank 1 does, what rank 0 does then, and what the gang's end is called."""

    leaves: str
    then: str
    cause: Cause
    rank: int | None
    message: str
    launcher: str = "torchrun"
    entrypoint: bool = False

    @property
    def code(self) -> int:
        codes = {Cause.HANG: ExitCode.HANG, Cause.RANK_LOST: ExitCode.RANK_LOST}
        return codes.get(self.cause, ExitCode.USER_ERROR)


ENDS = {
    "raises": End("raise ValueError('bad row')", COMPLAINS, Cause.USER_ERROR, 1, "ValueError: bad row"),
    "ends-with-a-status": End("sys.exit(3)", COMPLAINS, Cause.USER_ERROR, 1, "ended with exit status 3"),
    "crashes": End("os.kill(os.getpid(), 10)", COMPLAINS, Cause.USER_ERROR, 1, "killed by SIGUSR1"),
    "is-killed": End("os.kill(os.getpid(), 9)", COMPLAINS, Cause.RANK_LOST, 1, "killed by SIGKILL"),
    "is-killed-under-a-wait": End("os.kill(os.getpid(), 9)", WAITS, Cause.RANK_LOST, 1, "killed by SIGKILL"),
    "is-terminated": End("os.kill(os.getpid(), 15)", COMPLAINS, Cause.RANK_LOST, 1, "killed by SIGTERM"),
    "leaves": End("raise SystemExit(0)", COMPLAINS, Cause.USER_ERROR, 1, LEFT + "RuntimeError: .*closed by"),
    "leaves-plain": End("sys.exit()", COMPLAINS, Cause.USER_ERROR, 1, LEFT, launcher="plain"),
    "leaves-before-they-meet": End(
        "return", NEVER_MET, Cause.USER_ERROR, 1, LEFT + ".*DistStoreError: Timed"
    ),
    "leaves-an-entrypoint": End("sys.exit(0)", COMPLAINS, Cause.USER_ERROR, 1, LEFT, entrypoint=True),
    "leaves-under-a-wait": End("sys.exit(0)", WAITS, Cause.USER_ERROR, 1, ELSEWHERE),
    "leaves-who-joins-nobody": End(
        "sys.exit(0)", WAITS, Cause.HANG, 0, r"no line .*; rank 1 had ended well before", launcher="plain"
    ),
    "leaves-one-that-fails-alone": End(
        "sys.exit(0)",
        "raise ConnectionError('no such host')",
        Cause.USER_ERROR,
        0,
        "ConnectionError: no such",
    ),
    "cannot-use-nccl": End(
        WAITS,
        "raise ValueError('ProcessGroupNCCL is only supported with GPUs, no GPUs found!')",
        Cause.USER_ERROR,
        0,
        "ValueError: ProcessGroupNCCL",
    ),
    "vanishes": End(
        "os._exit(0)", WAITS, Cause.USER_ERROR, 1, "ended with exit status 0 before its", entrypoint=True
    ),
    "all-complain": End(COMPLAINS, COMPLAINS, Cause.RANK_LOST, 1, "RuntimeError: .*closed by peer"),
    "all-hang": End(WAITS, WAITS, Cause.HANG, None, "no line .*rank 0 at .*rank 1 at"),
}


def script(bench, leaves: str, then: str) -> None:
    (bench.root / "checkpoints").mkdir(exist_ok=True)
    text = SCRIPT.replace("{leaves}", leaves).replace("{gone}", str(leaves != WAITS)).replace("{then}", then)
    bench.code(t=text.replace("{checkpoints!r}", repr(str(bench.root / "checkpoints"))))


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_how_a_rank_ends_says_whose_fault_it_is(bench, end: End) -> None:
    script(bench, end.leaves, end.then)
    started = {"entrypoint": "t:f"} if end.entrypoint else {"command": ("python", "t.py")}
    hangs = (
        2.0 if end.cause is Cause.HANG or end.message is ELSEWHERE else 0.0
    )  # it is no measure of a start on a busy machine
    ended = bench.run(ranks=2, launcher=end.launcher, hang_timeout_seconds=hangs, grace_seconds=1, **started)
    verdict = ended.report.verdict
    assert (ended.code, verdict.cause, verdict.rank) == (end.code, end.cause, end.rank), ended.log
    assert re.match(end.message, verdict.message), verdict.message
    assert ended.lines[-1] == ("" if end.rank is None else f"rank {end.rank}: ") + verdict.message


def start(bench, role: Role, index: int, *roles: Role, **given):
    """Start one replica of a gang, and return its worker with it."""
    made = bench.replica(roles=roles, role=role.name, index=index, **given)
    peers = tuple(f"127.0.0.1:{number + 1}" for number in range(made.spec.world_size))
    made = replace(made, scratch=str(bench.root / f"scratch-{role.name}-{index}"), peers=peers)
    return bench.start(made), made


@pytest.mark.parametrize(
    ("then", "message"), [(COMPLAINS, LEFT), (WAITS, ELSEWHERE)], ids=["complains", "waits"]
)
def test_a_replica_that_leaves_is_named_by_those_that_wait(bench, then: str, message: str) -> None:
    script(bench, "sys.exit(0)", then.replace("raise", "until(pathlib.Path(SEAL).exists); raise"))
    seal = bench.root / "sealed" / "main-1.json"
    text = (bench.root / "code" / "t.py").read_text()
    (bench.root / "code" / "t.py").write_text(f"SEAL = {str(seal)!r}\n{text}")
    role = Role(command=("python", "t.py"), replicas=2)
    given = {"launcher": "torchrun", "hang_timeout_seconds": 0.5, "grace_seconds": 1}
    assert bench.wait(*start(bench, role, 1, role, **given)).code == ExitCode.SEALED
    ended = bench.wait(*start(bench, role, 0, role, **given))
    verdict = ended.report.verdict
    assert (ended.code, verdict.cause, verdict.rank) == (ExitCode.USER_ERROR, Cause.USER_ERROR, 1), ended.log
    assert re.match(message, verdict.message), verdict.message


SERVES = "import signal, sys, time\nprint('serves', flush=True)\n{}\ntime.sleep(600)"


@pytest.mark.parametrize(
    "told",
    ["", "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))", f"raise RuntimeError({LOST!r})"],
    ids=["default", "a-status", "complains"],
)
@pytest.mark.parametrize("launcher", ["tensorflow", "plain"])
def test_a_role_that_serves_ends_with_the_one_that_is_served(bench, told: str, launcher: str) -> None:
    if told.startswith("raise"):  # once the chief has sealed
        wait = f"import pathlib\nwhile not pathlib.Path({str(bench.root / 'sealed/chief-0.json')!r}).exists(): time.sleep(0.01)"
        told = f"{wait}\n{told}"
    bench.code(serve=SERVES.format(told), chief="print('trained')")
    with_chief = {"ends_with": "chief"} if launcher == "plain" else {}
    serve = ("python", "serve.py")
    roles = (
        Role(name="chief", command=("python", "chief.py")),
        Role(name="worker", command=serve, **with_chief),
        Role(name="ps", command=serve, **with_chief),
    )
    started = [start(bench, role, 0, *roles, launcher=launcher) for role in roles[1:]]
    for process, _ in started:
        bench.line(process, "serves")
    assert bench.wait(*start(bench, roles[0], 0, *roles, launcher=launcher)).code == ExitCode.SEALED
    for process, made in started:
        ended = bench.wait(process, made)
        assert ended.code == ExitCode.SEALED, ended.log
        assert ended.lines[-1] == f"[muster] role {made.role} is told to stop: chief has ended well"


@pytest.mark.parametrize(
    ("roles", "launcher", "leaders"),
    [
        (("chief", "worker", "ps", "evaluator"), "tensorflow", (None, "chief", "chief", None)),
        (("chief", "worker"), "tensorflow", (None, None)),  # each trains to the end
        (("worker", "ps"), "tensorflow", (None, None)),
        (("chief", "ps"), "plain", (None, None)),
    ],
)
def test_only_what_serves_a_chief_ends_with_it(bench, roles, launcher: str, leaders) -> None:
    made = tuple(Role(name=name, command=("x",)) for name in roles)
    spec = bench.replica(roles=made, role=roles[0], launcher=launcher).spec
    found = [spec.leader_of(role) for role in spec.roles]
    assert tuple(leader and leader.name for leader in found) == leaders


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ({"a": "a"}, "role a ends with 'a': name another role of its gang: b, c"),
        ({"a": "z"}, "role a ends with 'z': name another role of its gang: b, c"),
        ({"a": "b", "b": "c"}, "a role that others end with ends by itself: give it no ends_with"),
    ],
)
def test_who_a_role_ends_with_is_there_and_ends_by_itself(bench, ends, message: str) -> None:
    roles = tuple(Role(name=name, command=("x",), ends_with=ends.get(name)) for name in "abc")
    with pytest.raises(SpecError, match=re.escape(message)):
        bench.replica(roles=roles, role="a", launcher=Launcher.PLAIN.value)
