"""The store's whole contract on a file system that behaves as NFS does at its worst.

One process has the store, as the store service has the claim; pods write into it from elsewhere.
"""

from dataclasses import replace

import pytest
from tests.contract.test_store import StoreContract
from tests.fuse.filesystem import Faults
from tests.fuse.mount import mounted

from muster.volumes.folder import FolderStore

pytestmark = [pytest.mark.slow, pytest.mark.nfs]

ALL = {"links": False, "moves": False, "locks": False, "late": True, "lost": 1.0, "stale": True}


def mode(*, soak=False, **faults):
    name = ", ".join(faults) if len(faults) < len(ALL) else "all"
    return pytest.param(Faults(**faults), marks=[pytest.mark.soak] if soak else [], id=name or "none")


MODES = [
    mode(late=True),
    mode(lost=1.0),
    mode(**ALL),
    mode(soak=True),
    mode(links=False, soak=True),
    mode(moves=False, soak=True),
    mode(locks=False, soak=True),
    mode(stale=True, soak=True),
    mode(lost=0.3, late=True, locks=False, soak=True),
]


class StagedElsewhere:
    """Has a store's stagings where :meth:`elsewhere` says that other clients write them."""

    def stage(self, job_id):
        return self.elsewhere(super().stage(job_id))

    def staging(self, job_id):
        staging = super().staging(job_id)
        return staging and self.elsewhere(staging)


class Claimed(StagedElsewhere, FolderStore):
    """A store whose stagings are written by other clients, past ours."""

    def __init__(self, mount, name):
        super().__init__(mount.root / name)
        self._server = mount.server / name

    def elsewhere(self, staging):
        return replace(staging, root=self._server / staging.root.relative_to(self.layout.root))


@pytest.fixture(scope="module", params=MODES)
def nfs(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nfs")
    with mounted(folder / "server", folder / "client", request.param) as mount:
        yield mount


class TestFolderStoreOnNfs(StoreContract):
    @pytest.fixture
    def store(self, nfs, tmp_path):
        return Claimed(nfs, tmp_path.name)

    @pytest.fixture
    def again(self, nfs, store, tmp_path):
        return Claimed(nfs, tmp_path.name)
