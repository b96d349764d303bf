from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.authority import Authority
from tests.unit.backends.kubernetes.api_server import Answer, ApiServer, api_server, status

from muster.backends.kubernetes.api.client import CHUNK, Client
from muster.backends.kubernetes.api.kinds import HTTP_ROUTE, JOB, JOB_SET, NODE, POD, QUEUE_VIEW, kind_of
from muster.backends.kubernetes.api.refusals import ApiRequest
from muster.core.errors import BackendError, Conflict, Forbidden, SpecError, Unreachable

POD_DOCUMENT = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "ml"}}
MISSING = status(404, "NotFound", 'pods "a" not found', name="a", kind="pods")


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)

    def __call__(self) -> float:
        return self.now


def client(server: ApiServer, time: Time | None = None, *, patience_seconds: float = 60.0) -> Client:
    time = time or Time()
    return Client(server.api(), patience_seconds=patience_seconds, clock=time, sleep=time.sleep)


class TestReading:
    def test_one_object(self) -> None:
        with api_server(Answer(body=POD_DOCUMENT)) as server:
            assert client(server).get(POD, "a", namespace="ml") == POD_DOCUMENT
            assert client(server).get(NODE, "k1") == POD_DOCUMENT
        assert [each.path for each in server.asked] == ["/api/v1/namespaces/ml/pods/a", "/api/v1/nodes/k1"]
        assert server.asked[0].headers["Authorization"] == "Bearer secret-token"

    def test_none_of_that_name(self) -> None:
        with api_server(MISSING) as server:
            assert client(server).get(POD, "a", namespace="ml") is None

    def test_no_name_leads_elsewhere(self) -> None:
        with api_server(Answer(body={})) as server:
            client(server).get(POD, "../../secrets/x", namespace="ml")
        assert server.asked[0].path == "/api/v1/namespaces/ml/pods/..%2F..%2Fsecrets%2Fx"

    def test_a_subresource(self) -> None:
        with api_server(Answer(body={})) as server:
            client(server).get(QUEUE_VIEW, "team", namespace="ml", subresource="pendingworkloads")
        path = "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/ml/localqueues/team/pendingworkloads"
        assert server.asked[0].path == path

    def test_a_list_comes_in_chunks_and_says_what_its_items_are(self) -> None:
        first = {
            "metadata": {"resourceVersion": "7", "continue": "more"},
            "items": [{"metadata": {"name": "a"}}],
        }
        second = {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]}
        with api_server(Answer(body=first), Answer(body=second)) as server:
            found, version = client(server).snapshot(POD, namespace="ml", labels="muster.dev/job=j")
        assert [each["metadata"]["name"] for each in found] == ["a", "b"]
        assert {(each["apiVersion"], each["kind"]) for each in found} == {("v1", "Pod")}
        assert version == "7"
        assert server.asked[0].query == {"labelSelector": "muster.dev/job=j", "limit": str(CHUNK)}
        assert server.asked[1].query["continue"] == "more"

    def test_a_list_that_changed_between_chunks_is_read_again(self) -> None:
        def chunk(name: str, **metadata: str) -> Answer:
            return Answer(body={"metadata": metadata, "items": [{"metadata": {"name": name}}]})

        gone = status(410, "Expired", "The provided continue parameter is too old")
        with api_server(chunk("a", **{"continue": "x"}), gone, chunk("b", resourceVersion="9")) as server:
            found, version = client(server).snapshot(POD, namespace="ml")
        assert [each["metadata"]["name"] for each in found] == ["b"]
        assert version == "9"
        assert "continue" not in server.asked[2].query

    def test_everything_served(self) -> None:
        body = {
            "items": [
                {
                    "metadata": {"name": "batch"},
                    "versions": [
                        {"version": "v1", "resources": [{"resource": "jobs"}, {"resource": "cronjobs"}]}
                    ],
                }
            ]
        }
        with api_server(Answer(body=body)) as server:
            assert client(server).served() == {("batch/v1", "jobs"), ("batch/v1", "cronjobs")}
        assert server.asked[0].path == "/apis"
        assert "APIGroupDiscoveryList" in server.asked[0].headers["Accept"]

    @pytest.mark.parametrize("allowed", [True, False])
    def test_what_is_allowed(self, allowed: bool) -> None:
        with api_server(Answer(201, {"status": {"allowed": allowed}})) as server:
            assert client(server).allowed("create", JOB_SET, namespace="ml") is allowed
        assert server.asked[0].body["spec"]["resourceAttributes"] == {
            "verb": "create",
            "group": "jobset.x-k8s.io",
            "resource": "jobsets",
            "subresource": "",
            "namespace": "ml",
        }

    def test_a_proxy_that_answers_instead(self) -> None:
        page = Answer(body=b"<html>sign in</html>")
        with api_server(page) as server, pytest.raises(BackendError, match=r"no JSON.*proxy"):
            client(server).get(POD, "a", namespace="ml")


class TestWriting:
    def test_create(self) -> None:
        with api_server(Answer(201, POD_DOCUMENT)) as server:
            client(server).create(POD_DOCUMENT)
            client(server).create(POD_DOCUMENT, dry_run=True)
        assert [each.path for each in server.asked] == ["/api/v1/namespaces/ml/pods"] * 2
        assert server.asked[0].query == {"fieldValidation": "Strict"}
        assert server.asked[1].query == {"fieldValidation": "Strict", "dryRun": "All"}
        assert server.asked[0].body == POD_DOCUMENT

    def test_a_kind_that_nobody_knows(self) -> None:
        with pytest.raises(SpecError, match=r"no 'Gang' of 'v9'"):
            kind_of({"apiVersion": "v9", "kind": "Gang"})

    def test_patch(self) -> None:
        with api_server(Answer(body={})) as server:
            client(server).patch(JOB, "j", {"spec": {"suspend": True}}, namespace="ml")
        asked = server.asked[0]
        assert (asked.method, asked.path) == ("PATCH", "/apis/batch/v1/namespaces/ml/jobs/j")
        assert asked.headers["Content-Type"] == "application/merge-patch+json"

    def test_delete(self) -> None:
        with api_server(Answer(body={})) as server:
            assert client(server).delete(
                JOB_SET, "j", namespace="ml", propagation="Foreground", grace_seconds=0, uid="u1"
            )
        assert server.asked[0].body == {
            "propagationPolicy": "Foreground",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": "u1"},
        }

    @pytest.mark.parametrize(
        "answer", [MISSING, status(409, "Conflict", "the UID in the precondition (u1) …")]
    )
    def test_delete_what_is_gone_already(self, answer: Answer) -> None:
        with api_server(answer) as server:
            assert not client(server).delete(POD, "a", namespace="ml", uid="u1")


def _labelled(**labels: str) -> dict[str, Any]:
    return {**POD_DOCUMENT, "metadata": {"name": "a", "namespace": "ml", "labels": labels}}


class TestCredentials:
    def test_that_cannot_be_renewed(self) -> None:
        def gone(_: object) -> None:
            raise FileNotFoundError(2, "No such file or directory", "/var/run/token")

        with api_server(Answer(body={})) as server:
            api = server.api(renew=gone)
            with pytest.raises(
                Forbidden, match=r"the credentials for http\S+ cannot be renewed: .*/var/run/token"
            ):
                Client(api).get(POD, "a", namespace="ml")
        assert not server.asked

    def test_of_another_cluster(self, tmp_path: Path) -> None:
        own, other = Authority(folder=tmp_path / "own"), Authority(folder=tmp_path / "other")
        own.create()
        other.create()
        said = (
            r"https://\S+ is not trusted \(.*\): the kubeconfig's certificate-authority must be that of this"
        )
        with api_server(Answer(body=POD_DOCUMENT), certificate=own.issue("server", "server")) as server:
            server.authority = str(own.certificate)
            assert client(server).get(POD, "a", namespace="ml") == POD_DOCUMENT
            server.authority = str(other.certificate)
            with pytest.raises(BackendError, match=said):
                client(server).get(POD, "a", namespace="ml")


class TestPatience:
    AWAY = (
        Answer(0),
        status(503, "ServiceUnavailable", "apiserver is shutting down"),
        status(500, "InternalError", "etcdserver: leader changed"),
        status(429, "TooManyRequests", "the server has received too many requests"),
    )

    def test_an_api_server_that_comes_back(self) -> None:
        time = Time()
        with api_server(*self.AWAY, Answer(body=POD_DOCUMENT)) as server:
            assert client(server, time).get(POD, "a", namespace="ml") == POD_DOCUMENT
        assert len(time.slept) == len(self.AWAY)
        assert all(one < two for one, two in itertools.pairwise(time.slept))

    @pytest.mark.parametrize("answer", AWAY, ids=["cut", "503", "500", "429"])
    def test_one_that_does_not(self, answer: Answer) -> None:
        time = Time()
        with api_server(answer) as server, pytest.raises(Unreachable) as raised:
            client(server, time, patience_seconds=20).get(POD, "a", namespace="ml")
        assert str(raised.value).startswith("get pods a in namespace ml: ")
        assert "(asked for " in str(raised.value)
        assert time.now <= 20
        assert max(time.slept) <= 5.0

    def test_a_port_where_nobody_listens(self) -> None:
        with api_server(Answer(body={})) as server:
            pass
        time = Time()
        with pytest.raises(Unreachable, match=f"{server.host} does not answer: Connection refused"):
            client(server, time, patience_seconds=1).get(POD, "a", namespace="ml")

    def test_a_create_whose_answer_got_lost(self) -> None:
        """The first was heard; the second finds what it made."""
        exists = status(409, "AlreadyExists", 'pods "a" already exists')
        with api_server(Answer(0), exists) as server, pytest.raises(Conflict, match="already exists"):
            client(server).create(POD_DOCUMENT)

    @pytest.mark.parametrize(
        "call",
        [
            lambda it: it.get(POD, "a", namespace="ml"),
            lambda it: it.create(POD_DOCUMENT),
            lambda it: it.delete(POD, "a", namespace="ml"),
            lambda it: it.find(POD, namespace="ml"),
        ],
    )
    def test_a_refusal_is_not_asked_again(self, call: Callable[[Client], object]) -> None:
        refused = status(403, "Forbidden", NO_RIGHTS)
        with api_server(refused, READY, refused, READY) as server:
            with pytest.raises(Forbidden, match="may not list pods in namespace ml"):
                call(client(server))
            first, ready, again = server.asked
        assert (ready.path, again.path) == ("/readyz", first.path)

    def test_an_api_server_that_has_just_started_forbids_everything_for_some_seconds(self) -> None:
        refused = status(403, "Forbidden", NO_RIGHTS)
        starting = status(500, "InternalError", "[-]informer-sync failed: reason withheld")
        hidden = status(403, "Forbidden", 'User "airflow" cannot get path "/readyz"')
        answers = refused, hidden, refused, starting, refused, READY, Answer(body=POD_DOCUMENT)
        with api_server(*answers) as server:
            assert client(server).get(POD, "a", namespace="ml") == POD_DOCUMENT

    def test_credentials_that_do_not_count_are_not_tried_for_long(self) -> None:
        with api_server(status(401, "Unauthorized", "Unauthorized")) as server, pytest.raises(Forbidden):
            client(server).get(POD, "a", namespace="ml")
        assert [asked.path.rpartition("/")[2] for asked in server.asked] == ["a", "readyz", "a"]


READY = Answer(body=b"ok")
NO_RIGHTS = (
    'pods is forbidden: User "system:serviceaccount:ml:airflow" cannot list resource "pods" '
    'in API group "" in the namespace "ml"'
)


ROUTE = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "HTTPRoute",
    "metadata": {"name": "a", "namespace": "ml", "resourceVersion": "7"},
}


class TestApplying:
    def test_fields_are_ours_whoever_set_them(self) -> None:
        with api_server(Answer(body=ROUTE)) as server:
            assert client(server).apply(ROUTE) == ROUTE
        (asked,) = server.asked
        assert (asked.method, asked.body) == ("PATCH", ROUTE)
        assert asked.path == "/apis/gateway.networking.k8s.io/v1/namespaces/ml/httproutes/a"
        assert asked.query == {"fieldManager": "muster", "force": "true", "fieldValidation": "Strict"}
        assert asked.headers["Content-Type"] == "application/apply-patch+yaml"

    def test_what_was_written_meanwhile_is_a_conflict(self) -> None:
        with api_server(status(409, "Conflict", "the object has been modified")) as server:
            with pytest.raises(Conflict, match="has been modified"):
                client(server).apply(ROUTE)
            with pytest.raises(Conflict, match="has been modified"):
                client(server).delete(HTTP_ROUTE, "a", namespace="ml", version="7")
        assert server.asked[1].body["preconditions"] == {"resourceVersion": "7"}


class TestProxied:
    def test_whatever_a_pod_answers_is_an_answer(self) -> None:
        with api_server(Answer(500, {"error": "no"})) as server:
            asked = ApiRequest(verb="create", kind=POD, name="a:8080", namespace="ml", subresource="proxy")
            path = POD.path(namespace="ml", name="a:8080", subresource="proxy") + "/v2/x"
            found = client(server).proxied(asked, path=path, body=b"{}", seconds=1)
        assert found == (500, b'{"error": "no"}')
        assert server.asked[0].path == "/api/v1/namespaces/ml/pods/a%3A8080/proxy/v2/x"
        assert (server.asked[0].method, server.asked[0].body) == ("POST", {})

    def test_an_api_server_that_is_away_is_said_to_be(self) -> None:
        asked = ApiRequest(verb="get", kind=POD, name="a:8080", namespace="ml", subresource="proxy")
        with api_server(Answer(code=0)) as server, pytest.raises(Unreachable):
            client(server).proxied(asked, path="/x", seconds=1)
