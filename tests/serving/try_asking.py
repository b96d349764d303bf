"""Runs in the image: print, as JSON, what a folder's model answers to requests of v1, and the pages about it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from muster_serving import pages, protocol
from muster_serving.errors import ServingError
from muster_serving.openapi import example
from muster_serving.predictor import Predictor

predictor = Predictor(Path(sys.argv[1]))


def asked(body: bytes) -> str:
    try:
        read = protocol.read_v1(predictor.signature, body)
        return read.write(predictor.predict(read.columns, read.rows))[0].decode()
    except ServingError as error:
        return str(error)


def page(path: str) -> str:
    return pages.page(path, name="one", revisions=["r1"], signature=predictor.signature).body.decode()


print(
    json.dumps(
        {
            "answers": [asked(body.encode()) for body in sys.argv[2:]],
            "example": asked(json.dumps(example(predictor.signature)).encode()),
            "document": json.loads(page("/openapi.json")),
            "docs": page("/docs"),
        }
    )
)
