"""Makes versions: of a job's sealed files, and of files put in by hand; each once per job_id.

A commit may retire the versions that it replaces::

        v/<volume>/<n>/replaced/<job_id>       written before the commit record; its text is why <n> is retired from then on

The mark counts once the job's commit record is there, so the new version is visible and the old one retired in one step; one of a job that never
commits says nothing. It stays, and its time is when the version was replaced. RETIRED is written for what is retired by its address: gc takes
that at once, but leaves what was replaced to runs that were given it before.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

from muster.core.address import Address, pinned
from muster.core.data import EVERY_PARTITION, OutputTarget
from muster.core.errors import BadOutput, Conflict, MusterError, NotFound
from muster.core.job import JobSpec
from muster.core.names import check_note
from muster.core.replica import PartManifest
from muster.volumes import partitions, sharing
from muster.volumes.attempts import FolderAttempts
from muster.volumes.base import Record, Staging, Version
from muster.volumes.catalog import Catalog
from muster.volumes.commit import Placed, Step, assemble, decide, publish, read_plan
from muster.volumes.commit_records import REPLACED, Place, committed, holder
from muster.volumes.durability import sync_folder, translated, write_whole
from muster.volumes.gather import (
    Draft,
    gather,
    give_back_checkpoints,
    plan_drafts,
    union,
)
from muster.volumes.layout import Layout
from muster.volumes.ledger import FolderLedger
from muster.volumes.makings import remember

_AGAIN = "nothing is committed; run it again, and it begins with that one"


class Commits:
    """The commits of one store.

    :param compare: see :class:`muster.volumes.folder.FolderStore`.
    """

    def __init__(
        self,
        layout: Layout,
        catalog: Catalog,
        ledger: FolderLedger,
        attempts: FolderAttempts,
        *,
        compare: bool,
    ) -> None:
        self._layout, self._catalog = layout, catalog
        self._ledger, self._attempts = ledger, attempts
        trusted = layout.syncfs and not compare  # an NFS client may have outdated times of a file
        self._steps = (
            Step(frozen=partial(sharing.shared, layout, catalog, trusted=trusted)),
            Step(
                field="base",
                drafted=partial(sharing.named, layout),
                frozen=partial(sharing.take_over, layout, trusted=trusted),
                failed=sharing.drop,
            ),
            Step(field="after", numbered=self._check_after),
            Step(
                field="retires",
                numbered=partial(_check_retired, catalog),
                decided=partial(_mark_retired, layout),
            ),
            Step(decided=partial(remember, layout)),
        )

    def commit(
        self,
        job_id: str,
        *,
        attempt: int,
        metrics: Mapping[str, float] | None = None,
        modules: Sequence[str] | None = None,
    ) -> dict[str, tuple[Version, ...]]:
        """Make the sealed files into versions; see :meth:`muster.volumes.protocols.Attempts.commit`."""
        done = committed(self._layout, job_id)
        if done is None:
            self._ledger.check(job_id)
            with translated(f"commit job {job_id}"), self._attempts.alone(job_id):
                done = committed(self._layout, job_id)
                if done is None:  # no other process did it meanwhile
                    done = self._commit_once(job_id, attempt, metrics or {}, modules)
        return {
            output: tuple(self._catalog.described(volume, number) for volume, number in places)
            for output, places in done.items()
        }

    def put(
        self,
        job_id: str,
        volume: str,
        draft: Callable[[Path], Draft],
        *,
        note: str,
        like: Record | None = None,
    ) -> Version:
        """Make one draft a version, once per job_id, however often it is called.

        :param draft: creates the draft below the given folder.
        :param like: the record of the version that it is a copy of.
        :raises OSError: the disk is full, or a write fails.
        """
        check_note(note)
        ready = self._layout.staging(job_id) / "1" / "ready"
        with self._attempts.alone(job_id):
            done = committed(self._layout, job_id)
            if done is None:
                record = like or Record(
                    volume=volume, number=0, digest="", created=0.0, job_id=job_id, output=""
                )
                own = replace(
                    record, volume=volume, job_id=job_id, siblings=(), note=note, created=time.time()
                )
                done = self._put(job_id, draft, ready, own)
        # After the lock is given back: NFS keeps a folder as long as a file in it, such as the lock, is open.
        self._layout.delete(self._layout.staging(job_id))
        ((place,),) = done.values()
        return self._catalog.described(*place)

    def _put(
        self, job_id: str, draft: Callable[[Path], Draft], ready: Path, record: Record
    ) -> dict[str, list[tuple[str, int]]]:
        plan = read_plan(ready)
        if plan is None:  # else a call before a crash received all files
            try:
                drafts = [draft(ready)]
                steps = [step for step in self._steps if not step.field]
                plan = assemble(self._layout, drafts, steps, record=record)
                decide(self._layout, plan, ready=ready)
            except BaseException:
                self._layout.delete(ready)
                raise
        return publish(self._layout, plan, ready=ready, job_id=job_id)

    def _commit_once(
        self, job_id: str, attempt: int, metrics: Mapping[str, float], modules: Sequence[str] | None
    ) -> dict[str, list[tuple[str, int]]]:
        try:
            return self._commit(job_id, attempt, metrics, modules)
        except (OSError, MusterError):
            done = committed(self._layout, job_id)
            if done is None:
                raise
            return done  # another machine did it meanwhile, where locks have no effect

    def _commit(
        self, job_id: str, attempt: int, metrics: Mapping[str, float], modules: Sequence[str] | None
    ) -> dict[str, list[tuple[str, int]]]:
        staging = self._attempts.current(job_id, attempt)
        ready, spec = staging.root / "ready", self._ledger.spec(job_id)
        steps = [step for step in self._steps if step.is_of(spec)]
        plan = read_plan(ready)
        if plan is None:
            with _blaming_output(), self._checkpoints_stay(staging, spec, steps):
                drafts = self._drafts(staging, spec, steps)
                sealed_at = self._attempts.sealed_at(staging)
                record = Record.of_job(spec, job_id, metrics=metrics, modules=modules, created=sealed_at)
                plan = assemble(self._layout, drafts, steps, record=record)
                for step in steps:
                    step.numbered(spec, plan)
            decide(self._layout, plan, ready=ready)
        for step in steps:
            step.decided(job_id, spec, plan)
        done = publish(self._layout, plan, ready=ready, job_id=job_id, kept=_kept(spec, plan))
        with suppress(OSError):  # the versions are visible; gc deletes what stays
            self._attempts.clear(staging)
        return done

    def _drafts(self, staging: Staging, spec: JobSpec, steps: Sequence[Step]) -> list[Draft]:
        parts = self._attempts.sealed(staging)
        if parts is None:
            raise Conflict(
                f"job {staging.job_id}, attempt {staging.attempt}: not all replicas have sealed, "
                "so nothing is committed"
            )
        drafts = gather(staging, _planned(staging, spec, parts), parts)
        for step in steps:
            drafts = list(map(step.drafted, drafts))
        return drafts

    @contextmanager
    def _checkpoints_stay(self, staging: Staging, spec: JobSpec, steps: Sequence[Step]) -> Iterator[None]:
        """Where a commit cannot be prepared, have the checkpoints where the task's next job finds them."""
        try:
            yield
        except BaseException:
            with suppress(OSError, MusterError):  # what is raised is the reason
                drafts = _planned(staging, spec, self._attempts.sealed(staging) or ())
                for step, draft in product(steps, drafts):
                    step.failed(draft)
                give_back_checkpoints(staging, drafts)
            raise

    def _check_after(self, spec: JobSpec, plan: Sequence[Placed]) -> None:
        """Look at every output that says what it comes after, once the numbers of all are reserved.

        :raises Conflict: another version is there, or another job that is not over has reserved a lower number.
        """
        numbers = {placed.output: placed.number for placed in plan}
        for name, output in spec.outputs.items():
            if output.after is not None:
                self._check_one(output, numbers.get(name))

    def _check_one(self, output: OutputTarget, own: int | None) -> None:
        assert output.after is not None
        volume = output.volume
        # Those below its own by name: a listing may be late.
        below = range(output.after + 1, own or 0)
        above = [number for number in self._layout.numbers(volume) if number > output.after]
        folded = self._catalog.folded(volume, output.after)  # with one read of each file, not of each version
        elsewhere = {number for number, name in folded.items() if name != output.partition}
        for number in sorted({*below, *above, *folded} - {own} - elsewhere - self._elsewhere(output, above)):
            if self._catalog.is_in(volume, number, output.partition):
                raise Conflict(f"{self._expected(output)}, and {pinned(volume, number)} is there: {_AGAIN}")
            if own is not None and number < own and (other := self._rival(output, number)):
                raise Conflict(
                    f"{self._expected(output)}, and job {other} commits {pinned(volume, number)} now: {_AGAIN}"
                )

    def _elsewhere(self, output: OutputTarget, above: Sequence[int]) -> set[int]:
        """The numbers of other partitions, where there are too many to read each: the first version of a partition has after=0, so every number is above it."""
        if len(above) < partitions.MOST_UNREAD:
            return set()
        known = self._catalog.partitions(output.volume)
        return {number for number, partition in known.items() if partition != output.partition}

    def _expected(self, output: OutputTarget) -> str:
        after = f"after {pinned(output.volume, output.after)}" if output.after else "the first of its volume"
        where = "" if output.partition is None else f", partition {output.partition}"
        return f"the new version of {output.volume}{where} was to come {after}"

    def _rival(self, output: OutputTarget, number: int) -> str:
        """Return the job that may yet commit a number of the same partition; empty if none does."""
        job_id = holder(self._layout.version(output.volume, number))
        if job_id is None:
            return ""
        try:
            over = self._ledger.status(job_id).state.ended
            targets = self._ledger.spec(job_id).outputs.values()
        except NotFound:  # files that a person puts, or a copy
            return "" if self._attempts.idle(job_id) else job_id
        same = any(
            each.volume == output.volume and each.partition in (output.partition, EVERY_PARTITION)
            for each in targets
        )
        return job_id if same and not over else ""


def _planned(staging: Staging, spec: JobSpec, parts: Sequence[PartManifest]) -> list[Draft]:
    return plan_drafts(staging.root / "ready", spec, union(parts, spec))


def _kept(spec: JobSpec, plan: Sequence[Placed]) -> dict[str, list[Place]]:
    """The bases of outputs to which the job had nothing to add."""
    made = {placed.output for placed in plan}
    bases = {name: spec.base_of(name) for name in spec.outputs if name not in made}
    found = {name: Address.parse(base.address) for name, base in bases.items() if base is not None}
    return {name: [(address.volume, int(address.value))] for name, address in found.items()}


@contextmanager
def _blaming_output() -> Iterator[None]:
    """Turn a too long name, or a file that cannot be changed, into BadOutput: no later try helps."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.EPERM):
            raise
        where = str(error.filename)[:200] if error.filename else "a file"
        hint = (
            "give it a shorter path"
            if error.errno == errno.ENAMETOOLONG
            else "it is immutable (chattr +i), or another user's"
        )
        raise BadOutput(f"an output cannot be committed: {where}: {error.strerror}: {hint}") from error


def _check_retired(catalog: Catalog, spec: JobSpec, plan: Sequence[Placed]) -> None:
    """Refuse a commit that retires what it must not.

    :raises BadOutput: a version is in another partition, or was never there. :raises Conflict: one is pinned.
    """
    for placed in plan:
        for number in spec.outputs[placed.output].retires:
            address = pinned(placed.volume, number)
            try:
                version = catalog.described(placed.volume, number)
            except NotFound as error:
                raise BadOutput(f"output {placed.output!r} retires {address}, which is not there") from error
            if version.partition != placed.partition:
                raise BadOutput(
                    f"output {placed.output!r} retires {address}, which is in partition {version.partition}"
                )
            if version.pins:
                raise Conflict(refused_by_pin(address, version.pins))  # a retry chooses anew


def refused_by_pin(address: str, pins: Sequence[str]) -> str:
    """Say why a pinned version is not retired."""
    return (
        f"{address} is pinned ({', '.join(pins):.200}), so nothing retires it: `muster volumes unpin {address} --reason {pins[0]!r:.100}`, "
        "then run the task again"
    )


def _mark_retired(layout: Layout, job_id: str, spec: JobSpec, plan: Sequence[Placed]) -> None:
    """Have the commit of a job, which comes next, retire what its versions replace; it can be called again."""
    for placed in plan:
        for number in spec.outputs[placed.output].retires:
            folder = layout.version(placed.volume, number)
            with suppress(FileNotFoundError):  # gc deleted it, and folded what was left
                (folder / REPLACED).mkdir(exist_ok=True)
                write_whole(folder / REPLACED / job_id, f"replaced by {placed.volume}@{placed.number}")
                sync_folder(folder)
