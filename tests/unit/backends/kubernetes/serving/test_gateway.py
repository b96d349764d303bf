"""What a Gateway answered itself, off its own page: recorded ones of Traefik, and a real server that serves them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from tests.unit.backends.kubernetes.serving.gateway_pages import Told, line, page, telling

from muster.backends.kubernetes.serving import gateway
from muster.backends.kubernetes.serving.gateway import (
    Gateway,
    GatewayPage,
    addresses,
    ask,
    calls,
    grown,
    read_page,
)
from muster.core.deployment import Counts
from muster.core.errors import BackendError, Unreachable

RECORDED = (Path(__file__).parent / "pages" / "traefik-3.6.12.txt").read_text()
OLDER = "team-a-lines-r{revision}-predictor-http-80@kubernetesgateway"
NEWER = "httproute-team-a-lines-gw-gateways-public-ep-web-0-5f6a-svc-team-a-lines-r{revision}-predictor-{place}@kubernetesgateway"


R1, R2 = (OLDER.format(revision=each) for each in (1, 2))


class TestReading:
    def test_only_what_no_server_of_ours_answers_is_the_gateways_own(self) -> None:
        codes = {"200": 1000, "400": 3, "499": 5, "500": 70, "502": 4, "503": 9, "504": 2}
        found = read_page(page(*(line(R1, number, code=code) for code, number in codes.items())))
        assert found == GatewayPage(born=1.0, answered={R1: 6})

    def test_methods_are_added_up(self) -> None:
        found = read_page(page(line(R1, 2), line(R1, 3, method="GET"), line(R2, 1)))
        assert found.answered == {R1: 5, R2: 1}

    def test_of_one_that_answered_nobody_yet_nothing_is_counted(self) -> None:
        assert read_page(page()).answered == {}

    @pytest.mark.parametrize(
        "text",
        ["", "envoy_cluster_upstream_rq_total 7\n", "<html>traefik_</html>", "# HELP traefik_x of others\n"],
    )
    def test_a_page_of_another_gateway_is_told(self, text: str) -> None:
        with pytest.raises(
            BackendError, match="no page of a Gateway that muster can read: expected Traefik's"
        ):
            read_page(text)

    @pytest.mark.parametrize(
        "bad",
        [
            '{code="502"} 1',
            '{code="502",service="x"} many',
            '{code="502",service="x" 1',
            "{} 1",
            '{code="502",service="x"} NaN',
        ],
    )
    def test_a_page_that_is_broken_is_told(self, bad: str) -> None:
        with pytest.raises(BackendError, match="Traefik's page cannot be read"):
            read_page(page(f"traefik_service_requests_total{bad}\n"))


class TestGrown:
    def test_at_first_it_is_all_that_there_is(self) -> None:
        assert grown(None, read_page(page(line(R1, 4)))) == {R1: 4}

    @pytest.mark.parametrize(
        ("before", "now", "since"),
        [
            (page(line(R1, 4)), page(line(R1, 6)), {R1: 2}),
            (page(line(R1, 4)), page(line(R1, 4), line(R2, 3)), {R1: 0, R2: 3}),  # a new one began at 0
            (page(line(R1, 4)), page(line(R1, 1)), {R1: 1}),  # it was dropped, and began anew
            (page(line(R1, 4)), page(), {}),
            (page(line(R1, 4)), page(line(R1, 6), born=2.0), {R1: 6}),  # another process
        ],
    )
    def test_then_what_came_since(self, before: str, now: str, since: dict[str, int]) -> None:
        assert grown(read_page(before), read_page(now)) == since


class TestNames:
    LINES: ClassVar = {"namespace": "team-a", "route": "lines", "backend": "lines-r1-predictor"}

    @pytest.mark.parametrize("place", [0, 1, 12])
    def test_wherever_in_the_list_a_backend_is(self, place: int) -> None:
        assert calls(NEWER.format(revision=1, place=place), **self.LINES)

    def test_up_to_3_6(self) -> None:
        assert calls(R1, **self.LINES)

    @pytest.mark.parametrize(
        "other",
        [
            R2,
            NEWER.format(revision=2, place=0),
            NEWER.format(revision=11, place=0),
            "x" + R1,
            R1 + "x",
            R1.replace("team-a", "team-b"),
            NEWER.format(revision=1, place=0).replace(
                "httproute-team-a-lines-gw", "httproute-team-a-others-gw"
            ),
            "team-a-lines-r1-predictor-http-80@kubernetescrd",
        ],
    )
    def test_no_other_is_taken_for_it(self, other: str) -> None:
        assert not calls(other, **self.LINES)

    def test_traefik_writes_one_dash_where_there_are_several(self) -> None:
        doubled = {"namespace": "team-a", "route": "a--b", "backend": "a--b-r1-predictor"}
        assert calls("team-a-a-b-r1-predictor-http-80@kubernetesgateway", **doubled)
        newer = "httproute-team-a-a-b-gw-gateways-public-ep-web-0-5f-svc-team-a-a--b-r1-predictor-0@kubernetesgateway"
        assert calls(newer, **doubled)


@pytest.fixture
def told() -> Iterator[Told]:
    with telling(page(line(R1, 4))) as found:
        yield found


class TestGateway:
    def test_all_of_it_is_failures(self, told: Told) -> None:
        found = Gateway(told.url, namespace="team-a")
        found.look()
        assert found.answered("lines", "r1") == Counts(requests=4, failed=4)
        assert found.answered("lines", "r2") == Counts()
        assert told.asked == [("/metrics", told.url.removeprefix("http://").removesuffix("/metrics"))]

    def test_it_only_goes_up_whatever_the_gateway_forgets(self, told: Told) -> None:
        found = Gateway(told.url, namespace="team-a")
        seen = []
        for text in (
            page(line(R1, 4)),
            page(),
            page(line(NEWER.format(revision=1, place=0), 1)),
            page(line(NEWER.format(revision=1, place=1), 2)),
            page(line(R1, 1), born=2.0),
        ):
            told.text = text
            found.look()
            seen.append(found.answered("lines", "r1").failed)
        assert seen == [4, 4, 5, 7, 8]

    def test_every_replica_is_asked(self, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
        with telling(page(line(R1, 5))) as other:
            both = [(address, port) for each in (told, other) for address, port in addresses(each.url)]
            monkeypatch.setattr(gateway, "addresses", lambda _url: both)
            found = Gateway(told.url, namespace="team-a")
            found.look()
            assert found.answered("lines", "r1").failed == 9
            other.text = page(line(R1, 6))
            found.look()
            assert found.answered("lines", "r1").failed == 10

    def test_one_that_does_not_tell_is_left_alone_for_a_while_and_nothing_is_lost(self, told: Told) -> None:
        now = [0.0]
        found = Gateway(told.url, namespace="team-a", clock=lambda: now[0])
        found.look()
        told.status = 503
        found.look()
        told.status, told.text = 200, page(line(R1, 6))
        found.look()
        assert (found.answered("lines", "r1").failed, len(told.asked)) == (4, 2)
        now[0] = 10.0
        found.look()
        assert (found.answered("lines", "r1").failed, len(told.asked)) == (6, 3)


class TestAsking:
    def test_nobody_is_there(self, told: Told) -> None:
        (address,) = addresses(told.url)
        url = told.url
        told.status = 404
        with pytest.raises(Unreachable, match="HTTP 404"):
            ask(url, address)
        with pytest.raises(Unreachable, match=r"Connection ?[rR]efused"):
            ask(url, (address[0], 1))

    @pytest.mark.parametrize("host", ["absent.invalid", "n" * 64, "a..b"])
    def test_nobody_knows_the_host(self, host: str) -> None:
        with pytest.raises(Unreachable, match=f"http://{host}/metrics"):
            addresses(f"http://{host}/metrics")

    def test_another_gateways_page_is_told_with_its_address(self, told: Told) -> None:
        told.text = "envoy_x 1\n"
        (address,) = addresses(told.url)
        with pytest.raises(BackendError, match=r"127\.0\.0\.1: that is no page of a Gateway"):
            ask(told.url, address)


def test_a_page_as_it_was_recorded() -> None:
    """When a revision had died with a share of 20 %: 152 users were told 502, and one 503 before any revision was up."""
    found = read_page(RECORDED)
    name = "muster-jobs-line-6163d7-r2-predictor-http-80@kubernetesgateway"
    assert found == GatewayPage(born=1795350165.71, answered={name: 152})
    line = {"namespace": "muster-jobs", "route": "line-6163d7", "backend": "line-6163d7-r2-predictor"}
    assert calls(name, **line)
