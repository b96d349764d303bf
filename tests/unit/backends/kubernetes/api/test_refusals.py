from __future__ import annotations

import pytest

from muster.backends.kubernetes.api.kinds import JOB_SET, Kind
from muster.backends.kubernetes.api.refusals import ApiRequest, Expired, NotServed, read_status, refusal
from muster.core.errors import (
    BackendError,
    Conflict,
    Forbidden,
    MusterError,
    NotFound,
    SpecError,
    Unreachable,
)

CREATE = ApiRequest(verb="create", kind=JOB_SET, name="tr1", namespace="ml")
ASKED = "create jobsets.jobset.x-k8s.io tr1 in namespace ml"

CASES = [
    (
        403,
        {
            "message": 'jobsets.jobset.x-k8s.io is forbidden: User "system:serviceaccount:ml:airflow" cannot create '
            'resource "jobsets" in API group "jobset.x-k8s.io" in the namespace "ml"',
            "reason": "Forbidden",
            "details": {"group": "jobset.x-k8s.io", "kind": "jobsets"},
        },
        Forbidden,
        (
            "system:serviceaccount:ml:airflow may not create jobsets in namespace ml: give it a Role with "
            'apiGroups: ["jobset.x-k8s.io"], resources: ["jobsets"], verbs: ["create"]'
        ),
    ),
    (
        403,
        {
            "message": 'jobsets.jobset.x-k8s.io "tr1" is forbidden: unable to create new content in namespace ml '
            "because it is being terminated",
            "reason": "Forbidden",
            "details": {
                "name": "tr1",
                "kind": "jobsets",
                "causes": [{"reason": "NamespaceTerminating", "message": "…", "field": "metadata.namespace"}],
            },
        },
        SpecError,
        (
            f"{ASKED}: namespace ml is being deleted and takes nothing new: "
            "use another, or make it again when it is gone"
        ),
    ),
    (
        403,
        {
            "message": 'jobsets.jobset.x-k8s.io "tr1" is forbidden: exceeded quota: objects, requested: '
            "count/jobsets=1, used: count/jobsets=9, limited: count/jobsets=9",
            "reason": "Forbidden",
        },
        BackendError,
        (
            f'{ASKED}: the namespace\'s ResourceQuota is used up: jobsets.jobset.x-k8s.io "tr1" is forbidden: exceeded '
            "quota: objects, requested: count/jobsets=1, used: count/jobsets=9, limited: count/jobsets=9"
        ),
    ),
    (
        403,
        {
            "message": 'pods "a" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
            "reason": "Forbidden",
        },
        SpecError,
        (
            f'{ASKED}: the cluster does not admit it: pods "a" is forbidden: violates PodSecurity '
            '"restricted:latest": runAsNonRoot != true'
        ),
    ),
    (
        403,
        {"message": 'admission webhook "vjobset.kb.io" denied the request: queue name is immutable'},
        SpecError,
        f"{ASKED}: webhook vjobset.kb.io refuses it: queue name is immutable",
    ),
    (
        401,
        {"message": "Unauthorized", "reason": "Unauthorized"},
        Forbidden,
        (
            f"{ASKED}: the API server does not accept these credentials (Unauthorized): "
            "renew the kubeconfig's, or the service account's token"
        ),
    ),
    (
        404,
        {
            "message": 'namespaces "ml" not found',
            "reason": "NotFound",
            "details": {"name": "ml", "kind": "namespaces"},
        },
        SpecError,
        f"{ASKED}: the cluster has no namespace ml: make it, or name another",
    ),
    (
        404,
        {"message": "404 page not found"},
        NotServed,
        f"{ASKED}: the cluster serves no JobSet of jobset.x-k8s.io/v1alpha2: install it",
    ),
    (
        404,
        {"message": 'jobsets "tr1" not found', "details": {"name": "tr1", "kind": "jobsets"}},
        NotFound,
        f'{ASKED}: jobsets "tr1" not found',
    ),
    (409, {"message": 'jobsets "tr1" already exists'}, Conflict, f'{ASKED}: jobsets "tr1" already exists'),
    (
        410,
        {"message": "too old resource version: 1 (9)"},
        Expired,
        f"{ASKED}: too old resource version: 1 (9)",
    ),
    (
        422,
        {
            "message": 'JobSet "tr1" is invalid: [spec.a: Invalid value, spec.b: Required value, …]',
            "reason": "Invalid",
            "details": {
                "causes": [
                    {"reason": "FieldValueInvalid", "message": f"wrong {field}", "field": f"spec.{field}"}
                    for field in "abcd"
                ]
            },
        },
        SpecError,
        f"{ASKED}: the API server refuses it: spec.a: wrong a; spec.b: wrong b; spec.c: wrong c and 1 more",
    ),
    (
        400,
        {"message": 'strict decoding error: unknown field "spec.gang"'},
        SpecError,
        f'{ASKED}: the API server refuses it: strict decoding error: unknown field "spec.gang"',
    ),
    (
        500,
        {
            "message": 'Internal error occurred: failed calling webhook "mjobset.kb.io": failed to call webhook: Post '
            '"https://kueue-webhook.kueue-system.svc:443/mutate?timeout=10s": dial tcp 127.0.0.1:9444: connect: connection refused'
        },
        Unreachable,
        (
            f"{ASKED}: Kueue's webhook mjobset.kb.io does not answer, so the API server admits nothing "
            '(failed to call webhook: Post "https://kueue-webhook.kueue-system.svc:443/mutate?timeout=10s": dial tcp 127.0.0.1:9444: connect: '
            "connection refused); nothing was made: see that its pods run, then try again"
        ),
    ),
    (
        503,
        {"message": "shutting down"},
        Unreachable,
        f"{ASKED}: the API server answers HTTP 503: shutting down",
    ),
    (
        403,
        {"message": 'forbidden: User "jo" cannot get path "/apis"', "reason": "Forbidden"},
        Forbidden,
        "jo may not get /apis: bind it to the ClusterRole system:discovery",
    ),
    (
        403,
        {"message": 'jobsets.jobset.x-k8s.io "tr1" is forbidden: not yet ready to handle request'},
        Unreachable,
        (
            f'{ASKED}: the API server is not ready: jobsets.jobset.x-k8s.io "tr1" is forbidden: not yet ready '
            "to handle request"
        ),
    ),
    (418, {}, BackendError, f"{ASKED}: the API server answers HTTP 418: HTTP 418"),
]


@pytest.mark.parametrize(("code", "status", "kind", "message"), CASES)
def test_each_refusal(code: int, status: dict[str, object], kind: type[MusterError], message: str) -> None:
    error = refusal(CREATE, code, status)
    assert type(error) is kind
    assert str(error) == message


def test_of_the_whole_cluster() -> None:
    said = 'nodes is forbidden: User "jo" cannot list resource "nodes" in API group "" at the cluster scope'
    nodes = ApiRequest(
        verb="list", kind=Kind(api_version="v1", name="Node", plural="nodes", namespaced=False)
    )
    assert str(refusal(nodes, 403, {"message": said})) == (
        "jo may not list nodes in the whole cluster: give it a ClusterRole with "
        'apiGroups: [""], resources: ["nodes"], verbs: ["list"]'
    )


def test_nothing_hostile_gets_out() -> None:
    error = refusal(CREATE, 422, {"message": "a\nb\x1b[31m" + 1000 * "x"})
    assert "\n" not in str(error)
    assert "\x1b" not in str(error)
    assert len(str(error)) < 600


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"message": "no"}', {"message": "no"}),
        (b"<html>", {"message": "<html>"}),
        (b"[1]", {"message": "[1]"}),
        (b"\xff", {"message": "�"}),
    ],
)
def test_what_an_answer_holds(body: bytes, status: dict[str, str]) -> None:
    assert read_status(body) == status
