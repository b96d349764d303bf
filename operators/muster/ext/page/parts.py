"""What the page's own routes ask beside the store: every known job, and every deployment."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from muster.airflow.page.route import Here
from muster.ext.page.answering import Answering
from muster.ext.page.board import Board


def _board(here: Here) -> Board:
    return here.part(Board, here.backend)


def _answering(here: Here) -> Answering:
    return here.part(Answering)


Jobs = Annotated[Board, Depends(_board)]
Served = Annotated[Answering, Depends(_answering)]
