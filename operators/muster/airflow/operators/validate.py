"""ValidateOperator: a version passes a suite of expectations, which is read from the Dag's folder, or the run stops there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.airflow.assets import asset_of
from muster.airflow.authoring.checks import check_file, check_flag, check_image, check_some, optional
from muster.airflow.authoring.code import DagFolder
from muster.airflow.authoring.keywords import keyword
from muster.airflow.authoring.references import VersionReference, texts_in
from muster.airflow.authoring.values import volume_of
from muster.airflow.links import DataDocsLink, JobLink, VersionsLink, job_of
from muster.airflow.operators.program import Program, ProgramOperator
from muster.airflow.operators.releasing import made_again
from muster.airflow.operators.running import CachedOperator
from muster.airflow.teams import DagFacts, site_teams
from muster.core.address import Address
from muster.core.data import Input, OutputTarget
from muster.core.errors import NotFound, SpecError
from muster.core.job import JobSpec
from muster.core.names import check_volume, nearest

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.airflow.attempts.run import JobOutcome, TaskRun
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
        if self.retire_failed:
            with self.refusing("retire_failed"):
                marked = [Address.parse(each).volume for each in texts_in(self.volume)]
                site_teams().admit_use(DagFacts.of(context), "a mark", writes=marked)
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
        for address in addresses if self.retire_failed else ():
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


_CATALOGUE = "catalogue.json"
SHOWN = 3
CRITICAL = "critical"
_NOISE = frozenset({"column", "batch_id"})


def read_suite(folder: DagFolder, name: str) -> dict[str, Any]:
    """Read a suite. :raises SpecError: it names the file, and the line where it does not parse."""
    text = folder.read(name, what="suite")
    try:
        suite = json.loads(text)
    except ValueError as error:
        raise SpecError(f"suite {name} is not JSON: {error}") from error
    expectations = suite.get("expectations") if isinstance(suite, dict) else None
    if not isinstance(expectations, list) or not expectations:
        raise SpecError(
            f'suite {name}: expected {{"expectations": [{{"type": …, "kwargs": {{…}}}}, …]}}, one or more'
        )
    for number, each in enumerate(expectations):
        if not isinstance(each, dict) or not isinstance(each.get("type"), str):
            raise SpecError(f"suite {name}: expectation {number + 1} has no type: found {each!r:.80}")
    return dict(suite)


def check_suite(suite: Mapping[str, Any], image: Path, name: str) -> None:
    """Hold a suite against the expectations and keywords that the image's Great Expectations has.

    :param image: the image's folder; one without a ``catalogue.json`` says nothing of what it knows.
    :raises SpecError: it names the file, the expectation, and the nearest name.
    """
    file = image / _CATALOGUE
    if not file.is_file():
        return
    catalogue = json.loads(file.read_text(encoding="utf-8"))
    for number, each in enumerate(suite["expectations"], 1):
        kind, known = each["type"], catalogue["expectations"]
        where = f"suite {name}: expectation {number}"
        if why := catalogue.get("refused", {}).get(kind):
            raise SpecError(f"{where}, {kind}, cannot run here: {why}")
        if kind not in known:
            raise SpecError(f"{where} has the type {kind!r:.80}, which {_unknown(kind, known, image)}")
        _check_kwargs(f"{where}, {kind}", each.get("kwargs", {}), known[kind], catalogue["common"])


def _check_kwargs(where: str, kwargs: Any, known: Mapping[str, bool], common: Sequence[str]) -> None:
    """Refuse keywords that an expectation does not take, and the lack of one that it needs."""
    if not isinstance(kwargs, dict):
        raise SpecError(f"{where}: kwargs is {kwargs!r:.60}, expected an object of keywords")
    for word in kwargs:
        if word not in known and word not in common:
            near = nearest(word, known)
            advice = f"did you mean {near}?" if near else f"it takes {', '.join(sorted(known))}"
            raise SpecError(f"{where} takes no keyword {word!r:.60}; {advice}")
    missing = [word for word, needed in known.items() if needed and word not in kwargs]
    if missing:
        raise SpecError(
            f"{where} needs the keyword {', '.join(missing)}; found {', '.join(kwargs) or 'none'}"
        )


def _unknown(kind: str, known: Mapping[str, Any], image: Path) -> str:
    near = nearest(kind, known)
    return f"image {image.name!r} does not know; " + (
        f"did you mean {near}?" if near else f"it knows {len(known)}, listed in {image / _CATALOGUE}"
    )


def failure_text(
    document: Mapping[str, Any],
    *,
    suite: str,
    addresses: Sequence[str],
    result: str,
    retired: bool,
    then: str = "",
) -> str:
    """Four lines: how many failed, the first of them with what was found, what to do, where the docs are.

    :param then: how to make the data again once they are mended, and how to run a mended suite; empty where no task made them.

    What could not be evaluated comes first, since it may hide what is wrong; of the others at least one is shown.
    """
    results, columns = document["results"], document.get("columns", ())
    failed = [each for each in results if not each["success"] and severity(each) == CRITICAL]
    violated = [each for each in failed if is_violated(each)]
    unknown = [each for each in failed if not is_violated(each)]
    first = unknown[: SHOWN - min(1, len(violated))]
    listed = [*first, *violated[: SHOWN - len(first)]]
    shown = "; ".join(_shown(each, columns) for each in listed) + (
        f"; and {len(failed) - len(listed)} more" * (len(failed) > len(listed))
    )
    gone = f"no selector finds {_what(addresses)} any more (retired); " if retired else ""
    if not violated:
        gone = "nothing is retired, since none of these could be evaluated; "
    return (
        f"validation failed: {len(failed)} of {len(results)} expectations of {suite} on {_what(addresses)}"
        f"{f', {len(unknown)} of which could not be evaluated' if unknown and violated else ''}\n"
        f"{shown}\n"
        f"{gone}{f'mended data: {then}' if then else 'mend the data or the suite and run again'}\n"
        f"result and Data Docs: muster volumes get {result} FOLDER"
    )


def warning_text(document: Mapping[str, Any], *, suite: str) -> str:
    """Say what does not hold and only warns; empty where there is nothing."""
    results, columns = document.get("results", ()), document.get("columns", ())
    warned = [each for each in results if not each["success"] and severity(each) != CRITICAL]
    shown = "; ".join(_shown(each, columns) for each in warned[:SHOWN])
    more = f"; and {len(warned) - SHOWN} more" if len(warned) > SHOWN else ""
    return f"{suite} warns of {len(warned)} of {len(results)} expectations: {shown}{more}" if warned else ""


def unusable_text(error: str, *, suite: str, addresses: Sequence[str]) -> str:
    """Say that a suite could not be held against the data at all, why, and what to do."""
    return (
        f"suite {suite} cannot be held against {_what(addresses)}\n{error}\n"
        "mend it and run again; nothing is retired"
    )


def severity(each: Mapping[str, Any]) -> str:
    """Return what an expectation says of its failure: ``critical``, which fails the stage, ``warning`` or ``info``."""
    config = each.get("expectation_config", {})
    return str(config.get("severity") or config.get("kwargs", {}).get("severity") or CRITICAL)


def is_violated(each: Mapping[str, Any]) -> bool:
    """Whether a critical expectation failed on the data, and not because it could not be held against them."""
    raised = (each.get("exception_info") or {}).get("raised_exception")
    return not each["success"] and not raised and severity(each) == CRITICAL


def _what(addresses: Sequence[str]) -> str:
    return f"{addresses[0]}" + (f" and {len(addresses) - 1} more" if len(addresses) > 1 else "")


def _shown(each: Mapping[str, Any], columns: Sequence[str]) -> str:
    config = each.get("expectation_config", {})
    kwargs = config.get("kwargs", {})
    column = kwargs.get("column")
    bounds = ", ".join(f"{name}={value!r:.40}" for name, value in kwargs.items() if name not in _NOISE)
    return f"{config.get('type', 'an expectation')}{f' on {column}' if column else ''} ({bounds}): {_found(each, columns)}"


def _found(each: Mapping[str, Any], columns: Sequence[str]) -> str:
    found, column = (
        each.get("result") or {},
        each.get("expectation_config", {}).get("kwargs", {}).get("column"),
    )
    raised = (each.get("exception_info") or {}).get("raised_exception")
    if columns and isinstance(column, str) and column not in columns and raised:
        near = nearest(column, columns)
        advice = f"did you mean {near}?" if near else f"the columns are {', '.join(columns):.120}"
        return f"there is no column {column!r:.40}; {advice}"
    if found.get("unexpected_count"):
        different = dict.fromkeys(f"{value!r:.30}" for value in found.get("partial_unexpected_list") or [])
        examples = ", ".join(list(different)[:SHOWN])
        return f"{found['unexpected_count']} unexpected{f', such as {examples}' if examples else ''}"
    if found.get("observed_value") is not None:
        return f"found {found['observed_value']!r:.60}"
    if raised:
        return f"could not be evaluated: {(each.get('exception_info') or {}).get('exception_message')!s:.200}"
    return "not met"
