from __future__ import annotations

import pytest

from muster.core.going_on import starts_again
from muster.core.verdict import Cause, Verdict


@pytest.mark.parametrize(
    ("cause", "word"), [(Cause.CANCELLED, "evicted"), (Cause.RANK_LOST, "rank lost"), (Cause.HANG, "hang")]
)
def test_what_starts_again_was_cancelled_by_nobody(cause: Cause, word: str) -> None:
    said = starts_again(Verdict(cause=cause, message="replica main-1 was told to stop", advice="a"))
    assert (
        said
        == f"[muster] {word}: replica main-1 was told to stop; the whole gang starts again from its checkpoint"
    )
