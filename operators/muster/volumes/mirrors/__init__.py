"""Mirrors: second homes of a store's versions, with the same numbers and the same digests."""
