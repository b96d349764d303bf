from __future__ import annotations

import pytest

from muster.worker.lines import LINE_BYTES, LineBuffer, clean


def test_lines_are_whole_however_the_bytes_arrive() -> None:
    buffer = LineBuffer()
    assert buffer.feed(b"one\ntw") == ["one"]
    assert buffer.feed("o é".encode()[:-1]) == []
    assert buffer.feed("é".encode()[1:] + b"\n\nrest") == ["two é", ""]
    assert buffer.close() == ["rest"]
    assert buffer.close() == []


def test_a_long_line_is_cut_and_says_how_much_is_left_out() -> None:
    buffer = LineBuffer()
    assert buffer.feed(b"x" * LINE_BYTES) == []
    assert buffer.feed(b"y" * 10_000_000) == []
    (line,) = buffer.feed(b"z\nnext")
    assert line == "x" * LINE_BYTES + " … (10000001 bytes left out)"
    assert buffer.close() == ["next"]


def test_of_a_progress_bar_the_last_state_remains_however_long_it_ran() -> None:
    buffer = LineBuffer()
    for percent in range(101):
        assert buffer.feed(f"\r{percent:3d}% ".encode() + b"#" * 2000) == []
    assert buffer.feed(b"\n") == ["100% " + "#" * 2000]


def test_a_progress_bar_shows_before_its_newline_and_a_plain_line_does_not() -> None:
    buffer = LineBuffer()
    assert buffer.feed(b"\r  0%|") == []
    assert buffer.bar() == ["  0%|"]
    assert buffer.feed(b"\r 50%|###\r100%|######\nloss") == ["100%|######"]
    assert buffer.bar() == []  # what is no bar comes whole


def test_numbers_in_lines_of_rank_0_are_told_after_them(bench) -> None:
    ended = bench.run(
        command=("python", "-c", "print('epoch 1'); print(); print('auc .5 of 3')"),
        ranks=1,
        metric_pattern=r"epoch (?P<epoch>\d+)|auc (?P<auc>\S+)",
    )
    told = ["epoch 1", "muster: epoch=1", "", "auc .5 of 3", "muster: epoch=1 auc=.5"]
    assert ended.lines == [f"[rank 0] {line}" for line in told]


@pytest.mark.parametrize("cut", [3, 16, 21])
def test_an_exceptions_text_is_whole_though_it_holds_carriage_returns(cut: int) -> None:
    buffer, raised = LineBuffer(), b"BadRowError: no rows\rin a.csv\r"
    assert buffer.feed(raised[:cut]) == []
    assert buffer.feed(raised[cut:] + b"\n") == ["BadRowError: no rows in a.csv"]


def test_a_progress_bar_that_begins_like_an_exception_shows_its_newest_state() -> None:
    buffer = LineBuffer()
    assert buffer.feed(b"UserWarning: old api: ") == []
    for state in range(20_000):
        assert buffer.feed(b"\rEpoch 1: %d/20000" % state) == []
        assert buffer.bar() == [f"Epoch 1: {state}/20000"]
    assert buffer.feed(b"\nValueError: bad\rrow\n") == ["Epoch 1: 19999/20000", "ValueError: bad row"]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"ValueError: bad\rrow", "ValueError: bad row"),
        (b"old\rnew", "new"),
        (b"plain \xe2\x9c\x93", "plain ✓"),
        (b"a\tb", "a\tb"),
        (b"windows\r", "windows"),
        (b"\x1b[31mred\x1b[0m and \x1b]0;title\x07on", "red and on"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"bad \xff\xfe", "bad ��"),
        (b"bell\x07 nul\x00", "bell� nul�"),
        ("next\x85line\u2028two".encode(), "next�line�two"),
        (b"\x1b", "�"),
        ("from \u202eright\u2066 to left".encode(), "from �right� to left"),
    ],
)
def test_nothing_a_rank_prints_can_steer_a_terminal_or_split_a_line(raw: bytes, shown: str) -> None:
    assert clean(raw) == shown
    assert len(clean(raw).splitlines()) <= 1
