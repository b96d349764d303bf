"""A supervisor that could not end what its job starts does not begin."""

from __future__ import annotations

import ctypes

import pytest

from muster.backends.local.spawn import adopt_orphans


def test_a_kernel_that_lends_no_hand_is_an_error_and_no_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Kernel:
        def prctl(self, *_: int) -> int:
            ctypes.set_errno(1)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Kernel())
    with pytest.raises(PermissionError, match=r"prctl\(36\): Operation not permitted"):
        adopt_orphans()
