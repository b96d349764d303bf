"""Keeps a second home of all versions up."""
