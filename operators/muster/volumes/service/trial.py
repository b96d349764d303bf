"""Tries a newly installed store service: ``python -m muster.volumes.service.trial``, which `helm test` runs.

It does what a job does, end to end: it writes a version's file where a pod would, on the claim, seals it
over HTTP with a token of that job alone, waits for the service's commit, and reads the version. Each step is
one line on stdout; the exit code is 1 where one failed. The version is retired at the end, and the next gc
deletes its data.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from muster.core.data import OutputTarget
from muster.core.errors import MusterError
from muster.core.job import TRIAL, JobSpec, Role
from muster.core.patience import Patience
from muster.core.replica import PartManifest, Report
from muster.core.verdict import ExitCode
from muster.core.wire import dumps
from muster.volumes.base import Version
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.connection import Connection
from muster.volumes.service.tokens import TokenRefused, operator_token, read_keys

VOLUME = "muster/trial"
_LIFETIME_SECONDS = 600.0
_COMMIT_SECONDS = 60.0
_LOOK_SECONDS = 0.2
_ROLE, _OUTPUT, _FILE = "main", "out", "hello.txt"


class TrialFailed(MusterError):
    """The service gives a wrong answer."""


class TrialCommit:
    """One job that exists only to be committed.

    :param root: the store's folder as this process has it mounted: where the job's pods would write.
    """

    def __init__(self, store: ServiceStore, *, root: Path) -> None:
        self._store, self._root = store, root
        self._text = os.urandom(16).hex()
        self._job_id = f"trial-{self._text[:12]}"
        self._attempt = 0

    def run(self) -> Iterator[str]:
        """Do the steps, and yield a line for each. :raises MusterError: a step failed."""
        yield f"the store service answers at {self._store.url}: {len(self._store.volumes())} volumes"
        token = self._submit()
        yield f"job {self._job_id} is submitted, and has a token of its own"
        pod = Connection(self._store.url, token=token, patience_seconds=0.0)
        try:
            _refused(pod)
            yield "that token may not look at volumes"
            self._work(pod)
        finally:
            pod.close()
        yield "its file is written on the claim, and sealed with that token"
        version = self._committed()
        yield f"it is committed as {version.address}"
        self._read(version)
        yield "and read again, byte for byte"
        self._store.retire(version.address, reason="helm test")

    def _submit(self) -> str:
        spec = JobSpec(
            name=TRIAL,
            image="trial",
            image_digest="b3:" + 64 * "0",
            roles=(Role(replicas=1, entrypoint="trial:trial", name=_ROLE),),
            outputs={_OUTPUT: OutputTarget(volume=VOLUME)},
        )
        self._store.ledger.create(self._job_id, spec)
        self._attempt = self._store.stage(self._job_id).attempt
        self._store.equip(self._job_id, worker=b"PK\x05\x06" + bytes(18))  # an archive without a file
        return self._store.token(self._job_id, attempt=self._attempt, lifetime_seconds=_LIFETIME_SECONDS)

    def _work(self, pod: Connection) -> None:
        """Act as the job's only pod: fetch the bundle, write, seal."""
        job, replica = f"/v1/jobs/{self._job_id}", f"attempts/{self._attempt}/replicas/{_ROLE}/0"
        place = {"attempt": self._attempt, "restart": "0", "role": _ROLE, "index": 0, "pod": "trial"}
        pod.request("GET", f"{job}/bundle", query=place)
        path = self._root / "staging" / self._job_id / f"{self._attempt}.0" / f"{_ROLE}-0" / _OUTPUT / _FILE
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._text)
        except OSError as error:
            raise TrialFailed(
                f"{path} cannot be written ({error.strerror}): pods need the claim writable for the uid of the "
                "store service, which is `user` of the chart and of the cluster file"
            ) from error
        part = PartManifest(
            job_id=self._job_id,
            attempt=self._attempt,
            role=_ROLE,
            index=0,
            files={_OUTPUT: {_FILE: len(self._text)}},
        )
        seal = f"{dumps(Report(exit_code=ExitCode.SEALED))}\n{dumps(part)}".encode()
        pod.request("PUT", f"{job}/{replica}/seal", content=seal)

    def _committed(self) -> Version:
        patience = Patience(_COMMIT_SECONDS, first=_LOOK_SECONDS)
        while not (status := self._store.ledger.status(self._job_id)).state.ended:
            if not patience.wait():  # the service commits in the background
                raise TrialFailed(
                    f"job {self._job_id} has sealed, and is not committed {_COMMIT_SECONDS:.0f} s later"
                )
        if status.result is None:
            why = status.verdict.message if status.verdict else status.reason
            raise TrialFailed(
                f"job {self._job_id} has sealed, and was not committed: {why}; see that --store is the folder that "
                "the service serves, on the same claim"
            )
        (address,) = status.result.outputs[_OUTPUT]
        return self._store.resolve(address)[0]

    def _read(self, version: Version) -> None:
        found = (self._store.path(version.address) / _FILE).read_text()
        if found != self._text:
            raise TrialFailed(f"{version.address} holds {found!r:.80}, and {self._text!r} was written")


def _refused(pod: Connection) -> None:
    try:
        pod.request("GET", "/v1/volumes")
    except (TokenRefused, MusterError) as error:
        if "token" in str(error):
            return
        raise
    raise TrialFailed("a job's token may look at all volumes, which only an operator's should")


def main(arguments: Sequence[str]) -> int:
    """Run the trial; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m muster.volumes.service.trial", description="Put a version into a store, and read it."
    )
    parser.add_argument("--url", required=True, help="of the store service")
    parser.add_argument("--key", type=Path, required=True, help="the file with its keys")
    parser.add_argument("--store", type=Path, required=True, help="the store's folder, as pods mount it")
    asked = parser.parse_args(arguments)
    try:
        token = operator_token(read_keys(asked.key), lifetime_seconds=_LIFETIME_SECONDS)
        with (
            tempfile.TemporaryDirectory() as cache,
            ServiceStore(asked.url, token=token, cache=Path(cache)) as store,
        ):
            for step in TrialCommit(store, root=asked.store).run():
                sys.stdout.write(f"ok: {step}\n")
    except MusterError as error:
        sys.stdout.write(f"FAILED: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
