"""Airflow of the chart's own: what it is made of, what its pods may see, and which values are refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart import helm
from tests.chart.examples import AIRFLOW, LEAST, TASKS, TEAMS, WORKERS
from tests.chart.helm import NAMESPACE, Document, named, refused, render
from tests.chart.reach import End, may

from muster.airflow.site import cluster_settings
from muster.backends.kubernetes.site import ClusterSite
from muster.ext.dags.bundle import VolumeDagBundle
from muster.ext.teams import document

pytestmark = pytest.mark.chart

PARTS = {
    "apiServer": ("Deployment", "muster-airflow-api-server"),
    "scheduler": ("Deployment", "muster-airflow-scheduler"),
    "triggerer": ("Deployment", "muster-airflow-triggerer"),
    "dagProcessor": ("Deployment", "muster-airflow-dag-processor"),
    "database": ("Deployment", "muster-airflow-database"),
    "logs": ("CronJob", "muster-airflow-gc"),
    "migrate": ("Job", ""),
}
WAITING = ("apiServer", "scheduler", "triggerer", "dagProcessor")


def values(**change: Any) -> Document:
    """Values with Airflow, some of its own changed."""
    return {**AIRFLOW, "airflow": {**AIRFLOW["airflow"], **change}}


def pod(documents: list[Document], part: str) -> Document:
    """The specification of a part's pods."""
    kind, name = PARTS.get(part, ("Deployment", f"muster-airflow-{part}"))
    if not name:
        (name,) = [each["metadata"]["name"] for each in documents if each["kind"] == kind]
    spec = named(documents, kind, name)["spec"]
    found: Document = spec.get("jobTemplate", {}).get("spec", spec)["template"]["spec"]
    return found


def environment(container: Document) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def containers(spec: Document) -> list[Document]:
    return [*spec.get("initContainers", []), *spec["containers"]]


@pytest.fixture(scope="module")
def made() -> list[Document]:
    """What the chart makes with Airflow."""
    return render(AIRFLOW)


def test_without_it_nothing_of_it_is_made() -> None:
    off = {"airflow": {**AIRFLOW["airflow"], "enabled": False}}
    assert helm.text({**LEAST, **off}) == helm.text(LEAST)
    assert not [each for each in render(LEAST) if "airflow" in each["metadata"]["name"]]


def test_two_of_what_a_running_task_needs_and_one_of_the_rest(made: list[Document]) -> None:
    found = made
    replicas = {
        each["metadata"]["name"].removeprefix("muster-airflow-"): each["spec"]["replicas"]
        for each in found
        if each["kind"] == "Deployment" and "airflow" in each["metadata"]["name"]
    }
    assert replicas == {"api-server": 2, "scheduler": 2, "triggerer": 2, "dag-processor": 1, "database": 1}
    budgets = {each["metadata"]["name"] for each in found if each["kind"] == "PodDisruptionBudget"}
    assert {f"muster-airflow-{each}" for each in ("api-server", "scheduler", "triggerer")} <= budgets
    assert (
        "muster-airflow-dag-processor" not in budgets
    )  # one that may not be away would keep its node from being drained


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_restricted(part: str, made: list[Document]) -> None:
    """As Pod Security says it of the level `restricted`."""
    spec = pod(made, part)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in containers(spec):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert each["resources"]["limits"]["memory"]
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"emptyDir", "secret", "configMap", "persistentVolumeClaim"}


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_where_and_with_what_its_values_say(part: str) -> None:
    said: Document = {
        "resources": {"requests": {"cpu": "7m"}, "limits": {"memory": "77Mi"}},
        "nodeSelector": {"pool": "small"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "priorityClassName": "important",
        "imagePullSecrets": ["other"],
        "extraEnv": [{"name": "SITE", "value": "ours"}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "site-ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca", "readOnly": True}],
    }
    database = {"small": {"enabled": True, **said}}
    changed = render(
        {
            **values(**({"database": database} if part == "database" else {part: said})),
            "imagePullSecrets": ["one"],
        }
    )
    spec = pod(changed, part)
    for name in ("nodeSelector", "affinity", "priorityClassName"):
        assert spec[name] == said[name]
    assert spec["tolerations"][-1:] == said["tolerations"]
    assert spec["imagePullSecrets"] == [{"name": "one"}, {"name": "other"}]
    main = spec["containers"][0]
    assert main["resources"]["requests"]["cpu"] == "7m"
    assert main["resources"]["limits"] == {"memory": "77Mi"}
    assert environment(main)["SITE"] == "ours"
    assert said["extraVolumeMounts"][0] in main["volumeMounts"]
    assert said["extraVolumes"][0] in spec["volumes"]
    others = [pod(changed, each) for each in PARTS if each != part]
    assert all("nodeSelector" not in each for each in others)


@pytest.mark.parametrize("part", [*WAITING, "database"])
def test_another_pod_takes_the_place_of_one_on_a_lost_node(part: str, made: list[Document]) -> None:
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    assert pod(made, part)["tolerations"] == [
        {"key": f"node.kubernetes.io/{taint}", **lost} for taint in ("not-ready", "unreachable")
    ]


@pytest.mark.parametrize(("change", "grace"), [({}, 60), ({"terminationGracePeriodSeconds": 600}, 600)])
def test_no_task_is_taken_from_a_scheduler_that_waits_for_it(change: Document, grace: int) -> None:
    """Taken over by the other one it runs a second time; later than that it counts as failed, so the order matters."""
    found = render(values(scheduler=change))
    assert pod(found, "scheduler")["terminationGracePeriodSeconds"] == grace
    given = environment(pod(found, "scheduler")["containers"][0])
    over, looks, silent = (
        int(given[f"AIRFLOW__SCHEDULER__{name}"])
        for name in (
            "SCHEDULER_HEALTH_CHECK_THRESHOLD",
            "ORPHANED_TASKS_CHECK_INTERVAL",
            "TASK_INSTANCE_HEARTBEAT_TIMEOUT",
        )
    )
    assert grace < over < over + looks < silent


def test_a_task_that_waits_for_the_api_server_is_not_taken_for_dead(made: list[Document]) -> None:
    given = environment(pod(made, "scheduler")["containers"][0])
    retries, seconds = (
        int(given[f"AIRFLOW__WORKERS__EXECUTION_API_{name}"]) for name in ("RETRIES", "RETRY_WAIT_MAX")
    )
    assert int(given["AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT"]) > retries * seconds


def test_parts_of_which_there_are_several_spread_over_nodes() -> None:
    (spread,) = pod(render(AIRFLOW), "scheduler")["topologySpreadConstraints"]
    assert spread["labelSelector"] == {"matchLabels": {"app": "muster-airflow-scheduler"}}
    ours = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    found = render(values(scheduler={"topologySpreadConstraints": [ours]}))
    assert pod(found, "scheduler")["topologySpreadConstraints"] == [ours]


def test_what_parses_dags_has_no_rights_and_what_runs_them_sees_no_key(made: list[Document]) -> None:
    found = made
    for part in ("dagProcessor", "migrate", "database", "logs"):
        spec = pod(found, part)
        assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("muster-airflow", False)
        assert "muster-store" not in [each.get("secret", {}).get("secretName") for each in spec["volumes"]]
    roles = [each for each in found if each["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    assert not [each for each in roles for who in each["subjects"] if who["name"] == "muster-airflow"]
    for part in ("apiServer", "scheduler", "triggerer"):
        spec = pod(found, part)
        assert spec["serviceAccountName"] == "muster-operator"
        seeing = [
            each["name"]
            for each in containers(spec)
            if "keys" in [mount["name"] for mount in each["volumeMounts"]]
        ]
        assert seeing == ["token"]
    kinds = {
        part: re.findall(r"--kind (\w+)", pod(found, part)["initContainers"][0]["command"][2])
        for part in ("apiServer", "scheduler", "triggerer")
    }
    assert kinds == {"apiServer": ["page"] * 2, "scheduler": ["operator"] * 2, "triggerer": ["operator"] * 2}


def test_what_parses_dags_can_sign_no_token_of_a_task(made: list[Document]) -> None:
    """A Dag's own code runs in it."""
    sees = {
        part: {
            each["valueFrom"]["secretKeyRef"]["key"]
            for container in containers(pod(made, part))
            for each in container["env"]
            if "valueFrom" in each
        }
        for part in PARTS
    }
    signing, least = {"jwt-secret", "api-secret-key"}, {"fernet-key", "database-password"}
    assert sees["dagProcessor"] == sees["migrate"] == least
    assert sees["scheduler"] == sees["triggerer"] == least | signing
    assert sees["apiServer"] == least | signing | {"password"}
    assert sees["database"] == sees["logs"] == set()


def test_logs_of_the_dag_processor_do_not_fill_a_node(made: list[Document], tmp_path: Path) -> None:
    """Airflow writes a file for each Dag file and day, and deletes none; the probe's own command is run here."""
    spec = pod(made, "dagProcessor")
    assert {"name": "parsed", "emptyDir": {"sizeLimit": "4Gi"}} in spec["volumes"]
    (main,) = spec["containers"]
    folder = environment(main)["AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY"]
    assert {"name": "parsed", "mountPath": folder} in main["volumeMounts"]
    *shell, script = main["livenessProbe"]["exec"]["command"]
    delete, _, check = script.partition("; exec ")
    assert check == "python -m airflow jobs check --job-type DagProcessorJob --local"
    old, new = tmp_path / "2026-11-28" / "dags" / "a.log", tmp_path / "2026-11-30" / "dags" / "a.log"
    for each in (old, new):
        each.parent.mkdir(parents=True)
        each.write_text("parsed")
    os.utime(old, (0, 0))
    subprocess.run([*shell, delete.replace(folder, str(tmp_path))], check=True)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_part_without_a_probe_of_its_beginning_counts_as_ready_later(made: list[Document]) -> None:
    """So that an upgrade does not end the last one that works for one that ends at its start."""
    for part in WAITING:
        probes = {"startupProbe", "readinessProbe"} & pod(made, part)["containers"][0].keys()
        later = named(made, *PARTS[part])["spec"].get("minReadySeconds", 0)
        assert (later >= 60) == (not probes)


def test_the_claim_s_root_is_mounted_by_what_makes_its_folder_alone() -> None:
    found = render(values(logs={"folder": "team/logs"}))
    for part in PARTS:
        for each in containers(pod(found, part)):
            mounts = [mount for mount in each["volumeMounts"] if mount["name"] == "claim"]
            if part == "migrate":
                assert mounts == [{"name": "claim", "mountPath": "/claim"}]
                assert 'mkdir -p "/claim/team/logs"' in each["command"][2]
            elif mounts:
                assert mounts == [{"name": "claim", "mountPath": "/logs", "subPath": "team/logs"}]


def test_no_volume_of_a_site_s_has_the_name_of_one_of_the_chart_s() -> None:
    """Two of a name would be refused by the API server alone, when the pod is made."""
    schema = json.loads((helm.CHART / "values.schema.json").read_text())
    kept = schema["$defs"]["volumes"]["items"]["properties"]["name"]["not"]["enum"]
    made = [*render(TEAMS), *render(values(dags={"claim": {"name": "dags"}}))]
    used = {
        each["name"]
        for of in made
        if of["kind"] in {"Deployment", "CronJob", "Job"} and "-airflow-" in of["metadata"]["name"]
        for each in of["spec"].get("jobTemplate", of)["spec"]["template"]["spec"]["volumes"]
    }
    assert {"teams", "dags", "token"} <= used <= set(kept)


def _said(policy: Document) -> str:
    return " ".join(each["expression"] for each in policy["spec"]["validations"])


@pytest.mark.parametrize("policy", ["muster-admission", "muster-servers"])
def test_no_job_and_no_model_server_mounts_the_claim_of_the_database(
    policy: str, made: list[Document]
) -> None:
    refusal = "volume.persistentVolumeClaim.claimName != 'muster-airflow-database'"
    assert refusal in _said(named(made, "ValidatingAdmissionPolicy", policy))
    assert named(made, "PersistentVolumeClaim", "muster-airflow-database")
    (trial,) = named(made, "Pod", "muster-test-accounts")["spec"]["containers"]
    assert "--closed=muster-airflow-database" in trial["args"]


@pytest.mark.parametrize(("claim", "closed"), [("our-dags", True), ("muster-store", False)])
def test_no_job_and_no_model_server_mounts_a_claim_of_dags_alone(claim: str, closed: bool) -> None:
    """What is written there runs with the schedulers' rights; of the store's own claim another rule says what a job mounts."""
    found = render(values(dags={"claim": {"name": claim, "subPath": "live"}}))
    for policy in ("muster-admission", "muster-servers"):
        said = _said(named(found, "ValidatingAdmissionPolicy", policy))
        assert (f"volume.persistentVolumeClaim.claimName != '{claim}'" in said) is closed
    (trial,) = named(found, "Pod", "muster-test-accounts")["spec"]["containers"]
    assert (f"--closed={claim}" in trial["args"]) is closed


@pytest.mark.parametrize(
    ("asked", "may"),
    [
        ("muster-airflow-api-server-7d9c5b6f4-x2x9k:8080", False),
        ("http:muster-airflow-scheduler-7d9c5b6f4-x2x9k:8974", False),
        ("muster-airflow-migrate-0a1b2c-x2x9k", False),
        ("muster-store-7d9c5b6f4-x2x9k", False),
        ("flights-r1-predictor-7d9c5b6f4-x2x9k:8080", True),
        ("airflow-r1-predictor-7d9c5b6f4-x2x9k", True),
    ],
)
def test_no_pod_of_airflow_is_asked_through_the_api_server(
    asked: str, may: bool, made: list[Document]
) -> None:
    said = _said(named(made, "ValidatingAdmissionPolicy", "muster-admission"))
    (pattern,) = re.findall(r"request\.name\.matches\('(.*?)'\)", said)
    assert (re.search(pattern, asked) is None) == may


def test_airflow_knows_every_setting_that_it_is_given() -> None:
    from airflow.configuration import retrieve_configuration_description

    known = {
        f"AIRFLOW__{section}__{option}".upper()
        for section, of in retrieve_configuration_description().items()
        for option in of["options"]
    }
    git = {"path": "/opt/airflow/dags", "git": {"url": "https://git.example/dags", "secret": "muster-git"}}
    policy = {"airflowEgress": [{"ports": [{"port": 443}]}]}
    for change in ({}, {"dags": git}):
        found = render({**values(**change), "networkPolicy": policy})
        for part in WAITING:
            main = pod(found, part)["containers"][0]
            given = {name for name in environment(main) if name.startswith("AIRFLOW__")}
            assert given - known == set()
            assert len(given) > 20


def test_tasks_are_given_the_namespace_that_the_release_is_in(tmp_path: Path) -> None:
    """The very connection, read as muster reads it."""
    from airflow.sdk import Connection

    changed = {
        **AIRFLOW,
        "user": 20001,
        "imagePullSecrets": ["registry"],
        "store": {**LEAST["store"], "folder": "s"},
    }
    given = environment(pod(render(changed, namespace="team-a"), "scheduler")["containers"][0])
    written = json.loads(given["AIRFLOW_CONN_MUSTER"])
    assert written["extra"]["in_cluster"] is True
    assert written["extra"]["muster"]["token_file"] == "/token/token"
    (tmp_path / "token").write_text("token")
    written["extra"]["muster"]["token_file"] = str(tmp_path / "token")
    connection = Connection(
        conn_id=given["AIRFLOW__MUSTER__CONNECTION"],
        conn_type=written["conn_type"],
        extra=json.dumps(written["extra"]),
    )
    assert cluster_settings(connection, "muster").site == ClusterSite(
        namespace="team-a",
        claim="muster-store",
        folder="s",
        store_url="http://muster-store.team-a",
        image_prefix="registry.example/team-a",
        image_pull_secrets=("registry",),
        service_account="muster-job",
        user=20001,
        queue="team-a",
    )
    assert given["AIRFLOW__MUSTER__INSTANCE"] == "team-a-muster"


def test_a_database_of_the_site_s_own_is_named_by_its_secret() -> None:
    policy = {"airflowEgress": [{"to": [{"ipBlock": {"cidr": "10.9.8.7/32"}}], "ports": [{"port": 5432}]}]}
    found = render({**values(database={"secret": "muster-postgres"}), "networkPolicy": policy})
    assert not [
        each
        for each in found
        if each["metadata"]["name"] == "muster-airflow-database" and each["kind"] != "NetworkPolicy"
    ]
    for part in (*WAITING, "migrate"):
        given = environment(pod(found, part)["containers"][0])
        assert given["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == {
            "secretKeyRef": {"name": "muster-postgres", "key": "connection"}
        }
        assert "DATABASE_PASSWORD" not in given


def test_the_small_database_is_one_at_a_time(made: list[Document]) -> None:
    """A pod that is deleted by force runs on for a while; both servers are process 1, so PostgreSQL's own lock file tells them nothing."""
    assert named(made, *PARTS["database"])["spec"]["strategy"] == {"type": "Recreate"}
    script = pod(made, "database")["containers"][0]["command"][2]
    assert script.splitlines()[0] == "exec 9> /data/lock"
    assert script.index("flock 9") < script.index("initdb") < script.index('exec "$bin/postgres"')


def test_another_image_migrates_anew_and_the_same_does_not() -> None:
    """A Job cannot be changed: one of the same name must be the same."""

    def job(documents: list[Document]) -> Document:
        (found,) = [each for each in documents if each["kind"] == "Job"]
        return found

    before, same = job(render(AIRFLOW)), job(render(values(scheduler={"replicas": 3})))
    after = job(render(values(image="registry.example/team-a/airflow:next")))
    assert before == same
    assert before["metadata"]["name"] != after["metadata"]["name"]


@pytest.mark.parametrize(
    ("dags", "folder", "mounted"),
    [
        ({}, "/opt/airflow/dags", None),
        ({"path": "/srv/dags"}, "/srv/dags", None),
        ({"image": "registry.example/dags:1", "path": "/srv/dags"}, "/dags", {"emptyDir": {}}),
        (
            {"claim": {"name": "our-dags", "subPath": "live"}},
            "/dags",
            {"persistentVolumeClaim": {"claimName": "our-dags", "readOnly": True}},
        ),
    ],
)
def test_dags_are_where_the_values_say(dags: Document, folder: str, mounted: Document | None) -> None:
    found = render(values(dags=dags))
    for part in WAITING:
        spec = pod(found, part)
        main = spec["containers"][0]
        assert environment(main)["AIRFLOW__CORE__DAGS_FOLDER"] == folder
        volumes = [each for each in spec["volumes"] if each["name"] == "dags"]
        assert volumes == ([{"name": "dags", **mounted}] if mounted else [])
        assert [each["mountPath"] for each in main["volumeMounts"] if each["name"] == "dags"] == [
            "/dags"
        ] * len(volumes)
        copies = [each for each in spec["initContainers"] if each["name"] == "dags"]
        assert [each["command"] for each in copies] == (
            [["cp", "-R", "/srv/dags/.", "/dags/"]] if "image" in dags else []
        )


def test_dags_of_a_git_repository_are_a_bundle() -> None:
    git = {"url": "https://git.example/dags", "branch": "live", "subdir": "dags", "secret": "muster-git"}
    found = render(
        {**values(dags={"git": git}), "networkPolicy": {"airflowEgress": [{"ports": [{"port": 443}]}]}}
    )
    for part in WAITING:
        given = environment(pod(found, part)["containers"][0])
        (bundle,) = json.loads(given["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"])
        assert bundle["kwargs"] == {
            "repo_url": "https://git.example/dags",
            "tracking_ref": "live",
            "subdir": "dags",
            "git_conn_id": "git",
        }
        assert given["AIRFLOW_CONN_GIT"] == {"secretKeyRef": {"name": "muster-git", "key": "connection"}}


def test_dags_of_a_volume_are_a_bundle_that_the_dag_processor_may_read() -> None:
    """It has a token for that, and no right in the cluster."""
    found = render(values(dags={"volume": "site/dags@latest/dags"}))
    for part in WAITING:
        given = environment(pod(found, part)["containers"][0])
        assert json.loads(given["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"]) == [
            {
                "name": "dags",
                "classpath": f"{VolumeDagBundle.__module__}.{VolumeDagBundle.__name__}",
                "kwargs": {"volume": "site/dags@latest/dags"},
            }
        ]
    spec = pod(found, "dagProcessor")
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("muster-airflow", False)
    assert re.findall(r"--kind (\w+)", spec["initContainers"][0]["command"][2]) == ["reader"] * 2
    assert {"name": "token", "mountPath": "/token", "readOnly": True} in spec["containers"][0]["volumeMounts"]


def _written(made: list[Document], folder: Path) -> Path:
    """The document of teams, as the pods see it."""
    file = folder / "teams.toml"
    file.write_text(named(made, "ConfigMap", "muster-teams")["data"]["teams.toml"])
    return file


def test_the_document_of_teams_is_one_that_airflow_reads_as_the_values_say_it(tmp_path: Path) -> None:
    read = document.read(_written(render(TEAMS), tmp_path))
    assert read.shared == ("common",)
    assert read.teams == {
        "vision": document.Team(
            queue="vision",
            volumes="sight",
            folder="eyes",
            secrets=("connection:vision_*",),
            users={"ana": "vision-ana", "ben@example.com": "vision-ben"},
            weight=2.0,
        ),
        "speech": document.Team(queue="speech", volumes="sound", weight=0.5),
    }


@pytest.mark.parametrize("executor", ["LocalExecutor", "KubernetesExecutor", "CeleryExecutor"])
def test_whatever_reads_or_runs_dags_has_the_document_of_teams(executor: str) -> None:
    """As a folder, which follows a change without a restart: a single file that is mounted does not."""
    of = {"LocalExecutor": AIRFLOW, "KubernetesExecutor": TASKS, "CeleryExecutor": WORKERS}[executor]
    made = render({**of, "queues": TEAMS["queues"], "teams": TEAMS["teams"]})
    pods = {part: pod(made, part) for part in WAITING}
    if executor != "LocalExecutor":
        pods["worker"] = worker(made, executor)
    for spec in pods.values():
        (main,) = spec["containers"]
        assert environment(main)["AIRFLOW__MUSTER__TEAMS"] == "/teams/teams.toml"
        assert {"name": "teams", "mountPath": "/teams", "readOnly": True} in main["volumeMounts"]
        assert {"name": "teams", "configMap": {"name": "muster-teams"}} in spec["volumes"]


def default_queue(queues: helm.Document) -> str:
    given = environment(
        pod(render({**TEAMS, "queues": {**TEAMS["queues"], **queues}}), "scheduler")["containers"][0]
    )
    return str(json.loads(given["AIRFLOW_CONN_MUSTER"])["extra"]["muster"]["queue"])


def test_jobs_of_a_dag_of_no_team_wait_in_no_team_s_queue() -> None:
    site, vision, speech = TEAMS["queues"]["teams"]
    assert default_queue({"teams": [vision, site, speech]}) == site["name"]
    assert default_queue({"default": "vision"}) == "vision"
    said = "teams.teams has every queue of queues.teams (vision, speech), so that jobs of a Dag of no team"
    assert said in refused({**TEAMS, "queues": {**TEAMS["queues"], "teams": [vision, speech]}})
    assert "queues.default is none-such, and queues.teams makes site, vision, speech" in refused(
        {**TEAMS, "queues": {**TEAMS["queues"], "default": "none-such"}}
    )


def test_teams_share_by_weight_and_their_persons_by_use() -> None:
    found = {(each["kind"], each["metadata"]["name"]): each.get("spec") for each in render(TEAMS)}
    shares = {
        name: (spec.get("fairSharing"), spec.get("admissionScope"))
        for (kind, name), spec in found.items()
        if kind == "ClusterQueue"
    }
    by_use = {"admissionMode": "UsageBasedAdmissionFairSharing"}
    assert shares == {
        "site": (None, None),
        "vision": ({"weight": "2"}, by_use),
        "speech": ({"weight": "0.5"}, None),
    }
    assert {name: spec for (kind, name), spec in found.items() if kind == "LocalQueue"} == {
        "site": {"clusterQueue": "site"},
        "vision": {"clusterQueue": "vision"},
        "vision-ana": {"clusterQueue": "vision", "fairSharing": {"weight": "2"}},
        "vision-ben": {"clusterQueue": "vision"},
        "speech": {"clusterQueue": "speech"},
    }


def test_the_values_of_the_page_of_teams_are_taken(tmp_path: Path) -> None:
    text = (helm.ROOT / "docs" / "howto" / "teams.md").read_text()
    given = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0])
    given["queues"]["flavors"] = [{"name": "gpu-a100"}]
    found = render({**AIRFLOW, **given})
    assert document.read(_written(found, tmp_path)).of_queue("vision-ana") == "vision"
    assert named(found, "LocalQueue", "vision-ana")["spec"]["fairSharing"] == {"weight": "2"}


SPEECH = TEAMS["teams"]["teams"]["speech"]
WRONG_TEAMS: dict[str, tuple[Document, str]] = {
    "no queue": ({"volumes": "sound"}, "teams.teams: team speech has no queue: name the queue of its jobs"),
    "no volumes": ({"queue": "speech"}, "teams.teams: team speech has no volumes: name the prefix"),
    "a queue that is nowhere": (
        {**SPEECH, "queue": "talk"},
        "teams.teams: team speech has the queue talk, and queues.teams makes site, vision, speech",
    ),
    "two teams with one prefix": (
        {**SPEECH, "volumes": "sight"},
        "teams.teams: volumes of the teams speech and vision are sight and sight: neither may hold the other",
    ),
    "a prefix in another's": (
        {**SPEECH, "volumes": "sight/near"},
        "teams.teams: volumes of the teams speech and vision are sight/near and sight: neither may hold",
    ),
    "a person in another's queue": (
        {**SPEECH, "users": {"cid": "vision-ana"}},
        "teams.teams: queues of the teams speech and vision are vision-ana and vision-ana: neither may hold",
    ),
    "two teams in one folder": (
        {**SPEECH, "folder": "eyes/near"},
        "teams.teams: folders of the teams speech and vision are eyes/near and eyes: neither may hold",
    ),
    "a folder outside": ({**SPEECH, "folder": "a/../.."}, 'folder of speech is "a/../..": need a folder'),
    "no weight at all": ({**SPEECH, "weight": 0}, "at '/teams/teams/speech/weight': exclusiveMinimum"),
    "a misspelt field": ({**SPEECH, "volume": "x"}, "additional properties 'volume' not allowed"),
}


@pytest.mark.parametrize("why", WRONG_TEAMS)
def test_teams_that_contradict_each_other_are_refused(why: str) -> None:
    speech, said = WRONG_TEAMS[why]
    teams = {**TEAMS["teams"], "teams": {**TEAMS["teams"]["teams"], "speech": speech}}
    assert said in refused({**TEAMS, "teams": teams})


def test_a_weight_is_of_a_queue_that_shares() -> None:
    queues = {**TEAMS["queues"], "weights": {"speech": 2}}
    assert "queues.weights has speech, which is the queue of no person" in refused(
        {**TEAMS, "queues": queues}
    )


def worker(documents: list[Document], executor: str) -> Document:
    """The specification of the pods that run tasks."""
    if executor == "CeleryExecutor":
        return pod(documents, "worker")
    written = named(documents, "ConfigMap", "muster-airflow-worker")["data"]["pod.yaml"]
    found: Document = yaml.safe_load(written)["spec"]
    return found


@pytest.mark.parametrize("executor", ["KubernetesExecutor", "CeleryExecutor"])
def test_with_another_executor_workers_alone_run_tasks(executor: str) -> None:
    """They have what a scheduler had for it; the scheduler has it no more."""
    found = render(WORKERS if executor == "CeleryExecutor" else TASKS)
    ours, scheduler = worker(found, executor), pod(found, "scheduler")
    assert (ours["serviceAccountName"], ours["automountServiceAccountToken"]) == ("muster-operator", True)
    assert re.findall(r"--kind (\w+)", ours["initContainers"][0]["command"][2]) == ["operator"] * 2
    mounts = {each["mountPath"]: each for each in ours["containers"][0]["volumeMounts"]}
    assert mounts["/logs"] == {"name": "claim", "mountPath": "/logs", "subPath": "airflow/logs"}
    assert mounts["/token"]["readOnly"] is True
    given = environment(ours["containers"][0])
    assert given["AIRFLOW__CORE__EXECUTOR"] == executor
    assert not {"AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW__API__SECRET_KEY"} & given.keys()
    assert "/token" not in {each["mountPath"] for each in scheduler["containers"][0]["volumeMounts"]}
    assert scheduler["serviceAccountName"] != "muster-operator"
    for each in containers(ours):
        assert each["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_pod_of_a_task_is_one_that_airflow_s_executor_takes(tmp_path: Path) -> None:
    """Read by the executor's own code: its first container is `base`, and has no command of its own."""
    from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator

    found = render(TASKS)
    scheduler = pod(found, "scheduler")
    given = environment(scheduler["containers"][0])
    folder, file = given["AIRFLOW__KUBERNETES_EXECUTOR__POD_TEMPLATE_FILE"].rsplit("/", 1)
    assert {"name": "worker", "mountPath": folder, "readOnly": True} in scheduler["containers"][0][
        "volumeMounts"
    ]
    (tmp_path / file).write_text(named(found, "ConfigMap", "muster-airflow-worker")["data"][file])
    made = PodGenerator.deserialize_model_file(str(tmp_path / file))
    (base,) = made.spec.containers
    assert (base.name, base.command, base.args) == ("base", None, None)
    assert made.spec.restart_policy == "Never"
    (token,) = made.spec.init_containers
    assert token.restart_policy == "Always"


def test_a_scheduler_makes_pods_of_tasks_and_none_with_other_rights() -> None:
    found = render(TASKS)
    account = pod(found, "scheduler")["serviceAccountName"]
    assert account == "muster-airflow-scheduler"
    held = [
        each["roleRef"]["name"]
        for each in found
        if each["kind"] in ("RoleBinding", "ClusterRoleBinding")
        and account in [who["name"] for who in each["subjects"]]
    ]
    assert held == ["muster-airflow-scheduler"]
    (rule,) = named(found, "Role", "muster-airflow-scheduler")["rules"]
    assert rule["resources"] == ["pods"]
    policy = named(found, "ValidatingAdmissionPolicy", "muster-airflow-scheduler")
    assert "object.spec.serviceAccountName == 'muster-operator'" in _said(policy)
    assert named(found, "ValidatingAdmissionPolicyBinding", "muster-airflow-scheduler")


@pytest.mark.parametrize(("example", "closed"), [(TASKS, True), (AIRFLOW, False)])
def test_the_scheduler_takes_no_job_s_pod_for_one_of_a_task(example: Document, closed: bool) -> None:
    """It finds them by labels, which a job's pod_override could give."""
    said = _said(named(render(example), "ValidatingAdmissionPolicy", "muster-admission"))
    for label in ("kubernetes_executor", "airflow-worker"):
        assert (f"'{label}' in each.labels" in said) is closed


def test_a_dag_s_author_may_not_make_more_of_a_task_s_pod() -> None:
    """By executor_config it could be taken for the store's, see all of the claim, or read keys."""
    found = render(TASKS)
    said = _said(named(found, "ValidatingAdmissionPolicy", "muster-airflow-scheduler"))
    for wanted in (
        "object.metadata.labels['app'] == 'muster-airflow-worker'",
        "container.name == 'token' || !has(container.volumeMounts) || container.volumeMounts.all(mount, !(mount.name in ['keys', 'own']))",
        "volume.secret.secretName != 'muster-keys' || volume.name == 'keys'",
        "variable.valueFrom.secretKeyRef.key in ['fernet-key', 'database-password']",
        "!(has(object.spec.shareProcessNamespace) && object.spec.shareProcessNamespace)",
        "volume.persistentVolumeClaim.claimName != 'muster-airflow-database'",
        "mount.subPath == 'airflow/logs'",
    ):
        assert wanted in " ".join(said.split()), wanted
    # What it says of the container that has the keys is what the template makes.
    token = worker(found, "KubernetesExecutor")["initContainers"][0]
    (image,) = re.findall(r"container\.image == (\S+)", said)
    assert json.loads(image) == token["image"]
    (command,) = re.findall(r"container\.command == (\[.*\])\n", said) or re.findall(
        r"container\.command == (\[.*?\]) +&& container\.env", said
    )
    assert json.loads(command) == token["command"]


def test_a_task_s_pod_takes_no_secret_of_a_team() -> None:
    vision = {
        **TEAMS["teams"]["teams"]["vision"],
        "secrets": ["connection:v_*", "kubernetes:vision-*/key", "kubernetes:a.b"],
    }
    teams = {"queues": TEAMS["queues"], "teams": {**TEAMS["teams"], "teams": {"vision": vision}}}
    said = _said(named(render({**TASKS, **teams}), "ValidatingAdmissionPolicy", "muster-airflow-scheduler"))
    assert "!source.secretRef.name.matches('^(vision-.*|a[.]b)$')" in said
    assert said.count("vision-") == 4
    said = _said(named(render(TASKS), "ValidatingAdmissionPolicy", "muster-airflow-scheduler"))
    assert ".matches(" not in said


@pytest.mark.parametrize("example", [AIRFLOW, TASKS, WORKERS])
def test_what_runs_dags_cannot_write_what_the_container_with_the_keys_runs(example: Document) -> None:
    """Its Python takes modules from its home, which was a folder of the volume that is `/tmp` of the container with the Dags."""
    found = render(example)
    specs = [each["spec"]["template"]["spec"] for each in found if each["kind"] == "Deployment"]
    if example is TASKS:
        specs.append(worker(found, "KubernetesExecutor"))
    checked = 0
    for spec in specs:
        for token in (each for each in spec.get("initContainers", ()) if each["name"] == "token"):
            checked += 1
            for other in (each for each in containers(spec) if each is not token):
                writes = {mount["name"] for mount in other["volumeMounts"] if not mount.get("readOnly")}
                assert writes.isdisjoint(mount["name"] for mount in token["volumeMounts"])
    assert checked >= 3


def test_celery_s_workers_are_told_by_the_broker_that_is_named() -> None:
    found = render(WORKERS)
    broker = {"secretKeyRef": {"name": "muster-broker", "key": "connection"}}
    for part in ("scheduler", "worker"):
        main = pod(found, part)["containers"][0]
        assert environment(main)["AIRFLOW__CELERY__BROKER_URL"] == broker
    assert main["command"] == ["python", "-m", "airflow", "celery", "worker", "--skip-serve-logs"]
    assert named(found, "Deployment", "muster-airflow-worker")["spec"]["replicas"] == 2
    assert pod(found, "worker")["terminationGracePeriodSeconds"] == 600


def test_what_airflow_has_first_is_set_up_once_it_has_tables() -> None:
    pools = [{"name": "gpus", "slots": 4}, {"name": "all", "slots": -1, "includeDeferred": True}]
    found = render(values(setup={"secret": "muster-first", "pools": pools}))
    migrate = pod(found, "migrate")
    script = migrate["containers"][0]["command"][2]
    steps = ("db migrate", "connections import", "variables import", "pools import")
    assert sorted(map(script.index, steps)) == list(map(script.index, steps))
    (text,) = re.findall(r"pools.json <<'END'\n(.*)\nEND\n", script)
    assert json.loads(text) == {
        "gpus": {"slots": 4, "description": "", "include_deferred": False},
        "all": {"slots": -1, "description": "", "include_deferred": True},
    }
    seeing = [
        part
        for part in PARTS
        if "muster-first"
        in [each.get("secret", {}).get("secretName") for each in pod(found, part)["volumes"]]
    ]
    assert seeing == ["migrate"]
    again = render(values(setup={"secret": "muster-first", "pools": pools[:1]}))
    names = [[each["metadata"]["name"] for each in made if each["kind"] == "Job"] for made in (found, again)]
    assert names[0] != names[1], "a Job cannot be changed"


REFUSED: dict[str, tuple[Document, str]] = {
    "another executor": (
        {"executor": "EdgeExecutor"},
        "airflow.executor is EdgeExecutor: this chart runs LocalExecutor",
    ),
    "workers without a broker": (
        {"executor": "CeleryExecutor"},
        "airflow.executor is CeleryExecutor, and airflow.celery.brokerSecret names no broker",
    ),
    "a broker without workers": (
        {"celery": {"brokerSecret": "muster-broker"}},
        "airflow.celery.brokerSecret is muster-broker, and airflow.executor is LocalExecutor, which has no broker",
    ),
    "a broker that nothing reaches": (
        {"executor": "CeleryExecutor", "celery": {"brokerSecret": "muster-broker"}},
        "networkPolicy.airflowEgress is empty, so no pod of Airflow could reach the broker of Secret muster-broker",
    ),
    "a broker that jobs may read of": (
        {"executor": "CeleryExecutor", "celery": {"brokerSecret": "broker"}},
        "airflow.celery.brokerSecret is broker: a job may read any Secret",
    ),
    "connections that jobs may read of": (
        {"setup": {"secret": "connections"}},
        "airflow.setup.secret is connections: a job may read any Secret",
    ),
    "a pool twice": (
        {"setup": {"pools": [{"name": "gpus", "slots": 1}, {"name": "gpus", "slots": 2}]}},
        "airflow.setup.pools has gpus twice: name each pool once",
    ),
    "a pool of no size": (
        {"setup": {"pools": [{"name": "gpus"}]}},
        "at '/airflow/setup/pools/0': missing property 'slots'",
    ),
    "Dags of a volume and of an image": (
        {"dags": {"volume": "site/dags@latest", "image": "dags:1"}},
        "airflow.dags has image and volume: Dags come from one place",
    ),
    "Dags of several versions": (
        {"dags": {"volume": "site/dags@*"}},
        'airflow.dags.volume is "site/dags@*": need a version of a volume',
    ),
    "no database": ({"database": {}}, "airflow.database names no database"),
    "two databases": (
        {"database": {"secret": "muster-postgres", "small": {"enabled": True}}},
        "airflow.database has a secret, muster-postgres, and small.enabled=true",
    ),
    "a database that jobs may read of": (
        {"database": {"secret": "postgres"}},
        "airflow.database.secret is postgres: a job may read any Secret of its namespace that is not called muster-…",
    ),
    "a database that nothing reaches": (
        {"database": {"secret": "muster-postgres"}},
        "networkPolicy.airflowEgress is empty, so no pod of Airflow could reach the database of Secret muster-postgres",
    ),
    "a repository that nothing reaches": (
        {"dags": {"git": {"url": "https://git.example/dags"}}},
        "networkPolicy.airflowEgress is empty, so no pod of Airflow could reach https://git.example/dags",
    ),
    "Dags from two places": (
        {"dags": {"image": "dags:1", "git": {"url": "https://git.example/dags"}}},
        "airflow.dags has image and git: Dags come from one place",
    ),
    "a Secret of a repository that is not named": (
        {"dags": {"git": {"secret": "muster-git"}}},
        "airflow.dags.git has a secret, muster-git, and no url",
    ),
    "a folder of a repository that is not named": (
        {"dags": {"git": {"subdir": "dags"}}},
        "airflow.dags.git has a subdir, dags, and no url",
    ),
    "a folder of a claim that is not named": (
        {"dags": {"claim": {"subPath": "live"}}},
        "airflow.dags.claim has a subPath, live, and no name",
    ),
    "an image without Airflow": (
        {"image": ""},
        "airflow.image is empty, and image is registry.example/team-a/muster:0123456789ab, which has no Airflow in it",
    ),
    "the store's keys for Airflow": (
        {"secret": "muster-keys"},
        "airflow.secret is muster-keys, which has the keys that sign the store's tokens",
    ),
    "keys that each rendering would make anew": (
        {"secret": ""},
        "airflow.secret is not set, and no cluster is asked",
    ),
    "logs in the store": (
        {"logs": {"folder": "store/logs"}},
        "airflow.logs.folder is store/logs and store.folder is store: neither may lie in the other",
    ),
    "a folder outside": ({"logs": {"folder": "../x"}}, 'airflow.logs.folder is "../x": need a plain path'),
    "a user with a colon": ({"user": "a:admin"}, 'airflow.user is "a:admin": need letters, digits'),
    "an address without a scheme": ({"url": "airflow.example"}, "at '/airflow/url'"),
    "an image without a tag": (
        {"image": "airflow"},
        'airflow.image is "airflow": need an image with its tag',
    ),
    "no scheduler": (
        {"scheduler": {"replicas": 0}},
        "at '/airflow/scheduler/replicas': minimum: got 0, want 1",
    ),
    "a misspelt value": ({"scheduler": {"replica": 2}}, "'/airflow/scheduler"),
    "a misspelt place": (
        {"triggerer": {"tolerations": [{"foo": "bar"}]}},
        "at '/airflow/triggerer/tolerations/0'",
    ),
    "a pod of no memory": (
        {"triggerer": {"resources": {"limits": {"memory": "lots"}}}},
        'airflow.triggerer.resources.limits.memory is "lots": need an amount',
    ),
    "a volume of the chart's own name": (
        {"scheduler": {"extraVolumes": [{"name": "token", "emptyDir": {}}]}},
        "at '/airflow/scheduler/extraVolumes/0/name'",
    ),
}


def test_who_enters_jobs_does_not_enter_tasks_that_are_called_as_they_are() -> None:
    exec_too = {**values(executor="KubernetesExecutor"), "operator": {"exec": True}}
    assert "operator.exec=true, and airflow.executor is KubernetesExecutor" in refused(exec_too)


@pytest.mark.parametrize("why", REFUSED)
def test_bad_values_are_refused_by_name(why: str) -> None:
    change, said = REFUSED[why]
    assert said in refused(values(**change))


@pytest.fixture(scope="module")
def policies() -> list[Document]:
    ingress = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}
    policy = {
        "users": [ingress],
        "airflowEgress": [{"to": [{"ipBlock": {"cidr": "10.9.8.7/32"}}], "ports": [{"port": 5432}]}],
        "apiServer": {"ports": [6443], "to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}]},
    }
    return [each for each in render({**AIRFLOW, "networkPolicy": policy}) if each["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize(
    ("source", "port", "found"),
    [
        ("scheduler", 8080, {"api-server", "store"}),
        ("scheduler", 5432, {"database", "postgres"}),
        ("scheduler", 6443, {"api"}),
        ("triggerer", 6443, {"api"}),
        ("api-server", 6443, {"api"}),
        ("dag-processor", 6443, set()),
        ("dag-processor", 5432, {"database", "postgres"}),
        ("migrate", 5432, {"database", "postgres"}),
        ("database", 5432, set()),
        ("gc", 8080, set()),
        ("job", 5432, set()),
        ("job", 8080, {"store"}),
        ("ingress", 8080, {"api-server", "api", "postgres", "stranger"}),
        ("stranger", 8080, {"api", "postgres", "ingress"}),
        ("stranger", 5432, {"api", "postgres", "ingress"}),
    ],
)
def test_who_reaches_whom(source: str, port: int, found: set[str], policies: list[Document]) -> None:
    parts = ("api-server", "scheduler", "triggerer", "dag-processor", "migrate", "database", "gc")
    ends = {each: End(labels={"app": f"muster-airflow-{each}"}, namespace=NAMESPACE) for each in parts}
    ends |= {
        "store": End(labels={"app": "muster-store"}, namespace=NAMESPACE),
        "job": End(labels={"muster.dev/job": "x"}, namespace=NAMESPACE),
        "stranger": End(labels={"app": "web"}, namespace=NAMESPACE),
        "ingress": End(labels={"app": "ingress"}, namespace="ingress"),
        "api": End(address="10.1.2.3"),
        "postgres": End(address="10.9.8.7"),
    }
    reached = {
        name for name, end in ends.items() if name != source and may(ends[source], end, port, policies)
    }
    assert reached == found


def test_notes_say_how_to_get_in() -> None:
    done = helm.run(
        *("install", "muster", str(helm.CHART), "--dry-run=client", "--namespace=team-a", "--values=-"),
        stdin=json.dumps(AIRFLOW),
    )
    notes = done.stdout.partition("NOTES:\n")[2]
    assert "service/muster-airflow-api-server 8080:8080" in notes
    assert (
        "get secret muster-airflow --namespace team-a --output 'go-template={{.data.password | base64decode}}'"
        in notes
    )


def _page() -> list[Document]:
    """What docs/howto/airflow-in-the-cluster.md has one write."""
    text = (helm.ROOT / "docs" / "howto" / "airflow-in-the-cluster.md").read_text()
    return [yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]


def test_the_values_of_the_page_are_taken() -> None:
    ours = {**_page()[0], "store": LEAST["store"], "queues": LEAST["queues"]}
    ours["airflow"] = {**ours["airflow"], "secret": "muster-airflow"}
    found = render(ours)
    images = {each["image"] for part in PARTS for each in containers(pod(found, part))}
    assert images == {ours["image"]}


def test_an_airflow_that_stands_already_is_told_what_the_page_says(tmp_path: Path) -> None:
    from airflow.sdk import Connection

    given = {each["name"]: each["value"] for each in _page()[1]["env"]}
    written = json.loads(given["AIRFLOW_CONN_MUSTER"])
    (tmp_path / "token").write_text("token")
    assert written["extra"]["muster"].pop("token_file") == "/token/token"
    written["extra"]["muster"]["token_file"] = str(tmp_path / "token")
    connection = Connection(
        conn_id=given["AIRFLOW__MUSTER__CONNECTION"],
        conn_type=written["conn_type"],
        extra=json.dumps(written["extra"]),
    )
    ours = environment(
        pod(render({**AIRFLOW, "airflow": AIRFLOW["airflow"]}, namespace="team-a"), "scheduler")[
            "containers"
        ][0]
    )
    chart = json.loads(ours["AIRFLOW_CONN_MUSTER"])["extra"]["muster"]
    site = cluster_settings(connection, "muster").site
    assert {name: getattr(site, name) for name in chart if name != "token_file"} == {
        name: value for name, value in chart.items() if name != "token_file"
    }
