"""A version whose model yields its answer in parts, and for some words the worst that such a predictor can do."""

from __future__ import annotations

from pathlib import Path

from tests.serving.python_model import write_signature

PREDICT = """\
import os
import time
from pathlib import Path


def load(folder):
    return None


def predict(model, inputs):
    return parts(int(inputs["count"][0]), str(inputs["act"][0]))


def parts(count, act):
    if act == "at once":
        raise ValueError("unlucky")
    try:
        for number in range(count):
            if number == 3:
                if act == "raise":
                    raise ValueError("unlucky")
                if act == "die":
                    os.abort()
                if act == "hang":
                    time.sleep(600)
                if act == "names":
                    yield {"word": ["a"]}
                if act == "rows":
                    yield {"word": ["a", "b"], "pid": [1]}
            if act == "slow":
                time.sleep(0.2)
            if number == 0 and act.startswith("first "):
                print("begun", act, flush=True)
                wait_for(act[6:])
            if number == 1 and act.startswith("/"):
                wait_for(act)
            word = "w" * 100_000 if act == "big" else f"w{number}"
            yield {"word": [word], "pid": [os.getpid()]}
    finally:
        print("closed", act, flush=True)


def wait_for(path):  # the test makes that file
    while not Path(path).exists():
        time.sleep(0.01)
"""


def write_words(folder: Path, *, predict: str = PREDICT) -> Path:
    """Write the version; it takes ``count`` and ``act``, and answers that many words."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "predict.py").write_text(predict)
    write_signature(
        folder,
        [{"name": "count", "datatype": "INT64"}, {"name": "act", "datatype": "BYTES"}],
        [{"name": "word", "datatype": "BYTES"}, {"name": "pid", "datatype": "INT64"}],
    )
    return folder
