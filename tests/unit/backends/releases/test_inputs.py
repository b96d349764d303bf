"""The rule on drift: what rings for nothing, what is found, and what it says; looks come every few requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np  # noqa: TID253 - it plays users
import pytest

from muster.backends.releases.inputs import InputDrift, broken_by_inputs
from muster.backends.releases.judge import broken_by_counts, told
from muster.backends.releases.plan import Rules
from muster.core.deployment import ByBin, Counts

WINDOWS = 200
LOOKS, REQUESTS = 12, 600  # of one step
DECILES = [0.1] * 10
COLUMNS = {
    "distance": DECILES,
    "rare": [0.9, 0.06, 0.03, 0.01],
    "flag": [0.7, 0.3],
    "carrier": [2 ** -(n + 1) for n in range(14)] + [2**-14, 0.0],
}
SHIFTS = {
    "distance": [0.02, 0.03, 0.05, 0.1, 0.1, 0.1, 0.1, 0.15, 0.15, 0.2],
    "rare": [0.6, 0.3, 0.09, 0.01],
    "flag": [0.4, 0.6],
    "carrier": [0.95 * p for p in COLUMNS["carrier"][:15]] + [0.05],  # five in a hundred have a new one
}


def by_bin(counts: Sequence[int]) -> dict[str, int]:
    return {f"bin {place}": int(count) for place, count in enumerate(counts)}


def found(seed: int, *, rows: int, shifted: str = "", limit: float = 0.2) -> str:
    """Play one step of a release, which is looked at while requests come; return what breaks the rule first."""
    rng = np.random.default_rng(seed)
    trained = {name: by_bin(rng.multinomial(rows, shares)) for name, shares in COLUMNS.items()}
    asked = {name: np.zeros(len(shares), int) for name, shares in COLUMNS.items()}
    for look in range(1, LOOKS + 1):
        for name in COLUMNS:
            shares = SHIFTS[name] if name == shifted else COLUMNS[name]
            asked[name] += rng.multinomial(REQUESTS // LOOKS, shares)
        counts = Counts(
            requests=look * REQUESTS // LOOKS,
            asked={name: by_bin(each) for name, each in asked.items()},
            trained=trained,
        )
        if why := broken_by_inputs(limit, counts, fewest=50):
            return why
    return ""


@pytest.mark.parametrize("rows", [1000, 50_000])
def test_one_release_in_a_hundred_rings_for_nothing_at_most(rows: int) -> None:
    # A limit near 0 leaves the decision to the evidence alone: with any other it rings less.
    rung = [why for seed in range(WINDOWS) if (why := found(seed, rows=rows, limit=1e-9))]
    assert len(rung) <= WINDOWS // 100, rung


@pytest.mark.parametrize("shifted", sorted(SHIFTS))
def test_of_a_hundred_clear_shifts_ninety_nine_are_found(shifted: str) -> None:
    said = [found(seed, rows=20_000, shifted=shifted) for seed in range(WINDOWS // len(SHIFTS))]
    assert sum(why.startswith(f"input {shifted!r} has drifted") for why in said) >= 0.99 * len(said)


def counts(asked: ByBin | None, *, requests: int = 100) -> Counts:
    return Counts(requests=requests, asked=asked, trained={"hour": {"up to 12.5": 600, "above 12.5": 400}})


def test_the_message_says_which_input_by_how_much_and_where() -> None:
    drifted = counts({"hour": {"up to 12.5": 10, "above 12.5": 90}})
    why = (
        "input 'hour' has drifted from the training rows: PSI 1.3 in 100 requests, above the 0.2 that is allowed; "
        "'above 12.5' has 90% of the requests and 40% of the training rows: compare how users and the job that trained it "
        "make this input"
    )
    assert broken_by_counts(Rules(max_psi=0.2), drifted, Counts()) == why
    assert broken_by_counts(Rules(), drifted, Counts()) == ""
    assert told(drifted, Counts()) == "100 requests, 0 failed, drift at most 1.3 (hour)"


def test_neither_a_far_input_alone_nor_evidence_alone_breaks_the_rule() -> None:
    little = counts({"hour": {"up to 12.5": 1, "above 12.5": 5}}, requests=6)
    assert InputDrift.of("hour", little.asked["hour"], little.trained["hour"]).psi > 0.2  # type: ignore[index]
    assert broken_by_inputs(0.2, little, fewest=1) == ""
    small = counts({"hour": {"up to 12.5": 50_000, "above 12.5": 50_000}}, requests=100_000)
    assert broken_by_inputs(0.2, small, fewest=1) == ""
    assert broken_by_inputs(0.02, small, fewest=1)


def test_too_few_requests_and_none_at_all_break_nothing() -> None:
    few = counts({"hour": {"up to 12.5": 0, "above 12.5": 49}}, requests=49)
    assert broken_by_inputs(0.2, few, fewest=50) == ""
    assert broken_by_inputs(0.2, few, fewest=49)
    for none in (Counts(), Counts(requests=3, refused=3, asked={"hour": {}}), Counts(asked={})):
        assert broken_by_inputs(0.2, none, fewest=1) == ""


def test_a_server_that_does_not_count_breaks_the_rule() -> None:
    why = broken_by_inputs(0.2, counts(None, requests=1), fewest=50)
    assert why.startswith(
        "its server does not count requests by the bins of the training rows, so max_psi cannot be judged"
    )
    assert why.endswith("it is of an earlier release of muster, or was started without counting them")
    assert broken_by_inputs(None, counts(None), fewest=1) == ""
    for unanswered in (Counts(requests=60, failed=60), Counts(requests=60, failed=20, refused=40)):
        assert (
            broken_by_inputs(0.2, unanswered, fewest=1) == ""
        )  # no server has counted them, whatever the server is
