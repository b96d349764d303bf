"""Any number of clients of one server."""

from contextlib import ExitStack

import pytest
from tests.fuse.filesystem import Faults
from tests.fuse.mount import mounted


@pytest.fixture
def clients(tmp_path):
    """Mount the same server again and again: each is a client of its own."""
    with ExitStack() as stack:

        def mount(**faults):
            root = tmp_path / f"client-{len(list(tmp_path.iterdir()))}"
            return stack.enter_context(mounted(tmp_path / "server", root, Faults(**faults)))

        yield mount
