import pytest

from muster.core import names
from muster.core.errors import SpecError

HOSTILE = [
    "",
    "..",
    "a/../b",
    "/a",
    "a/",
    "a//b",
    "a\nb",
    "a\n",
    "a b",
    "é",
    "A" * 300,
    "a" * 300,
    "-a",
    "a\0b",
    "$(x)",
    ".",
]


@pytest.mark.parametrize("name", [*HOSTILE, "flights/7", "7", "Flights", "a/.git"])
def test_a_volume_refuses_what_is_no_plain_name(name):
    with pytest.raises(SpecError, match="volume"):
        names.check_volume(name)


@pytest.mark.parametrize("name", ["flights", "flights/features", "a/b/c.d_e-f", "v2/m1"])
def test_a_volume_takes_plain_segments(name):
    assert names.check_volume(name) == name


@pytest.mark.parametrize("name", [*HOSTILE, "latest", "2013", "b3:aa", "*", "<2013"])
def test_a_partition_refuses_what_would_read_as_another_selector(name):
    with pytest.raises(SpecError, match="partition"):
        names.check_partition(name)


@pytest.mark.parametrize("name", ["2013-01", "y2013", "month=2013-01", "EU.west"])
def test_a_partition_takes_labels(name):
    assert names.check_partition(name) == name


@pytest.mark.parametrize("name", [*HOSTILE, "a_b", "a/b"])
def test_a_job_id_is_a_dns_label(name):
    with pytest.raises(SpecError, match="job id"):
        names.check_job_id(name)


def test_a_long_name_is_not_repeated_whole_in_the_error():
    with pytest.raises(SpecError) as caught:
        names.check_volume("x/" + "y" * 10_000)
    assert len(str(caught.value)) < 400
    assert "10002 characters" in str(caught.value)


def test_job_ids_are_short_readable_and_apart():
    def made(**changes):
        return names.make_job_id(
            **{"instance": "i", "task": "flights.train", "nonce": "n", "attempt": 1, **changes}
        )

    assert made().startswith("flights-train-")
    apart = {made(), made(instance="j"), made(task="flights.tra"), made(nonce="m"), made(attempt=2)}
    assert len(apart) == 5
    assert made() == made()
    for task in ["", "???", "Ünïcode/..", "x" * 300]:
        assert len(made(task=task, attempt=999)) <= names.JOB_ID_LENGTH


@pytest.mark.parametrize("name", ["MUSTER_JOB_ID", "A B", "1A", "", "A=B"])
def test_a_variable_is_plain_and_not_ours(name):
    with pytest.raises(SpecError, match="environment variable"):
        names.check_variable(name)
