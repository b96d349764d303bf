"""One store service for all tests of a module; each has jobs and volumes of its own."""

import itertools

import pytest
from tests.unit.volumes.service.gang import Gang, make_spec
from tests.unit.volumes.service.process import Service

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with Service(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture(scope="module")
def store(service):
    return service.client()


@pytest.fixture
def volume():
    return f"flights/features-{next(_NUMBERS)}"


@pytest.fixture
def gang(service, volume):
    """A gang of two that writes into `volume`."""
    with Gang(service, f"train-{next(_NUMBERS)}", make_spec(replicas=2, outputs={"out": volume})) as gang:
        yield gang
