"""The tests of GPUs on this machine's cards: ``make test-gpu``."""

from __future__ import annotations

import pytest
from tests.gpu.contract import GpuContract
from tests.gpu.missing import cards, interpreter
from tests.gpu.place import Place, on_cards

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def on_the_cards() -> Place:
    return on_cards(interpreter(), cards())


class TestCards(GpuContract):
    """With CUDA."""

    @pytest.fixture
    def place(self, on_the_cards: Place) -> Place:
        return on_the_cards
