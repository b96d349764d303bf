"""ValidateOperator: a version passes a suite of expectations, or the run stops there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.airflow.assets import asset_of
from muster.airflow.authoring.checks import check_file, check_flag, check_image, check_some, optional
from muster.airflow.authoring.keywords import keyword
from muster.airflow.authoring.references import VersionReference
from muster.airflow.authoring.values import volume_of
from muster.airflow.links import DataDocsLink, JobLink, VersionsLink, job_of
from muster.airflow.operators.cached import CachedOperator
from muster.airflow.operators.program import Program, ProgramOperator
from muster.airflow.operators.releasing import made_again
from muster.airflow.operators.suites import (
    check_suite,
    failure_text,
    is_violated,
    read_suite,
    unusable_text,
    warning_text,
)
from muster.core.address import Address
from muster.core.data import Input, OutputTarget
from muster.core.errors import NotFound, SpecError
from muster.core.job import JobSpec
from muster.core.names import check_volume

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.airflow.attempts.run import JobOutcome, TaskRun
    from muster.airflow.authoring.code import DagFolder
    from muster.airflow.lineage import Lineage, TaskLineage
    from muster.core.settings import Settings
    from muster.volumes.base import Made
    from muster.volumes.protocols import LocalStore

ENTRYPOINT = "muster_validate:validate"
SUFFIX = "-validation"
RESULT = "result.json"
_RESULT_OUTPUT = "result"


def _check_encoding(value: Any) -> None:
    """Refuse what Python knows as no encoding of texts."""
    try:
        "".encode(value)
    except (LookupError, TypeError, ValueError):
        raise SpecError(
            f"{value!r:.60}: expected an encoding by Python's name, such as 'cp1252' or 'utf-16'"
        ) from None


def _check_character(value: Any) -> None:
    """Refuse what is not one character."""
    if not isinstance(value, str) or len(value) != 1 or value in "\r\n":
        raise SpecError(f"{value!r:.60}: expected one character, such as ';'")


class ValidateOperator(CachedOperator, ProgramOperator):
    """Check versions against a suite of expectations (Great Expectations), and stop where one fails.

    The result and Data Docs that can be read offline are committed as a version of `result_volume`,
    whether the data passes or not.

    :ivar versions: The output ``result``: the suite's result and Data Docs.
    """

    program = Program(
        entrypoint=ENTRYPOINT,
        output=_RESULT_OUTPUT,
        files="muster_validate",
        does="runs a suite",
        image="validate",
    )
    ui_color = "#e6f4ea"
    operator_extra_links = (JobLink(), VersionsLink(), DataDocsLink())

    volume: str | VersionReference | Sequence[str | VersionReference] = keyword(
        check=check_some, templated=True, reads=True
    )
    """The version, or versions, to check: ``.versions["features"]`` or an address."""
    suite: str = keyword(default="expectations.json", check=check_file)
    """A JSON file of the Dag's folder."""
    image: str = keyword(default="validate", check=check_image, own=True, late=True)
    """The environment with Great Expectations in it."""
    encoding: str | None = keyword(default=None, check=optional(_check_encoding))
    """How texts of CSV files are written, by Python's name: ``"cp1252"``, ``"utf-16"``. None: UTF-8."""
    delimiter: str | None = keyword(default=None, check=optional(_check_character))
    """What stands between the columns of CSV files. None: it is seen from the files."""
    quote: str | None = keyword(default=None, check=optional(_check_character))
    """What stands around a text of CSV files that holds the delimiter. None: it is seen from the files."""
    result_volume: str | None = keyword(default=None)
    """Where the result goes; the volume's name with ``-validation`` where not given."""
    retire_failed: bool = keyword(default=True, check=check_flag)
    """Retire what fails, so that no selector such as ``@latest`` finds it any more. Nothing is retired where no failed
    expectation could be evaluated, because it names a column that is not there, say, nor for one of severity ``warning``."""
    run_timeout = timedelta(hours=1)

    def check_together(self) -> None:
        """Name the asset of the result's volume, as far as the Dag file tells it."""
        known = self.result_volume
        if known is None and (of := volume_of(self.volume)) is not None:
            known = f"{of}{SUFFIX}"
        if known is not None:
            with self.refusing("result_volume"):
                check_volume(known)
            self.add_outlets([asset_of(known)] if asset_of(known) not in self.outlets else [])

    @property
    def passed(self) -> VersionReference:
        """The checked version, for tasks that need it to have passed."""
        return VersionReference(self, path=("passed",))

    def check_files(self, folder: DagFolder, settings: Settings) -> None:
        """Read the suite, and hold it against what the image's Great Expectations knows."""
        with self.refusing("suite"):
            suite = read_suite(folder, self.suite)
        with self.refusing("image"):
            image = folder.image(self.image, settings)
        with self.refusing("suite"):
            check_suite(suite, image, self.suite)

    def perform(self, context: Context) -> dict[str, Any]:
        """Run the suite in its own environment and read its result."""
        from muster.airflow.attempts.run import TaskRun
        from muster.airflow.operators.spec import arrives_as_list

        task = TaskRun.of(self, context)
        store = task.backend.store
        outcome = task.make(partial(self.build, task), wish=self.wish())
        result = self.finish(context, task, outcome)
        # What the job looked at, which an earlier try may have pinned: @latest is another version by now.
        checked = self._checked(store, outcome)
        self._judge(store, checked, result["versions"]["result"], task.origin.again)
        return {**result, "passed": checked if arrives_as_list(self.volume) else checked[0]}

    def again(self, last: JobSpec, folder: DagFolder, store: LocalStore, settings: Settings) -> JobSpec:
        """Build the job that the Dag's files say now; what it looks at is that of the last job."""
        return self.build_again(last, folder, store, settings, self._params(folder))

    def task_lineage(self, lineage: Lineage, ti: Any) -> TaskLineage:
        """Describe what was validated, and what each expectation found."""
        if not (job_id := job_of(ti)):
            return super().task_lineage(lineage, ti)
        try:
            return lineage.of_validation(job_id, run_id=ti.run_id)
        except NotFound:  # gc deleted the entry of the job whose result is kept
            return super().task_lineage(lineage, ti)

    def refuse(self, made: Made) -> str:
        """Refuse a validation that did not pass: it is done again."""
        failed = made.metrics.get("failed")
        return "" if failed == 0 else "what it validated did not pass"

    def _checked(self, store: LocalStore, outcome: JobOutcome) -> list[str]:
        """The versions that were looked at; where an earlier result is kept, those of now, whose content is the same."""
        from muster.airflow.operators.spec import pin

        if outcome.kept is None:
            given = store.ledger.spec(outcome.status.job_id).inputs["data"]
        else:
            given = pin(store, "data", self.volume)
        return [version.address for version in given.versions]

    def own_fields(self, task: TaskRun) -> dict[str, Any]:
        """Run the suite on the versions."""
        from muster.airflow.authoring.code import DagFolder
        from muster.airflow.operators.spec import pin

        data = pin(task.backend.store, "data", self.volume)
        volume = self.result_volume or f"{Address.parse(data.versions[0].address).volume}{SUFFIX}"
        partitions = {version.partition for version in data.versions}
        partition = partitions.pop() if len(partitions) == 1 else None
        return {
            "inputs": {"data": Input(versions=data.versions, many=True)},
            "outputs": {_RESULT_OUTPUT: OutputTarget(volume=volume, partition=partition)},
            "params": self._params(DagFolder.of(task.context["dag"])),
        }

    def _params(self, folder: DagFolder) -> dict[str, Any]:
        given = {"encoding": self.encoding, "delimiter": self.delimiter, "quote": self.quote}
        csv = {name: value for name, value in given.items() if value is not None}
        return {"suite": read_suite(folder, self.suite), **({"csv": csv} if csv else {})}

    def drafted_fields(self) -> dict[str, Any]:
        """Look at versions that are not known yet."""
        from muster.airflow.operators.spec import STAND_IN

        return {"inputs": {"data": STAND_IN}}

    def _judge(self, store: LocalStore, addresses: Sequence[str], result: str, again: str) -> None:
        from airflow.sdk.exceptions import AirflowFailException

        document = json.loads((store.path(result) / RESULT).read_text(encoding="utf-8"))
        if warned := warning_text(document, suite=self.suite):
            self.warn(warned)
        if document["success"]:
            self._reinstate(store, addresses)
            return
        if "error" in document:
            raise AirflowFailException(
                unusable_text(document["error"], suite=self.suite, addresses=addresses)
            )
        retired = self.retire_failed and any(map(is_violated, document["results"]))
        for address in addresses if retired else ():
            store.retire(address, reason=f"{self._retired_for}see {result}")
        then = made_again(store.record(addresses[0]).origin, again, of="suite")
        raise AirflowFailException(
            failure_text(
                document, suite=self.suite, addresses=addresses, result=result, retired=retired, then=then
            )
        )

    def _reinstate(self, store: LocalStore, addresses: Sequence[str]) -> None:
        """Bring back what this suite retired and now lets pass; what was retired for another reason stays so."""
        for address in addresses:
            (version,) = store.resolve(address)
            if version.retired is None:
                continue
            if version.retired.startswith(self._retired_for):
                store.reinstate(address)
                self.log.info("%s passes now: selectors find it again", address)
            else:
                self.warn(f"{address} passes but stays retired, so no selector finds it: {version.retired}")

    @property
    def _retired_for(self) -> str:
        return f"failed {self.suite}, "
