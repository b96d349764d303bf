"""What is a secret in a text or a document, and what is none: each case once leaked, or must stay readable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.core.masking import Masking
from muster.core.settings import Settings
from muster.ext.support.blanking import blanked, known, without_values

NOTHING = Masking([])
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@pytest.mark.parametrize(
    "document",
    [
        ["train", "--api-key", "zq9 word"],
        ["train", "--key", "zq9"],
        {"args": ["-c", "train", "--db-password", "zq9", "--rows", "5"]},
        {"tokens": ["zq9", "zq9-2"]},
        {"password": {"value": "zq9"}},
        {"spec": {"credentials": [{"user": "zq9"}]}},
        {"secrets": {"db": "zq9"}},
        {"pin_of_token": 99_009},
        {"name": "DB_PASSWORD", "value": "zq9"},
        {"variables": [{"name": "DB_PWD", "value": 99_009}]},
        {"metadata": {"annotations": {APPLIED: json.dumps({"spec": {"a": "zq9"}})}}},
        {"metadata": {"annotations": {"notes": json.dumps({"env": {"A": "zq9"}})}}},
        {"notes": json.dumps({"zq9-known": 5})},
        {"token": json.dumps(["zq9"])},
    ],
    ids=str,
)
def test_a_document_s_secrets_are_masked(document: Any) -> None:
    clean = json.dumps(without_values(document, Masking(["zq9-known"])))
    assert "***" in clean
    assert "zq9" not in clean
    assert "99009" not in clean


@pytest.mark.parametrize(
    "text",
    [
        "postgres://ann:p/zq9@db.example/x",
        "postgres://ann:p@zq9@db.example/x",
        "postgres://zq9@db.example/x",
        'password = "correct zq9 battery"',
        "password: 'correct zq9 battery'",
        'password = "a \\" zq9"',
        '{\\"password\\": \\"correct zq9 battery\\"}',
        "password=ab,zq9",
        "password=ab;zq9",
        "password=ab}zq9",
        "Driver=x;pwd=zq9",
        "train --api-key zq9 --rows 5",
        "train --key zq9",
        'train --token "a zq9"',
        "Authorization: Token zq9",
    ],
)
def test_a_text_s_secrets_are_masked(text: str) -> None:
    clean = blanked(text, NOTHING)
    assert "***" in clean
    assert "zq9" not in clean


@pytest.mark.parametrize(
    "document",
    [
        {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "db-login", "key": "password"}}}]},
        {"password": {"valueFrom": {"secretKeyRef": {"name": "db-login", "key": "password"}}}},
        {"volumes": [{"secret": {"secretName": "db-login"}}]},
        {"imagePullSecrets": [{"name": "registry"}]},
        {"secrets": {"DB_PASSWORD": {"source": "connection", "name": "db-login#password"}}},
        {"tokens": True, "token": None, "passed": 12},
        {"signature": {"inputs": {"x": "double"}}},
        ["train", "--tokens", "--key"],
        {"name": "rows", "value": 5},
        {
            "url": "volume://flights/model@7",
            "image": "registry:5000/serve@sha256:00",
            "page": "http://a:80/b",
        },
    ],
    ids=str,
)
def test_what_is_no_secret_stays(document: Any) -> None:
    assert without_values(document, NOTHING) == document


def test_folders_of_the_shell_are_no_secrets(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", cache=tmp_path / "cache")
    masking = known(settings, {"PWD": "/srv/flights", "DB_PWD": "zq9zq9"})
    assert masking.text("/srv/flights has zq9zq9") == "/srv/flights has ***"


def test_a_password_in_an_address_is_known_alone(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", cache=tmp_path / "cache")
    masking = known(settings, {"AIRFLOW_CONN_DB": "postgres://ann:zq9@zq9/x@db/x"})
    assert "zq9" not in masking.text("the server refused zq9@zq9/x")
