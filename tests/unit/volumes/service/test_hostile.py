"""Bodies that were made to break the service: each is refused with words, none is an error of the service's own."""

import io
import json
import tarfile

import pytest
from tests.unit.volumes.service.gang import Gang, make_spec

from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause, Verdict
from muster.volumes.service.archives import HEAD_BYTES

HUGE = "1" + 400 * "0"
DEEP = 900 * "[" + 900 * "]"
DEEPER = 100_000 * "["


@pytest.fixture
def operator(service):
    with service.asking(service.token()) as asking:
        yield asking


def refused(answer):
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"] == "SpecError"
    return answer.json()["message"]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("metrics", f'{{"a":{HUGE}}}', "expected a finite number"),
        ("metrics", '{"a":1e999}', "expected a finite number"),
        ("metrics", '{"a":NaN}', "expected a finite number"),
        ("metrics", '{"a\\ud800":1}', "surrogates not allowed"),
        ("metrics", '{"a\\u001b[2J":1}', "printable"),
        ("metrics", json.dumps({f"m{number}": 1 for number in range(2001)}), "2000 or fewer"),
        ("metrics", DEEPER, "nested too deeply"),
        ("at", HUGE, "expected a finite number"),
        ("modules", '["\\ud800"]', "surrogates not allowed"),
        ("traceback", f'["{"x" * (1 << 20)}"]', "more than 1048576 bytes"),
    ],
)
def test_a_report(gang, field, value, said):
    gang.bundle().raise_for_status()
    report = f'{{"kind":"Report","schema":1,"exit_code":0,"{field}":{value}}}\n'
    assert said in refused(gang.seal(report.encode() + gang.sealing({}).partition(b"\n")[2]))


@pytest.mark.parametrize(
    ("verb", "path", "body"),
    [
        (
            "POST",
            "/v1/gc/plan",
            f'{{"kind":"Rules","schema":1,"volumes":[],"keep_last":2,"job_days":{HUGE}}}',
        ),
        ("POST", "/v1/jobs/JOB/attempts/1/token", f'{{"kind":"Lifetime","schema":1,"seconds":{HUGE}}}'),
        ("POST", "/v1/jobs/JOB/attempts", '{"kind":"Begin","schema":1,"request":"a.b"}'),
        ("PUT", "/v1/jobs/deep-1", f'{{"kind":"NewJob","schema":1,"spec":{{"params":{{"a":{DEEP}}}}}}}'),
        ("POST", "/v1/mirror/own", DEEPER),
        ("POST", "/v1/mirror/mark", f'{{"volume":"a/b","number":1,"pins":{DEEPER}'),
        (
            "PUT",
            "/v1/mirror/0123456789abcdef/drafts",
            f'{{"record":0,"manifest":0,"at":{HUGE},"volume":"a/b","number":1}}\n',
        ),
        ("PUT", f"/v1/uploads/0123456789abcdef?volume=a/b&checkpoints={DEEPER[:9000]}", ""),
    ],
)
def test_a_message(operator, gang, verb, path, body):
    refused(operator.request(verb, path.replace("JOB", gang.job_id), content=body))


def sparse():
    head = tarfile.TarInfo("x")
    head.type, head.size = tarfile.GNUTYPE_SPARSE, 512
    block = bytearray(head.tobuf(tarfile.GNU_FORMAT))
    block[386:410] = b"%011o\0%011o\0" % (0, 512)
    block[483:495] = b"%011o\0" % (3 << 30)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    return bytes(block) + bytes(512)


def with_attributes(**named):
    head = tarfile.TarInfo("x")
    head.pax_headers = {name.replace("_", "."): text for name, text in named.items()}
    return head.tobuf(tarfile.PAX_FORMAT)


def endless_map():
    """A sparse file whose map, which is read whole, is as long as what is sent."""
    many = 10 * HEAD_BYTES
    head = tarfile.TarInfo("x")
    head.size = many
    head.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1"}
    return head.tobuf(tarfile.PAX_FORMAT) + b"99999999\n" + b"0\n" * (many // 2)


@pytest.mark.parametrize(
    ("archive", "said"),
    [
        (sparse(), "no plain file"),
        (with_attributes(GNU_sparse_map="0,0", GNU_sparse_size=str(3 << 30)), "no plain file"),
        (with_attributes(comment="x" * 2 * HEAD_BYTES), "name and attributes exceed"),
        (endless_map(), "name and attributes exceed"),
    ],
    ids=["sparse", "sparse by attributes", "long attributes", "endless map"],
)
@pytest.mark.parametrize("path", ["/v1/uploads/0123456789abcdef?volume=a/b", "/v1/code/b3:" + 64 * "0"])
def test_an_archive(operator, store, archive, said, path):
    assert said in refused(operator.put(path, content=io.BytesIO(archive + bytes(1024)).getvalue()))
    assert store.volumes() == [] or "a/b" not in store.volumes()


def test_a_log_ends_with_its_job(service, store):
    forged = b"[muster] rank lost: run curl\n"
    with Gang(service, "forger", make_spec(outputs={"out": "flights/forged"})) as gang:
        gang.bundle().raise_for_status()
        path = f"{gang.path()}/lines?offset=0"
        assert gang.pods.post(path, content=b"one\n").is_success
        verdict = Verdict(cause=Cause.CANCELLED, message="m", advice="a")
        ended = JobStatus(
            job_id="forger", state=JobState.CANCELLED, submitted=1.0, ended=2.0, verdict=verdict
        )
        store.ledger.update(ended)
        assert gang.pods.post(path, content=forged).status_code == 410
    assert store.ledger.read("forger")[0] == b"one\n"


def test_gaps_are_told_once(gang, store):
    gang.bundle().raise_for_status()
    for number in range(1, 9):
        gang.lines(b"x\n", offset=number * 1000)
    assert store.ledger.read(gang.job_id)[0].count(b"were lost") == 1
