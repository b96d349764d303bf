"""An API server with the objects of a small site, and a look at its capacity."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.backends.kubernetes.api_server import ApiServer
from tests.unit.backends.kubernetes.site_api import NAMESPACE, SiteApi, site_api

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.kubernetes.state.capacity import ClusterCapacity


@pytest.fixture
def api() -> Iterator[tuple[SiteApi, ApiServer]]:
    with site_api() as found:
        yield found


@pytest.fixture
def site(api: tuple[SiteApi, ApiServer]) -> SiteApi:
    return api[0]


@pytest.fixture
def capacity(api: tuple[SiteApi, ApiServer]) -> ClusterCapacity:
    of = ClusterSite(namespace=NAMESPACE, claim="store", store_url="http://store", image_prefix="images")
    return ClusterCapacity(Client(api[1].api(), patience_seconds=0), of)
