"""``python -m muster.volumes.service``."""

from __future__ import annotations

import sys

from muster.volumes.service.serve import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
