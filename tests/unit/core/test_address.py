import pytest

from muster.core.address import Address, Select, pinned
from muster.core.errors import SpecError


@pytest.mark.parametrize(
    ("text", "select", "value", "path"),
    [
        ("volume://flights/model", Select.LATEST, "", ""),
        ("flights/model@latest", Select.LATEST, "", ""),
        ("volume://flights/model@7", Select.NUMBER, "7", ""),
        ("volume://flights/model@7/model.onnx", Select.NUMBER, "7", "model.onnx"),
        ("volume://flights/model@2013-03", Select.PARTITION, "2013-03", ""),
        ("volume://flights/model@b3:9f2c1a00", Select.DIGEST, "b3:9f2c1a00", ""),
        ("volume://flights/model@*", Select.MANY, "*", ""),
        ("volume://flights/model@>=2013-01,<2013-10", Select.MANY, ">=2013-01,<2013-10", ""),
    ],
)
def test_every_form_is_read_and_written_back(text, select, value, path):
    address = Address.parse(text)
    assert address == Address("flights/model", select, value, path)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "", "volume://", "s3://a/b", "volume://a@", "volume://a@0", "volume://a@07", "volume://a@b3:xyz",
        "volume://a@b3:12", "volume://a@<", "volume://a@<1", "volume://a@<2013-01,", "volume://a@7/../x",
        "volume://a@7//etc", "volume://a@7/x\ny", "volume://../a@7", "volume://a@7@8", "volume://a@" + "9" * 40,
        "volume://a\n@7", "volume://a@7\n", "volume://a@2013-01\n", "volume://a@\u0667", "volume://a@..",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text):
    with pytest.raises(SpecError):
        Address.parse(text)


def test_bounds_are_half_open_as_they_read():
    before = Address.parse("a@<2013-10")
    window = Address.parse("a@>=2013-10,<=2013-12")
    months = [f"2013-{month:02}" for month in range(1, 13)]
    assert [m for m in months if before.admits(m)] == months[:9]
    assert [m for m in months if window.admits(m)] == months[9:]
    assert all(Address.parse("a@*").admits(m) for m in months)


def test_a_pinned_address_parses_to_its_number():
    assert Address.parse(pinned("flights/model", 8)).value == "8"
