"""The chart renders what was reviewed, which the test cluster runs with, and what a cluster's own schemas take."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml
from tests import golden
from tests.chart import helm, schemas
from tests.chart.examples import CLUSTER, EXAMPLES, FOLDER, LEAST, WHOLE, files, written
from tests.chart.helm import CHART, Document, named, refused, render
from tests.unit.volumes.service.process import Service

import muster
from muster.backends.kubernetes.manifests.wiring import check_secret_name
from muster.core.errors import SpecError

pytestmark = pytest.mark.chart

CLUSTER_WIDE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "ClusterQueue",
    "Cohort",
    "ResourceFlavor",
    "Topology",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
} | {"WorkloadPriorityClass", "PriorityClass"}


def test_the_chart_renders_what_was_reviewed() -> None:
    assert files() == golden.kept(FOLDER), "python -m tests.chart.examples; git diff"


def test_lint_finds_nothing() -> None:
    done = helm.run("lint", "--strict", str(CHART), f"--values={CLUSTER}")
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout
    assert "[ERROR]" not in done.stdout


def test_lint_finds_what_an_install_would_refuse() -> None:
    """Though lint takes a template that fails for a remark."""
    done = helm.run("lint", "--strict", str(CHART))
    assert done.returncode == 1, done.stdout
    assert "image is not set" in done.stderr + done.stdout


def test_its_version_is_muster_s() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == muster.__version__


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the schemas of all kinds."""
    return schemas.write(tmp_path_factory.mktemp("schemas"), helm.programs())


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_cluster_s_own_schemas_take_it(name: str, known: Path) -> None:
    """Strictly: a field that no schema knows is refused. The schemas are those of the modules that are built here."""
    done = _conform(known, written(name))
    found = json.loads(done.stdout)
    assert found.get("resources", []) == []
    assert done.returncode == 0
    count = len(list(filter(None, yaml.safe_load_all(written(name)))))
    assert found["summary"] == {"valid": count, "invalid": 0, "errors": 0, "skipped": 0}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("replicas: 2", "replica: 2"),
        ("concurrencyPolicy: Forbid", "concurrencyPolicy: [Forbid]"),
        ("nominalQuota: 8", "nominalQuota: {}"),
        ("nodeLabel:", "label:"),
    ],
)
def test_those_schemas_are_on_guard(old: str, new: str, known: Path) -> None:
    text = written("least")
    assert old in text
    done = _conform(known, text.replace(old, new, 1))
    assert json.loads(done.stdout)["summary"]["invalid"] == 1


def _conform(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    words = ("-strict", "-summary", "-output=json", f"-schema-location={folder}/{schemas.NAMING}")
    command = [str(helm.programs() / "kubeconform"), *words]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def test_without_what_is_cluster_wide_nothing_is() -> None:
    kinds = {each["kind"] for each in render({**WHOLE, "clusterScoped": False, "operator": {}})}
    assert not kinds & CLUSTER_WIDE
    assert {"LocalQueue", "Role", "RoleBinding", "Deployment"} <= kinds


def test_another_release_shares_no_name_of_the_cluster() -> None:
    """Two teams, two releases: what belongs to the whole cluster is called after the release, or made by one of them."""
    one = {_key(each) for each in render(LEAST)}
    other = render({**LEAST, "queues": {"enabled": False}}, release="team-b", namespace="team-b")
    assert not {_key(each) for each in other} & {key for key in one if key[0] in CLUSTER_WIDE}


def test_another_team_s_queue_is_one_of_quotas_that_are_there() -> None:
    queues = {"define": False, "teams": [{"name": "team-b"}]}
    made = [each for each in render({**LEAST, "queues": queues}) if "kueue" in each["apiVersion"]]
    assert [(each["kind"], each["spec"]) for each in made] == [("LocalQueue", {"clusterQueue": "team-b"})]


def test_a_team_of_another_namespace_queues_there_alone() -> None:
    """Its quotas are made here, and its LocalQueue by its own release: who is not of the team does not spend them."""
    (ours,) = LEAST["queues"]["teams"]
    teams = [{**ours, "name": "team-b", "localQueue": False}, ours]
    made = [
        (each["kind"], each["metadata"]["name"])
        for each in render({**LEAST, "queues": {**LEAST["queues"], "teams": teams}})
    ]
    assert {("ClusterQueue", "team-a"), ("ClusterQueue", "team-b"), ("LocalQueue", "team-a")} <= set(made)
    assert ("LocalQueue", "team-b") not in made


def test_a_job_that_has_to_borrow_takes_the_place_of_trials_by_default_and_of_nothing_else() -> None:
    """A search fills what its team may borrow, and the gang that is due tonight needs more than its own quota."""
    found = render(LEAST)
    (policy,) = [each["spec"]["preemption"] for each in found if each["kind"] == "ClusterQueue"]
    low, normal = (named(found, "WorkloadPriorityClass", name)["value"] for name in ("low", "normal"))
    assert policy["borrowWithinCohort"]["policy"] == "LowerPriority"
    assert low <= policy["borrowWithinCohort"]["maxPriorityThreshold"] < normal


def test_what_is_applied_without_helm_has_no_pod_that_only_helm_starts() -> None:
    """`kubectl apply` would start it at once, and could not change it with the next release."""
    page = (helm.ROOT / "docs" / "howto" / "cluster-setup.md").read_text()
    (option,) = re.findall(r"`helm template muster helm/muster (\S+) --namespace NAMESPACE", page)
    assert not [each for each in render(LEAST, option) if each["kind"] == "Pod"]


def test_a_team_that_never_reclaims_does_as_the_refusal_says() -> None:
    preemption = {"reclaimWithinCohort": "Never", "borrowWithinCohort": None}
    found = render({**LEAST, "queues": {**LEAST["queues"], "preemption": preemption}})
    (policy,) = [each["spec"]["preemption"] for each in found if each["kind"] == "ClusterQueue"]
    assert policy["reclaimWithinCohort"] == "Never"
    assert not policy.get("borrowWithinCohort")


def test_without_kueue_priorities_are_those_of_pods() -> None:
    """`normal` is what a pod has that names none, so that no job of that priority takes the place of a foreign pod."""
    found = render({**LEAST, "queues": {"enabled": False}})
    classes = {each["metadata"]["name"]: each["value"] for each in found if each["kind"] == "PriorityClass"}
    assert classes == {"high": 900, "normal": 0, "low": -90}
    assert ("list", "scheduling.k8s.io", "priorityclasses") in _given(
        named(found, "ClusterRole", "muster-reader")
    )
    for other in ({"enabled": False, "define": False}, LEAST["queues"]):
        assert "PriorityClass" not in {each["kind"] for each in render({**LEAST, "queues": other})}
    kueue = ("--api-versions", "kueue.x-k8s.io/v1beta2")
    found = render({**LEAST, "queues": {"enabled": False}}, *kueue)
    assert "PriorityClass" not in {each["kind"] for each in found}  # its queues are made elsewhere


def test_a_changed_config_makes_a_new_pod() -> None:
    """Every workload that mounts a ConfigMap of the chart: a pod that stays goes on with what it read at its start."""
    before, after = (
        {
            each["metadata"]["name"]: _pod_template(each)["metadata"]["annotations"]["checksum/config"]
            for each in render({**WHOLE, "store": {**WHOLE["store"], "folder": folder}})
            if (spec := _pod_spec(each))
            and any(
                "configMap" in volume and volume["configMap"]["name"] != "site-ca"
                for volume in spec["volumes"]
            )
        }
        for folder in ("one", "two")
    )
    assert before.keys() == {"muster-keeper", "muster-metrics", "muster-gc", "muster-requests"}
    assert all(before[name] != after[name] for name in before)


def test_metrics_learn_of_serving_when_it_is_turned_on() -> None:
    metrics = {"enabled": True}
    policy = {
        "networkPolicy": {
            "scrapers": [{"podSelector": {}}],
            "gateway": [{"podSelector": {}}],
            "apiServer": {"from": [{"podSelector": {}}]},
        }
    }
    notes = [
        named(
            render({**LEAST, **policy, "metrics": metrics, "serving": {"enabled": on}}),
            "Deployment",
            "muster-metrics",
        )["spec"]["template"]["metadata"]["annotations"]
        for on in (False, True)
    ]
    assert notes[0] != notes[1]


def test_the_values_of_the_page_are_taken() -> None:
    """What docs/howto/install-on-a-cluster.md has one write."""
    page = helm.ROOT / "docs" / "howto" / "install-on-a-cluster.md"
    first, more = (
        yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    )
    found = render({**first, **more, "store": LEAST["store"]}, namespace="team-a")
    assert named(found, "LocalQueue", "team-a")
    subjects = {each["name"] for each in named(found, "RoleBinding", "muster-operator")["subjects"]}
    assert subjects == {"muster-operator", "airflow-worker", "airflow-triggerer", "airflow-api-server"}


def test_keys_are_not_made_where_no_cluster_is_asked() -> None:
    """Each rendering would make others. That they are made, once, where one is asked: tests/cluster/test_chart.py."""
    said = refused({**LEAST, "store": {}})
    assert "store.existingSecret is not set, and no cluster is asked" in said
    (made,) = re.findall(r"kubectl create secret generic (\S+) --namespace (\S+)", said)
    (named,) = re.findall(r"set store\.existingSecret=([a-z-]+)", said)
    assert made == (named, "muster-jobs")
    assert not [each for each in render(LEAST) if each["kind"] == "Secret"]


def test_no_job_may_ask_for_the_secret_with_the_keys() -> None:
    found = render(LEAST, release="team-b")
    volumes = named(found, "Deployment", "team-b-store")["spec"]["template"]["spec"]["volumes"]
    (secret,) = [each["secret"]["secretName"] for each in volumes if "secret" in each]
    with pytest.raises(SpecError, match="is muster's own"):
        check_secret_name("secret KEYS", secret)


def test_a_single_store_service_is_one_at_a_time() -> None:
    found = render({**LEAST, "store": {**LEAST["store"], "replicas": 1}})
    spec = named(found, "Deployment", "muster-store")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    budgets = [each["metadata"]["name"] for each in found if each["kind"] == "PodDisruptionBudget"]
    assert budgets == ["muster-reaper"]  # one that may not be away would keep its node from being drained


def test_a_second_store_service_stands_by_on_another_node() -> None:
    found = render(LEAST)
    spec = named(found, "Deployment", "muster-store")["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert named(found, "PodDisruptionBudget", "muster-store")["spec"]["maxUnavailable"] == 1
    (spread,) = spec["template"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == (
        "kubernetes.io/hostname",
        "ScheduleAnyway",
    )
    policy = named(found, "NetworkPolicy", "muster-store")["spec"]
    ours = {"podSelector": {"matchLabels": {"app": "muster-store"}}}
    assert ours in policy["ingress"][0]["from"]
    assert policy["egress"] == [{"to": [ours], "ports": [{"port": 8080, "protocol": "TCP"}]}]


def test_what_is_common_is_on_everything() -> None:
    """Labels on every object, annotations and variables on all of muster's own pods."""
    for each in render(WHOLE):
        assert each["metadata"]["labels"]["cost-center"] == "42", each["metadata"]["name"]
    pods = {each["metadata"]["name"]: (each, spec) for each in render(WHOLE) if (spec := _pod_spec(each))}
    assert pods.keys() == {
        f"muster-{name}"
        for name in (
            "store",
            "metrics",
            "reaper",
            "keeper",
            "gc",
            "requests",
            "test",
            "test-accounts",
            "uninstall",
        )
    }
    for each, spec in pods.values():
        metadata = each["metadata"] if each["kind"] == "Pod" else _pod_template(each)["metadata"]
        assert metadata["labels"]["sidecar.example/inject"] == "false"
        assert metadata["annotations"]["example/scrape"] == "false"
        for container in (
            each for each in spec["containers"] if each["name"] != "read"
        ):  # it reaches nothing
            assert {"name": "SSL_CERT_FILE", "value": "/ca/ca.crt"} in container["env"]
            assert "/ca" in [mount["mountPath"] for mount in container["volumeMounts"]]
        assert "ca" in [volume["name"] for volume in spec["volumes"]]


def test_everything_is_called_after_what_is_said() -> None:
    for each in render({**LEAST, "fullnameOverride": "models"}):
        if "kueue" not in each["apiVersion"]:
            assert each["metadata"]["name"].startswith("models-"), each["kind"]
    assert "fullnameOverride" in refused({**LEAST, "fullnameOverride": "Models"})


# What an account of muster's may make that holds pods, or the means to act as another account; the rest holds neither.
_LOOKED_AT = {
    "jobsets",
    "jobs",
    "secrets",
    "inferenceservices",
    "seldondeployments",
    "services",
    "configmaps",
    "pods/proxy",
    "pods/exec",
    "pods/portforward",
}
_HARMLESS = {"podgroups", "httproutes"}


def test_nobody_runs_commands_in_pods_unless_that_is_said() -> None:
    entering = {(verb, "", f"pods/{what}") for verb in ("get", "create") for what in ("exec", "portforward")}
    assert not entering & _given(named(render(LEAST), "Role", "muster-operator"))
    made = render({**LEAST, "operator": {"exec": True}})
    assert entering <= _given(named(made, "Role", "muster-operator"))


@pytest.mark.parametrize("platform", ["kserve", "seldon"])
@pytest.mark.parametrize("gateway", ["gateways/public", ""])
def test_whatever_an_operator_may_make_is_looked_at(gateway: str, platform: str) -> None:
    serving = {**WHOLE["serving"], "platform": platform, "gateway": gateway}
    made = render({**WHOLE, "serving": serving})
    looked = {
        (group, resource)
        for rule in named(made, "ValidatingAdmissionPolicy", "muster-admission")["spec"]["matchConstraints"][
            "resourceRules"
        ]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    writes = {"create", "patch", "update"}
    given = {each for each in _given(named(made, "Role", "muster-operator")) if each[0] in writes}
    assert {resource for _, _, resource in given} <= _LOOKED_AT | _HARMLESS
    assert {(group, resource) for _, group, resource in given if resource not in _HARMLESS} <= looked
    assert ("", "pods") in looked


def test_accounts_of_others_that_submit_jobs_are_looked_at_too() -> None:
    (condition,) = named(render(WHOLE), "ValidatingAdmissionPolicy", "muster-admission")["spec"][
        "matchConditions"
    ]
    for name in ("muster-operator", "muster-job", "muster-store", "muster-reaper", "muster-keeper"):
        assert f'"system:serviceaccount:muster-jobs:{name}"' in condition["expression"]
    assert '"system:serviceaccount:airflow:airflow-worker"' in condition["expression"]
    assert 'group in ["team-a"]' in condition["expression"]


def test_the_keeper_knows_what_its_settings_say() -> None:
    serving = {**WHOLE["serving"], "keeper": {"settings": {"drain_seconds": 20, "cache": "x"}}}
    config = named(render({**WHOLE, "serving": serving}), "ConfigMap", "muster-keeper")["data"][
        "cluster.toml"
    ]
    found = tomllib.loads(config)
    assert (found["drain_seconds"], found["cache"], found["namespace"]) == (20, "x", "muster-jobs")


def test_no_pod_of_a_job_has_a_label_of_muster_s_own_pods() -> None:
    """What Services and NetworkPolicies select by; that each kind of object is refused is tried on a cluster (trial.py)."""
    made = render({**WHOLE, "fullnameOverride": "other"})
    policy = named(made, "ValidatingAdmissionPolicy", "other-admission")["spec"]
    refusals = [
        each["expression"] for each in policy["validations"] if ".labels['app']" in each["expression"]
    ]
    assert len(refusals) == 1
    assert ".startsWith('other-')" in refusals[0]
    (labelled,) = [each["expression"] for each in policy["variables"] if each["name"] == "labelled"]
    for kind in ("Pod", "Job", "JobSet", "InferenceService", "SeldonDeployment"):
        assert f"request.kind.kind == '{kind}' ? " in labelled


@pytest.mark.parametrize("example", [LEAST, WHOLE], ids=["least", "whole"])
def test_every_pod_keeps_to_pod_security_s_restricted(example: Document) -> None:
    for spec in filter(None, map(_pod_spec, render(example))):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["securityContext"].get("runAsUser") == example.get("user", 10001)
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert container["resources"]["limits"].keys() == {"memory"}


def test_no_pod_has_a_token_but_the_reaper_s_the_keeper_s_the_test_s_and_that_of_an_uninstall() -> None:
    found = {each["metadata"]["name"]: _pod_spec(each) for each in render(WHOLE)}
    told = {
        name: spec["automountServiceAccountToken"]
        for name, spec in found.items()
        if spec and "volumes" in spec
    }
    assert {name for name, yes in told.items() if yes} == {
        "muster-reaper",
        "muster-keeper",
        "muster-test-accounts",
        "muster-uninstall",
    }
    assert {"muster-store", "muster-gc", "muster-test"} <= told.keys()


def test_no_account_may_write_what_it_need_not() -> None:
    """Nothing of the whole cluster is written, no secret is read, and nothing is allowed by a star."""
    for each in render(WHOLE):
        for rule in each.get("rules", ()):
            assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
            if each["kind"] == "ClusterRole":
                assert set(rule["verbs"]) <= {"get", "list", "watch"}
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["create"]


@pytest.mark.parametrize("platform", ["kserve", "seldon"])
@pytest.mark.parametrize("gateway", ["gateways/public", ""])
def test_an_operator_may_do_what_muster_needs_and_nothing_else(gateway: str, platform: str) -> None:
    """The rights are those that ``muster doctor`` asks for, verb by verb."""
    from muster.backends.kubernetes.api.kinds import INFERENCE_SERVICE, SELDON_DEPLOYMENT
    from muster.backends.kubernetes.cluster.discovery import helpful, needed, serving_rights

    kind = {"kserve": INFERENCE_SERVICE, "seldon": SELDON_DEPLOYMENT}[platform]
    serving = {**WHOLE["serving"], "platform": platform, "gateway": gateway}
    made = render({**WHOLE, "serving": serving, "operator": {**WHOLE["operator"], "exec": False}})
    given = _given(named(made, "Role", "muster-operator"))
    assert given == {
        (right.verb, right.kind.group, right.resource)
        for right in (*needed(kueue=True), *serving_rights(kind, gateway=bool(gateway)))
    }
    assert _given(named(made, "ClusterRole", "muster-reader")) == {
        (right.verb, right.kind.group, right.resource) for right in helpful(kueue=True)
    }


def _given(role: Document) -> set[tuple[str, str, str]]:
    return {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a setting of the keeper that the chart writes": (
        {"serving": {"keeper": {"settings": {"namespace": "x"}}}},
        "serving.keeper.settings has namespace, which the chart writes itself",
    ),
    "a setting of the keeper that the chart writes from a value": (
        {"serving": {"keeper": {"settings": {"user": "any"}}}},
        "serving.keeper.settings has user, which the chart writes itself",
    ),
    "a setting of the keeper that is no name": (
        {"serving": {"keeper": {"settings": {"a b": 1}}}},
        'serving.keeper.settings: a name is "a b": need one of a cluster file',
    ),
    "no image": (
        {"image": ""},
        "image is not set: `muster images build muster --push REGISTRY` prints what to give",
    ),
    "image without a tag": (
        {"image": "registry.example/muster"},
        'image is "registry.example/muster": need an image with its tag',
    ),
    "image on two lines": ({"image": "a:1\nb"}, "need an image with its tag"),
    "a team that never reclaims and takes what is borrowed": (
        {"queues": {**LEAST["queues"], "preemption": {"reclaimWithinCohort": "Never"}}},
        "set queues.preemption.borrowWithinCohort=null",
    ),
    "keys that any job may read": (
        {"store": {"existingSecret": "keys"}},
        "store.existingSecret is keys: its keys sign all tokens, and a job may read any Secret of its namespace",
    ),
    "an unknown value": (
        {"store": {"replica": 2}},
        "at '/store': additional properties 'replica' not allowed",
    ),
    "three stores": ({"store": {"replicas": 3}}, "at '/store/replicas': maximum: got 3, want 2"),
    "a toleration of nothing": (
        {"store": {"tolerations": [{"foo": "bar"}]}},
        "at '/store/tolerations/0': additional properties 'foo' not allowed",
    ),
    "an affinity to nothing": (
        {"gc": {"affinity": {"node": {}}}},
        "at '/gc/affinity': additional properties 'node' not allowed",
    ),
    "a peer that is none": (
        {"networkPolicy": {"clients": [{"ipBlock": {"cird": "10.0.0.0/8"}}]}},
        "at '/networkPolicy/clients/0/ipBlock'",
    ),
    "a probe that asks something else": (
        {"store": {"readinessProbe": {"exec": {}}}},
        "at '/store/readinessProbe': additional properties 'exec' not allowed",
    ),
    "a claim of a hundred bytes": (
        {"claim": {"size": 100}},
        "claim.size is 100: a number alone is bytes; give it a unit, such as 100Gi",
    ),
    "jobs under an account with rights": (
        {"admission": {"serviceAccounts": ["muster-reaper"]}},
        "admission.serviceAccounts has muster-reaper, which has rights, or sees the whole store",
    ),
    "a label by which pods are found": (
        {"podLabels": {"app": "mine"}},
        "podLabels has app, by which Services and NetworkPolicies find pods",
    ),
    "a label that the chart writes": (
        {"commonLabels": {"app.kubernetes.io/part-of": "mine"}},
        "commonLabels has app.kubernetes.io/part-of, which the chart writes itself",
    ),
    "a label of pods that is common": (
        {"commonLabels": {"team": "a"}, "podLabels": {"team": "b"}},
        "podLabels has team, which commonLabels puts on pods already",
    ),
    "a volume of our own": (
        {"extraVolumes": [{"name": "keys", "emptyDir": {}}]},
        "at '/extraVolumes/0/name'",
    ),
    "a misspelt group": ({"queue": {}}, "additional properties 'queue' not allowed"),
    "root": ({"user": 0}, "at '/user': minimum: got 0, want 1"),
    "a claim of no size": (
        {"claim": {"size": "lots"}},
        'claim.size is "lots": need an amount as Kubernetes writes it',
    ),
    "a folder outside": (
        {"store": {"folder": "../x"}},
        'store.folder is "../x": need a plain path on the claim',
    ),
    "an absolute folder": ({"store": {"folder": "/x"}}, "need a plain path on the claim"),
    "no schedule": (
        {"gc": {"schedule": "often"}},
        'gc.schedule is "often": need minute hour day month weekday',
    ),
    "no schedule of requests": (
        {"serving": {"requests": {"schedule": "often"}}},
        'serving.requests.schedule is "often": need minute hour day month weekday',
    ),
    "nothing kept": ({"gc": {"keep": 0}}, "at '/gc/keep': minimum: got 0, want 1"),
    "no teams": ({"queues": {"teams": []}}, "queues.teams is empty: name each team with its quotas"),
    "a quota of no flavor": (
        {"queues": {"flavors": [{"name": "gpu"}], "teams": LEAST["queues"]["teams"]}},
        "queues.teams: team team-a has a quota of flavor cpu, and queues.flavors has gpu",
    ),
    "a team without quotas": (
        {"queues": {"teams": [{"name": "team-b"}]}},
        "queues.teams: team team-b has no quotas: say what it may use of each flavor",
    ),
    "a limit of borrowing without a lender": (
        {
            "queues": {
                "teams": [
                    {
                        "name": "team-a",
                        "quotas": [
                            {"flavor": "cpu", "cpu": 1, "memory": "1Gi", "borrowingLimit": {"cpu": 1}}
                        ],
                    }
                ]
            }
        },
        "queues.teams: team team-a limits what it borrows or lends of flavor cpu, and has no cohort to do so in",
    ),
    "two flavors of a name": (
        {"queues": {"flavors": [{"name": "a"}, {"name": "a"}]}},
        "queues.flavors has two of the name a",
    ),
    "a team in capitals": (
        {"queues": {"teams": [{"name": "A", "quotas": [{"flavor": "cpu", "cpu": 1, "memory": "1Gi"}]}]}},
        'queues.teams: name is "A": need at most 63 small letters',
    ),
    "half a card": (
        {
            "queues": {
                "teams": [{"name": "a", "quotas": [{"flavor": "cpu", "cpu": 1, "memory": 1, "gpus": 0.5}]}]
            }
        },
        'queues.teams: gpus of cpu in team a is "0.5": need a whole number of cards',
    ),
    "a quota without memory": (
        {"queues": {"teams": [{"name": "a", "quotas": [{"flavor": "cpu", "cpu": 1}]}]}},
        "missing property 'memory'",
    ),
    "an unknown strategy": (
        {"queues": {"queueingStrategy": "Random"}},
        "at '/queues/queueingStrategy': value must be one of",
    ),
    "serving that no client reaches": (
        {"serving": {"enabled": True}},
        "networkPolicy.gateway is empty, so no client could reach a model server",
    ),
    "serving that cannot be tried": (
        {"serving": {"enabled": True}, "networkPolicy": {"gateway": [{"podSelector": {}}]}},
        "networkPolicy.apiServer.from is empty, so no revision could be tried before it has traffic",
    ),
    "a gateway without its namespace": (
        {"serving": {"gateway": "public"}},
        'serving.gateway is "public": need NAMESPACE/NAME, such as gateways/public',
    ),
    "an unknown platform": (
        {"serving": {"platform": "torchserve"}},
        "at '/serving/platform': value must be one of",
    ),
    "a server that does not drain": (
        {"serving": {"runtime": {"drainSeconds": 0}}},
        "at '/serving/runtime/drainSeconds': minimum: got 0, want 3",
    ),
    "no DNS": (
        {"networkPolicy": {"dns": {"peers": []}}},
        "at '/networkPolicy/dns/peers': minItems: got 0, want 1",
    ),
    "a subject of another kind": (
        {"operator": {"subjects": [{"kind": "Robot", "name": "x"}]}},
        "at '/operator/subjects/0'",
    ),
    "a server that outlasts its pod": (
        {"serving": {"runtime": {"drainSeconds": 25}}},
        "at '/serving/runtime/drainSeconds': maximum: got 25, want 20",
    ),
    "two teams of a name": (
        {"queues": {"teams": LEAST["queues"]["teams"] * 2}},
        "queues.teams has two of the name team-a",
    ),
    "a loan of no amount": (
        {
            "queues": {
                "teams": [
                    {
                        "name": "a",
                        "cohort": "site",
                        "quotas": [{"flavor": "cpu", "cpu": 1, "memory": 1, "lendingLimit": {"cpu": "-4"}}],
                    }
                ]
            }
        },
        'queues.teams: lendingLimit, cpu of cpu in team a is "-4": need an amount',
    ),
    "a folder that ends in nothing": (
        {"store": {"folder": "store/"}},
        'store.folder is "store/": need a plain path on the claim',
    ),
    "a Service of no address": (
        {"store": {"clusterIP": "None"}},
        'store.clusterIP is "None": need an address, such as 10.96.0.20',
    ),
    "a pod of no memory": (
        {"store": {"resources": {"limits": {"memory": "lots"}}}},
        'store.resources.limits.memory is "lots": need an amount',
    ),
    "a priority that no number holds": (
        {"queues": {"priorities": [{"name": "first", "value": 5_000_000_000}]}},
        "at '/queues/priorities/0/value': maximum: got",
    ),
    "commands in pods without the policy": (
        {"operator": {"exec": True}, "clusterScoped": False},
        "operator.exec is true and clusterScoped is false: no policy would keep these accounts out",
    ),
    "a resource without a domain": (
        {"gpuResource": "gpu"},
        'gpuResource is "gpu": need what the device plugin calls its cards',
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_bad_values_are_refused_by_name(why: str) -> None:
    change, said = REFUSED[why]
    values = {**LEAST, **{name: _merged(LEAST.get(name), value) for name, value in change.items()}}
    assert said in refused(values)


def _merged(old: Any, new: Any) -> Any:
    return {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new


def test_a_release_s_name_has_room_for_what_is_called_after_it() -> None:
    assert "is too long: everything is called after it" in refused(LEAST, release="a" * 41)


def test_a_release_s_name_is_one_that_a_service_takes() -> None:
    assert 'the release\'s name is "my.team": need at most 63 small letters' in refused(
        LEAST, release="my.team"
    )


def test_names_and_amounts_that_yaml_reads_otherwise_stay_what_they_are() -> None:
    """Cards are called 4090, a team `on`; and helm reads every number as one with a point."""
    quota = {"flavor": "4090", "cpu": 8, "memory": 1 << 40, "gpus": 8}
    queues = {
        "topology": {"name": "1"},
        "flavors": [{"name": "4090"}],
        "cohorts": [{"name": "42", "parent": "no"}],
        "teams": [{"name": "on", "cohort": "42", "quotas": [quota]}],
        "priorities": [{"name": "7", "value": 1_000_000}],
    }
    changes = {
        "imagePullSecrets": ["2024"],
        "claim": {"name": "2025", "size": 1 << 40},
        "gc": {"keep": 1_000_000},
    }
    made = render({**LEAST, "queues": queues, **changes}, namespace="2026")
    for each in made:
        assert isinstance(each["metadata"]["name"], str)
        assert each["metadata"].get("namespace", "2026") == "2026"
    said = {(each["kind"], each["metadata"]["name"]): each.get("spec") or {} for each in made}
    assert said["ResourceFlavor", "4090"]["topologyName"] == "1"
    assert said["Cohort", "42"]["parentName"] == "no"
    assert said["ClusterQueue", "on"]["cohortName"] == "42"
    flavor = said["ClusterQueue", "on"]["resourceGroups"][0]["flavors"][0]
    assert (flavor["name"], flavor["resources"][1]["nominalQuota"]) == ("4090", 1 << 40)
    assert said["LocalQueue", "on"]["clusterQueue"] == "on"
    assert said["PersistentVolumeClaim", "2025"]["resources"]["requests"]["storage"] == 1 << 40
    pod = said["CronJob", "muster-gc"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "2024"}]
    assert "--keep=1000000" in pod["containers"][0]["command"]


def test_gc_does_its_work_with_what_its_pod_is_given(tmp_path: Path) -> None:
    """The very file, token and command, on a store service that is there."""
    made = render(LEAST)
    file = named(made, "ConfigMap", "muster-gc")["data"]["cluster.toml"]
    pod = named(made, "CronJob", "muster-gc")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    with Service(tmp_path) as service:
        for old, new in (
            ("http://muster-store.muster-jobs", service.url),
            ("/tmp/token", f"{tmp_path}/token"),
        ):
            assert old in file
            file = file.replace(old, new)
        (tmp_path / "cluster.toml").write_text(file)
        environment = os.environ | {
            "MUSTER_CLUSTER": str(tmp_path / "cluster.toml"),
            "MUSTER_CACHE": str(tmp_path / "cache"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        (token,), (gc,) = pod["initContainers"], pod["containers"]
        script = token["command"][2].replace("/tmp/", f"{tmp_path}/").replace("/keys/keys", str(service.key))
        for words in (["sh", "-c", script], gc["command"]):
            done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    assert "deleted 0 versions" in done.stdout
    assert (tmp_path / "token").stat().st_mode & 0o077 == 0


def test_what_reads_requests_sees_neither_the_token_nor_the_keys_nor_the_claim() -> None:
    """It parses what model servers wrote. What commits has the token, and parses nothing."""
    pod = named(render(WHOLE), "CronJob", "muster-requests")["spec"]["jobTemplate"]["spec"]["template"][
        "spec"
    ]
    mounts = {
        each["name"]: {mount["name"] for mount in each["volumeMounts"]}
        for each in (*pod["initContainers"], *pod["containers"])
    }
    assert mounts["read"] == {"work"}
    assert mounts["commit"] == {"config", "token", "work", "ca"}
    assert "keys" in mounts["token"]
    assert not [each for each in pod["volumes"] if "persistentVolumeClaim" in each]
    (work,) = (each["emptyDir"] for each in pod["volumes"] if each["name"] == "work")
    assert work == {"sizeLimit": "64Gi"}
    assert pod["automountServiceAccountToken"] is False


def test_servers_keep_requests_only_where_something_commits_them() -> None:
    for values, keeps in ((WHOLE, True), (LEAST, False)):
        made = render(values)
        (store,) = _pod_spec(named(made, "Deployment", "muster-store"))["containers"]
        assert ("--keep-requests" in store["args"]) is keeps
        assert ("muster-requests" in [each["metadata"]["name"] for each in made]) is keeps


def test_notes_say_the_next_command() -> None:
    done = helm.run(
        "install", "muster", str(CHART), "--dry-run=client", f"--values={CLUSTER}", "--namespace=team-a"
    )
    notes = done.stdout.partition("NOTES:\n")[2]
    assert "helm test muster --namespace team-a" in notes
    assert "export MUSTER_CLUSTER=$PWD/cluster.toml" in notes
    assert "muster doctor" in notes


def test_what_notes_say_to_write_down_is_a_cluster_file(tmp_path: Path) -> None:
    """The very lines, read as muster reads them."""
    from muster.backends.kubernetes.cluster_file import read_file
    from muster.backends.kubernetes.site import PlatformOwner

    done = helm.run(
        *("install", "muster", str(CHART), "--dry-run=client", "--namespace=team-a", "--values=-"),
        stdin=yaml.safe_dump(WHOLE),
    )
    notes = done.stdout.partition("NOTES:\n")[2]
    lines = re.findall(r"^     (\w+ = .*)$", notes, re.MULTILINE)
    (tmp_path / "cluster.toml").write_text("\n".join(lines))
    (tmp_path / "token").write_text("token")
    site = read_file(tmp_path / "cluster.toml").settings.site
    assert (site.namespace, site.claim, site.folder) == ("team-a", "shared", "team-a/store")
    assert (site.queue, site.user, site.gpu_resource) == ("team-a", None, "amd.com/gpu")
    assert site.image_prefix == "registry.example/team-a"
    assert site.image_pull_secrets == ("registry",)
    assert (site.serving, site.gateway) == (PlatformOwner.KSERVE, "gateways/public")
    assert site.serving_url == "https://{name}.models.example"


def _key(document: Document) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def _pod_template(document: Document) -> Document:
    spec = document.get("spec") or {}
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    template: Document = spec.get("template", {})
    return template


def _pod_spec(document: Document) -> Document | None:
    spec = _pod_template(document).get("spec") or document.get("spec") or {}
    return spec if "containers" in spec and "serviceAccountName" in spec else None
