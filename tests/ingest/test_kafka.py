"""Topics of a real broker become versions: each message once, and one clear end for whatever is wrong."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cryptography.hazmat.primitives import serialization
from tests.cluster.authority import Authority
from tests.ingest.broker import USER, WORD, Broker

pytestmark = [pytest.mark.slow, pytest.mark.data]

KEY = "6f2c6d0e-3f7b-4a9c-8f0e-2c1d5b7a9e11"
STEPS = Path(__file__).with_name("topic.py")
READ = """
import glob, json, sys
import duckdb, pyarrow as pa, pyarrow.dataset as ds, pyarrow.parquet as pq
files = sys.argv[2:]
told = duckdb.sql(f"select {sys.argv[1]} from read_parquet({files}, union_by_name=true) order by _partition, _offset").fetchall()
schema = pq.read_schema(files[-1])
assert ds.dataset(files, schema=schema).to_table().num_rows == len(told)
print(json.dumps(told, default=lambda each: each.decode() if isinstance(each, bytes) else str(each)))
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(folder=tmp_path_factory.mktemp("authority") / "ca")
    authority.create()
    return authority


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Broker]:
    """A broker that answers in plain, and over TLS to one user."""
    certificate, key = authority.issue("broker", "broker")
    pem = certificate.with_suffix(".pem")
    private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    pem.write_bytes(private.private_bytes(serialization.Encoding.PEM, form, plain) + certificate.read_bytes())
    with Broker(tmp_path_factory.mktemp("kafka"), pem=pem) as broker:
        yield broker


@pytest.fixture
def steps(python: Path, broker: Broker) -> Callable[..., None]:
    """Do something with the broker's topics: a step's name, what it is given, and so on."""

    def do(*steps: tuple[Any, ...]) -> None:
        told = [
            [name, [each for each in rest if not isinstance(each, dict)], next(iter(named), {})]
            for name, *rest in steps
            for named in [[each for each in rest if isinstance(each, dict)]]
        ]
        words = [python, STEPS, broker.url, json.dumps(told)]
        subprocess.run(words, check=True, timeout=120, stderr=subprocess.DEVNULL)

    return do


@pytest.fixture
def topic(tmp_path: Path, steps: Any) -> str:
    """A topic with two partitions, and with a name that no other test has."""
    steps(("create", tmp_path.name, 2))
    return tmp_path.name


@pytest.fixture
def take(ingest: Any, topic: str, broker: Broker) -> Callable[..., Any]:
    """Ingest the topic into a folder."""

    def take(target: str, *, extra: Any = None, of: str = topic, **what: Any) -> Any:
        given = {"values": "json", "unreadable": "stop", "lost": "stop", "connection": "events"}
        given |= {"kind": "kafka", "patience_seconds": 20, **what}
        return ingest(target, f"kafka://events/{of}", extra=extra or broker.connection, **given)

    return take


@pytest.fixture
def rows(python: Path, tmp_path: Path) -> Callable[..., Any]:
    """Read all rows of versions, which were made one after another."""

    def read(columns: str, *folders: str) -> Any:
        files = [
            str(path) for folder in folders for path in sorted((tmp_path / folder).glob("part-*.parquet"))
        ]
        return json.loads(subprocess.check_output([python, "-c", READ, columns, *files], text=True))

    return read


def listed(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What a version's listing says of the stream, and the paths that it names."""
    first, *rest = (folder / ".muster-ingest.jsonl").read_text().splitlines()
    return json.loads(first)["stream"], [json.loads(line)[0] for line in rest]


def several(count: int, *, partition: int = 0, first: int = 0) -> list[list[Any]]:
    return [[partition, None, json.dumps({"n": first + number})] for number in range(count)]


def test_each_message_is_in_one_version(steps: Any, take: Any, topic: str, rows: Any, tmp_path: Path) -> None:
    messages = [[0, "ann", '{"n": 1, "at": "2026-11-26"}'], [1, None, '{"n": 2}'], [1, "gone", None]]
    steps(("put", topic, messages))
    assert take("one")["rows"] == 3
    assert rows('n, "at", _partition, _offset, _key', "one") == [
        [1, "2026-11-26", 0, 0, "ann"],
        [2, None, 1, 0, None],
        [None, None, 1, 1, "gone"],
    ]
    assert take("same", before="one")["fetched"] == 0
    assert list((tmp_path / "same").iterdir()) == []
    steps(("put", topic, [[0, None, '{"n": 3}']]))
    told = take("two", before="one")
    assert (told["rows"], told["kept"], told["files"]) == (1, 1, 2)
    assert rows("n", "two") == [[3]]
    assert (tmp_path / "two" / ".muster-carried").read_text() == "part-00000.parquet\n"
    said, paths = listed(tmp_path / "two")
    assert paths == ["part-00000.parquet", "part-00001.parquet"]
    assert said["topic"] == topic
    assert (said["offsets"], said["rows"]) == ({"0": 2, "1": 2}, 4)
    assert take("other", before="two", values="raw")["message"].startswith(
        f"kafka://events/{topic}: the last"
    )


def test_what_a_transaction_withdrew_or_holds_back(
    steps: Any, take: Any, topic: str, rows: Any, tmp_path: Path
) -> None:
    steps(
        ("transact", topic, several(2), {"how": "commit"}),
        ("transact", topic, several(2, first=10), {"how": "abort"}),
        ("put", topic, several(1, first=20)),
        ("transact", topic, several(1, partition=1, first=30), {"how": "open"}),
        ("put", topic, several(1, partition=1, first=40)),
    )
    take("one")
    assert rows("n", "one") == [[0], [1], [20]]
    steps(("transact", topic, several(2), {"how": "abort"}))
    told = take("two", before="one")
    assert (told["rows"], told["fetched"], told["kept"]) == (0, 0, 1), "only marks of transactions came"
    end = listed(tmp_path / "two")[0]["offsets"]["0"]
    name = "part-00000.parquet"
    (tmp_path / "two" / name).write_bytes((tmp_path / "one" / name).read_bytes())  # as its commit does
    steps(("drop", topic, 0, end))
    told = take("three", before="two")
    assert told.get("message") is None, told
    assert told["lost"] == 0, "a version holds that nothing is there"
    assert list((tmp_path / "three").iterdir()) == []


def test_most_rows_of_a_version(steps: Any, take: Any, topic: str, rows: Any, tmp_path: Path) -> None:
    steps(
        ("put", topic, several(7)),
        ("transact", topic, several(20, first=50), {"how": "abort"}),
        ("put", topic, several(3, partition=1, first=100)),
    )
    told = take("one", most=4)
    assert (told["rows"], told["behind"]) == (4, 27)
    assert listed(tmp_path / "one")[0]["offsets"] == {"0": 2, "1": 2}
    take("two", before="one", most=4)
    take("three", before="two", most=4)
    assert sorted(rows("n", "one", "two", "three")) == [[n] for n in [*range(7), *range(100, 103)]]


def test_until_a_time(steps: Any, take: Any, topic: str, rows: Any) -> None:
    hour = 3_600_000
    steps(("put", topic, [[0, None, json.dumps({"n": n}), 1_700_000_000_000 + n * hour] for n in range(3)]))
    take("one", until="2023-11-14T23:00:00+00:00")
    assert rows("n", "one") == [[0]]
    take("two", before="one", until="2023-11-15 00:00:00")
    assert rows("n", "two") == [[1]]
    assert take("three", before="two", until="2023-11-14T22:00:00+00:00")["rows"] == 0
    take("all", before="two")
    assert rows("n", "all") == [[2]]


def test_columns_that_grow_are_read_as_one_table(steps: Any, take: Any, topic: str, rows: Any) -> None:
    steps(("put", topic, [[0, None, '{"a": 1, "b": {"c": 1}, "d": []}']]))
    take("one")
    steps(("put", topic, [[0, None, '{"a": 1.5, "b": {"c": 2, "e": "x"}, "d": ["y"], "f": null}']]))
    take("two", before="one")
    steps(("put", topic, [[0, None, '{"f": true}']]))
    take("three", before="two")
    assert rows("a, b, d, f", "one", "two", "three") == [
        [1.0, {"c": 1, "e": None}, [], None],
        [1.5, {"c": 2, "e": "x"}, ["y"], None],
        [None, None, None, True],
    ]


def test_objects_without_fields_are_no_columns_until_they_have_some(
    steps: Any, take: Any, topic: str, rows: Any
) -> None:
    steps(("put", topic, [[0, None, '{"n": 1, "a": {}, "b": [{}], "c": {"d": null}}'], [0, None, "{}"]]))
    take("one")
    steps(("put", topic, [[0, None, '{"n": 2, "a": {"e": 1}, "b": [{}, {"f": "x"}]}']]))
    take("two", before="one")
    assert rows("n, a, b", "one", "two") == [
        [1, None, None],
        [None, None, None],
        [2, {"e": 1}, [{"f": None}, {"f": "x"}]],
    ]


def test_messages_that_no_table_holds_together_are_in_two(
    steps: Any, take: Any, topic: str, tmp_path: Path
) -> None:
    steps(("put", topic, [[0, None, '{"a": 9007199254740993}'], [0, None, '{"a": 1.5}']]))
    told = take("one")
    assert (told["rows"], told["unreadable"]) == (2, 0)
    assert listed(tmp_path / "one")[1] == ["part-00000.parquet", "part-00001.parquet"]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("value", ['{"a": "x"}', '{"a": true}', '{"a": {"b": 1}}'])
def test_a_column_of_another_type_ends_the_job(
    steps: Any, take: Any, topic: str, together: bool, value: str
) -> None:
    before = [[0, None, '{"a": 1}'], [0, None, '{"a": 2.5}']]
    after = [[0, None, '{"a": 3}'], [0, None, value]]
    if together:
        steps(("put", topic, before + after))
        told = take("two")
    else:
        steps(("put", topic, before))
        take("one")
        steps(("put", topic, after))
        passed = take("passed", before="one", unreadable="skip")
        assert (passed["rows"], passed["unreadable"]) == (1, 1)
        told = take("two", before="one")
    assert told["error"] == "IngestError"
    assert "the message at offset 3 of partition 0 changes the columns (column 'a')" in told["message"]
    assert "Known: a double. This message: a " in told["message"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("<xml/>", "no JSON (Expecting value: line 1 column 1 (char 0)), but b'<xml/>' (6 bytes)"),
        ("[1]", "JSON, but no object: b'[1]'"),
        ('{"a": NaN}', "NaN is no number of JSON"),
        ('{"a": 99999999999999999999}', "no row of a table"),
        ('{"a": [1.5, true]}', "booleans in a column of fractions"),
        ('{"a": ' + "[" * 300 + "1" + "]" * 300 + "}", "too deeply nested"),
        ('{"_offset": 1}', "a field '_offset', which is a column of muster's own"),
        ("\xff\xfe", "no JSON"),
    ],
)
def test_a_message_that_is_no_json(
    steps: Any, take: Any, topic: str, rows: Any, tmp_path: Path, python: Path, value: str, found: str
) -> None:
    steps(("put", topic, [*several(2), [0, "k", value], *several(1, first=2)]))
    told = take("stopped")
    assert told["error"] == "IngestError"
    assert "the message at offset 2 of partition 0 cannot be read: found " in told["message"]
    assert found in told["message"]
    told = take("one", unreadable="skip")
    assert (told["rows"], told["unreadable"], told["files"]) == (3, 1, 1)
    assert rows("n", "one") == [[0], [1], [2]]
    assert listed(tmp_path / "one")[0]["unreadable"] == 1


def test_messages_that_are_kept_apart(
    steps: Any, take: Any, topic: str, rows: Any, tmp_path: Path, python: Path
) -> None:
    steps(("put", topic, [*several(1), [0, "k", "<xml/>"], [1, None, "-"]]))
    take("one", unreadable="keep")
    assert listed(tmp_path / "one")[1] == ["_unreadable/part-00000.parquet", "part-00000.parquet"]
    assert rows("n", "one") == [[0]]
    code = "import duckdb, sys; print(duckdb.sql(f\"select _partition, _offset, _value, _reason from '{sys.argv[1]}' order by 1\").fetchall())"
    said = subprocess.check_output(
        [python, "-c", code, tmp_path / "one/_unreadable/part-00000.parquet"], text=True
    )
    assert said.startswith("[(0, 1, b'<xml/>', \"no JSON (")
    steps(("put", topic, [[0, None, "="]]))
    told = take("two", before="one", unreadable="keep")
    assert (told["rows"], told["unreadable"], told["kept"]) == (0, 1, 2)
    assert "_unreadable/part-00001.parquet" in listed(tmp_path / "two")[1]


def test_bytes_as_they_are(steps: Any, take: Any, topic: str, rows: Any) -> None:
    steps(("put", topic, [[0, "k", "<xml/>"], [0, "k", None]]))
    take("one", values="raw")
    assert rows("value, _key", "one") == [["<xml/>", "k"], [None, "k"]]


class Registry(BaseHTTPRequestHandler):
    """Answers as Confluent's registry does, with schemas by their number, to one user."""

    schemas: ClassVar[dict[int, dict[str, Any]]] = {}

    def do_GET(self) -> None:
        word = base64.b64encode(b"ann:registry-word").decode()
        number = int(self.path.rpartition("/")[2])
        if self.path.startswith("/elsewhere"):
            self._answer(404, {"message": "Not Found"})
        elif self.headers["Authorization"] != f"Basic {word}":
            self._answer(401, {"error_code": 40101})
        elif number not in self.schemas:
            self._answer(404, {"error_code": 40403})
        else:
            self._answer(200, {"schema": json.dumps(self.schemas[number])})

    def _answer(self, code: int, said: dict[str, Any]) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def registry(broker: Broker) -> Iterator[dict[str, str]]:
    """The extra of a connection with a registry."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield {
        **broker.connection,
        "schema.registry.url": f"http://127.0.0.1:{server.server_port}",
        "schema.registry.basic.auth.user.info": "ann:registry-word",
    }
    server.shutdown()
    thread.join()
    server.server_close()


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Click", "fields": [{"name": n, "type": t} for n, t in fields]}


ENCODE = """
import fastavro, io, json, sys
for schema, value in json.loads(sys.argv[1]):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    print(out.getvalue().hex())
"""


def encoded(python: Path, *given: tuple[int, Any], schemas: Any = None) -> list[str]:
    """Values as a serializer writes them by the registry's schemas, each in a text of latin-1."""
    known = schemas or Registry.schemas
    pairs = json.dumps([[known[number], value] for number, value in given])
    said = subprocess.check_output([python, "-c", ENCODE, pairs], text=True).split()
    return [
        (struct.pack(">bI", 0, number) + bytes.fromhex(text)).decode("latin-1")
        for (number, _), text in zip(given, said, strict=True)
    ]


def test_avro_of_a_registry(
    steps: Any, take: Any, topic: str, rows: Any, registry: Any, python: Path, monkeypatch: Any
) -> None:
    when = {"type": "long", "logicalType": "timestamp-millis"}
    kind = {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}
    schemas = {
        7: record(("id", "int"), ("at", when), ("kind", kind)),
        8: record(
            ("id", "long"),
            ("at", when),
            ("note", ["null", "string"]),
            ("tags", {"type": "map", "values": "int"}),
            ("key", {"type": "string", "logicalType": "uuid"}),
        ),
        9: record(("id", "string")),
    }
    monkeypatch.setattr(Registry, "schemas", schemas)
    old = {"id": 1, "at": 1_800_000_000_000, "kind": "NEW"}
    new = {"id": 2**40, "at": 1_800_000_000_000, "note": "x", "tags": {"a": 1}, "key": KEY}
    first, second, third = encoded(python, (7, old), (8, new), (9, {"id": "x"}))
    steps(("put", topic, [[0, None, first]]))
    take("one", values="avro", extra=registry)
    steps(("put", topic, [[0, None, second], [0, None, first]]))
    take("two", values="avro", extra=registry, before="one")
    assert rows('id, epoch_ms("at"), kind, note, map_keys(tags), key', "one", "two") == [
        [1, 1_800_000_000_000, "NEW", None, None, None],
        [2**40, 1_800_000_000_000, None, "x", ["a"], KEY],
        [1, 1_800_000_000_000, "NEW", None, None, None],
    ]
    steps(("put", topic, [[0, None, third]]))
    told = take("three", values="avro", extra=registry, before="two")
    assert "at offset 3 of partition 0 changes the columns (column 'id')" in told["message"]
    assert "This message: id string" in told["message"]


def test_avro_of_two_types_of_one_name_and_of_many_digits(
    steps: Any, take: Any, topic: str, rows: Any, registry: Any, python: Path, monkeypatch: Any
) -> None:
    def inner(space: str, field: str) -> dict[str, Any]:
        fields = [{"name": field, "type": "int"}]
        return {"type": "record", "name": "A", "namespace": space, "fields": fields}

    digits = {"type": "bytes", "logicalType": "decimal", "precision": 64}
    long = {**digits, "precision": 200}
    schemas = {
        7: record(("a", inner("p", "i")), ("b", inner("q", "j")), ("c", "p.A"), ("d", digits)),
        8: record(("d", long)),
    }
    monkeypatch.setattr(Registry, "schemas", schemas)
    # A string is encoded as bytes are, which JSON does not have.
    texts = json.loads(
        json.dumps(schemas).replace(json.dumps(digits), '"string"').replace(json.dumps(long), '"string"')
    )
    value = {"a": {"i": 1}, "b": {"j": 2}, "c": {"i": 3}, "d": "x"}
    first, second = encoded(
        python, (7, value), (8, {"d": "x"}), schemas={int(n): each for n, each in texts.items()}
    )
    steps(("put", topic, [[0, None, first]]))
    take("one", values="avro", extra=registry)
    assert rows("a.i, b.j, c.i, d::int", "one") == [[1, 2, 3, ord("x")]]
    steps(("put", topic, [[0, None, second]]))
    told = take("two", values="avro", extra=registry, before="one")
    assert "has a decimal of 200 digits, which no column of Parquet holds" in told["message"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ('{"a": 1}', "no Avro of a registry, which begins with 00 and a schema's number, but b'{\"a\": 1}'"),
        ("\0\0\0\0\x63x", "schema 99, which the registry does not have"),
        ("\0\0\0\0\x07", "no value of schema 7"),
        ("\0\0\0\0\x07\x02\x02", "more bytes than a value of schema 7 has"),
    ],
)
def test_a_message_that_is_no_avro(
    steps: Any, take: Any, topic: str, registry: Any, monkeypatch: Any, value: str, found: str
) -> None:
    monkeypatch.setattr(Registry, "schemas", {7: record(("id", "int"))})
    steps(("put", topic, [[1, None, value]]))
    told = take("one", values="avro", extra=registry)
    assert "the message at offset 0 of partition 1 cannot be read: found " in told["message"]
    assert found in told["message"]


def test_a_registry_that_refuses_or_is_away(steps: Any, take: Any, topic: str, registry: Any) -> None:
    steps(("put", topic, [[0, None, "\0\0\0\0\x07\x02"]]))
    wrong = registry | {"schema.registry.basic.auth.user.info": "ann:wrong-word"}
    told = take("one", values="avro", extra=wrong)
    assert "the registry of connection 'events' refuses it (HTTP 401)" in told["message"]
    assert "wrong-word" not in told["message"]
    away = registry | {"schema.registry.url": "http://127.0.0.1:9"}
    told = take("one", values="avro", extra=away, patience_seconds=1)
    assert told["error"] == "SourceAway"
    assert "names no registry of schemas" in take("one", values="avro")["message"]
    elsewhere = registry | {"schema.registry.url": f"{registry['schema.registry.url']}/elsewhere"}
    told = take("one", values="avro", extra=elsewhere, unreadable="skip")
    assert "answers /schemas/ids/7 with HTTP 404, as no registry of schemas does" in told["message"]
    with_user = registry | {"schema.registry.url": "https://ann:pa55@registry"}
    told = take("one", values="avro", extra=with_user)
    assert "'schema.registry.url' holds a user or a password" in told["message"]
    assert "pa55" not in json.dumps(told)


def test_what_the_broker_dropped_unread(steps: Any, take: Any, topic: str, rows: Any, tmp_path: Path) -> None:
    steps(("put", topic, several(3)), ("drop", topic, 0, 1))
    take("one")
    assert rows("n", "one") == [[1], [2]], "what was gone before the first version is no loss of an ingest"
    steps(("put", topic, several(4, first=3)), ("drop", topic, 0, 5))
    told = take("stopped", before="one")
    assert "the broker dropped 2 offsets that no version holds; in partition 0" in told["message"]
    assert "ends at offset 3, and the oldest message is at 5" in told["message"]
    assert take("two", before="one", lost="skip")["lost"] == 2
    assert rows("n", "two") == [[5], [6]]
    assert listed(tmp_path / "two")[0]["lost"] == 2


def test_a_topic_that_was_made_anew(steps: Any, take: Any, topic: str) -> None:
    steps(("put", topic, several(2)))
    take("one")
    steps(("delete", topic), ("create", topic, 2), ("put", topic, several(5)))
    assert "the topic was made anew (its id was " in take("two", before="one")["message"]


def test_partitions_that_were_added(steps: Any, take: Any, topic: str, rows: Any) -> None:
    steps(("put", topic, several(2)))
    take("one")
    steps(("grow", topic, 4), ("put", topic, several(2, partition=3, first=10)))
    take("two", before="one")
    assert rows("n, _partition", "two") == [[10, 3], [11, 3]]


def test_what_is_not_there(steps: Any, take: Any, topic: str, tmp_path: Path) -> None:
    assert "names a broker without a topic 'none'" in take("one", of="none")["message"]
    assert "holds no message: nothing is committed" in take("one")["message"]
    steps(("put", topic, several(1)))
    take("one")
    told = take("two", before="one", of="other")
    assert f"the last version of the volume is of kafka://events/{topic}" in told["message"]
    (tmp_path / "plain").mkdir()
    assert "the last version of the volume is of no ingest" in take("two", before="plain")["message"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"enable.auto.commit": "true"}, "sets 'enable.auto.commit' in its extra"),
        ({"isolation.level": "read_uncommitted"}, "sets 'isolation.level' in its extra"),
        ({"group.instance.id": "me"}, "sets 'group.instance.id' in its extra"),
        ({"auto.offset.reset": "latest"}, "sets 'auto.offset.reset' in its extra"),
        ({"bootstrap.servers": ""}, "names no broker"),
        ({"no.such.setting": "x"}, 'No such configuration property: "no.such.setting"'),
    ],
)
def test_settings_that_are_refused(take: Any, broker: Broker, more: dict[str, str], said: str) -> None:
    told = take("one", extra=broker.connection | more)
    assert told["error"] == "IngestError"
    assert said in told["message"]


def test_a_connection_that_serves_groups_too(steps: Any, take: Any, topic: str, broker: Broker) -> None:
    steps(("put", topic, several(1)))
    extra = broker.connection | {"group.id": "triggers", "enable.auto.commit": "false"}
    assert take("one", extra=extra)["rows"] == 1


def test_a_user_over_tls(
    steps: Any, take: Any, topic: str, broker: Broker, authority: Authority, tmp_path: Path
) -> None:
    steps(("put", topic, several(2)))
    safe = {
        "bootstrap.servers": broker.safe_url,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": WORD,
        "ca": authority.certificate.read_text(),
    }
    assert take("one", extra=safe)["rows"] == 2
    told = take("two", extra=safe | {"sasl.password": "another-word"})
    assert told["error"] == "IngestError"
    assert f"kafka://events/{topic} refuses connection 'events'" in told["message"]
    assert "another-word" not in told["message"]
    other = Authority(folder=tmp_path / "other")
    other.create()
    told = take("two", extra=safe | {"ca": other.certificate.read_text()})
    assert told["error"] == "IngestError"
    assert "certificate" in told["message"]


def test_a_client_that_tells_no_offset_or_hears_nothing_is_asked_again(
    steps: Any, take: Any, topic: str, rows: Any
) -> None:
    steps(("put", topic, [*several(3), *several(2, partition=1, first=3)]))
    told = take("one", program="drive_deaf.py")
    assert (told["rows"], told["made"]) == (5, 2)
    assert told["asked"] > 2
    assert rows("n", "one") == [[0], [1], [2], [3], [4]]


def test_a_topic_that_ends_too_early_ends_the_patience(steps: Any, take: Any, topic: str) -> None:
    steps(("put", topic, several(3)))
    told = take("one", program="drive_short.py", patience_seconds=3)
    assert told["error"] == "SourceAway"
    assert "does not answer, for 3 s" in told["message"]


def test_a_broker_that_goes_and_comes_back_between_two_questions(
    steps: Any, take: Any, topic: str, broker: Broker, rows: Any
) -> None:
    steps(("put", topic, several(3)))

    def again() -> None:
        broker.stop()
        broker.start()

    assert take("one", program="drive_between.py", patience_seconds=60, meanwhile=again)["rows"] == 3
    assert rows("n", "one") == [[0], [1], [2]]


def test_a_broker_that_is_away_and_comes_back(
    steps: Any, take: Any, topic: str, broker: Broker, rows: Any
) -> None:
    steps(("put", topic, several(3)))
    broker.stop()
    away = take("one", patience_seconds=1)
    with ThreadPoolExecutor(1) as pool:
        back = pool.submit(take, "one", patience_seconds=110)  # begun while the broker starts
        broker.start()  # in this thread: a broker ends with the thread that started it
        told = back.result()
    assert away["error"] == "SourceAway"
    assert f"kafka://events/{topic} does not answer" in away["message"]
    assert told.get("rows") == 3, told
    assert rows("n", "one") == [[0], [1], [2]]
