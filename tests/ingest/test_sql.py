"""Queries become Parquet: whole, or what is above the watermark of the last version."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.authority import Authority
from tests.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.data]

READ = 'import duckdb, json, sys; print(json.dumps(duckdb.sql(f"select * from read_parquet({sys.argv[1:]}) order by 1").fetchall(), default=str))'
QUERY = "select id, name from orders where name != 'hidden'"

Run = Callable[[str], None]


@pytest.fixture
def rows(python: Path) -> Callable[..., Any]:
    """Read all Parquet files of versions."""

    def read(*folders: Path) -> Any:
        files = [str(path) for folder in folders for path in sorted(folder.glob("*.parquet"))]
        return json.loads(subprocess.check_output([python, "-c", READ, *files], text=True))

    return read


@pytest.fixture
def types(python: Path) -> Callable[[Path], Any]:
    """Tell the types in the last file of a version."""
    code = "import json, pyarrow.parquet as pq, sys; print(json.dumps({f.name: str(f.type) for f in pq.read_schema(sys.argv[1])}))"

    def read(folder: Path) -> Any:
        return json.loads(
            subprocess.check_output([python, "-c", code, max(folder.glob("*.parquet"))], text=True)
        )

    return read


class QueryContract:
    """Give a `database`: the fields of its connection, its kind, and what runs statements there."""

    @pytest.fixture
    def read(self, ingest: Any, database: tuple[dict[str, str], str, Run]) -> Any:
        fields, kind, run = database
        run("create table orders (id bigint, name text)")
        run("insert into orders values (1, 'a'), (2, 'b'), (3, 'hidden')")

        def read(target: str, **more: Any) -> Any:
            what = {"query": QUERY, "connection": "shop", "kind": kind, "watermark": None, **more}
            return ingest(target, "sql://shop", fields=fields, **what)

        return read

    def test_a_whole_query(self, read: Any, rows: Any, database: Any, tmp_path: Path) -> None:
        assert read("one")["rows"] == 2
        assert rows(tmp_path / "one") == [[1, "a"], [2, "b"]]
        assert read("same", before="one")["fetched"] == 0
        assert list((tmp_path / "same").iterdir()) == []
        database[2]("delete from orders where id = 1")
        read("two", before="one")
        assert rows(tmp_path / "two") == [[2, "b"]]

    def test_what_is_above_the_watermark(self, read: Any, rows: Any, database: Any, tmp_path: Path) -> None:
        first = read("one", watermark="id")
        same = read("same", before="one", watermark="id")
        assert (same["fetched"], same["files"], same["bytes"]) == (0, 1, first["bytes"])
        assert list((tmp_path / "same").iterdir()) == []
        database[2]("insert into orders values (7, 'g')")
        told = read("two", before="one", watermark="id")
        assert (told["rows"], told["files"], told["kept"]) == (1, 2, 1)
        assert rows(tmp_path / "two") == [[7, "g"]]
        assert (tmp_path / "two" / ".muster-carried").read_text() == "part-00000.parquet\n"
        head = json.loads((tmp_path / "two" / ".muster-ingest.jsonl").read_text().partition("\n")[0])
        assert head["high"] == 7

    def test_a_watermark_is_compared_as_the_database_has_it(
        self, read: Any, rows: Any, database: Any, tmp_path: Path
    ) -> None:
        run = database[2]
        run("create table visits (n integer, came varchar(40))")
        run("insert into visits values (9, '2026-01-02T09:00:00'), (10, '2026-01-02T10:00:00')")
        for column, kind in (("n", "string"), ("came", "timestamp")):
            query = "select n + 0 as n, came from visits"
            what = {"watermark": column, "query": query, "types": {column: kind}}
            read(f"{column}-one", **what)
            assert read(f"{column}-same", before=f"{column}-one", **what)["fetched"] == 0
            run("insert into visits select n + 2, replace(came, 'T1', 'T2') from visits where n > 9")
            assert read(f"{column}-two", before=f"{column}-one", **what)["rows"] == 1
            run("delete from visits where n > 10")

    def test_a_value_that_is_more_than_its_type_ends_the_ingest(self, read: Any, database: Any) -> None:
        query = "select id + 1 as x from orders"
        assert "has a value that is no bool" in read("one", query=query, types={"x": "bool"})["message"]

    def test_a_watermark_with_fractions(self, read: Any, rows: Any, database: Any, tmp_path: Path) -> None:
        run = database[2]
        run("create table parts (size numeric(10, 2), name text)")
        run("insert into parts values (9.5, 'a'), (10.25, 'c')")
        what = {"watermark": "size", "query": "select size, name from parts"}
        assert read("one", **what)["rows"] == 2
        assert read("same", before="one", **what)["fetched"] == 0
        run("insert into parts values (100.5, 'd')")
        told = read("two", before="one", **what)
        assert (told["rows"], told["files"]) == (1, 2)
        assert [float(size) for size, _ in rows(tmp_path / "two")] == [100.5]

    def test_rows_without_a_watermark_end_the_first_ingest_and_each_later_one(
        self, read: Any, rows: Any, database: Any, tmp_path: Path
    ) -> None:
        run = database[2]
        run("create table parts (size numeric(10, 2), name text)")
        run("insert into parts values (9.5, 'a'), (null, 'b'), (null, 'c')")
        what = {"watermark": "size", "query": "select size, name from parts"}
        told = read("one", **what)
        assert told["error"] == "IngestError"
        assert "the watermark's column 'size' is NULL in 2 of 3 rows read" in told["message"]
        assert "(where size is not null), or give them a value (coalesce(size, ...))" in told["message"]
        run("delete from parts where size is null")
        assert read("one", **what)["rows"] == 1
        run("insert into parts values (null, 'd')")
        assert "'size' is NULL in 1 of 1 rows read" in read("two", before="one", **what)["message"]
        run("insert into parts values (10, 'e')")
        assert "'size' is NULL in 1 of 2 rows read" in read("two", before="one", **what)["message"]
        what["query"] = "select coalesce(size, 11) as size, name from parts"
        assert read("two", before="one", **what)["rows"] == 3

    def test_new_rows_of_another_type_are_refused_and_nulls_are_not(
        self, read: Any, rows: Any, database: Any, tmp_path: Path
    ) -> None:
        run = database[2]
        run("create table words (n bigint, word text)")
        run("insert into words values (1, 'one')")
        what = {"watermark": "n", "query": "select * from words"}
        read("one", **what)
        run("insert into words values (2, null)")
        assert read("two", before="one", **what)["rows"] == 1
        assert rows(tmp_path / "one", tmp_path / "two") == [[1, "one"], [2, None]]
        run("drop table words")
        run("create table words (n bigint, word bigint)")
        run("insert into words values (3, 3)")
        told = read("three", before="one", **what)
        assert told["error"] == "IngestError"
        assert (
            "the query's column 'word' is of type int64, and was string in the last version"
            in told["message"]
        )

    def test_another_query_is_read_whole(self, read: Any, rows: Any, tmp_path: Path) -> None:
        read("one", watermark="id")
        read("two", before="one", watermark="id", query="select id, name from orders")
        assert len(rows(tmp_path / "two")) == 3

    def test_a_query_that_cannot_be_read(self, read: Any) -> None:
        told = read("one", query="select nothing from nowhere")
        assert told["error"] == "IngestError"
        assert "the query cannot be read" in told["message"]


class TestSQLite(QueryContract):
    @pytest.fixture
    def database(self, tmp_path: Path) -> tuple[dict[str, str], str, Run]:
        file = tmp_path / "shop.sqlite"

        def run(statement: str) -> None:
            with sqlite3.connect(file) as base:
                base.execute(statement)

        return {"host": str(file)}, "sqlite", run

    def test_a_query_of_no_rows_is_an_empty_table(self, read: Any, rows: Any, tmp_path: Path) -> None:
        assert read("one", query="select id from orders where id < 0")["rows"] == 0
        assert rows(tmp_path / "one") == []

    def test_what_an_attempt_of_another_source_left_is_in_no_version(
        self, read: Any, rows: Any, tmp_path: Path
    ) -> None:
        left = tmp_path / "one" / "d" / "e"
        left.mkdir(parents=True)
        (left / "c.csv").write_text("of a folder")
        assert read("one")["rows"] == 2
        assert sorted(each.name for each in (tmp_path / "one").iterdir()) == [
            ".muster-ingest.jsonl",
            "part-00000.parquet",
        ]
        (tmp_path / "same" / "d").mkdir(parents=True)
        assert read("same", before="one")["fetched"] == 0
        assert list((tmp_path / "same").iterdir()) == []

    def test_a_watermark_that_is_no_column(self, read: Any) -> None:
        assert "no_such" in read("one", watermark="no_such")["message"]

    def test_many_nulls_before_the_first_text_are_counted(self, read: Any, database: Any) -> None:
        run = database[2]  # whose driver takes the type of a column from its first 1,024 rows
        run("create table words (word text)")
        run(
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 1500) insert into words select null from n"
        )
        run("insert into words values ('a')")
        told = read("one", watermark="word", query="select word from words")
        assert "'word' is NULL in 1,500 of 1,501 rows read" in told["message"]

    def test_the_highest_value_is_so_by_the_databases_own_order(
        self, read: Any, rows: Any, database: Any, tmp_path: Path
    ) -> None:
        run = database[2]
        run("create table words (word text collate nocase)")
        run("insert into words values ('a'), ('B'), ('C')")  # by bytes, a is the highest one
        what = {"watermark": "word", "query": "select word from words"}
        read("one", **what)
        assert read("same", before="one", **what)["fetched"] == 0
        run("insert into words values ('d'), ('Z')")
        assert read("two", before="one", **what)["rows"] == 2
        assert rows(tmp_path / "two") == [["Z"], ["d"]]

    def test_a_watermark_that_no_listing_keeps_is_refused_before_rows_are_written(
        self, read: Any, database: Any, tmp_path: Path
    ) -> None:
        database[2]("create table blobs (b blob)")
        database[2]("insert into blobs values (x'00')")
        told = read("one", watermark="b", query="select b from blobs")
        assert "'b' is of type binary: need numbers, times, days or text" in told["message"]
        assert list((tmp_path / "one").iterdir()) == []

    def test_a_file_that_is_not_there(self, ingest: Any, tmp_path: Path) -> None:
        told = ingest(
            "one",
            "sql://shop",
            fields={"host": "/no/such/file"},
            query=QUERY,
            kind="sqlite",
            connection="shop",
        )
        assert "names no file that is there" in told["message"]
        assert "written as 'sqlite:////folder/file', with four slashes" in told["message"]

    def test_a_number_beside_texts_keeps_its_digits(
        self, read: Any, rows: Any, database: Any, tmp_path: Path
    ) -> None:
        run = database[2]
        run("create table mixed (amount decimal, n)")
        run("insert into mixed values (1234567.891, 9007199254740993), ('n/a', 'x'), (0.1, 2)")
        read("one", query="select * from mixed")
        assert rows(tmp_path / "one") == [["0.1", "2"], ["1234567.891", "9007199254740993"], ["n/a", "x"]]

    def test_the_first_rows_mislead_nobody(
        self, read: Any, rows: Any, types: Any, database: Any, tmp_path: Path
    ) -> None:
        run = database[2]
        run("create table late (word, amount, price decimal(8, 2))")
        run(
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 2999) insert into late select null, i, i from n"
        )
        run("insert into late values ('a', 3000.5, null)")
        assert read("one", query="select * from late")["rows"] == 3000
        assert types(tmp_path / "one") == {"word": "string", "amount": "double", "price": "double"}
        assert ["a", 3000.5, None] in rows(tmp_path / "one")

    def test_an_empty_result_has_the_declared_types(
        self, read: Any, types: Any, database: Any, tmp_path: Path
    ) -> None:
        database[2]("create table none (i integer, t varchar(9), r real, d decimal(9, 2), b blob, day date)")
        assert read("one", query="select *, i as j from none")["rows"] == 0
        found = {"i": "int64", "t": "string", "r": "double", "d": "double", "b": "binary", "day": "string"}
        assert types(tmp_path / "one") == {**found, "j": "int64"}

    def test_new_rows_take_the_type_of_the_last_version(
        self, read: Any, types: Any, database: Any, tmp_path: Path
    ) -> None:
        run = database[2]
        run("create table parts (n integer, price)")
        run("insert into parts values (1, 9.5), (2, 3), (3, 1.25)")
        what = {"watermark": "n", "query": "select n, price from parts"}
        read("one", **what)
        run("insert into parts values (4, 7)")
        assert read("two", before="one", **what)["rows"] == 1
        assert types(tmp_path / "two") == types(tmp_path / "one") == {"n": "int64", "price": "double"}
        run("insert into parts values (5, 9007199254740993)")
        told = read("three", before="one", **what)
        assert "the query's column 'price' has a value that is no double" in told["message"]
        assert "types={'price': …} sets its type" in told["message"]

    def test_a_column_that_cannot_be_is_named_with_the_keyword_that_sets_it(
        self, read: Any, types: Any, rows: Any, database: Any, tmp_path: Path
    ) -> None:
        run = database[2]
        run("create table big (n integer, amount decimal(20, 3), day date)")
        run("insert into big values (1, 9007199254740993, '2026-01-02'), (2, 0.125, null)")
        what = {"watermark": "n", "query": "select * from big"}
        told = read("one", **what)
        assert (
            "the query's column 'amount' has fractions beside whole numbers of more than 2^53"
            in told["message"]
        )
        given = {"amount": "decimal(20,3)", "day": "date"}
        assert read("two", **what, types=given)["rows"] == 2
        assert types(tmp_path / "two") == {"n": "int64", "amount": "decimal128(20, 3)", "day": "date32[day]"}
        assert rows(tmp_path / "two")[0] == [1, "9007199254740993.000", "2026-01-02"]
        told = read("three", **what, types={**given, "amount": "decimal(18,2)"})
        assert "'amount' has a value that is no decimal128(18, 2)" in told["message"]
        assert (
            "which the query does not have; it has n, amount, day"
            in read("four", **what, types={**given, "x": "date"})["message"]
        )


class TestDuckDB(QueryContract):
    def test_a_time_is_no_day(self, read: Any) -> None:
        query = "select timestamp '2026-01-02 10:00:00' as day"
        assert "no date32[day] (it is more)" in read("one", query=query, types={"day": "date"})["message"]

    def test_what_is_no_time_and_no_number_is_no_more_than_its_bool(self, read: Any) -> None:
        query = "select 'true'::enum('true', 'false') as flag"
        assert read("one", query=query, types={"flag": "bool"}).get("rows") == 1

    @pytest.fixture
    def database(self, python: Path, tmp_path: Path) -> tuple[dict[str, str], str, Run]:
        file = tmp_path / "shop.duckdb"
        code = "import duckdb, sys; duckdb.connect(sys.argv[1]).execute(sys.argv[2])"
        return (
            {"host": str(file)},
            "duckdb",
            lambda statement: subprocess.run([python, "-c", code, file, statement], check=True) and None,
        )


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that another user can enter, which none of pytest's is."""
    with tempfile.TemporaryDirectory(prefix="muster-postgres-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def authority(place: Path) -> Authority:
    authority = Authority(folder=place / "authority")
    authority.create()
    return authority


@pytest.fixture(scope="module")
def postgres(place: Path, authority: Authority) -> Iterator[tuple[dict[str, str], Run]]:
    """A server, the fields of its connection, and what runs statements there."""
    if not shutil.which("initdb"):
        pytest.skip("PostgreSQL's initdb is not on PATH")
    word = place / "word"
    word.write_text("a-word-of-the-tests")
    certificate, key = authority.issue("server", "server")
    as_user: dict[str, Any] = {}
    if os.getuid() == 0:  # as which it does not run
        nobody = pwd.getpwnam("nobody")
        as_user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        for path in (place, authority.folder, certificate, key):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
    data, port = place / "data", free_port()
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    init = ["initdb", "-D", data, "-U", "muster", "--auth=scram-sha-256", f"--pwfile={word}", "-N"]
    subprocess.run(init, check=True, **as_user, **quiet)
    serve = ["postgres", "-D", data, "-p", str(port), "-k", place, "-h", "127.0.0.1", "-F"]
    for name, value in (("ssl", "on"), ("ssl_cert_file", certificate), ("ssl_key_file", key)):
        serve += ["-c", f"{name}={value}"]
    fields = {"host": "127.0.0.1", "port": str(port), "login": "muster", "schema": "postgres"}
    fields["password"] = "a-word-of-the-tests"

    def run(statement: str) -> None:
        words = [
            "psql",
            "-q",
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
            "-U",
            "muster",
            "-c",
            statement,
            "postgres",
        ]
        environment = {"PATH": os.environ["PATH"], "PGPASSWORD": fields["password"]}
        subprocess.run(words, check=True, env=environment, **quiet)

    def answers() -> bool:
        try:
            run("select 1")
        except subprocess.CalledProcessError:
            return False
        return True

    with subprocess.Popen(serve, **as_user, **quiet) as process:
        assert until(answers)
        yield fields, run
        process.send_signal(signal.SIGINT)  # it ends its clients, and then itself


class TestPostgres(QueryContract):
    @pytest.fixture
    def database(self, postgres: tuple[dict[str, str], Run]) -> tuple[dict[str, str], str, Run]:
        fields, run = postgres
        for table in ("orders", "parts", "numbers", "words"):
            run(f"drop table if exists {table}")
        return fields, "postgres", run

    def test_a_wrong_password_is_named_and_not_shown(self, ingest: Any, database: Any) -> None:
        fields = {**database[0], "password": "wrong-word"}
        told = ingest("one", "sql://shop", fields=fields, query=QUERY, kind="postgres", connection="shop")
        assert told["error"] == "IngestError"
        assert "refuses connection 'shop'" in told["message"]

    def test_a_server_is_trusted_by_the_authority_of_the_connection(
        self, ingest: Any, database: Any, authority: Authority, tmp_path: Path
    ) -> None:
        database[2]("create table orders (id bigint, name text)")
        what = {"fields": database[0], "query": QUERY, "kind": "postgres", "connection": "shop"}
        trusted = {"ca": authority.certificate.read_text()}
        assert ingest("one", "sql://shop", extra=trusted, **what)["rows"] == 0
        other = Authority(folder=tmp_path / "other")
        other.create()
        told = ingest("two", "sql://shop", extra={"ca": other.certificate.read_text()}, **what)
        assert told["error"] == "IngestError", told
        assert "refuses connection 'shop'" in told["message"]
        assert "SSL error" in told["message"]

    def test_numeric_is_a_watermark_by_its_size(
        self, read: Any, rows: Any, database: Any, tmp_path: Path
    ) -> None:
        run = database[2]
        run("create table numbers (n numeric)")
        run("insert into numbers values (9), (10), (1e30)")  # as text, 9 is the highest one
        what = {"watermark": "n", "query": "select n from numbers"}
        assert read("one", **what)["rows"] == 3
        assert read("same", before="one", **what)["fetched"] == 0
        run("insert into numbers values (1e31)")
        assert read("two", before="one", **what)["rows"] == 1
        run("insert into numbers values ('NaN')")
        told = read("three", before="two", **what)
        assert (
            "'n' has NaN, an infinity, or more than 76 digits, above which nothing comes" in told["message"]
        )

    def test_numeric_is_a_decimal_of_the_digits_that_it_has(
        self, read: Any, types: Any, database: Any, tmp_path: Path
    ) -> None:
        run = database[2]
        run("create table numbers (n int, a numeric(10, 2), b numeric, gap interval)")
        run("insert into numbers values (1, 12.50, 3, '1 day'), (2, -1, 0.125, null)")
        what = {"watermark": "n", "query": "select n, a, b from numbers"}
        assert read("one", **what)["rows"] == 2
        assert types(tmp_path / "one") == {"n": "int32", "a": "decimal128(4, 2)", "b": "decimal128(4, 3)"}
        run("insert into numbers values (3, 12345.5, null, null)")
        assert read("two", before="one", **what)["rows"] == 1
        assert types(tmp_path / "two") == {"n": "int32", "a": "decimal128(7, 2)", "b": "decimal128(4, 3)"}
        told = read("three", query="select n, gap from numbers")
        assert "the query's column 'gap' is of type" in told["message"]
        assert "cast it in the query, such as cast(gap as text)" in told["message"]

    def test_a_watermark_in_an_order_of_letters(self, read: Any, database: Any) -> None:
        run = database[2]
        run('create table words (word text collate "en-x-icu")')
        run("insert into words values ('a'), ('B'), ('C')")
        what = {"watermark": "word", "query": "select word from words"}
        assert read("one", **what)["rows"] == 3
        assert read("same", before="one", **what)["fetched"] == 0

    @pytest.mark.parametrize("column", ["timeout_s", "authentication_x", "permission denied"])
    def test_the_words_of_a_query_say_nothing_of_the_server(self, read: Any, column: str) -> None:
        told = read("one", query=f'select "{column}" from orders')
        assert told["error"] == "IngestError"
        assert "the query cannot be read" in told["message"]

    def test_what_the_server_says_while_rows_are_fetched_is_of_the_query(self, read: Any) -> None:
        told = read("one", query="select ('timeout' || n)::int from generate_series(1, 3) n")
        assert "the query cannot be read" in told["message"]

    def test_a_server_that_ends_the_session_is_away(self, read: Any) -> None:
        told = read("one", query="select pg_terminate_backend(pg_backend_pid())")
        assert told["error"] == "SourceAway"

    def test_a_database_that_is_not_there_is_named(self, ingest: Any, database: Any) -> None:
        fields = {**database[0], "schema": "gone"}
        told = ingest("one", "sql://shop", fields=fields, query=QUERY, kind="postgres", connection="shop")
        assert told["error"] == "IngestError"
        assert "there is no database 'gone'" in told["message"]

    def test_a_table_that_the_user_may_not_read(self, read: Any, ingest: Any, database: Any) -> None:
        fields, _, run = database
        run("drop role if exists guest")
        run("create role guest login password 'a-guest-of-the-tests'")
        fields = {**fields, "login": "guest", "password": "a-guest-of-the-tests"}
        told = ingest("one", "sql://shop", fields=fields, query=QUERY, kind="postgres", connection="shop")
        assert "refuses connection 'shop'" in told["message"]

    def test_a_server_that_comes_later_is_waited_for(self, read: Any, ingest: Any, database: Any) -> None:
        fields = database[0]
        with Late(int(fields["port"]), turned_away=6) as late:
            given = {"fields": {**fields, "port": str(late.port)}, "query": "select id from orders"}
            what = {"kind": "postgres", "connection": "shop", "patience_seconds": 60}
            assert ingest("one", "sql://shop", **given, **what)["rows"] == 3

    def test_a_server_that_does_not_come_is_away(self, ingest: Any, database: Any) -> None:
        given = {"fields": {**database[0], "port": str(free_port())}, "query": QUERY}
        what = {"kind": "postgres", "connection": "shop", "patience_seconds": 0.3}
        told = ingest("one", "sql://shop", **given, **what)
        assert told["error"] == "SourceAway"
        assert "does not answer" in told["message"]


class Late:
    """Hangs up on the first clients, and gives the others to a server."""

    def __init__(self, to: int, turned_away: int) -> None:
        self._to, self._left = to, turned_away
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> Late:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            if self._left:
                self._left -= 1
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._to))
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65_536):
                other.sendall(data)
        except OSError:
            return  # the other side has gone
        finally:
            other.close()
