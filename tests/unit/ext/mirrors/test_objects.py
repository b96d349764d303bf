"""A large object that is made of another one: into which parts it is cut."""

from __future__ import annotations

import random

from muster.ext.mirrors.delta import Stretch
from muster.ext.mirrors.objects import (
    COPIED_PART_BYTES,
    LEAST_PART_BYTES,
    SENT_PART_BYTES,
    parts,
    sent,
)

MIB = 1 << 20


def test_a_small_change_is_filled_up_from_what_follows():
    found = parts(
        [Stretch(0, 50 * MIB, 0), Stretch(50 * MIB, MIB, None), Stretch(51 * MIB, 49 * MIB, 50 * MIB)]
    )
    assert found == [
        Stretch(0, 50 * MIB, 0),
        Stretch(50 * MIB, 5 * MIB, None),
        Stretch(55 * MIB, 45 * MIB, 54 * MIB),
    ]
    assert sent(found) == 5 * MIB


def test_what_is_too_small_to_be_copied_travels():
    found = parts([Stretch(0, MIB, None), Stretch(MIB, 8 * MIB, 0), Stretch(9 * MIB, MIB, None)])
    assert found == [Stretch(0, 10 * MIB, None)]
    found = parts([Stretch(0, 5 * MIB, None), Stretch(5 * MIB, 5 * MIB, 0)])
    assert found == [Stretch(0, 5 * MIB, None), Stretch(5 * MIB, 5 * MIB, 0)]


def test_the_last_part_may_be_small():
    assert parts([Stretch(0, 50 * MIB, 0), Stretch(50 * MIB, 1, None)])[-1] == Stretch(50 * MIB, 1, None)


def test_large_parts_are_cut_evenly():
    found = parts([Stretch(0, 17 * MIB, None), Stretch(17 * MIB, 129 * MIB, 3)])
    assert [each.size for each in found] == [8.5 * MIB, 8.5 * MIB, 64.5 * MIB, 64.5 * MIB]
    assert [each.first for each in found] == [None, None, 3, 3 + 64.5 * MIB]


def test_whatever_the_stretches_are_each_byte_is_in_one_part_that_may_be():
    choose = random.Random(6)
    for _ in range(300):
        stretches, at = [], 0
        for _ in range(choose.randrange(1, 30)):
            size = choose.choice((1, MIB, 9 * MIB, 11 * MIB, 200 * MIB, 3000 * MIB))
            stretches.append(Stretch(at, size, choose.choice((None, 7 + 3 * at))))
            at += size
        origin = {each.at: each for each in stretches}
        found, end = parts(stretches), 0
        for number, part in enumerate(found):
            assert part.at == end
            end += part.size
            assert part.size <= (SENT_PART_BYTES if part.first is None else COPIED_PART_BYTES)
            assert part.size >= LEAST_PART_BYTES or number == len(found) - 1
            if part.first is not None:
                whole = origin[max(start for start in origin if start <= part.at)]
                assert whole.first is not None
                assert part.first - part.at == whole.first - whole.at
                assert end <= whole.at + whole.size
        assert end == at
