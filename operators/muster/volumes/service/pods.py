"""The calls of a job's pods, with the job's token; every request may be sent again.

::

    GET  /v1/jobs/JOB/bundle?attempt=A&restart=R&role=ROLE&index=I&pod=UID
         a tar: worker.pyz, code/…; the header Muster-Attempt holds N, the attempt of this start of the gang
    POST /v1/jobs/JOB/attempts/N/replicas/ROLE/I/lines?offset=B
         whole lines from byte B of the replica's stream; the answer says how many bytes are stored
    PUT  /v1/jobs/JOB/attempts/N/replicas/ROLE/I/seal
         two lines, a Report and a PartManifest: with the last replica's seal the service commits
    PUT  /v1/jobs/JOB/attempts/N/replicas/ROLE/I/gone
         a Gone: none of the replica's processes is left; the answer is an Outlook
    GET  /v1/jobs/JOB/attempts/N/replicas/ROLE/I/outlook?known=GOING
         an Outlook, as soon as it is another than the one that is known, or after most of a minute

A is the attempt that the gang was submitted with, R how often the cluster has restarted it since.
409 means that the gang was started again without this pod, 410 that the job has ended: pods that then
fail for good tell this to a cluster that does not know it yet and restarts the gang.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from starlette.responses import Response, StreamingResponse

from muster.core import wire
from muster.core.errors import Conflict, NotFound, SpecError
from muster.core.names import check_label
from muster.core.replica import Going, Gone, Outlook, PartManifest, Report
from muster.core.status import JobState, check_metrics
from muster.core.verdict import ExitCode
from muster.volumes.attempts import other_seal
from muster.volumes.base import Staging
from muster.volumes.durability import write_whole
from muster.volumes.service.archives import ArchiveMember, members, pack
from muster.volumes.service.calls import (
    LIMIT_LINES_BYTES,
    MIB,
    WORKER,
    Bind,
    Call,
    Count,
    Later,
    Served,
    route,
)
from muster.volumes.service.refusals import Over
from muster.volumes.service.tokens import TokenKind, TokenRefused

ATTEMPT = "muster-attempt"
"""The header that holds the attempt of a start of a gang."""

LIMIT_LOG_BYTES = 1024 * MIB
"""The longest log that the output of ranks may make."""

LAST_LINES_SECONDS = 60.0
"""How long after the end of a job without success its pods may send lines that they printed before."""

_LIMIT_GONE_BYTES = _LIMIT_REPORT_BYTES = MIB

WAIT_SECONDS = 50.0
"""How long a request for news waits; its client waits a little longer."""

_LIMIT_SEAL_BYTES = 32 * MIB  # some 400,000 files of one replica

_JOB = "/v1/jobs/{job_id}"
_REPLICA = f"{_JOB}/attempts/{{attempt}}/replicas/{{role}}/{{index}}"

# Characters that control a terminal, replaced byte for byte, since offsets count bytes.
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")


def routes(_: Served) -> Iterator[Bind]:
    """Return every route of this module."""
    yield route("GET", f"{_JOB}/bundle", _bundle, job=True, turns="starting")
    yield route("POST", f"{_REPLICA}/lines", _lines, job=True, turns="lines", text=LIMIT_LINES_BYTES)
    whole = "the list of the replica's files, which is its seal,"
    yield route("PUT", f"{_REPLICA}/seal", _seal, job=True, turns="seals", text=_LIMIT_SEAL_BYTES, what=whole)
    yield route("PUT", f"{_REPLICA}/gone", _gone, job=True, turns="starting", text=_LIMIT_GONE_BYTES)
    yield route("GET", f"{_REPLICA}/outlook", _outlook, job=True, turns="starting", waits=True)


def _bundle(call: Call) -> Response:
    served, job_id, submitted = call.served, call.part("job_id"), call.query_number("attempt")
    role, index = call.query("role"), call.query_number("index")
    pod = check_label("pod", call.query("pod", "0"), length=63)
    _check_replica(call, role, index)
    _check_token(call, submitted)
    with served.committer.alone(job_id):
        served.committer.check_going_on(job_id)
    staging = served.starts.restarted(
        job_id, submitted=submitted, restart=call.query("restart", "0"), replica=f"{role}-{index}", pod=pod
    )
    served.starts.note(staging)
    return StreamingResponse(
        pack(_files(call)), media_type="application/x-tar", headers={ATTEMPT: str(staging.attempt)}
    )


def _files(call: Call) -> list[ArchiveMember]:
    job_id, store = call.part("job_id"), call.served.store
    worker = store.ledger.check(job_id) / WORKER
    if not worker.is_file():
        raise NotFound(f"job {job_id} has no worker yet: submitting it sends the worker first")
    code = store.ledger.spec(job_id).code
    return [
        ArchiveMember(name=WORKER, source=worker),
        *(members(store.code(code), prefix="code/") if code else []),
    ]


def _lines(call: Call) -> Count:
    staging, replica = _own(call)
    ended = call.served.store.ledger.status(staging.job_id)
    if ended.state.ended and (
        ended.state is JobState.SUCCEEDED or time.time() > (ended.ended or time.time()) + LAST_LINES_SECONDS
    ):
        raise Over(f"job {staging.job_id} has ended ({ended.state.value}), and its log with it")
    safe = _CONTROL.sub(lambda found: b"?" * len(found[0]), call.text)
    call.served.hearing.hear(staging.job_id, safe)
    journal = call.served.journals.of(staging.job_id)
    offset = call.query_number("offset")
    stream = f"{staging.attempt}/{replica}"
    return Count(count=journal.append(stream, safe, offset=offset, most_bytes=LIMIT_LOG_BYTES))


def _seal(call: Call) -> None:
    """Store a replica's seal, once; with the last one the job is committed."""
    committer, job_id = call.served.committer, call.part("job_id")
    report, _, part = call.text.partition(b"\n")
    call.text = b""
    with call.served.reading_seal:
        _check_seal(call, report, part)
    with committer.alone(job_id):
        staging, replica = _own(call)
        target = staging.root / "sealed" / f"{replica}.json"
        if not _kept(target, part):
            committer.check_going_on(job_id)
            write_whole(target.with_suffix(".report"), report)
            write_whole(target, part)
        if committer.decided(job_id):
            committer.commit(job_id)


def _gone(call: Call) -> Outlook:
    replica = _named(call)
    said = call.message(Gone)
    return call.served.regrouping.say_gone(call.part("job_id"), call.number("attempt"), replica, said)


def _outlook(call: Call) -> Outlook | Later:
    _named(call)
    job_id, attempt, regrouping = call.part("job_id"), call.number("attempt"), call.served.regrouping
    outlook = regrouping.outlook(job_id, attempt)
    left = call.asked + WAIT_SECONDS - time.monotonic()
    if outlook.going.value != call.query("known", "") or left <= 0:
        return outlook
    due = regrouping.due_seconds(job_id, attempt) if outlook.going is Going.STOPS else None
    return Later(seconds=left if due is None else max(0.0, min(left, due)))


def _kept(target: Path, part: bytes) -> bool:
    """Whether this very seal is stored already. :raises Conflict: another one is."""
    if not (target.is_file() and target.with_suffix(".report").is_file()):
        return False
    if target.read_bytes() != part:
        raise Conflict(f"replica {target.stem} has sealed already, and other files: nothing is sealed twice")
    return True


def _check_seal(call: Call, report: bytes, part: bytes) -> None:
    job_id, attempt = call.part("job_id"), call.number("attempt")
    role, index = call.part("role"), call.number("index")
    if len(report) > _LIMIT_REPORT_BYTES:
        raise SpecError(f"the report of replica {role}-{index} has more than {_LIMIT_REPORT_BYTES} bytes")
    ending = wire.loads(Report, report)
    check_metrics(ending.metrics)
    if ending.exit_code is not ExitCode.SEALED:
        raise SpecError(f"replica {role}-{index} has not ended well, and what it wrote is not sealed")
    if other := other_seal(wire.loads(PartManifest, part), job_id, attempt, role, index):
        raise SpecError(other)


def _own(call: Call) -> tuple[Staging, str]:
    """Return the attempt and replica that the path names.

    :raises Conflict: the attempt is not the current one.
    """
    replica = _named(call)
    return call.served.starts.current(call.part("job_id"), call.number("attempt")), replica


def _named(call: Call) -> str:
    """Return the replica that the path names. :raises Conflict: the token is that of another submission."""
    job_id, attempt = call.part("job_id"), call.number("attempt")
    role, index = call.part("role"), call.number("index")
    _check_replica(call, role, index)
    if call.token.kind is TokenKind.JOB and not call.served.starts.descends(
        job_id, attempt, submitted=call.token.attempt
    ):
        raise Conflict(f"job {job_id}: the token is that of attempt {call.token.attempt}, which is fenced")
    return f"{role}-{index}"


def _check_token(call: Call, submitted: int) -> None:
    if call.token.kind is TokenKind.JOB and call.token.attempt != submitted:
        raise TokenRefused(
            f"the token is that of attempt {call.token.attempt}: it does not count for attempt {submitted}"
        )


def _check_replica(call: Call, role: str, index: int) -> None:
    job_id = call.part("job_id")
    roles = {each.name: each.replicas for each in call.served.store.ledger.spec(job_id).roles}
    if index >= roles.get(role, 0):
        there = ", ".join(f"{name} 0 to {count - 1}" for name, count in roles.items())
        raise NotFound(f"job {job_id} has no replica {role!r:.40} {index}; it has {there}")
