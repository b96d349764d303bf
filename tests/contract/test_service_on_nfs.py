"""The service's contract where the claim behaves as NFS does at its worst: pods write past it, from elsewhere."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.test_store import StoreContract
from tests.fuse.filesystem import Faults
from tests.fuse.mount import mounted
from tests.unit.volumes.service.process import Service

from muster.volumes.service.client import ServiceStore

pytestmark = pytest.mark.slow

WORST = Faults(links=False, moves=False, locks=False, late=True, lost=1.0, stale=True)


class Claimed(ServiceStore):
    """A client, and with it pods whose mounts of the claim are not the service's."""

    mount = None

    def stage(self, job_id):
        return self._elsewhere(super().stage(job_id))

    def staging(self, job_id):
        staging = super().staging(job_id)
        return staging and self._elsewhere(staging)

    def _elsewhere(self, staging):
        return replace(staging, root=self.mount.server / Path(staging.root).relative_to(self.mount.root))


@pytest.fixture(scope="module")
def nfs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nfs")
    with mounted(folder / "server", folder / "client", WORST) as mount:
        yield mount


class TestServiceStoreOnNfs(StoreContract):
    @pytest.fixture
    def service(self, nfs, tmp_path):
        with Service(tmp_path, root=nfs.root / tmp_path.name) as service:
            yield service

    @pytest.fixture
    def store(self, nfs, service):
        return service.client(kind=type("Here", (Claimed,), {"mount": nfs}))

    @pytest.fixture
    def again(self, nfs, service):
        return service.client("another-cache", kind=type("Here", (Claimed,), {"mount": nfs}))
