"""The parts of the model server that need nothing of its image."""

from __future__ import annotations

import sys

from muster.core.shipped import shipped

sys.path.append(str(shipped("serving")))
