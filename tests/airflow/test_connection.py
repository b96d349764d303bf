"""Which cluster an Airflow's jobs go to: a connection of the provider's type, and every way in which it can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from muster.airflow.embedded.home import EmbeddedHome
from muster.core.errors import SpecError

TOKEN = "abc.def-ghi"
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "one",
    "clusters": [
        {"name": name, "cluster": {"server": f"https://{name}:6443", "insecure-skip-tls-verify": True}}
        for name in ("first", "second")
    ],
    "users": [{"name": "jo", "user": {"token": "kubernetes-token"}}],
    "contexts": [
        {"name": "one", "context": {"cluster": "first", "user": "jo"}},
        {"name": "two", "context": {"cluster": "second", "user": "jo"}},
    ],
}
OURS = {"claim": "muster-store", "store_url": "http://muster-store.team-a", "queue": "team-a"}
EXTRAS: dict[str, Any] = {"kube_config": KUBECONFIG, "namespace": "team-a", "muster": OURS}

Enter = Callable[..., None]


@pytest.fixture
def enter(home: EmbeddedHome, monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Enter the connection ``gpus`` and have ``[muster] connection`` name it."""

    def go(
        *, name: str = "gpus", kind: str = "kubernetes", password: str | None = TOKEN, **extras: Any
    ) -> None:
        monkeypatch.setenv("AIRFLOW__MUSTER__CONNECTION", name)
        written = {"conn_type": kind, "password": password, "extra": {**EXTRAS, **extras}}
        monkeypatch.setenv("AIRFLOW_CONN_GPUS", json.dumps(written))

    return go


def open_backend(home: EmbeddedHome) -> Any:
    from muster.airflow.site import open_backend

    return open_backend(home.settings)


def test_nothing_said_is_this_machine(home: EmbeddedHome) -> None:
    assert open_backend(home).place.here


def test_a_connection_is_a_cluster_and_its_store(home: EmbeddedHome, enter: Enter) -> None:
    from airflow.sdk import Connection

    from muster.airflow.site import cluster_settings

    enter(cluster_context="two")
    backend = open_backend(home)
    assert backend.store.url == "http://muster-store.team-a"
    assert backend.place.client.host == "https://second:6443"
    assert not backend.place.here
    assert backend.place.capacity  # of the cluster, also for a plan
    found = cluster_settings(Connection.get("gpus"), "gpus")
    assert (found.site.namespace, found.site.claim, found.site.queue) == ("team-a", "muster-store", "team-a")
    assert found.token == TOKEN
    backend.close()


def test_a_process_has_one_and_its_fork_another(home: EmbeddedHome, enter: Enter, monkeypatch: Any) -> None:
    from muster.airflow import site

    enter()
    monkeypatch.setattr(site, "opened", {})
    backend = site.connect(home.settings)
    assert site.connect(home.settings) is backend
    monkeypatch.setattr("os.getpid", lambda: -1)
    other = site.connect(home.settings)
    assert other is not backend
    for each in (backend, other):
        each.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "nowhere"}, "^\\[muster\\] connection is 'nowhere', and Airflow has no connection of that id"),
        ({"kind": "http"}, "^connection gpus is of type 'http', need 'kubernetes'"),
        ({"muster": None}, "^connection gpus says nothing of muster: its extras need 'muster'"),
        ({"muster": "claim"}, "says nothing of muster"),
        ({"muster": {**OURS, "cliam": "x"}}, "^connection gpus has an unknown setting 'cliam'; known are"),
        ({"muster": {"claim": "muster-store"}}, "^connection gpus lacks store_url"),
        ({"namespace": None}, "lacks namespace"),
        ({"muster": {**OURS, "namespace": "team-b"}}, "names two namespaces, 'team-a' and 'team-b'"),
        ({"password": None}, "^connection gpus has no token for the store service: name one file"),
        ({"password": f"{TOKEN} {TOKEN}"}, "its password holds no token"),
        ({"muster": {**OURS, "token_file": "/a/token"}}, "two tokens, a password and a token_file"),
        ({"kube_config_path": "/etc/kube"}, "^connection gpus, .*leads to no cluster: .*mutually exclusive"),
        ({"kube_config": None, "kube_config_path": "/gone"}, "kube_config_path '/gone', leads to no cluster: .*No configuration found"),
        ({"kube_config": "no: ["}, "leads to no cluster"),
        ({"cluster_context": "three"}, "leads to no cluster: .*three"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_clear_error(
    home: EmbeddedHome, enter: Enter, change: dict[str, Any], message: str
) -> None:
    enter(**change)
    with pytest.raises(SpecError, match=message) as error:
        open_backend(home)
    assert TOKEN not in str(error.value)
    assert "kubernetes-token" not in str(error.value)


def test_extras_that_are_no_json_say_what_is_missing(
    home: EmbeddedHome, enter: Enter, monkeypatch: Any
) -> None:
    enter()
    written = {"conn_type": "kubernetes", "password": TOKEN, "extra": "{"}
    monkeypatch.setenv("AIRFLOW_CONN_GPUS", json.dumps(written))
    with pytest.raises(SpecError, match="says nothing of muster"):
        open_backend(home)


def test_on_a_cluster_an_airflow_has_a_name(home: EmbeddedHome, enter: Enter, monkeypatch: Any) -> None:
    from muster.airflow.site import instance

    enter()
    monkeypatch.setenv("AIRFLOW__MUSTER__INSTANCE", "")
    with pytest.raises(SpecError, match=r"^\[muster\] instance is not set, and jobs go to a cluster"):
        instance(home.settings)
    monkeypatch.setenv("AIRFLOW__MUSTER__INSTANCE", "production")
    assert instance(home.settings) == "production"
