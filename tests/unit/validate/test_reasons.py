"""Why an expectation cannot be evaluated is one sentence, without SQL and without advice that is no use in a job."""

from __future__ import annotations

import pytest

from muster.core.shipped import shipped


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (
            (
                "(_duckdb.ConversionException) Conversion Error: Could not convert string 'a' to INT64\n\nLINE 5: WHERE n IS NOT NULL AND (n NOT\n"
                "[SQL: SELECT n AS unexpected_values]\n(Background on this error at: https://sqlalche.me/e/21/f405)"
            ),
            "Conversion Error: Could not convert string 'a' to INT64",
        ),
        (
            (
                "Binder Error: No function matches the given name and argument types 'sum(VARCHAR)'. You might need to add explicit type casts.\n"
                "\tCandidate functions:\n\tsum(DECIMAL)"
            ),
            "Binder Error: No function matches the given name and argument types 'sum(VARCHAR)'.",
        ),
        (
            "Out of Memory Error: could not allocate block of size 256.0 KiB\nPossible solutions:\n* SET memory_limit = '40GB'",
            "it needs more memory than the task has: give the task more (memory_gib=), or select fewer columns",
        ),
        ("'type'", "'type'"),
    ],
)
def test_a_reason(monkeypatch: pytest.MonkeyPatch, said: str, kept: str) -> None:
    monkeypatch.syspath_prepend(str(shipped("images") / "validate" / "muster_validate"))
    from reasons import reason  # type: ignore[import-not-found]

    assert reason(said) == kept
