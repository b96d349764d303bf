"""The features of a flight hold what was known an hour before it was due, and nothing else."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow
