"""What `helm test` runs, against a real service: it finds what is right, and what is not."""

from pathlib import Path

import pytest
from tests.unit.volumes.service.process import Service

from muster.core.errors import NotFound
from muster.volumes.service import trial


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with Service(tmp_path_factory.mktemp("service")) as service:
        yield service


def tried(service: Service, *, store: Path | None = None, key: Path | None = None) -> int:
    words = [f"--url={service.url}", f"--key={key or service.key}", f"--store={store or service.root}"]
    return trial.main(words)


def test_a_version_is_put_and_read_and_nothing_is_left_to_be_found(service, capsys):
    assert tried(service) == 0
    said = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok: ") for line in said)
    assert "and read again, byte for byte" in said[-1]
    with pytest.raises(NotFound):
        service.client().resolve(f"{trial.VOLUME}@latest")


def test_it_may_be_run_again(service):
    assert tried(service) == 0
    assert tried(service) == 0


def test_a_claim_that_is_another_is_found_out(service, tmp_path, capsys):
    """Its pods would write where the service does not look."""
    assert tried(service, store=tmp_path) == 1
    assert "FAILED: " in capsys.readouterr().out


def test_a_claim_that_cannot_be_written_says_who_must_be_able_to(service, tmp_path, capsys):
    (tmp_path / "staging").write_text("not a folder")
    assert tried(service, store=tmp_path) == 1
    assert "pods need the claim writable for the uid of the store service" in capsys.readouterr().out


def test_other_keys_are_refused(service, tmp_path, capsys):
    (tmp_path / "keys").write_text("x" * 32)
    assert tried(service, key=tmp_path / "keys") == 1
    assert "FAILED: " in capsys.readouterr().out
