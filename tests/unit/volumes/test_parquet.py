"""The schema of a Parquet file, from bytes that pyarrow 26 wrote; and of files that only look like one."""

from __future__ import annotations

import base64
import random
import tracemalloc
from pathlib import Path

import pytest

from muster.core.errors import Corrupt
from muster.volumes.parquet import MOST_COLUMNS, NAME, ParquetColumn, Schema, read_schema

# The footers of two files: flat columns of many types, and a nested one.
FLAT = base64.b85decode(
    "6$BZKH2@d}b7N>_ZDAD-02Kly0vH5&Wnppv6$~W;7zblva&l>9awPyv8~^|S6$&K)7zJcyY+-o-6$B*$7zA`_ZDl1COpFm6EC2ui"
    "000#NB?1@&WMO$F3`}eQ000#LB?1@(Y+-a|02K}u2o(Yt1#og{V`U`@6$BL$EL;@?6%qgd02b&685|jWCIB220vRO+02vqrd1Ya8"
    "6#y3K2Nv2N7TO;s2uU0j02Kfg0suTI1{o#*=m!7*044w&6$}|A1^^it2V-G!a%p996#y3K2NtR?7OF2M;vY#I6#x|g6#@V}7SInF"
    "1{o#*=m!7*044w&6$%+81^^it1!QGxVR;n*7U%~S>^>IkJ|>J$NgNdb6#x|i0000c02~zr86^e)85jg~X>DZ{02b&67WzIG`aUN3"
    "jR8p<6#x|g6#@V}DFzuP0O$t*001Tc92Ei?B?bT)7z1Qsc@+Q_=m!?s9~RmlCi2VyNgNdb6#x|i06ZxM872Ve2LJ#7CIB2202w6)"
    "02vqrY+-a|6#y3K2Nt*i7PtW>%<KV492Ec+02KlNJShelCIILM0000c02~z#86^e)85jj{a%p2_6#y3K2NpIKHYSAb0ZAMc02Kfg"
    "0suTI1{o&k2LJ#702Z?D0T$>7CI}X??g0QOAaG%Fadl;MEn{$SEn#wUZ+9SeWpZ<AZ*CwmHZCwOF&TUu000~S02}}S8~^|u000~S"
    "02}}S00"
)
NESTED = base64.b85decode(
    "6$BY<H2@d}b7N>_ZDADx05t*_0bvyc02Kr!0vG{e05t*_0b>;c6$VT^0000r1Q-NtX>)WH0ss{RB?1@+Wo%__Wo~o;76KU@87w9M"
    "92Eo^B?bT)C;?#sVif=u0v19RLM8}F92Ec+02KlNJShelHUIzu0000c02~zr86^e)8At(P0b>MgX>)W3Wo%__Wo~p802TxmUKU;^"
    "N=Y0Q02Kfg0suTICISK(RsaA100aO402ZJD76K*+7N7wDC?IfQa&dKKbS-0Wa4lhSa&LDac4cyNX>V>IGBz$SE-@J_8~^|u0000"
)


def file(folder: Path, footer: bytes) -> Path:
    path = folder / "rows.parquet"
    path.write_bytes(b"PAR1 the rows " + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return path


def number(value: int) -> bytes:
    """A varint."""
    return bytes([value & 127 | 128]) + number(value >> 7) if value > 127 else bytes([value])


def text(value: str) -> bytes:
    return number(len(value)) + value.encode()


def listed(elements: int) -> bytes:
    """The beginning of a footer: version 1, and a schema of so many elements."""
    return b"\x15\x02\x19\xfc" + number(elements)


def wide(folder: Path, *, group: str, columns: int) -> Path:
    """A file whose columns all lie in one group; a root, the group, and int32 columns `x`."""
    root = b"\x48" + text("r") + b"\x15\x02\x00"
    inner = b"\x35\x00\x18" + text(group) + b"\x15" + number(2 * columns) + b"\x00"
    leaf = b"\x15\x02\x25\x00\x18" + text("x") + b"\x00"
    return file(folder, listed(columns + 2) + root + inner + leaf * columns + b"\x16\x02\x00")


def test_each_column_has_its_name_and_its_type(tmp_path: Path) -> None:
    assert read_schema(file(tmp_path, FLAT)) == Schema(
        columns=(
            ParquetColumn("year", "int32", True),
            ParquetColumn("carrier", "string", True),
            ParquetColumn("delay", "double", False),
            ParquetColumn("time", "timestamp, int64", True),
            ParquetColumn("day", "date, int32", True),
            ParquetColumn("late", "boolean", True),
            ParquetColumn("price", "decimal, fixed", True),
        ),
        rows=500,
        in_all=7,
    )


def test_a_nested_column_is_named_with_those_above_it(tmp_path: Path) -> None:
    found = read_schema(file(tmp_path, NESTED))
    assert [each.name for each in found.columns] == ["a.b", "a.c.list.element"]


def test_what_is_no_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(Corrupt, match=r"x\.parquet does not end as a Parquet file"):
        read_schema(tmp_path / "x.parquet")


def test_broken_bytes_are_refused_or_read_and_never_a_fault_of_ours(tmp_path: Path) -> None:
    choose = random.Random(7)
    for _ in range(500):
        data = bytearray(choose.choice((FLAT, NESTED)))
        for _ in range(choose.randint(1, 4)):
            data[choose.randrange(len(data))] = choose.randrange(256)
        try:
            read_schema(file(tmp_path, bytes(data)))
        except Corrupt:
            continue


def test_a_schema_names_so_many_columns_and_counts_the_others(tmp_path: Path) -> None:
    path = wide(tmp_path, group="A" * 20_000, columns=20_000)
    tracemalloc.start()
    try:
        found = read_schema(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(found.columns), found.in_all, found.rows) == (MOST_COLUMNS, 20_000, 1)
    assert {len(each.name) for each in found.columns} == {NAME}
    assert peak < 60 << 20


@pytest.mark.parametrize(
    "footer",
    [
        pytest.param(listed(8_000_000) + b"\x00" * 8_000_000, id="one-list"),
        pytest.param(b"\x19\xfc" + number(100_000) + b"\x19\x3c\x00\x00\x00" * 100_000, id="lists-in-lists"),
    ],
)
def test_a_schema_of_more_values_than_columns_need_is_refused_before_it_is_read(
    tmp_path: Path, footer: bytes
) -> None:
    path = file(tmp_path, footer)
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt, match=r"the schema of rows\.parquet cannot be read: .* values"):
            read_schema(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 << 20


def test_the_message_of_a_damaged_footer_shows_no_python(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="it has no field 2") as found:
        read_schema(file(tmp_path, b"\x15\x02\x00"))
    assert "Error(" not in str(found.value)
