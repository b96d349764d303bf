"""What may be ingested, and what of a connection a job's spec holds."""

from __future__ import annotations

import pytest

from muster.core.errors import SpecError
from muster.core.ingest import Source, variables


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "bucket/prefix"}, "expected an address such as"),
        ({"url": "/data/incoming"}, "'file:///folder'"),
        ({"url": "ftp://host/a"}, "ftp:// is no kind of source; there are s3://"),
        ({"url": "s3://"}, "names no bucket"),
        ({"url": "sql://shop/table", "query": "select 1"}, "expected 'sql://CONNECTION'"),
        ({"url": "sql://shop"}, "needs query="),
        ({"url": "s3://b", "query": "select 1"}, "no other source has one"),
        ({"url": "s3://b", "watermark": "id"}, "only a query has a watermark"),
        ({"url": "sql://shop", "query": "select 1", "connection": "shop"}, "leave connection= out"),
        ({"url": "s3://b", "types": {"a": "string"}}, "only a query has types="),
        (
            {"url": "sql://shop", "query": "select 1", "types": {"a": "text"}},
            "'a' is 'text': expected one of bool, ",
        ),
        (
            {"url": "sql://shop", "query": "select 1", "types": {"a": "decimal(3,5)"}},
            "expected one of bool, ",
        ),
        ({"url": "sql://shop", "query": "select 1", "types": ["a"]}, "expected types by column"),
        ({"url": "kafka://events", "values": "json"}, "expected 'kafka://CONNECTION/topic'"),
        ({"url": "kafka://events/a/b", "values": "json"}, "expected 'kafka://CONNECTION/topic'"),
        ({"url": "kafka://events/clicks"}, "values is None: need one of json, avro, raw"),
        ({"url": "kafka://events/clicks", "values": "json", "lost": "keep"}, "need one of stop, skip"),
        ({"url": "kafka://events/clicks", "values": "json", "until": "noon"}, "expected a time such as"),
        ({"url": "kafka://events/clicks", "values": "json", "connection": "events"}, "leave connection= out"),
        ({"url": "s3://b", "most": 5}, "belong to a source kafka://CONNECTION/topic"),
        ({"url": "s3://b", "streams": 0}, "need a whole number from 1 to 256"),
        ({"url": "s3://b", "connection": "a b"}, "expected the id of an Airflow connection"),
    ],
)
def test_what_is_no_source_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Source(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:word@bucket/x",
        "sftp://ann:word@host/x",
        "https://ann:word@host/",
        "s3://bucket/x?token=word",
    ],
)
def test_a_password_in_an_address_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(SpecError) as caught:
        Source(url=url)
    assert "word" not in str(caught.value).replace("password", "")


def test_the_container_of_azure_stands_before_its_account() -> None:
    assert Source(url="abfs://events@account.dfs.core.windows.net/x").conn_id is None


def test_the_param_names_what_a_record_may_show() -> None:
    source = Source(url="s3://lake/events", connection="lake", streams=8)
    assert source.param(kind="aws", extras=("region_name", "endpoint_url")) == {
        "source": "s3://lake/events",
        "streams": 8,
        "patience_seconds": 300.0,
        "connection": "lake",
        "kind": "aws",
        "extras": ["endpoint_url", "region_name"],
    }
    query = Source(url="sql://shop", query="select 1", watermark="id")
    assert query.conn_id == "shop"
    assert query.param(kind="postgres") == {
        "source": "sql://shop",
        "query": "select 1",
        "watermark": "id",
        "patience_seconds": 300.0,
        "connection": "shop",
        "kind": "postgres",
        "extras": [],
    }


def test_the_param_of_a_topic() -> None:
    topic = Source(
        url="kafka://events/clicks", values="avro", until="2026-11-26 10:00", most=5, unreadable="keep"
    )
    assert topic.conn_id == "events"
    assert topic.param(kind="kafka", extras=("sasl.password", "bootstrap.servers")) == {
        "source": "kafka://events/clicks",
        "values": "avro",
        "until": "2026-11-26 10:00",
        "most": 5,
        "unreadable": "keep",
        "lost": "stop",
        "patience_seconds": 300.0,
        "connection": "events",
        "kind": "kafka",
        "extras": ["bootstrap.servers", "sasl.password"],
    }


def test_each_field_of_a_connection_has_a_variable() -> None:
    assert variables({"login": "a", "password": "", "host": None, "port": 1}, ["b", "a"]) == {
        "INGEST_LOGIN": "login",
        "INGEST_PORT": "port",
        "INGEST_EXTRA_0": "a",
        "INGEST_EXTRA_1": "b",
    }
