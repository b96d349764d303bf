"""Asks a deployment about flights, as its users would: ten rows a request, over one connection."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.parquet as pq

ROWS = 10
KINDS = {"carrier": "BYTES", "origin": "BYTES", "hour": "INT64", "distance": "FP32"}


def ask(rows: Path, *, url: str, name: str, requests: int) -> dict[str, float]:
    """Ask, and return how many requests were answered.

    :raises RuntimeError: one was not.
    """
    table = pq.read_table(rows / "flights.parquet", columns=list(KINDS))
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    identity = ""
    for number in range(requests):
        some = table.slice(number * ROWS % (table.num_rows - ROWS), ROWS)
        tensors = [
            {"name": column, "datatype": kind, "shape": [ROWS], "data": some[column].to_pylist()}
            for column, kind in KINDS.items()
        ]
        connection.request("POST", f"/v2/models/{name}/infer", json.dumps({"inputs": tensors}))
        response = connection.getresponse()
        said = response.read()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"request {number}: HTTP {response.status} {said[:200]!r}")
        identity = response.getheader("muster-prediction") or identity
    print(f"the last one: muster predictions show {identity}", flush=True)
    return {"requests": requests}
