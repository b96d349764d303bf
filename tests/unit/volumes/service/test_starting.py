"""A gang that starts again and has so much to copy that it takes its time: no other start waits for it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.unit.volumes.service.gang import Gang, make_spec
from tests.unit.volumes.service.inside import Inside
from tests.waiting import GUARD_SECONDS

from muster.volumes import attempts
from muster.volumes.service import starts
from muster.volumes.tree import copy_tree

REPLICAS = 80  # more than the service has threads for those that start


@pytest.fixture
def service(tmp_path):
    with Inside(tmp_path) as service:
        yield service


@pytest.fixture
def copying(monkeypatch):
    """Copy no checkpoint until told so; how many copies were begun."""
    go_on, begun = threading.Event(), []

    def copy(source, target):
        begun.append(source)
        assert go_on.wait(GUARD_SECONDS)
        copy_tree(source, target)

    monkeypatch.setattr(attempts, "copy_tree", copy)
    yield go_on, begun
    go_on.set()


def test_its_pods_are_told_to_ask_again_and_others_start_meanwhile(service, copying, monkeypatch):
    monkeypatch.setattr(starts, "PATIENCE_SECONDS", 0.1)
    go_on, begun = copying
    with (
        Gang(service, "big-1", make_spec(replicas=REPLICAS)) as big,
        Gang(service, "other-1", make_spec()) as other,
        ThreadPoolExecutor(REPLICAS) as threads,
    ):
        big.bundle().raise_for_status()
        (big.root() / "checkpoints" / "step").write_bytes(b"weights")
        asked = [threads.submit(big.bundle, index, restart="1") for index in range(REPLICAS)]
        assert other.bundle().is_success
        with service.client() as store:
            assert store.attempt("other-1") == (1, True)
        go_on.set()
        codes = [each.result().status_code for each in asked]
        assert sorted(set(codes)) == [200, 503]
        assert all(big.bundle(index, restart="1").is_success for index in range(REPLICAS))
        assert (big.root("1") / "checkpoints" / "step").read_bytes() == b"weights"
    assert len(begun) == 1
