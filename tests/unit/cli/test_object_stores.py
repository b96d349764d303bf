"""What a copy with an object store is given of a person's environment."""

from __future__ import annotations

from muster.cli.transfer import passed


def test_without_a_connection_the_clients_own_variables_count_as_for_a_mirror() -> None:
    environ = {
        "PATH": "/bin",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_ENDPOINT_URL": "http://here",
        "MINE": "secret",
    }
    assert passed(environ, connected=False) == {name: environ[name] for name in environ if name != "MINE"}
    assert passed(environ, connected=True) == {"PATH": "/bin"}
