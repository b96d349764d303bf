"""CompactOperator: the small files of a volume's last version become few large ones, in a version that replaces it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.airflow.authoring.checks import (
    check_count,
    check_image,
    check_keep,
    check_volume_name,
    if_known,
    optional,
)
from muster.airflow.authoring.keywords import keyword
from muster.airflow.authoring.references import is_known, keep_types
from muster.airflow.operators.program import ProgramOperator
from muster.airflow.operators.running import report, summary
from muster.core.data import Input
from muster.core.errors import SpecError
from muster.core.ingest import BEFORE, COMPACT_ENTRYPOINT
from muster.core.names import check_partition
from muster.ext.ingest.operator import DATA, INGEST, following_unknown

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.lineage import Lineage, TaskLineage


class CompactOperator(ProgramOperator):
    """Join the small Parquet files of a volume's last version into few large ones, in a new version that replaces it.

    The rows stay the same, in the same order; of a stream the offsets do, so the next ingest goes on where it would have gone on. Columns that
    only some files have are null in the rows of the others. The version that was joined is retired by the same commit, and gc deletes it
    once ``young_days`` of the RetentionOperator have passed; a pinned one is not replaced. Where nothing is to be joined, no version is made. A version that comes meanwhile, such as an ingest's, has the
    commit refused: the retry begins with that one.

    Since no row is new, the volume's asset has no event.

    :ivar versions: The output ``data``: the version with the large files, or the last one where nothing was joined.
    """

    program = replace(INGEST, entrypoint=COMPACT_ENTRYPOINT)
    ui_color = "#e0f2f1"

    volume: str = keyword(check=check_volume_name, templated=True, reads=True)
    """The volume, ``raw/events``."""
    partition: str | None = keyword(default=None, check=optional(if_known(check_partition)), templated=True)
    """The partition of which the last version is taken; None: of what has none."""
    large_mib: int = keyword(default=256, check=check_count)
    """The size of a large file. Files of less than half of it are joined with their neighbours until they are so large together."""
    keep: int | str | None = keyword(
        default=None, read=keep_types, check=optional(check_keep), templated=True
    )
    """How many of the versions before the joined one stay; the older ones are retired by the same commit, but pinned ones. None: all stay."""
    image: str = keyword(default="ingest", check=check_image, own=True, late=True)
    """The environment with what reads and writes Parquet."""

    def perform(self, context: Context) -> dict[str, Any]:
        """Run the job, and return its version and figures."""
        from muster.airflow.attempts.run import TaskRun

        task = TaskRun.of(self, context)
        status = task.run(partial(self.build, task))
        result = summary(status)
        address = result["versions"][DATA]
        if task.backend.store.record(address).job_id != status.job_id:
            self.tell(f"{self.volume} has nothing to join: {address} stays the last version")
        report(self.log, result)
        return result

    def own_fields(self, task: TaskRun) -> dict[str, Any]:
        """Begin with the last version of volume and partition, and replace it."""
        from airflow.sdk.exceptions import AirflowSkipException

        from muster.volumes.beginning import replace_last
        from muster.volumes.commits import refused_by_pin

        self.check_keywords()  # they are rendered by now
        assert not isinstance(self.keep, str)
        found = replace_last(task.backend.store, self.volume, self.partition, name=BEFORE, keep=self.keep)
        if found is None:
            where = self.volume if self.partition is None else f"{self.volume}, partition {self.partition}"
            raise AirflowSkipException(f"{where} has no version yet: there is nothing to join")
        base, output = found
        if base.pins:
            with self.refusing("volume"):
                raise SpecError(refused_by_pin(base.address, base.pins))
        return {
            "inputs": {BEFORE: Input(versions=(base.pinned,), many=True)},
            "outputs": {DATA: output},
            "params": {"large_mib": self.large_mib},
        }

    def drafted_fields(self) -> dict[str, Any]:
        """Follow a version that is not known yet."""
        return following_unknown(self.volume, DATA)

    def _named_lineage(self, lineage: Lineage) -> TaskLineage:
        return lineage.of_names((), (self.volume,) if is_known(self.volume) else ())
