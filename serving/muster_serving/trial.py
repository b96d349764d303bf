"""Loads a version and answers requests in a process of its own, before a live server loads the version.

``python -m muster_serving.trial FOLDER REQUESTS.json [SETUP]`` reads a list of v1 requests, each with a name; SETUP says
how the workers of a version run that is no ONNX model. A crash in native code, or too much memory, ends this process,
or its workers, and not the server that answers users.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from muster_serving import protocol
from muster_serving.errors import ServingError
from muster_serving.predictor import Predictor
from muster_serving.process.predictor import ProcessPredictor
from muster_serving.process.start import Setup


def main() -> None:
    """Exit 0 if the version loads and answers each request; else print the reason as the last line."""
    folder, requests = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_bytes())
    setup = Setup.parse(json.loads(sys.argv[3])) if sys.argv[3:] else None
    sys.exit(asyncio.run(_try(folder, requests, setup)) or 0)


async def _try(folder: Path, requests: list[dict[str, Any]], setup: Setup | None) -> str:
    """Return what is wrong; empty where nothing is."""
    predictor: Predictor | ProcessPredictor
    try:
        if setup is None:
            predictor = Predictor(folder)
        else:
            predictor = ProcessPredictor(folder, setup, revision="trial", told=lambda *_: None)
            await predictor.start()
    except ServingError as error:
        return str(error)
    for request in requests:
        try:
            asked = protocol.read_v1(predictor.signature, json.dumps({"inputs": request["inputs"]}).encode())
            if isinstance(predictor, Predictor):
                asked.write(predictor.predict(asked.columns, asked.rows))
            else:
                asked.write(await predictor.predict(asked.columns, asked.rows))
        except ServingError as error:
            return f"smoke request {request['name']!r:.80}: {error}"
    return ""


if __name__ == "__main__":
    main()
