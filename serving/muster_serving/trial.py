"""Loads a version and answers requests in a process of its own, before a live server loads the version.

``python -m muster_serving.trial FOLDER REQUESTS.json`` reads a list of v1 requests, each with a name. A crash
in native code, or too much memory, ends this process and not the server that answers users.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from muster_serving import protocol
from muster_serving.errors import ServingError
from muster_serving.predictor import Predictor


def main() -> None:
    """Exit 0 if the version loads and answers each request; else print the reason as the last line."""
    requests = json.loads(Path(sys.argv[2]).read_bytes())
    try:
        predictor = Predictor(Path(sys.argv[1]))
    except ServingError as error:
        sys.exit(str(error))
    for request in requests:
        try:
            protocol.predict_v1(predictor, json.dumps({"inputs": request["inputs"]}).encode())
        except ServingError as error:
            sys.exit(f"smoke request {request['name']!r:.80}: {error}")


if __name__ == "__main__":
    main()
