"""The same tests where CPUs stand for cards, so that what is wrong in them is seen before there is a card.

The interpreter is the Python of the image `train`; a library of ours says what a card's driver would.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.gpu.contract import Figure, GpuContract, Make
from tests.gpu.place import Place, standing_in

from muster.backends.base import Backend
from muster.core.settings import Settings
from muster.images.environment import Environments
from muster.images.folders import find_image, image_folders, put_image
from muster.volumes.folder import FolderStore

pytestmark = [pytest.mark.slow, pytest.mark.data]

NVML = """
typedef struct { unsigned gpu, memory; } rates; typedef struct { unsigned long long total, free, used; } memory;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned n, void **card) { *card = (void *)(long)(n + 1); return 0; }
int nvmlDeviceGetUtilizationRates(void *card, rates *r) { r->gpu = 90; return 0; }
int nvmlDeviceGetMemoryInfo(void *card, memory *m) { m->used = 3ULL << 30; return 0; }
"""


@pytest.fixture(scope="module")
def on_cpus(tmp_path_factory: pytest.TempPathFactory) -> Place:
    settings = Settings.load()
    folder = find_image("train", image_folders(settings))
    digest = put_image(FolderStore(tmp_path_factory.mktemp("store")), folder)
    return standing_in(Environments(settings.cache).ensure("train", folder, digest, print))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "nvml.c").write_text(NVML)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "nvml.c"], check=True)
    return folder


class TestStandIn(GpuContract):
    """With CPUs."""

    @pytest.fixture
    def place(self, on_cpus: Place, driver: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(on_cpus.cards))
        monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
        return on_cpus

    @pytest.mark.soak  # for its ten CPU-seconds nothing is judged here
    def test_training_is_as_fast_as_under_torchrun(
        self, backend: Backend, job: Make, place: Place, figure: Figure
    ) -> None:
        super().test_training_is_as_fast_as_under_torchrun(backend, job, place, figure)
