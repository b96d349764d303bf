"""Tokens: what is ours counts until its time is over, and nothing else does."""

import base64
import json
import time

import pytest

from muster.core.errors import SpecError
from muster.volumes.service.tokens import (
    Token,
    TokenKind,
    TokenRefused,
    expiry,
    job_token,
    operator_token,
    read_keys,
    sign,
    verify,
)

KEYS = (b"a" * 32, b"b" * 32)


def test_a_token_says_what_was_signed():
    token = verify(KEYS, job_token(KEYS, "train-1", attempt=2, lifetime_seconds=60))
    assert (token.kind, token.job_id, token.attempt) == (TokenKind.JOB, "train-1", 2)
    assert 0 < token.expires - time.time() <= 60
    assert verify(KEYS, operator_token(KEYS, lifetime_seconds=60)).kind is TokenKind.OPERATOR


def test_a_key_can_be_changed():
    old = operator_token(KEYS[:1], lifetime_seconds=60)
    assert verify((b"c" * 32, *KEYS[:1]), old).kind is TokenKind.OPERATOR
    with pytest.raises(TokenRefused, match="not one of this store service"):
        verify((b"c" * 32,), old)


def test_an_expired_token_is_refused():
    with pytest.raises(TokenRefused, match="expired at 20"):
        verify(KEYS, operator_token(KEYS, lifetime_seconds=-0.001))


def test_whoever_holds_a_token_may_read_when_it_runs_out():
    assert 0 < expiry(operator_token(KEYS, lifetime_seconds=60)) - time.time() <= 60
    assert expiry(sign((b"z" * 32,), Token(kind=TokenKind.OPERATOR, expires=7.0))) == 7.0


@pytest.mark.parametrize("text", ["", ".", "a.b", "é.é", "bnVsbA.x", "e30.x", "W10.x", "\0", "x" * 5000])
def test_what_is_no_token_never_runs_out(text):
    assert expiry(text) is None


def test_no_character_of_a_token_can_be_changed():
    text = job_token(KEYS, "train-1", attempt=2, lifetime_seconds=60)
    for place, char in enumerate(text):
        for other in {"A", "b", ".", "=", "é", "\n"} - {char}:
            with pytest.raises(TokenRefused):
                verify(KEYS, text[:place] + other + text[place + 1 :])


@pytest.mark.parametrize("text", ["", ".", "a.b", "é.é", "x" * 5000, "Bearer", "\0.\0", "..", "a.b.c"])
def test_what_is_no_token_is_refused(text):
    with pytest.raises(TokenRefused):
        verify(KEYS, text)


def test_the_payload_of_another_cannot_be_signed_with_ones_own():
    job = job_token(KEYS, "train-1", attempt=2, lifetime_seconds=60)
    said = Token(kind=TokenKind.OPERATOR, expires=time.time() + 60)
    forged = sign((b"x" * 32,), said)
    for text in (forged, f"{forged.partition('.')[0]}.{job.partition('.')[2]}"):
        with pytest.raises(TokenRefused):
            verify(KEYS, text)


def test_a_token_reads_as_its_documentation_says():
    payload = operator_token(KEYS, lifetime_seconds=60).partition(".")[0]
    said = json.loads(base64.urlsafe_b64decode(payload + "=="))
    assert said | {"expires": 0} == {"kind": "operator", "expires": 0}  # fields at their default are left out


@pytest.mark.parametrize("content", ["", "short\n", f"{'a' * 32}\nshort\n"])
def test_weak_keys_are_refused(tmp_path, content):
    (tmp_path / "key").write_text(content)
    with pytest.raises(SpecError, match="needs keys of 32 or more characters"):
        read_keys(tmp_path / "key")
    with pytest.raises(SpecError, match="cannot be read"):
        read_keys(tmp_path / "none")


def test_a_key_file_holds_one_a_line(tmp_path):
    (tmp_path / "key").write_text(f"{'a' * 32}\n{'b' * 40}\n")
    assert read_keys(tmp_path / "key") == (b"a" * 32, b"b" * 40)
