from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.backends.kubernetes.golden import DIGEST, SITE

from muster.backends.kubernetes.site import PlatformOwner
from muster.core.errors import SpecError

SERVED = {
    "serving": PlatformOwner.KSERVE,
    "gateway": "gateways/public",
    "serving_url": "https://{name}.models.example.com:8443/",
}
UNGATED = {"serving": PlatformOwner.KSERVE}


def test_an_image_is_found_by_its_locks_digest() -> None:
    assert SITE.image("train", DIGEST) == "registry.example/ml/train:0123456789ab"
    assert replace(SITE, images={"train": "localhost/t:1"}).image("train", DIGEST) == "localhost/t:1"


def test_a_site_without_a_place_for_images_says_so() -> None:
    with pytest.raises(SpecError, match="image train: namespace team-a has no image prefix"):
        replace(SITE, image_prefix="").image("train", DIGEST)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"namespace": "../x"}, "namespace '../x'"),
        ({"claim": "a/b"}, "claim 'a/b': need a DNS name"),
        ({"service_account": ""}, "service account ''"),
        ({"folder": "../other"}, "folder '../other'"),
        ({"folder": "/store"}, "folder '/store'"),
        ({"folder": "a/$(X)"}, "folder"),
        ({"queue": "a b"}, "queue 'a b'"),
        ({"image_prefix": "registry.example/$(HOME)"}, "image prefix"),
        ({"image_prefix": "registry.example/ml\n"}, "image prefix"),
        ({"images": {"train": "-x"}}, "image train '-x'"),
        ({"images": {"a/b": "x:1"}}, "image 'a/b'"),
        ({"image_pull_secrets": ("a b",)}, "image pull secret"),
        ({"store_url": "muster-store:8080"}, "store_url"),
        ({"store_url": "ftp://store"}, "store_url"),
        ({"store_url": "http://"}, "store_url"),
        ({"store_url": "http://user:secret@store"}, "no user in it"),
        ({"store_url": "http://store:99999"}, "store_url"),
        ({"store_url": "http://store/?a=b"}, "without query"),
        ({"store_url": "http://store\n"}, "store_url"),
        ({"user": 0}, "pods never run as root"),
        ({"user": True}, "user is True"),
        ({"lost_node_seconds": -1}, "lost_node_seconds is -1"),
        ({"lost_node_seconds": 1.5}, "lost_node_seconds is 1.5"),
        ({"gpu_resource": "gpu"}, "GPU resource 'gpu'"),
        ({"gpu_environment": {"MUSTER_X": "1"}}, "MUSTER_X"),
        ({"gateway": "gateways/public"}, "nothing says who serves: set serving"),
        ({**SERVED, "gateway": "public"}, "gateway 'public': need NAMESPACE/NAME"),
        ({**SERVED, "gateway": ""}, "no gateway is named"),
        ({**SERVED, "serving_url": ""}, "serving_url ''"),
        ({**SERVED, "serving_url": "models.example.com"}, "serving_url"),
        ({**SERVED, "drain_seconds": 0}, "drain_seconds is 0"),
        ({**SERVED, "gateway_seconds": 8}, "below drain_seconds"),
        ({"gateway_metrics": "http://traefik:9100/metrics"}, "nothing says who serves: set serving"),
        ({**UNGATED, "gateway_metrics": "http://traefik:9100/metrics"}, "no gateway is named: set gateway"),
        ({**SERVED, "gateway_metrics": "traefik:9100/metrics"}, "gateway_metrics 'traefik:9100/metrics'"),
        ({**SERVED, "gateway_metrics": "http://traefik:9100"}, "need the whole address of a page"),
        ({**SERVED, "gateway_metrics": "https://traefik:9100/metrics"}, "http://HOST:PORT/metrics"),
        ({**SERVED, "gateway_metrics": "http://traefik:9100/metrics?a=b"}, "without query"),
    ],
)
def test_what_a_site_cannot_be_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message.replace("(", r"\(")):
        replace(SITE, **changes)


def test_an_address_ends_without_a_slash() -> None:
    assert replace(SITE, store_url="https://store:8443/team-a/").store_url == "https://store:8443/team-a"


@pytest.mark.parametrize(
    ("written", "url", "hostname"),
    [
        (SERVED["serving_url"], "https://flights.models.example.com:8443", "flights.models.example.com"),
        ("http://models.example.com", "http://models.example.com", "models.example.com"),
        ("http://10.77.0.1:8000", "http://10.77.0.1:8000", ""),
        ("http://[fd00::1]:8000", "http://[fd00::1]:8000", ""),
    ],
)
def test_where_users_ask_for_a_deployment(written: str, url: str, hostname: str) -> None:
    site = replace(SITE, **{**SERVED, "serving_url": written})
    assert (site.url("flights"), site.hostname("flights")) == (url, hostname)
