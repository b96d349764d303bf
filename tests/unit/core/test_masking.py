"""What of a secret is looked for in a job's log."""

from __future__ import annotations

import json
import shlex
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from html import escape
from urllib.parse import quote, quote_plus

import pytest

from muster.core.masking import MASK, Masking, readings

SECRET = "q7Vd-2mXw-9KfT-w3Rb-c8Zy"


@pytest.mark.parametrize(
    ("secrets", "looked_for"),
    [
        (["hunter2-9d81"], {"hunter2-9d81", "HUNTER2-9D81", "68756e746572322d39643831", "aHVudGVyMi05ZDgx"}),
        (["-- BEGIN --\nMIIB1234\r\nXg==\n-- END --\n"], {"-- BEGIN --", "-- END --", "MIIB1234", "Xg=="}),
        (["no", "", "a\nb\n"], set()),  # they are in every other line
        (["it's\\so"], {"it's\\so", "it's\\\\so", "it'\"'\"'s\\so", "it&#x27;s\\so", "it&#39;s\\so", "it%27s%5Cso", "it%27s%5cso"}),
        (['say "é"'], {'say "é"', 'say \\"\\u00e9\\"', 'say \\"é\\"', "say+%22%C3%A9%22", "say &quot;é&quot;", 'say\\ \\"\\é\\"'}),
    ],
)  # fmt: skip
def test_each_line_of_a_secret_is_masked_in_every_form_the_longest_first(
    secrets: list[str], looked_for: set[str]
) -> None:
    found = Masking(secrets).texts
    assert looked_for <= set(found)
    assert bool(found) is bool(looked_for)
    assert [len(text) for text in found] == sorted(map(len, found), reverse=True)


# Half of it is no word, and it holds what URLs, HTML, JSON and shells quote.
COATED = "pa&ss/wo'rd=\"7ü+x y"
COATS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "URL": lambda text: quote(text, safe=""),
    "URL, form": quote_plus,
    "URL, small letters": lambda text: quote(text, safe="").lower(),
    "base64": lambda text: b64encode(text.encode()).decode(),
    "base64 of a user and it": lambda text: b64encode(f"user:{text}".encode()).decode(),
    "base64 in JSON": lambda text: b64encode(json.dumps({"a": "bc", "b": text}, ensure_ascii=False).encode()).decode(),
    "base64 of URLs": lambda text: urlsafe_b64encode(f"u:{text}:more".encode()).decode(),
    "JSON": json.dumps,
    "JSON, as it is": lambda text: json.dumps(text, ensure_ascii=False),
    "repr": repr,
    "shell": shlex.quote,
    "HTML": escape,
    "hex": lambda text: text.encode().hex(),
    "hex, capitals": lambda text: text.encode().hex().upper(),
    "two lines": lambda text: f"{text[:10]}\n{text[10:]}",
}  # fmt: skip


@pytest.mark.parametrize("char", "&'\"\\ %+/ü")
def test_a_secret_is_masked_to_its_end_wherever_a_character_stands_that_is_quoted(char: str) -> None:
    for at in range(1, len(SECRET)):
        secret = f"{SECRET[:at]}{char}{SECRET[at:]}"
        assert Masking([secret]).text(f"({secret})") == f"({MASK})", at


@pytest.mark.parametrize("coat", COATS.values(), ids=COATS)
def test_a_secret_is_known_in_any_coat(coat: Callable[[str], str]) -> None:
    coated = f"at {coat(COATED)} it goes on"
    assert any(COATED in reading or COATED.replace(" ", "") in reading for reading in readings(coated))
    masked = Masking([COATED]).text(coated)
    assert MASK in masked
    assert not any(COATED[10:] in reading or COATED[:10] in reading for reading in readings(masked))


def test_a_text_of_no_secret_stays() -> None:
    text = "s3://bucket/a%20b 0123456789abcdef0123456789abcdef dGhlIHF1aWNrIGJyb3du pass word"
    assert Masking([COATED]).text(text) == text
    assert not any(COATED in reading for reading in readings(text))


def test_a_name_that_the_job_shows_is_no_secret_there() -> None:
    assert (
        Masking(["shop", "other"], shown={"shop"}).text("sql://shop refuses other")
        == "sql://shop refuses ***"
    )


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
