"""The link of a search's task."""

from __future__ import annotations

from muster.airflow.links import PushedLink


class SearchLink(PushedLink):
    """The search on muster's page: its rungs, its trials and their curves, live."""

    KEY = "muster_search"
    name = "Search"
