"""A cluster as a person writes it down: every setting that is wrong is named, and no token is ever shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.backends.kubernetes.cluster_file import read_file, read_settings
from muster.backends.kubernetes.site import ClusterSite, PlatformOwner
from muster.core.errors import SpecError

TOKEN = "abc.def"
GIVEN: dict[str, Any] = {
    "namespace": "team-a",
    "claim": "muster-store",
    "store_url": "http://muster-store.team-a",
}
FILE = """
namespace = "team-a"
claim = "muster-store"
store_url = "http://muster-store.team-a"
outside_store_url = "http://127.0.0.1:8470/"
token_file = "token"
kubeconfig = "kube/config"
context = "jo"
image_prefix = "registry/team-a"
queue = "team-a"
partial_starts = true
elastic = true
user = "any"
image_pull_secrets = ["registry"]
serving = "kserve"
gateway = "gateways/public"
serving_url = "https://{name}.models.example.com"
gateway_seconds = 1

[images]
etl = "registry/other/etl:3"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    path = tmp_path / "cluster.toml"
    path.write_text(FILE)
    return path


def test_a_file(file: Path) -> None:
    found = read_file(file)
    assert found.settings.site == ClusterSite(
        **GIVEN,
        image_prefix="registry/team-a",
        images={"etl": "registry/other/etl:3"},
        image_pull_secrets=("registry",),
        queue="team-a",
        partial_starts=True,
        elastic=True,
        user=None,
        serving=PlatformOwner.KSERVE,
        gateway="gateways/public",
        serving_url="https://{name}.models.example.com",
        gateway_seconds=1.0,
    )
    assert found.settings.store_url == "http://127.0.0.1:8470"
    assert found.settings.token == TOKEN
    assert (found.kubeconfig, found.context) == (file.parent / "kube" / "config", "jo")


def test_what_need_not_be_said(file: Path) -> None:
    file.write_text('namespace="a"\nclaim="c"\nstore_url="https://s:1"\ntoken_file="token"')
    found = read_file(file)
    assert found.settings.site == ClusterSite(namespace="a", claim="c", store_url="https://s:1")
    assert found.settings.store_url == "https://s:1"
    assert (found.kubeconfig, found.context) == (None, None)


def test_a_password_is_the_token_and_is_in_no_repr() -> None:
    found = read_settings(GIVEN, where="connection c", password=TOKEN)
    assert found.token == TOKEN
    assert TOKEN not in repr(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_perfix": "x"}, "unknown setting 'image_perfix'; known are namespace, claim"),
        ({"claim": None}, "lacks claim"),
        ({"claim": None, "namespace": None}, "lacks namespace and claim"),
        ({"claim": "Not One"}, "claim 'Not One': need a DNS name"),
        ({"claim": 3}, "claim: expected str, found 3"),
        ({"user": "root"}, "user: expected int, found 'root'"),
        ({"user": 0}, "never run as root"),
        ({"images": {"etl": "UPPER"}}, "image etl 'UPPER'"),
        ({"queue": ""}, "queue"),
        ({"elastic": "yes"}, "elastic: expected bool, found 'yes'"),
        ({"store_url": "muster-store"}, "store_url 'muster-store'"),
        ({"outside_store_url": "ftp://x"}, "outside_store_url 'ftp://x'"),
        ({"outside_store_url": 1}, "outside_store_url is 1, need text"),
        ({"token_file": "token"}, "relative path"),
        ({"token_file": "/nowhere/token"}, "token_file /nowhere/token cannot be read: No such file"),
        ({"token_file": None}, "no token for the store service"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (tmp_path / "token").write_text(TOKEN)
    given = {**GIVEN, "token_file": str(tmp_path / "token"), **change}
    with pytest.raises(SpecError, match=f"^connection c.*{message}") as error:
        read_settings(
            {name: value for name, value in given.items() if value is not None}, where="connection c"
        )
    assert TOKEN not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), ("two words", "holds no token"), ("é", "holds no token"), (b"\xff\xfe", "no text")],
)
def test_a_file_that_holds_no_token(tmp_path: Path, text: str | bytes, message: str) -> None:
    (tmp_path / "token").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(SpecError, match=message) as error:
        read_settings({**GIVEN, "token_file": str(tmp_path / "token")}, where="connection c")
    assert "two words" not in str(error.value)


def test_a_token_that_is_renewed_in_its_file_counts_at_once(tmp_path: Path) -> None:
    """While it is written, or if it is gone, the last whole one counts."""
    file, fresh = tmp_path / "token", tmp_path / "token.new"
    file.write_text(TOKEN)
    renewed = read_settings({**GIVEN, "token_file": str(file)}, where="connection c").renewed
    assert renewed is not None
    assert renewed() == TOKEN
    fresh.write_text("new.er\n")
    fresh.replace(file)
    assert renewed() == "new.er"
    file.write_text("")
    assert renewed() == "new.er"
    file.unlink()
    assert renewed() == "new.er"
    file.write_text("new.est")
    assert renewed() == "new.est"


def test_two_tokens() -> None:
    with pytest.raises(SpecError, match="two tokens"):
        read_settings({**GIVEN, "token_file": "/a/b"}, where="connection c", password=TOKEN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("namespace =", "cannot be read"),
        (b"\xff", "cannot be read"),
        ("since = 2026-01-01", "unknown setting 'since'"),
    ],
)
def test_a_file_that_is_none(file: Path, text: str | bytes, message: str) -> None:
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(SpecError, match=f"^cluster file {file}.*{message}"):
        read_file(file)


def test_a_date_where_text_is_wanted(file: Path) -> None:
    file.write_text(FILE.replace('"muster-store"\n', "2026-01-01\n"))
    with pytest.raises(SpecError, match=f"cluster file {file}"):
        read_file(file)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"gone.toml cannot be read: .*No such file"):
        read_file(tmp_path / "gone.toml")
