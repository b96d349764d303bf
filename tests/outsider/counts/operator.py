"""CountOperator: how many versions a volume has."""

from __future__ import annotations

from typing import Any

from muster.airflow.authoring.checks import check_volume_name
from muster.airflow.authoring.keywords import keyword
from muster.airflow.operators.base import MusterOperator
from muster.airflow.site import connect


class CountOperator(MusterOperator):
    """Return how many versions a volume has, at most 100."""

    volume: str = keyword(check=check_volume_name)
    """The volume's name."""

    def perform(self, context: Any) -> int:
        """Count them."""
        return len(connect().store.newest(self.volume, limit=100))

    def told(self, result: int) -> str:
        """Say the number."""
        return f"{self.volume} has {result} versions"
