"""Every metric that muster tells of what stands: its name, labels and meaning. The page of docs is checked against it.

Model servers count their own requests (``serving/muster_serving/metrics.py``) and are scraped themselves. No label holds
an id of a job or run. A metric belongs to one part, which is asked as a whole: where that fails, none of its metrics is there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from muster.core.extensions import extensions


class MetricsPart(str, Enum):
    """What is asked at once, and fails at once."""

    STORE = "store"
    JOBS = "jobs"
    QUEUES = "queues"
    GPUS = "gpus"
    DEPLOYMENTS = "deployments"
    EXTENSIONS = "extensions"
    AIRFLOW = "airflow"
    KEEPERS = "keepers"


class MetricKind(str, Enum):
    """Prometheus's types of metrics."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    :param name: as Prometheus sees it; a counter's ends with ``_total``.
    :param part: None where it is there whatever fails.
    """

    name: str
    means: str
    part: MetricsPart | None
    labels: tuple[str, ...] = ()
    kind: MetricKind = MetricKind.GAUGE


GAUGES = tuple(gauge for each in extensions().values() for gauge in each.gauges)
_OF_REVISION = ("deployment", "revision")

METRICS: tuple[Metric, ...] = (
    Metric(
        name="muster_build_info",
        part=None,
        labels=("version", "place"),
        means="1; the release of muster, and what it looks at: machine or cluster",
    ),
    Metric(
        name="muster_scrape_success",
        part=None,
        labels=("part",),
        means="1 if this part could be read; if it is 0, all its metrics are missing and a comment of the page says why",
    ),
    Metric(
        name="muster_scrape_duration_seconds",
        part=None,
        labels=("part",),
        means="how long the last look at this part took",
    ),
    Metric(name="muster_store_bytes", part=MetricsPart.STORE, means="size of the store's disk or claim"),
    Metric(name="muster_store_free_bytes", part=MetricsPart.STORE, means="free space of it"),
    Metric(
        name="muster_store_free_files",
        part=MetricsPart.STORE,
        means="how many more files fit on it; missing if the file system has no limit",
    ),
    Metric(
        name="muster_store_answer_seconds",
        part=MetricsPart.STORE,
        means="how long one short question to the store took",
    ),
    Metric(name="muster_volumes", part=MetricsPart.STORE, means="volumes in the store"),
    Metric(
        name="muster_volume_versions",
        part=MetricsPart.STORE,
        labels=("volume",),
        means="readable versions of a volume; the first 500 volumes by name",
    ),
    Metric(
        name="muster_volume_newest_timestamp_seconds",
        part=MetricsPart.STORE,
        labels=("volume",),
        means="when the newest version was made",
    ),
    Metric(
        name="muster_store_last_fsck_timestamp_seconds",
        part=MetricsPart.STORE,
        labels=("depth",),
        means="when a check last ended, quick or deep; 0 if never",
    ),
    Metric(
        name="muster_store_damaged_versions",
        part=MetricsPart.STORE,
        labels=("depth",),
        means="damaged versions and documents that this check found; missing if it never ran",
    ),
    Metric(
        name="muster_last_gc_timestamp_seconds",
        part=MetricsPart.STORE,
        means="when garbage collection last ended well; 0 if never",
    ),
    Metric(
        name="muster_last_sweep_timestamp_seconds",
        part=MetricsPart.STORE,
        means="when an Airflow last compared jobs with its tasks; 0 if never",
    ),
    Metric(
        name="muster_jobs",
        part=MetricsPart.JOBS,
        labels=("state",),
        means="jobs that have not ended, as recorded: queued, preparing, running or committing; or unreadable",
    ),
    Metric(
        name="muster_jobs_overdue",
        part=MetricsPart.JOBS,
        labels=("limit",),
        means="jobs that have outlived their queue_timeout (queue) or run_timeout (run) and have not ended",
    ),
    Metric(
        name="muster_jobs_ended_total",
        part=MetricsPart.JOBS,
        labels=("outcome",),
        kind=MetricKind.COUNTER,
        means="jobs that ended since this process started: succeeded, or the cause of their verdict",
    ),
    Metric(
        name="muster_job_wait_seconds",
        part=MetricsPart.JOBS,
        labels=("queue",),
        kind=MetricKind.HISTOGRAM,
        means="from a job's submission to the start of its gang, of jobs that started since this process did",
    ),
    Metric(
        name="muster_job_run_seconds",
        part=MetricsPart.JOBS,
        labels=("state",),
        kind=MetricKind.HISTOGRAM,
        means="from the start of a gang to the job's end, of jobs that ended since this process started",
    ),
    Metric(
        name="muster_queue_jobs",
        part=MetricsPart.QUEUES,
        labels=("queue", "state"),
        means="jobs in a queue: waiting, or running",
    ),
    Metric(
        name="muster_queue_stopped",
        part=MetricsPart.QUEUES,
        labels=("queue",),
        means="1 if no job leaves the queue now",
    ),
    Metric(
        name="muster_queue_oldest_timestamp_seconds",
        part=MetricsPart.QUEUES,
        labels=("queue",),
        means="when the job was submitted that has waited longest; missing if none waits",
    ),
    Metric(
        name="muster_gpus",
        part=MetricsPart.GPUS,
        labels=("class", "state"),
        means="GPUs: used, free, or unavailable (their node takes no jobs)",
    ),
    Metric(
        name="muster_team_gpus",
        part=MetricsPart.GPUS,
        labels=("team", "class", "state"),
        means="GPUs of a team's queue: its quota, used, and of these borrowed; on clusters with Kueue",
    ),
    Metric(
        name="muster_deployment_ready",
        part=MetricsPart.DEPLOYMENTS,
        labels=("deployment",),
        means="1 if a request that is sent now is answered",
    ),
    Metric(
        name="muster_deployment_drifted",
        part=MetricsPart.DEPLOYMENTS,
        labels=("deployment",),
        means="1 if something is not as muster left it",
    ),
    Metric(
        name="muster_revision_traffic_percent",
        part=MetricsPart.DEPLOYMENTS,
        labels=(*_OF_REVISION, "model"),
        means="share of the traffic of each live revision, and the version that it serves",
    ),
    Metric(
        name="muster_revision_replicas",
        part=MetricsPart.DEPLOYMENTS,
        labels=(*_OF_REVISION, "state"),
        means="replicas of each live revision: wanted, and ready",
    ),
    Metric(
        name="muster_revision_restarts",
        part=MetricsPart.DEPLOYMENTS,
        labels=_OF_REVISION,
        means="restarts of the replicas that there are now",
    ),
    Metric(
        name="muster_release_step_started_timestamp_seconds",
        part=MetricsPart.DEPLOYMENTS,
        labels=("deployment", "state"),
        means="when the release under way got its present share; it goes forward, is held for a person, or goes back",
    ),
    Metric(
        name="muster_keepers",
        part=MetricsPart.KEEPERS,
        means="keepers of deployments that answer; where muster metrics is told of them, as in the chart",
    ),
    Metric(
        name="muster_keeper_last_look_timestamp_seconds",
        part=MetricsPart.KEEPERS,
        means="when one of them last looked at all deployments; 0 if none answers",
    ),
    Metric(
        name="muster_keeper_failing",
        part=MetricsPart.KEEPERS,
        means="what could not be looked at or put back in the last round; its log names it",
    ),
    Metric(
        name="muster_airflow_database",
        part=MetricsPart.AIRFLOW,
        means="1 if Airflow's database answers its API server; where muster metrics is told of an Airflow, as in the chart",
    ),
    Metric(
        name="muster_airflow_heartbeat_timestamp_seconds",
        part=MetricsPart.AIRFLOW,
        labels=("process",),
        means="the newest heartbeat of any scheduler, triggerer or dag_processor; 0 if none ever beat; missing while the database is away",
    ),
    Metric(
        name="muster_airflow_broken_dags",
        part=MetricsPart.AIRFLOW,
        means="Dags whose file cannot be parsed any more",
    ),
    *(
        Metric(name=each.name, means=each.means, labels=each.labels, part=MetricsPart.EXTENSIONS)
        for each in GAUGES
    ),
)
NAMED: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}


MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
BOUNDS_SECONDS = (1.0, 5.0, 15.0, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 4 * HOUR, 12 * HOUR, DAY, 3 * DAY)
MOST_LABELS = 100
OTHER = "other"


@dataclass
class Durations:
    """A histogram of seconds: how many took at most each of :data:`BOUNDS_SECONDS`."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_SECONDS) + 1))
    sum_seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one; a clock that went back makes it 0."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum_seconds += seconds


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One value of a metric, with its labels."""

    metric: str
    value: float | Durations
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        wanted = NAMED[self.metric].labels
        assert self.labels.keys() == set(wanted), f"{self.metric} has the labels {wanted}, not {self.labels}"


def bounded(name: str, known: Collection[str]) -> str:
    """Return a label's value: a name, or `other` where there are too many already. :param known: those that there are."""
    return name if name in known or len(known) < MOST_LABELS else OTHER
