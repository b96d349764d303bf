"""Metrics in the chart: what scrapes them, what their alerts say of made-up series, and what Grafana is given."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from tests.chart import helm, schemas
from tests.chart.examples import LEAST, WHOLE
from tests.chart.helm import CHART, Document, named, refused, render
from tests.waiting import eventually

from muster.volumes.service.tokens import TokenKind, verify

pytestmark = pytest.mark.chart

FILES = CHART / "files"
ALERTS = FILES / "alerts.yaml"
PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


def values(**metrics: object) -> Document:
    return {**LEAST, "metrics": metrics, "networkPolicy": {"scrapers": [PROMETHEUS]}}


EVERYTHING = values(
    enabled=True,
    serviceMonitor={"enabled": True},
    rules={"enabled": True, "labels": {"release": "prometheus"}},
    dashboard={"enabled": True},
)


def test_none_of_it_is_there_unless_it_is_asked_for() -> None:
    names = {each["metadata"]["name"] for each in render(LEAST)}
    assert not names & {"muster-metrics", "muster-dashboard"}


def test_kubernetes_and_the_prometheus_operator_take_all_of_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = schemas.write(tmp_path_factory.mktemp("schemas"), helm.programs())
    words = ("-strict", "-summary", "-output=json", f"-schema-location={folder}/{schemas.NAMING}")
    done = subprocess.run(
        [str(helm.programs() / "kubeconform"), *words],
        input=helm.text(EVERYTHING),
        capture_output=True,
        text=True,
        check=False,
    )
    summary = json.loads(done.stdout)["summary"]
    assert (summary["invalid"], summary["errors"], summary["skipped"]) == (0, 0, 0), done.stdout


def test_the_values_of_the_page_are_taken() -> None:
    """What docs/howto/monitoring.md has one write."""
    page = helm.ROOT / "docs" / "howto" / "monitoring.md"
    _, given = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    found = {each["kind"] for each in render({**LEAST, **yaml.safe_load(given)})}
    assert {"ServiceMonitor", "PrometheusRule"} <= found


def test_the_monitor_finds_the_service_and_that_the_pod() -> None:
    found = render(EVERYTHING)
    monitor = named(found, "ServiceMonitor", "muster-metrics")["spec"]
    service = named(found, "Service", "muster-metrics")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    assert monitor["endpoints"] == [{"port": port["name"], "path": "/metrics", "interval": "30s"}]
    pod = named(found, "Deployment", "muster-metrics")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    container = pod["spec"]["containers"][0]
    assert port["targetPort"] == container["ports"][0]["containerPort"]
    assert f"--port={port['targetPort']}" in container["command"]


def test_its_token_reads_for_six_hours_and_another_container_renews_it(tmp_path: Path) -> None:
    """Both commands as they stand, but for the folders and the hour. What Prometheus asks sees no key."""
    pod = named(render(EVERYTHING), "Deployment", "muster-metrics")["spec"]["template"]["spec"]
    (first,), (metrics, renew) = pod["initContainers"], pod["containers"]
    assert {mount["name"] for mount in metrics["volumeMounts"]} == {"config", "tmp"}
    (tmp_path / "keys").write_text("k" * 32)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = [
        each["command"][2].replace("/keys/", "/tmp/").replace("/tmp/", f"{tmp_path}/")
        for each in (first, renew)
    ]
    subprocess.run(["sh", "-c", words[0]], env=environment, check=True)
    file, before = tmp_path / "token", time.time()
    token = verify((b"k" * 32,), file.read_text().strip())
    assert (token.kind, token.expires <= before + 6 * 3600) == (TokenKind.READER, True)
    assert "sleep 3600 &" in words[1]
    inode = file.stat().st_ino
    with subprocess.Popen(["sh", "-c", words[1].replace("sleep 3600", "sleep 1")], env=environment) as again:
        try:
            eventually(lambda: file.stat().st_ino != inode)
            assert verify((b"k" * 32,), file.read_text().strip()).kind is TokenKind.READER
            assert file.stat().st_mode & 0o077 == 0
        finally:
            again.terminate()


def test_its_account_may_only_look_and_make_events() -> None:
    found = render(WHOLE)
    role = named(found, "Role", "muster-metrics")
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "create"}
    assert [rule["resources"] for rule in role["rules"] if "create" in rule["verbs"]] == [["events"]]
    assert not {"secrets", "pods/proxy", "configmaps"} & {
        kind for rule in role["rules"] for kind in rule["resources"]
    }
    bound = named(found, "ClusterRoleBinding", "muster-metrics")
    assert bound["roleRef"]["name"] == "muster-reader"


def test_the_rules_are_those_of_the_file_less_what_the_site_leaves_out() -> None:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    rule = named(render(EVERYTHING), "PrometheusRule", "muster-metrics")
    assert rule["spec"]["groups"] == groups
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    without = [each["alert"] for each in groups[0]["rules"]] + ["MusterReleaseStuck"]
    rule = named(
        render(values(rules={"enabled": True, "without": without})), "PrometheusRule", "muster-metrics"
    )
    left = [each["alert"] for group in rule["spec"]["groups"] for each in group["rules"]]
    assert left == [
        each["alert"] for group in groups for each in group["rules"] if each["alert"] not in without
    ]


def test_the_dashboard_is_that_of_the_file_with_the_sidecar_s_label() -> None:
    made = named(render(EVERYTHING), "ConfigMap", "muster-dashboard")
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(made["data"]["muster.json"]) == json.loads((FILES / "dashboard.json").read_text())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (values(serviceMonitor={"enabled": True}), "there is nothing to scrape; set metrics.enabled=true"),
        ({**LEAST, "metrics": {"enabled": True}}, "networkPolicy.scrapers is empty"),
        (
            values(rules={"without": ["MusterSleeps"]}),
            "without has MusterSleeps, which is no alert of muster",
        ),
        (values(serviceMonitor={"interval": "often"}), "interval"),
        (values(enabled=True, resources={"limits": {"memory": "much"}}), "metrics.resources.limits.memory"),
    ],
)
def test_values_that_would_not_do_are_refused(given: Document, said: str) -> None:
    assert said in refused(given)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Series, and the alert that fires of them.

    :param series: by name and labels, in promtool's notation, a value for each `step`.
    :param at: when it is looked at, and `quiet` when it must not fire yet.
    :param labels: of what fires, beside its severity; none where nothing may fire.
    """

    alert: str
    series: Mapping[str, str]
    at: str = "30m"
    labels: Mapping[str, str] | None = field(default_factory=dict)
    quiet: str | None = None
    step: str = "1m"


OLDEST = 'muster_queue_oldest_timestamp_seconds{queue="a"}'
WAITS = {
    'muster_job_wait_seconds_bucket{queue="a",le="60.0"}': "0+1x600",
    'muster_job_wait_seconds_bucket{queue="a",le="300.0"}': "0+1x600",
    'muster_job_wait_seconds_bucket{queue="a",le="+Inf"}': "0+1x600",
}
ENDED = "muster_jobs_ended_total"
READY = 'muster_deployment_ready{deployment="d"}'
SHARE = 'muster_revision_traffic_percent{deployment="d",revision="r1",model="m@1"}'
WANTED, HAVE = (
    f'muster_revision_replicas{{deployment="d",revision="r1",state="{state}"}}'
    for state in ("wanted", "ready")
)
STEP = "muster_release_step_started_timestamp_seconds"
BEAT = "muster_airflow_heartbeat_timestamp_seconds"
BEATS = {"Scheduler": "scheduler", "Triggerer": "triggerer", "DagProcessor": "dag_processor"}
DAYS = 24  # hours
CASES = [
    Case(alert="MusterNotWatched", series={"up": "0x60"}, quiet="5m"),
    Case(alert="MusterNotWatched", series={"muster_build_info": "1x60"}, labels=None),
    Case(
        alert="MusterPartNotRead",
        series={'muster_scrape_success{part="gpus"}': "0x60"},
        labels={"part": "gpus"},
        quiet="5m",
    ),
    Case(alert="MusterPartNotRead", series={'muster_scrape_success{part="store"}': "0x60"}, labels=None),
    Case(
        alert="MusterStoreDown",
        series={'muster_scrape_success{part="store"}': "1x9 0x60"},
        labels={"part": "store"},
        quiet="12m",
    ),
    Case(alert="MusterStoreSlow", series={"muster_store_answer_seconds": "3x60"}),
    Case(alert="MusterStoreSlow", series={"muster_store_answer_seconds": "3x20 0.1 3x60"}, labels=None),
    Case(alert="MusterStoreFull", series={"muster_store_free_bytes": "1e9x60"}),
    Case(alert="MusterStoreFull", series={"muster_store_free_files": "0x60"}),
    Case(alert="MusterStoreFull", series={"muster_store_free_bytes": "1e11x60"}, labels=None),
    Case(
        alert="MusterStoreFilling",
        series={"muster_store_bytes": "1e12x600", "muster_store_free_bytes": "2.9e11-2e8x600"},
        at="8h",
        quiet="30m",
    ),
    Case(
        alert="MusterStoreFilling",
        series={"muster_store_bytes": "1e12x600", "muster_store_free_bytes": "2.9e11-1e5x600"},
        at="8h",
        labels=None,
    ),
    Case(
        alert="MusterStoreDamaged",
        series={'muster_store_damaged_versions{depth="deep"}': "0x9 2x60"},
        labels={"depth": "deep"},
        quiet="5m",
    ),
    Case(
        alert="MusterNotChecked",
        series={
            'muster_store_last_fsck_timestamp_seconds{depth="quick"}': f"0x{17 * DAYS}",
            'muster_store_last_fsck_timestamp_seconds{depth="deep"}': f"0x{17 * DAYS}",
            "muster_volumes": f"3x{17 * DAYS}",
        },
        at="16d",
        quiet="14d",
        step="1h",
    ),
    Case(
        alert="MusterNotChecked",
        series={
            'muster_store_last_fsck_timestamp_seconds{depth="deep"}': f"0x{17 * DAYS}",
            "muster_volumes": f"0x{17 * DAYS}",
        },
        at="16d",
        labels=None,
        step="1h",
    ),
    Case(
        alert="MusterGcStandsStill",
        series={"muster_last_gc_timestamp_seconds": f"60x{5 * DAYS}", "muster_volumes": f"3x{5 * DAYS}"},
        at="4d",
        quiet="2d",
        step="1h",
    ),
    Case(
        alert="MusterSweepStandsStill",
        series={
            "muster_last_sweep_timestamp_seconds": "60x60",
            'muster_jobs{state="running"}': "1x60",
            'muster_jobs{state="queued"}': "0x60",
        },
        quiet="14m",
    ),
    Case(
        alert="MusterSweepStandsStill",
        series={"muster_last_sweep_timestamp_seconds": "60x60", 'muster_jobs{state="running"}': "0x60"},
        labels=None,
    ),
    Case(
        alert="MusterSweepStandsStill",
        series={"muster_last_sweep_timestamp_seconds": "0+60x60", 'muster_jobs{state="running"}': "1x60"},
        labels=None,
    ),
    Case(
        alert="MusterJobOverdue",
        series={'muster_jobs_overdue{limit="run"}': "1x60"},
        labels={"limit": "run"},
        quiet="10m",
    ),
    Case(
        alert="MusterJobUnreadable",
        series={'muster_jobs{state="unreadable"}': "1x60"},
        labels={"state": "unreadable"},
        quiet="5m",
    ),
    Case(
        alert="MusterJobWaitsLong",
        series={OLDEST: "60x600", **WAITS},
        labels={"queue": "a"},
        at="1h",
        quiet="20m",
    ),
    Case(  # an hour is usual there
        alert="MusterJobWaitsLong",
        series={OLDEST: "60x600", 'muster_job_wait_seconds_bucket{queue="a",le="300.0"}': "0x600"}
        | {f'muster_job_wait_seconds_bucket{{queue="a",le="{le}"}}': "0+1x600" for le in ("3600.0", "+Inf")},
        labels=None,
        at="1h",
    ),
    Case(
        alert="MusterJobNeverRuns",
        series={f'{ENDED}{{outcome="can never be scheduled"}}': "0x9 1x60"},
        labels={"outcome": "can never be scheduled"},
        quiet="8m",
    ),
    Case(alert="MusterJobNeverRuns", series={f'{ENDED}{{outcome="user error"}}': "0+1x60"}, labels=None),
    Case(
        alert="MusterJobsFailOfThePlatform",
        series={f'{ENDED}{{outcome="disk full"}}': "0+1x60", f'{ENDED}{{outcome="user error"}}': "0+1x60"},
        labels={"outcome": "disk full"},
        quiet="1m",
    ),
    Case(
        alert="MusterQueueStopped",
        series={
            'muster_queue_stopped{queue="a"}': "1x60",
            'muster_queue_jobs{queue="a",state="waiting"}': "2x60",
        },
        labels={"queue": "a"},
        quiet="10m",
    ),
    Case(
        alert="MusterQueueStopped",
        series={
            'muster_queue_stopped{queue="a"}': "1x60",
            'muster_queue_jobs{queue="a",state="waiting"}': "0x60",
            'muster_queue_jobs{queue="a",state="running"}': "2x60",
        },
        labels=None,
    ),
    Case(alert="MusterDeploymentDown", series={READY: "0x60", SHARE: "100x60"}, labels={"deployment": "d"}),
    Case(
        alert="MusterDeploymentDown", series={READY: "0x60"}, labels={"deployment": "d"}
    ),  # no record is read
    Case(
        alert="MusterDeploymentDown", series={READY: "0x60", SHARE: "0x60"}, labels=None
    ),  # its first release
    Case(alert="MusterDeploymentDown", series={READY: "1x60", SHARE: "100x60"}, labels=None),
    Case(
        alert="MusterDeploymentDrifted",
        series={'muster_deployment_drifted{deployment="d"}': "1x60"},
        labels={"deployment": "d"},
        quiet="1m",
    ),
    Case(
        alert="MusterRevisionLacksReplicas",
        series={WANTED: "3x60", HAVE: "2x60", SHARE: "10x60"},
        labels={"deployment": "d", "revision": "r1"},
        quiet="10m",
    ),
    Case(
        alert="MusterRevisionLacksReplicas",
        series={WANTED: "3x60", HAVE: "2x60", SHARE: "0x60"},
        labels=None,
    ),
    Case(
        alert="MusterKeeperStandsStill",
        series={"muster_keeper_last_look_timestamp_seconds": "0+60x10 600x60"},
        quiet="16m",
    ),
    Case(
        alert="MusterKeeperStandsStill",
        series={"muster_keeper_last_look_timestamp_seconds": "0+60x60"},
        labels=None,
    ),
    Case(
        alert="MusterAirflowDown",
        series={'muster_scrape_success{part="airflow"}': "1x9 0x60"},
        quiet="12m",
        labels={"part": "airflow"},
    ),
    Case(alert="MusterPartNotRead", series={'muster_scrape_success{part="airflow"}': "0x60"}, labels=None),
    Case(alert="MusterAirflowDatabaseAway", series={"muster_airflow_database": "1x9 0x60"}, quiet="11m"),
    *(
        Case(
            alert=f"MusterAirflow{name}Gone",
            series={f'{BEAT}{{process="{process}"}}': "0+60x10 600x60", f'{BEAT}{{process="other"}}': "0x60"},
            labels={"process": process},
            quiet="13m",
        )
        for name, process in BEATS.items()
    ),
    *(
        Case(
            alert=f"MusterAirflow{name}Gone",
            series={f'{BEAT}{{process="{process}"}}': "0+60x60"},
            labels=None,
        )
        for name, process in BEATS.items()
    ),
    Case(alert="MusterAirflowDagsBroken", series={"muster_airflow_broken_dags": "0x9 2x60"}, quiet="15m"),
    Case(
        alert="MusterReleaseStuck",
        series={
            f'{STEP}{{deployment="d",state="back"}}': "60x600",
            f'{STEP}{{deployment="e",state="held"}}': "60x600",
        },
        labels={"deployment": "d", "state": "back"},
        at="5h",
        quiet="3h",
    ),
]


def test_every_alert_is_tried() -> None:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    assert alerts == {case.alert for case in CASES if case.labels is not None}


def test_prometheus_takes_the_rules() -> None:
    done = promtool("check", "rules", "--lint-fatal", str(ALERTS))
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_of_what_they_promise_and_of_nothing_else(tmp_path: Path) -> None:
    """By Prometheus itself: `promtool test rules` plays the series through its own engine."""
    for step in sorted({case.step for case in CASES}):
        assert_played(tmp_path, [_test(case) for case in CASES if case.step == step], step=step)


def test_a_played_alert_that_does_not_fire_is_found(tmp_path: Path) -> None:
    case = Case(alert="MusterStoreSlow", series={"muster_store_answer_seconds": "0.1x60"})
    with pytest.raises(AssertionError, match="MusterStoreSlow"):
        assert_played(tmp_path, [_test(case)])


def test_what_an_alert_says_names_the_thing_the_page_and_the_command(tmp_path: Path) -> None:
    (annotations,) = [
        rule["annotations"]
        for group in yaml.safe_load(ALERTS.read_text())["groups"]
        for rule in group["rules"]
        if rule["alert"] == "MusterDeploymentDown"
    ]
    said = {name: text.replace("{{ $labels.deployment }}", "flights") for name, text in annotations.items()}
    assert said["command"] == "muster deployments show flights"
    series = {'muster_deployment_ready{deployment="flights"}': "0x60"}
    expected = {"exp_labels": {"severity": "critical", "deployment": "flights"}, "exp_annotations": said}
    test = {"eval_time": "30m", "alertname": "MusterDeploymentDown", "exp_alerts": [expected]}
    played = {"interval": "1m", "input_series": _series(series), "alert_rule_test": [test]}
    assert_played(tmp_path, [played])


def assert_played(folder: Path, tests: list[Document], *, step: str = "1m") -> None:
    """Have promtool play tests of the rules. :raises AssertionError: what it found instead."""
    file = folder / "tests.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": step, "tests": tests})
    )
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def _test(case: Case) -> Document:
    severity = next(
        rule["labels"]["severity"]
        for group in yaml.safe_load(ALERTS.read_text())["groups"]
        for rule in group["rules"]
        if rule["alert"] == case.alert
    )
    firing = f'ALERTS{{alertname="{case.alert}",alertstate="firing"}}'
    labels = {"alertname": case.alert, "alertstate": "firing", "severity": severity, **(case.labels or {})}
    sample = "ALERTS{" + ",".join(f'{name}="{text}"' for name, text in sorted(labels.items())) + "}"
    tests = [
        {
            "expr": firing,
            "eval_time": case.at,
            "exp_samples": [] if case.labels is None else [{"labels": sample, "value": 1}],
        }
    ]
    if case.quiet:
        tests.append({"expr": firing, "eval_time": case.quiet, "exp_samples": []})
    return {
        "name": f"{case.alert} of {dict(case.series)}",
        "interval": case.step,
        "input_series": _series(case.series),
        "promql_expr_test": tests,
    }


def _series(series: Mapping[str, str]) -> list[Document]:
    return [{"series": name, "values": numbers} for name, numbers in series.items()]


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(helm.programs() / "promtool"), *words], capture_output=True, text=True, check=False
    )
