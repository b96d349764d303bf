"""Names that no other test has: a cluster has one store for all of them."""

from __future__ import annotations

import functools
import secrets


class Named:
    """A class of tests that share a store with others."""

    @functools.cached_property
    def unique(self) -> str:
        """What the names of one test's jobs and volumes end with."""
        return secrets.token_hex(3)

    def own(self, name: str) -> str:
        """A name of this test."""
        return f"{name}-{self.unique}"
