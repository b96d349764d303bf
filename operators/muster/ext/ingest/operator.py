"""IngestOperator: outside data, objects of a store, the rows of a query or the messages of a topic, becomes a version."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.airflow.assets import announce, announce_nothing, asset_of
from muster.airflow.attempts.resuming import Resume
from muster.airflow.attempts.verdicts import Failed, FailedForGood
from muster.airflow.authoring.checks import (
    check_among,
    check_count,
    check_image,
    check_span,
    check_volume_name,
    if_known,
    optional,
)
from muster.airflow.authoring.keywords import keyword
from muster.airflow.authoring.references import is_known
from muster.airflow.operators.program import Program, ProgramOperator
from muster.airflow.operators.running import report
from muster.core.data import CHECKPOINTS, UNKNOWN, Input, OutputTarget
from muster.core.errors import SpecError
from muster.core.ingest import (
    AWAY,
    BEFORE,
    ENTRYPOINT,
    KAFKA,
    LOST,
    PACKAGE,
    UNREADABLE,
    VALUES,
    Source,
    check_connection,
    check_time,
    check_types,
    check_url,
)
from muster.core.names import check_partition, check_volume

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.lineage import Lineage, TaskLineage
    from muster.core.status import JobStatus
    from muster.volumes.protocols import LocalStore

DATA = "data"
INGEST = Program(entrypoint=ENTRYPOINT, output=DATA, files=PACKAGE, does="ingests", image="ingest")


def check_text(value: Any) -> None:
    """Refuse what is no text."""
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{value!r:.60}: expected a text")


class IngestOperator(ProgramOperator):
    """Make a version of outside data: the whole source as it is now.

    Of an object store, web server, SFTP server or folder the files are fetched that changed since the last version (by size and ETag or, where
    a source has none, the time of the change); the others are shared with it, and what is gone from the source is gone from the new version.
    Where nothing changed no version is made, and the last one is the result. A retry goes on from what was fetched.

    With ``source="sql://CONNECTION"`` the rows of `query` become Parquet files. Without a `watermark` the whole result is read each time, so
    rows that were changed or deleted are so in the new version. With one, only rows above its highest value are read and added: changed and
    deleted rows below it are not seen.

    With ``source="kafka://CONNECTION/topic"`` the messages since the last version become Parquet files beside its own, up to where the topic
    ends when the job begins. The version holds the rows and the offsets up to which it goes, so each message is in it once, whatever is
    killed. Beside the columns of the value there are ``_partition``, ``_offset``, ``_timestamp`` and ``_key``.

    :ivar versions: The output ``data``: the version of the source.
    """

    program = INGEST
    ui_color = "#e0f2f1"

    source: str = keyword(check=if_known(check_url), templated=True)
    """``s3://bucket/prefix``, ``gs://``, ``abfs://``, ``https://``, ``sftp://``, ``file:///folder``, ``sql://CONNECTION``, or
    ``kafka://CONNECTION/topic``."""
    volume: str = keyword(check=check_volume_name, templated=True, reads=True)
    """The volume that gets the version, ``raw/events``."""
    partition: str | None = keyword(default=None, check=optional(if_known(check_partition)), templated=True)
    """The partition of the version. Each partition is compared with its own last version."""
    connection: str | None = keyword(default=None, check=optional(if_known(check_connection)), templated=True)
    """The Airflow connection with credentials, endpoint (``endpoint_url``) and certificate authority (``ca``, PEM text) of the source. None:
    none is used."""
    query: str | None = keyword(default=None, check=optional(check_text), templated=True)
    """The SQL that selects the rows, of a ``sql://`` source alone."""
    watermark: str | None = keyword(default=None, check=optional(check_text))
    """A column of the query that only grows, such as an id or a time of insertion."""
    types: dict[str, str] | None = keyword(default=None, check=optional(check_types))
    """Types of columns of the query, such as ``{"amount": "decimal(18,3)"}``; the others have those of the database, which hold all their
    values. With other types the query is read whole again."""
    values: str = keyword(default=VALUES[0], check=check_among(VALUES))
    """How the messages of a topic are read: ``json``, ``avro`` (as Confluent's serializers write it, with the registry
    ``schema.registry.url`` of the connection's extra), or ``raw`` (one column ``value``)."""
    until: str | None = keyword(default=None, check=optional(if_known(check_time)), templated=True)
    """Of a topic, only messages before this time, such as ``{{ data_interval_end }}``. None: all there are when the job begins."""
    most: int | None = keyword(default=None, check=optional(check_count))
    """How many rows of a topic one version adds at most; the next one goes on. None: all of them."""
    unreadable: str = keyword(default=UNREADABLE[0], check=check_among(UNREADABLE))
    """What is done about a message of a topic that cannot be read: ``stop`` ends the task and names it, ``skip`` counts it, ``keep`` also puts
    it into the folder ``_unreadable`` of the version."""
    lost: str = keyword(default=LOST[0], check=check_among(LOST))
    """What is done about messages that the broker dropped before a version held them: ``stop`` ends the task, ``skip`` counts them."""
    streams: int = keyword(default=16, check=check_count)
    """How many files are fetched at once."""
    patience: timedelta = keyword(default=timedelta(minutes=5), check=check_span)
    """How long the source may be away before that ends the try; the next try goes on from what was fetched."""
    image: str = keyword(default="ingest", check=check_image, own=True, late=True)
    """The environment with what reads the sources."""

    def check_together(self) -> None:
        """Check what belongs to the source, and announce the volume's asset."""
        if is_known(self.volume):
            self.add_outlets([asset_of(self.volume)] if asset_of(self.volume) not in self.outlets else [])
        if is_known([self.source, self.query, self.until, self.connection]):
            with self.refusing("source"):
                self._source()

    def _source(self) -> Source:
        stream = self.source.startswith(f"{KAFKA}://")
        return Source(
            url=self.source,
            values=self.values if stream or self.values != VALUES[0] else None,
            until=self.until,
            most=self.most,
            unreadable=self.unreadable,
            lost=self.lost,
            connection=self.connection,
            query=self.query,
            watermark=self.watermark,
            types=self.types,
            streams=self.streams,
            patience_seconds=self.patience.total_seconds(),
        )

    def perform(self, context: Context) -> dict[str, Any]:
        """Run the ingest, and return its version and figures."""
        from muster.airflow.attempts.run import TaskRun

        task = TaskRun.of(self, context)
        try:
            status = task.run(partial(self.build, task), resume=Resume.ALWAYS)
        except FailedForGood as error:
            if AWAY in str(error.args[0]):  # unlike other errors of a program, this one passes
                raise Failed(error.args[0]) from None
            raise
        return self._told(context, task.backend.store, status)

    def _told(self, context: Context, store: LocalStore, status: JobStatus) -> dict[str, Any]:
        assert status.result is not None
        (address,) = status.result.outputs[CHECKPOINTS]
        if store.record(address).job_id == status.job_id:
            announce(context, store, status)
        else:
            announce_nothing(context)
            self.tell(f"{self.source} holds nothing new: {address} stays the last version")
        result = {
            "job_id": status.job_id,
            "versions": {DATA: address},
            "metrics": dict(status.result.metrics),
        }
        report(self.log, result)
        return result

    def own_fields(self, task: TaskRun) -> dict[str, Any]:
        """Begin with the last version of volume and partition, and follow it."""
        from muster.airflow.outside import outside_connection
        from muster.volumes.beginning import begin_with_last

        with self.refusing("source"):
            source = self._source()
        with self.refusing("volume"):
            check_volume(self.volume)
        connection = outside_connection(source.conn_id) if source.conn_id else None
        before, output = begin_with_last(task.backend.store, self.volume, self.partition, name=BEFORE)
        told: dict[str, Any] = {"kind": connection.kind, "extras": connection.extras} if connection else {}
        return {
            "inputs": {BEFORE: before},
            "outputs": {CHECKPOINTS: output},
            "params": {"what": source.param(**told)},
            "secrets": connection.secrets if connection else {},
        }

    def drafted_fields(self) -> dict[str, Any]:
        """Follow a version that is not known yet."""
        return following_unknown(self.volume, CHECKPOINTS)

    def _named_lineage(self, lineage: Lineage) -> TaskLineage:
        return lineage.of_names((), (str(each.uri) for each in self.outlets if hasattr(each, "uri")))


def following_unknown(volume: str, output: str) -> dict[str, Any]:
    """Return the fields of a job that follows the last version of a volume, which is not known yet."""
    from muster.airflow.operators.spec import STAND_IN

    target = OutputTarget(volume=volume if is_known(volume) else UNKNOWN, base=BEFORE, after=0)
    return {"inputs": {BEFORE: Input(versions=STAND_IN.versions, many=True)}, "outputs": {output: target}}
