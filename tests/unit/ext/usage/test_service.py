"""Usage behind a store service, which adds up beside the log and sends the sums alone."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.unit.ext.usage.test_log import SPEC
from tests.unit.volumes.service.process import Service

from muster.core.errors import SpecError
from muster.core.status import JobState, JobStatus
from muster.core.tally import Allotment, Tally
from muster.core.wire import dumps
from muster.ext.usage.service import ask
from muster.ext.usage.table import UsageQuestion


def test_the_service_answers_as_a_folder_does(tmp_path: Path) -> None:
    now = time.time()
    with Service(tmp_path) as service:
        store = service.client()
        for job_id in ("ends", "goes-on"):
            store.ledger.create(job_id, SPEC)
            held = Allotment(since=now - 3600, replicas=2, gpus=2)
            store.ledger.note_tally(job_id, Tally(user="ada", times=(held,)))
        status = JobStatus(job_id="ends", state=JobState.FAILED, submitted=now - 3700, ended=now - 1800)
        store.ledger.update(status)
        rows = ask(store, UsageQuestion(by=("user", "state"), since=0.0)).rows
        assert [(row.keys, row.jobs) for row in rows] == [(("ada", "failed"), 1), (("ada", "queued"), 1)]
        assert [round(row.gpu[0], 1) for row in rows] == [1.0, 2.0]
        later = json.loads(dumps(UsageQuestion(by=("user",), since=0.0)))
        later["by"] = ["user", "colour"]
        with pytest.raises(SpecError, match="'colour' is no column of usage: name one or more of dag, task"):
            store.connection.request("POST", "/v1/usage", content=json.dumps(later).encode())
