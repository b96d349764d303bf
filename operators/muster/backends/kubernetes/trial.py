"""Tries what the account of those who submit jobs is refused: ``python -m muster.backends.kubernetes.trial``.

`helm test` runs it with that account. A job as muster writes it has to be taken; each of the same objects that reaches for
another account, for the store's keys or for the store's claim has to be refused, by the chart's policy
(``helm/muster/templates/admission.yaml``). All of it is a dry run: nothing is made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

from muster.backends.kubernetes.api.access import connect, program
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import SECRET, Document
from muster.backends.kubernetes.cluster.facts import Cluster
from muster.backends.kubernetes.lifecycle.submitting import try_out
from muster.backends.kubernetes.manifests.gangs import Documents, documents
from muster.backends.kubernetes.manifests.wiring import Submission
from muster.backends.kubernetes.serving.kinds import platform_of
from muster.backends.kubernetes.serving.server import WORKERS, Server
from muster.backends.kubernetes.site import ClusterSite, PlatformOwner
from muster.core.data import OutputTarget, Pinned
from muster.core.deployment import DeploymentSpec, RequestLog
from muster.core.errors import Forbidden, MusterError, SpecError
from muster.core.job import JobSpec, Role

POLICY = "ValidatingAdmissionPolicy"
_JOB_ID = "trial"
_DIGEST = "b3:" + 64 * "0"
_KEYS = "keys"
# Where in an object the spec of its pods is; all of a Pod is one.
_PODS: Mapping[str, tuple[str | int, ...]] = {
    "Job": ("spec", "template", "spec"),
    "JobSet": ("spec", "replicatedJobs", 0, "template", "spec", "template", "spec"),
    "InferenceService": ("spec", "predictor"),
    "SeldonDeployment": ("spec", "predictors", 0, "componentSpecs", 0, "spec"),
}
# What KServe would fetch, with accounts and Secrets of its own choice.
_OF_KIND: Mapping[str, Mapping[str, Callable[[Document], None]]] = {
    "InferenceService": {
        "with a storage URI": lambda pod: _main(pod)["env"].append(
            {"name": "STORAGE_URI", "value": "pvc://muster-store/"}
        ),
        "with a worker of another account": lambda pod: pod.update(
            workerSpec={"containers": [deepcopy(_main(pod))], "serviceAccountName": "default"}
        ),
        "with an author's code that sees its requests": lambda pod: pod["containers"].append(
            {**deepcopy(_main(pod)), "name": WORKERS}
        ),
    }
}


class RightsTrialFailed(MusterError):
    """An account may do what it must not, or may not do its work."""


MustBeRefused = tuple[str, Document]
"""An object that has to be refused, after what it is, for people."""


@dataclass(frozen=True, kw_only=True)
class TrialPlace:
    """Where it is tried.

    :param keys: the Secret with the store's keys.
    :param account: a service account with rights of its own, which no pod of a job may have; pods of it are labelled so.
    :param claims: what no pod of a job may mount, beside the store's.
    """

    site: ClusterSite
    keys: str
    account: str
    claims: tuple[str, ...] = ()


def job(place: TrialPlace, *, job_sets: bool) -> Documents:
    """Return the objects of a small job, as muster writes them: a JobSet, or a Job."""
    spec = JobSpec(
        name=_JOB_ID,
        image=_JOB_ID,
        image_digest=_DIGEST,
        roles=(Role(entrypoint="trial:trial"),),
        outputs={"out": OutputTarget(volume="muster/trial")},
    )
    cluster = Cluster(namespace=place.site.namespace, job_set=job_sets)
    submission = Submission(job=spec, job_id=_JOB_ID, attempt=1, site=place.site, cluster=cluster)
    return documents(submission, token="")


def server(place: TrialPlace) -> Document:
    """Return the object of a model server that keeps requests, as muster writes it for the site's serving platform."""
    spec = DeploymentSpec(
        name=_JOB_ID,
        model=Pinned(address="volume://muster/trial@1", digest=_DIGEST),
        image=_JOB_ID,
        image_digest=_DIGEST,
        log=RequestLog(),
    )
    return platform_of(place.site).manifest(Server(spec=spec, revision="r1", site=place.site))


def taken(place: TrialPlace) -> Iterator[Documents]:
    """Yield what muster itself makes, which has to be taken."""
    for job_sets in (False, True):
        yield job(place, job_sets=job_sets)
    if place.site.serving is not None:
        yield Documents(owner=server(place), owned=())


def attempts(place: TrialPlace) -> Iterator[MustBeRefused]:
    """Yield every object that has to be refused."""
    for made in taken(place):
        yield from attempts_of(made.owner, place)
    yield from _secrets(place)


def attempts_of(owner: Document, place: TrialPlace) -> Iterator[MustBeRefused]:
    """Yield what has to be refused of one kind of object. :param owner: one that is taken."""
    for what, reach in {**_reaches(place), **_OF_KIND.get(owner["kind"], {})}.items():
        document = deepcopy(owner)
        reach(pod_of(document))
        yield f"a {owner['kind']} {what}", document
    document = deepcopy(owner)
    platform = owner["kind"] == "InferenceService"  # KServe gives an object's own labels to its pods
    labelled = document if platform else _at(document, _PODS.get(owner["kind"], ("spec",))[:-1])
    labelled.setdefault("metadata", {}).setdefault("labels", {})["app"] = place.account
    yield f"a {owner['kind']} with a label of muster's own pods", document


def pod_of(document: Document) -> Document:
    """Return the spec of the pods of an object, a Pod too: a part of the document, to be changed."""
    return _at(document, _PODS.get(document["kind"], ("spec",)))


def _at(document: Document, path: tuple[str | int, ...]) -> Document:
    for part in path:
        document = document[part]  # type: ignore[index]
    return document


def _reaches(place: TrialPlace) -> dict[str, Callable[[Document], None]]:
    """What a pod's spec is changed to, by what it is then."""
    keys = {"secretName": place.keys}
    key = {"valueFrom": {"secretKeyRef": {"name": place.keys, "key": _KEYS}}}
    projected = {"sources": [{"secret": {"name": place.keys}}]}
    csi = {"driver": "secrets.example", "nodePublishSecretRef": {"name": place.keys}}
    claim = {"claimName": place.site.claim}
    return {
        f"under service account {place.account}": lambda pod: pod.update(serviceAccountName=place.account),
        "with a token of Kubernetes'": lambda pod: pod.update(automountServiceAccountToken=True),
        "with a projected token": lambda pod: _mounted(
            pod, projected={"sources": [{"serviceAccountToken": {"path": "token"}}]}
        ),
        "with the store's keys as a volume": lambda pod: _mounted(pod, secret=keys),
        "with the store's keys in a projected volume": lambda pod: _mounted(pod, projected=projected),
        "with the store's keys through CSI": lambda pod: _mounted(pod, csi=csi),
        "with the store's keys in a variable": lambda pod: _main(pod)["env"].append({"name": "X", **key}),
        "with the store's keys in a variable of an init container": lambda pod: pod.setdefault(
            "initContainers", []
        ).append({**deepcopy(_main(pod)), "name": "first", "env": [{"name": "X", **key}]}),
        "with the store's keys as its environment": lambda pod: _main(pod).update(
            envFrom=[{"secretRef": {"name": place.keys}}]
        ),
        "with another job's Secret": lambda pod: _mounted(pod, secret={"secretName": "muster-other-abcdef"}),
        **{
            f"with the whole of claim {name}": partial(_mounted, persistentVolumeClaim={"claimName": name})
            for name in (place.site.claim, *place.claims)
        },
        "with another job's staging": lambda pod: _mounted(
            pod,
            persistentVolumeClaim=claim,
            mount={"subPathExpr": place.site.on_claim("staging/other/1.0/main-0")},
        ),
        "with another deployment's requests": lambda pod: _mounted(
            pod, persistentVolumeClaim=claim, mount={"subPath": place.site.on_claim("predictions/other")}
        ),
        "with a version that it could write": lambda pod: _mounted(
            pod, persistentVolumeClaim=claim, mount={"subPath": place.site.on_claim("v/a/b/1/data")}
        ),
    }


def _main(pod: Document) -> Document:
    main: Document = pod["containers"][0]
    return main


def _mounted(pod: Document, *, mount: Document | None = None, **volume: Document) -> None:
    pod["volumes"].append({"name": "reached", **volume})
    _main(pod)["volumeMounts"].append({"name": "reached", "mountPath": "/reached", **(mount or {})})


def _secrets(place: TrialPlace) -> Iterator[MustBeRefused]:
    def secret(name: str, kind: str, **annotations: str) -> Document:
        where = {"name": name, "namespace": place.site.namespace, "annotations": annotations}
        return SECRET.document(where, type=kind)

    account = {"kubernetes.io/service-account.name": place.account}
    token = secret("muster-trial-abcdef", "kubernetes.io/service-account-token", **account)
    yield f"a Secret with a token of service account {place.account}", token
    yield "a Secret that no job has", secret("trial", "Opaque")
    yield "a Secret in the place of the store's keys", secret(place.keys, "Opaque")


def run(client: Client, place: TrialPlace) -> Iterator[str]:
    """Try everything, and say so. :raises MusterError: something was taken, or a job was not."""
    for made in taken(place):
        try_out(client, made)
        yield f"as muster writes it, it is taken: a {made.owner['kind']}"
    for what, document in attempts(place):
        said = refusal(client, document)
        if POLICY not in said:
            raise RightsTrialFailed(
                f"{what} is not refused by the chart's policy ({said or 'it was taken'}): see that "
                f"`kubectl get validatingadmissionpolicies,validatingadmissionpolicybindings` shows it, bound"
            )
        yield f"refused: {what}"


def refusal(client: Client, document: Document) -> str:
    """Return with which words an object is refused, as a dry run; empty where it is taken."""
    try:
        client.create(document, dry_run=True)
    except (SpecError, Forbidden) as error:
        return str(error)
    return ""


def main(arguments: Sequence[str]) -> int:
    """Try it; the exit code says whether all went well."""
    parser = program(
        "muster.backends.kubernetes.trial",
        "See that the account which submits jobs reaches neither the store's keys nor another account.",
    )
    parser.add_argument("--claim", required=True, help="the store's")
    parser.add_argument("--folder", required=True, help="of the store, on that claim")
    parser.add_argument("--service-account", required=True, help="of the pods of jobs")
    parser.add_argument("--keys", required=True, help="the Secret with the store's keys")
    parser.add_argument("--account", required=True, help="a service account that has rights")
    parser.add_argument("--closed", action="append", default=[], help="another claim that no job may mount")
    parser.add_argument(
        "--serving",
        type=PlatformOwner,
        choices=list(PlatformOwner),
        help="what serves models; left out: nothing does",
    )
    asked = parser.parse_args(arguments)
    try:
        site = ClusterSite(
            namespace=asked.namespace,
            claim=asked.claim,
            folder=asked.folder,
            store_url="http://trial",
            images={_JOB_ID: _JOB_ID},
            service_account=asked.service_account,
            serving=asked.serving,
        )
        place = TrialPlace(site=site, keys=asked.keys, account=asked.account, claims=tuple(asked.closed))
        for step in run(Client(connect(kubeconfig=asked.kubeconfig)), place):
            sys.stdout.write(f"ok: {step}\n")
    except MusterError as error:
        sys.stdout.write(f"FAILED: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
