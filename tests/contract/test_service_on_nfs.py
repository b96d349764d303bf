"""The service's contract where the claim behaves as NFS does at its worst: pods write past it, from elsewhere."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.test_store import StoreContract
from tests.contract.test_store_on_nfs import StagedElsewhere
from tests.fuse.filesystem import Faults
from tests.fuse.mount import mounted
from tests.unit.volumes.service.gang import Gang, make_spec
from tests.unit.volumes.service.process import Service, until

from muster.core.status import JobState
from muster.volumes.service.client import ServiceStore

pytestmark = [pytest.mark.slow, pytest.mark.nfs]

WORST = Faults(links=False, moves=False, locks=False, late=True, lost=1.0, stale=True)


class Claimed(StagedElsewhere, ServiceStore):
    """A client, and with it pods whose mounts of the claim are not the service's."""

    mount = None

    def elsewhere(self, staging):
        return replace(staging, root=self.mount.server / Path(staging.root).relative_to(self.mount.root))


@pytest.fixture(scope="module")
def nfs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nfs")
    with mounted(folder / "server", folder / "client", WORST) as mount:
        yield mount


class TestServiceStoreOnNfs(StoreContract):
    @pytest.fixture
    def service(self, nfs, tmp_path):
        name = tmp_path.name
        with Service(tmp_path, root=nfs.root / name, claim=nfs.server / name) as service:
            yield service

    @pytest.fixture
    def store(self, nfs, service):
        return service.client(kind=type("Here", (Claimed,), {"mount": nfs}))

    @pytest.fixture
    def again(self, nfs, service):
        return service.client("another-cache", kind=type("Here", (Claimed,), {"mount": nfs}))

    def test_a_gang_that_is_started_again_and_whose_service_dies(self, service, store):
        with Gang(service, "a-1", make_spec(replicas=2)) as gang:
            gang.bundle(0).raise_for_status()
            assert gang.lines(b"one\n") == 4
            service.kill()
            service.start()
            gang.bundle(0, restart="1").raise_for_status()
            for index in range(2):
                files = {f"out/{index}": b"1"}
                gang.bundle(index, restart="1").raise_for_status()
                gang.write(files, index=index, restart="1")
                assert gang.lines(b"[rank %d] two\n" % index, index=index) == 13
                gang.seal(gang.sealing(files, index=index), index=index).raise_for_status()
            service.kill()
            service.start()
            status = until(lambda: store.ledger.status("a-1"), lambda status: status.state.ended)
        assert status.state is JobState.SUCCEEDED, status
        assert store.ledger.read("a-1")[0] == b"one\n[rank 0] two\n[rank 1] two\n"
        assert sorted(store.manifest("flights/features@1")) == ["0", "1"]
