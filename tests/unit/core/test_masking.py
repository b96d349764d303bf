"""What of a secret is looked for in a job's log."""

from __future__ import annotations

import pytest

from muster.core.masking import Masking

SECRET = "q7Vd-2mXw-9KfT-w3Rb-c8Zy"


@pytest.mark.parametrize(
    ("secrets", "looked_for"),
    [
        (["hunter2-9d81"], ["hunter2-9d81"]),
        (["-- BEGIN --\nMIIB1234\r\nXg==\n-- END --\n"], ["-- BEGIN --", "-- END --", "MIIB1234", "Xg=="]),
        (["abcd", "abcdefgh"], ["abcdefgh", "abcd"]),  # else efgh would be left over
        (["no", "", "a\nb\n"], []),  # they are in every other line
        (["it's\\so"], ["it's\\so", "it's\\\\so"]),  # as an exception quotes it
        (['say "é"'], ['say "é"', 'say \\"\\u00e9\\"']),  # as JSON does
    ],
)
def test_each_line_of_a_secret_is_masked_the_longest_first(secrets: list[str], looked_for: list[str]) -> None:
    found = Masking(secrets).texts
    assert sorted(found) == sorted(looked_for)
    assert [len(text) for text in found] == sorted(map(len, found), reverse=True)


@pytest.mark.parametrize(
    ("said", "logged"),
    [
        (f"the token is {SECRET}, twice {SECRET}{SECRET}", "the token is ***, twice ******"),
        (f"metric 'token' is '{SECRET[:15]}: need a number", "metric 'token' is '***: need a number"),
        (f"refused: {SECRET[:5]}…", "refused: ***…"),
        (f"refused: {SECRET[:4]}…\nmend {SECRET[:-1]}…", "refused: ***…\nmend ***…"),
        (f"[rank 0] xx{SECRET[:7]} … (70000 bytes left out)", "[rank 0] xx*** … (70000 bytes left out)"),
        (f"{SECRET[:5]}… goes on", f"{SECRET[:5]}… goes on"),
        ("a line that was cut…", "a line that was cut…"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_a_secret_is_found_whole_by_half_of_it_and_where_it_was_cut(said: str, logged: str) -> None:
    masking = Masking([SECRET])
    assert masking.text(said) == logged
    assert masking.log(f"{said}\n".encode()) == f"{logged}\n".encode()


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    assert Masking([SECRET]).log(b"\xff\xfe " + SECRET.encode() + b"\n") == b"\xff\xfe ***\n"


def test_of_a_short_secret_only_the_whole_counts() -> None:
    assert Masking(["password1"]).text("a password, password1") == "a password, ***"
    assert Masking(["hunter"]).text("hunting hunters") == "hunting ***s"


def test_no_secret_costs_nothing() -> None:
    lines = b"x" * 1_000_000
    assert Masking([]).log(lines) is lines
