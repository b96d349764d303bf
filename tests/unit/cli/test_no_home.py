"""A user without a home folder, as in a container: an error of the machine is told as to any other."""

from __future__ import annotations

import errno
import pwd

import pytest

from muster.cli import app


def test_an_error_is_told_to_a_user_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    app.end_by(
        FileNotFoundError(errno.ENOENT, "no such file", "/there")
    )  # it is a bug, and keeps its traceback
