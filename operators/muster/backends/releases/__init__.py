"""Releases: what shares of traffic a revision gets, when, and what takes them back. The same on every backend."""
