"""Asks the person before the terminal what a task wants to know, while the run goes on."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from muster.core.errors import SpecError

if TYPE_CHECKING:
    from muster.airflow.embedded.result import Approval


class Asking:
    """One person, who is asked one question at a time.

    :param show: prints a line.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._asked: Approval | None = None

    @property
    def possible(self) -> bool:
        """Whether a person may be there."""
        return sys.stdin is not None and sys.stdin.isatty()

    def __call__(self, question: Approval) -> tuple[str, ...] | None:
        """Return the options chosen, once a line names them."""
        if question is not self._asked:
            self._asked = question
            for line in (f"{question.task} asks: {question.subject}", *question.body.splitlines()):
                self._show(line)
            self._show(f"type {' or '.join(question.options)}:")
        if not select.select([sys.stdin], [], [], 0)[0]:
            return None
        try:
            return question.chosen(sys.stdin.readline())
        except SpecError as error:
            self._show(str(error))
            return None
