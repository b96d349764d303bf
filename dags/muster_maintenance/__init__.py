"""Cleans a site: ends jobs whose task is gone, and deletes what is not needed any more."""
