"""What a replica uses: of its processes, of its cgroup, of its cards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.core.job import Role
from muster.core.resources import Resources
from muster.core.series import Folding
from muster.worker.usage import CardReader, Usage, descendants, memory_group

BUSY = "import time; held = b'x' * (64 << 20); print(flush=True)\nwhile time.process_time() < 60: pass"
NVML = """
#include <string.h>
typedef struct { unsigned gpu, memory; } rates; typedef struct { unsigned long long total, free, used; } memory;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned n, void **card) { *card = (void *)(long)(n + 1); return n < 2 ? 0 : 2; }
int nvmlDeviceGetHandleByUUID(const char *id, void **card) { *card = (void *)2; return strcmp(id, "GPU-b") ? 6 : 0; }
int nvmlDeviceGetUtilizationRates(void *card, rates *r) { r->gpu = 25 * (long)card; return 0; }
int nvmlDeviceGetMemoryInfo(void *card, memory *m) { m->used = (unsigned long long)card << 30; return (long)card == 1 ? 0 : 3; }
"""


def told(said: list[str]) -> dict[str, float]:
    folding = Folding(0.0)
    folding.take(("\n".join(said) + "\n").encode(), at=1.0)
    return {curve.name: curve.values[-1] for curve in folding.series().use if curve.source == "main-0"}


def due(usage: Usage, monkeypatch: pytest.MonkeyPatch, *, seconds: float) -> None:
    """Let the clock of looks be `seconds` further."""
    monkeypatch.setattr(time, "monotonic", lambda real=time.monotonic: real() + seconds)
    assert usage.left() < 0


def test_the_processes_of_a_replica_are_looked_at_when_it_is_due(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    usage = Usage(bench.replica(roles=(Role(name="main", entrypoint="t:f"),)), say=said.append)
    usage.look()
    assert said == []
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as busy:
        try:
            assert busy.stdout is not None
            busy.stdout.readline()
            assert busy.pid in descendants(os.getpid())
            due(usage, monkeypatch, seconds=5.0)
            usage.look()
        finally:
            busy.kill()
    found = told(said)
    assert set(found) == {"cpu_cores", "memory_gib"}
    assert found["memory_gib"] >= 1 / 16
    assert found["cpu_cores"] >= 0
    assert 0 < usage.left() <= Usage.every_seconds
    usage.look()
    assert len(said) == 1


@pytest.mark.parametrize(
    ("own", "folder", "files", "in_pod", "found"),
    [
        ("0::/a/muster.x\n", "a/muster.x", "memory.current", False, True),
        ("0::/a/other\n", "a/other", "memory.current", False, False),
        ("0::/\n", ".", "memory.current", True, True),
        ("0::/kubepods/pod1/c2\n", ".", "memory.current", True, True),
        ("2:memory:/muster.x\n1:cpu:/\n", "memory/muster.x", "memory.usage_in_bytes", False, True),
        ("1:cpu:/muster.x\n", "memory/muster.x", "memory.usage_in_bytes", False, False),
    ],
)
def test_a_cgroup_counts_where_it_is_the_replica_s_own(
    tmp_path: Path, own: str, folder: str, files: str, in_pod: bool, found: bool
) -> None:
    (tmp_path / "own").write_text(own)
    group = tmp_path / "fs" / folder
    group.mkdir(parents=True, exist_ok=True)
    (group / files).write_text("1\n")
    seen = memory_group(in_pod=in_pod, mount=str(tmp_path / "fs"), own=str(tmp_path / "own"))
    assert (seen is not None and Path(seen).resolve() == group.resolve()) is found


def test_a_replica_without_a_driver_says_nothing_of_cards(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = Role(name="main", entrypoint="t:f", resources=Resources(gpus=1))
    said: list[str] = []
    usage = Usage(replace(bench.replica(roles=(role,)), gpus=("0",)), say=said.append)
    due(usage, monkeypatch, seconds=5.0)
    usage.look()
    assert {"cpu_cores", "memory_gib"} <= set(told(said))
    assert CardReader(["0"], library="no-such-library.so").use() == {}


@pytest.mark.skipif(shutil.which("cc") is None, reason="a stand-in for NVML is compiled")
@pytest.mark.parametrize(
    ("names", "use"),
    [
        ((), {"gpu0_share": 0.25, "gpu0_memory_gib": 1.0, "gpu1_share": 0.5}),
        (("1",), {"gpu0_share": 0.5}),
        (("GPU-b", "GPU-gone", "0"), {"gpu0_share": 0.5, "gpu1_share": 0.25, "gpu1_memory_gib": 1.0}),
    ],
)
def test_the_cards_of_the_replica_are_asked(
    tmp_path: Path, names: tuple[str, ...], use: dict[str, float]
) -> None:
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvml.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)
    assert CardReader(names, library=str(library)).use() == use
