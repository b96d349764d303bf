"""What is made of revisions and routes, whole, and what must hold of every one."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests import golden
from tests.unit.backends.kubernetes.golden import DIGEST
from tests.unit.backends.kubernetes.serving.golden import (
    ANYWHERE,
    FOLDER,
    NOW,
    ROUTE,
    SITE,
    WITH_WORKERS,
    examples,
    server,
    spec,
    written,
)

from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.kinds import KSERVE, inference_service, platform_of, seldon_deployment
from muster.backends.kubernetes.serving.route import HISTORY, LARGEST_BYTES, Route, read_route, write_route
from muster.backends.kubernetes.serving.server import WORKERS, archive, code
from muster.backends.kubernetes.site import PlatformOwner
from muster.backends.releases.book import begin, number, withdraw
from muster.core.deployment import DeploymentSpec, RequestLog, RevisionState, SmokeRequest, Workers
from muster.core.errors import SpecError


def test_the_objects_are_those_that_somebody_reviewed() -> None:
    assert written() == golden.kept(FOLDER), (
        "python -m tests.unit.backends.kubernetes.serving.golden; git diff"
    )


@pytest.mark.parametrize(
    "of", [spec(), spec(server="seldon"), WITH_WORKERS], ids=["onnx", "wrapped", "python"]
)
def test_a_platform_keeps_any_server_and_each_gets_the_same_pod(of: DeploymentSpec) -> None:
    made = server(of, "r1")
    kserve = {**inference_service(made)["spec"]["predictor"]}
    (predictor,) = seldon_deployment(made)["spec"]["predictors"]
    (component,) = predictor["componentSpecs"]
    for pod in (kserve, component["spec"]):
        first, *others = pod["containers"]
        pod["containers"] = [{**first, "name": "server"}, *others]
    assert component["spec"].items() <= kserve.items()


def test_seldon_is_told_of_the_workers_by_no_graph_and_no_deployment_takes_their_name() -> None:
    """Seldon adds ports, probes and variables to the containers of its graph, and has a Service for each of them."""
    (predictor,) = seldon_deployment(server(WITH_WORKERS, "r4"))["spec"]["predictors"]
    names = [each["name"] for each in predictor["componentSpecs"][0]["spec"]["containers"]]
    assert (predictor["graph"]["name"], names) == ("flights", ["flights", WORKERS])
    for of in (replace(WITH_WORKERS, name=WORKERS), spec(name=WORKERS, log=RequestLog())):
        with pytest.raises(SpecError, match=r"deployment 'workers': .* give it another name"):
            seldon_deployment(server(of, "r1"))
    assert seldon_deployment(server(spec(name=WORKERS), "r1"))


def test_a_site_that_names_nobody_has_no_platform() -> None:
    with pytest.raises(SpecError, match="nothing says who serves in namespace team-a"):
        platform_of(replace(ANYWHERE, serving=None))


def test_seldon_finds_the_container_of_its_graph_and_is_told_what_its_service_is_called() -> None:
    (predictor,) = seldon_deployment(server(spec(), "r1"))["spec"]["predictors"]
    (container,) = predictor["componentSpecs"][0]["spec"]["containers"]
    assert predictor["graph"]["name"] == container["name"]
    (backend, _) = write_route(ROUTE, replace(SITE, serving=PlatformOwner.SELDON))["spec"]["rules"][0][
        "backendRefs"
    ]
    assert predictor["annotations"]["seldon.io/svc-name"] == backend["name"]
    assert [port["containerPort"] for port in container["ports"]] == [backend["port"]]


def test_a_server_answers_on_until_nobody_is_sent_to_it() -> None:
    """The grace holds the sleep before the end and the longest request after it."""
    predictor = inference_service(server(spec(), "r1"))["spec"]["predictor"]
    (container,) = predictor["containers"]
    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert SITE.gateway_seconds < sleep
    assert predictor["terminationGracePeriodSeconds"] >= sleep + 30


def test_a_server_that_streams_has_the_time_of_its_longest_answer() -> None:
    def grace(*, stream: bool) -> int:
        workers = Workers(image="serve", image_digest=DIGEST, request_timeout_seconds=299.5, stream=stream)
        made = inference_service(server(spec(workers=workers), "r1"))
        return int(made["spec"]["predictor"]["terminationGracePeriodSeconds"])

    assert grace(stream=True) == grace(stream=False) + 270


@pytest.mark.parametrize("kind", KSERVE.servers)
def test_a_server_counts_inputs_where_a_rule_asks_for_it(kind: str) -> None:
    for counted in (True, False):
        made = server(spec(counts_inputs=counted, server=kind), "r1")
        (container,) = inference_service(made)["spec"]["predictor"]["containers"]
        assert ("--counts-inputs" in container["command"]) is counted


def test_the_code_is_that_of_the_servers_and_the_same_each_time() -> None:
    made = server(spec(), "r1")
    (packed,) = code(made)["binaryData"].values()
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(packed))) as opened:
        assert opened.testzip() is None
        found = set(opened.namelist())
    assert {
        "__main__.py",
        "muster_serving/__main__.py",
        "muster_serving/front.py",
        "muster_serving/seldon_model.py",
    } <= found
    archive.cache_clear()
    assert code(made)["binaryData"] == {"serving.zip": packed}
    assert len(packed) < 500_000


def test_the_code_runs_as_it_is_packed(tmp_path: Path) -> None:
    packed = tmp_path / "serving.zip"
    packed.write_bytes(archive())
    words = [sys.executable, "-I", str(packed), "--help"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "Serve one deployment" in said


@pytest.mark.parametrize("name", ["fixed", "scaled", "on-cards"])
def test_no_variable_is_set_that_kserve_refuses(name: str) -> None:
    """Its webhook: `setting PYTHONPATH in container … is not allowed for security reasons`."""
    (container,) = examples()[name]["spec"]["predictor"]["containers"]
    assert "PYTHONPATH" not in {variable["name"] for variable in container["env"]}


@pytest.mark.parametrize("deployment", ["a", "7", "x" * 40, "7" * 40, f"{'y' * 39}z"])
@pytest.mark.parametrize("revision", ["r1", "r12345"])
@pytest.mark.parametrize("namespace", ["ml", "muster-jobs", "n" * 40])
def test_names_fit_what_kserve_makes_of_them(deployment: str, revision: str, namespace: str) -> None:
    name = names.revision_name(deployment, revision, namespace=namespace)
    assert len(f"{name}-{namespace}") <= 63
    assert len(names.service_name(name)) <= 63
    assert name[0].isalpha()
    assert name.endswith(f"-{revision}")
    assert number(revision) == int(revision[1:])


def test_long_names_that_differ_in_the_end_differ() -> None:
    one, other = (names.revision_name(f"{'y' * 39}{last}", "r1", namespace="n" * 30) for last in "ab")
    assert one != other


@pytest.mark.parametrize("site", [SITE, ANYWHERE], ids=["gateway", "service"])
def test_a_route_is_read_as_it_was_written(site: object) -> None:
    shares = {"r1": 80, "r2": 20} if site is SITE else {"r1": 100}
    route = replace(ROUTE, shares=shares)
    found = read_route(write_route(route, site), name="flights", site=site)  # type: ignore[arg-type]
    assert found == replace(route, given=shares, token=found.token, unsettled=found.unsettled)


def test_a_token_changes_with_what_was_decided_and_not_with_what_is_reported() -> None:
    document = write_route(ROUTE, SITE)
    token = read_route(document, name="flights", site=SITE).token
    reported = {**document, "status": {"parents": []}, "metadata": {**document["metadata"], "generation": 9}}
    reported["metadata"]["resourceVersion"] = "4712"
    assert read_route(reported, name="flights", site=SITE).token == token
    again = write_route(replace(ROUTE, writes=6), SITE)
    assert read_route(again, name="flights", site=SITE).token != token
    edited = yaml.safe_load(yaml.safe_dump(document))
    edited["spec"]["rules"][0]["backendRefs"][0]["weight"] = 79
    assert read_route(edited, name="flights", site=SITE).token != token


def test_a_route_with_too_much_to_remember_is_refused() -> None:
    rows = tuple(float(row) for row in range(LARGEST_BYTES // 4))
    large = spec(smoke=(SmokeRequest(name="large", inputs={"x": rows}),))
    route, _ = begin(Route(name="flights"), large, by="ti-1", now=NOW)
    with pytest.raises(SpecError, match="fewer smoke requests, or fewer rows"):
        write_route(route, SITE)


def test_the_oldest_of_those_that_are_over_are_forgotten() -> None:
    route = Route(name="flights")
    for made in range(HISTORY + 5):
        route, entry = begin(route, spec(made + 1), by="ti-1", now=NOW)
        route = replace(route, release=None)
        route = withdraw(route, entry.name, state=RevisionState.RETIRED, reason="", now=NOW, history=HISTORY)
    assert len(route.over) == HISTORY
    assert (route.over[0].name, route.live, route.made) == (f"r{HISTORY + 5}", (), HISTORY + 5)
