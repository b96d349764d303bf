"""The author of the end-to-end tests, with a folder and a home of its own."""

from tests.e2e.conftest import author

__all__ = ["author"]
