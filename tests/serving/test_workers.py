"""A model in processes of its own: what users see of a bad predictor, of workers that end, and of batches."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from tests.serving.conftest import Front
from tests.serving.python_model import write_line, write_signature
from tests.waiting import eventually

pytestmark = pytest.mark.slow

LINE = "/v1/models/line:predict"
LIMIT = "more than the 1 GiB that one worker may take: raise memory_gib of the deployment's resources"


FULL = """
HELD = []
try:
    while True:
        HELD.append(bytearray(1 << 20))
except MemoryError:
    del HELD[-8:]


def load(folder):
    return None


def predict(model, inputs):
    return {"y": [1.0] * len(inputs["x"])}
"""


@pytest.fixture(scope="module")
def line(front: Front, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A revision of the model that does its worst for some values."""
    assert front.load("bad", write_line(tmp_path_factory.mktemp("line")), request_seconds=3.0) == ""
    return "bad"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (101, "the model failed: ValueError: unlucky (predict.py:24)"),
        (102, "output 'y': the model answered nan; expected finite numbers"),
        (103, "output 'y': the model answered shape [0], expected [1]"),
        (104, "output 'y': the model answered <U32, the signature says FP32"),
        (105, "the model answered ndarray, expected arrays by name: y, together, pid"),
        (106, "the model answered y, the signature's outputs are y, together, pid"),
        (107, f"the model needs {LIMIT}"),
        (201, "the model's process was ended by SIGABRT"),
        (202, "the model's process ended with exit code 1: no more"),
        (203, "the model's process gave no answer within 3 s (request_timeout), and was ended"),
    ],
)
def test_each_way_to_fail_is_one_error_and_the_next_is_answered(
    front: Front, line: str, value: int, said: str
) -> None:
    assert front.ask(line, float(value)) == (500, said)
    eventually(lambda: front.ask(line, 1.0)[0] == 200)


def test_a_worker_that_ends_costs_only_what_it_computed_and_the_next_answers_what_it_had_been_sent(
    front: Front, tmp_path: Path
) -> None:
    assert front.load("ahead", write_line(tmp_path)) == ""
    assert front.ask("ahead", 1.0)[0] == 200  # soon, so that more is sent ahead
    with ThreadPoolExecutor(8) as pool:
        slow = pool.submit(front.ask, "ahead", 110.0)
        eventually(lambda: front.waiting() >= 1)
        poison = pool.submit(front.ask, "ahead", 201.0)
        eventually(lambda: front.waiting() >= 2)
        others = [pool.submit(front.ask, "ahead", float(n)) for n in range(5)]
        answers = [each.result() for each in others]
    assert slow.result()[0] == 200
    assert poison.result() == (500, "the model's process was ended by SIGABRT")
    assert [answer["y"] for _, answer in answers] == [[2.0 * n] for n in range(5)]
    assert slow.result()[1]["pid"] not in [answer["pid"] for _, answer in answers]
    front.unload("ahead")


def test_the_keeper_is_told_of_a_worker_that_ends_and_of_the_next(front: Front, tmp_path: Path) -> None:
    assert front.load("told", write_line(tmp_path)) == ""
    pid = front.ask("told", 1.0)[1]["pid"][0]
    os.kill(pid, signal.SIGKILL)
    ended, up = front.hear(), front.hear()
    while ended["revision"] != "told":
        ended, up = up, front.hear()
    assert ended["ended"]
    assert ended["told"].startswith("a worker was ended by SIGKILL, which another process sent")
    assert (up["told"], up["ended"]) == ("", False)
    assert front.ask("told", 1.0)[1]["y"] == [2.0]
    front.unload("told")


def test_what_it_prints_is_bounded_and_what_it_forks_ends_with_it(front: Front, tmp_path: Path) -> None:
    assert front.load("loud", write_line(tmp_path)) == ""
    before = front.server.log.stat().st_size
    assert front.ask("loud", 108.0)[0] == 200
    eventually(lambda: b"bytes left out: it prints too much" in front.server.log.read_bytes())
    assert front.server.log.stat().st_size - before < 1 << 20
    assert b"\nloud | loading\n" in front.server.log.read_bytes()
    children = [front.ask("loud", value)[1]["pid"][0] for value in (109.0, 111.0)]
    assert all(Path(f"/proc/{child}").exists() for child in children)
    front.unload("loud")
    eventually(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


def test_requests_that_a_worker_had_not_begun_when_it_ended_are_answered_by_the_next(
    front: Front, tmp_path: Path
) -> None:
    """Though it was sent several ahead: none of them is lost with the first."""
    assert front.load("unread", write_line(tmp_path)) == ""
    pid = front.ask("unread", 1.0)[1]["pid"][0]
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(front.ask, "unread", float(number)) for number in range(3)]
        eventually(lambda: front.waiting() >= 3)
        os.kill(pid, signal.SIGKILL)
        answers = [each.result() for each in asked]
    assert [(status, answer["y"]) for status, answer in answers] == [(200, [2.0 * x]) for x in range(3)]
    assert [pid] not in [answer["pid"] for _, answer in answers]
    front.unload("unread")


def test_a_worker_is_replaced_after_so_many_requests_and_none_fails(front: Front, tmp_path: Path) -> None:
    assert front.load("often", write_line(tmp_path), max_requests=5) == ""
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda x: front.ask("often", x), map(float, range(20))))
    assert [(status, answer["y"]) for status, answer in answers] == [(200, [2.0 * x]) for x in range(20)]
    assert len({answer["pid"][0] for _, answer in answers}) == 4
    front.unload("often")


def test_a_worker_that_hit_its_memory_limit_is_replaced(front: Front, tmp_path: Path) -> None:
    assert front.load("spent", write_line(tmp_path)) == ""
    pid = front.ask("spent", 1.0)[1]["pid"]
    with ThreadPoolExecutor(4) as pool:
        (status, said), *others = pool.map(lambda x: front.ask("spent", x), (107.0, 1.0, 2.0, 3.0))
    assert (status, said) == (500, f"the model needs {LIMIT}")
    assert [status for status, _ in others] == [200] * 3
    assert front.ask("spent", 1.0)[1]["pid"] != pid
    front.unload("spent")


def test_a_request_that_a_worker_has_no_memory_to_read_ends_one_worker(front: Front, tmp_path: Path) -> None:
    write_signature(tmp_path, [{"name": "x", "datatype": "BYTES"}], [{"name": "y", "datatype": "FP32"}])
    (tmp_path / "predict.py").write_text(FULL)
    assert front.load("full", tmp_path, memory_gib=0.5) == ""
    assert front.ask("full", "small")[0] == 200
    status, said = front.ask("full", "b" * (14 << 20))
    assert (status, said) == (500, ANY)
    assert "with no more memory: it may take 0.5 GiB" in said
    eventually(lambda: front.ask("full", "small")[0] == 200)
    front.unload("full")


def test_a_revision_that_is_unloaded_answers_what_it_was_asked(front: Front, tmp_path: Path) -> None:
    assert front.load("leaving", write_line(tmp_path)) == ""
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(front.ask, "leaving", 110.0) for _ in range(3)]
        eventually(lambda: front.waiting() >= 3)
        front.unload("leaving")
        answers = [each.result() for each in asked]
    assert [status for status, _ in answers] == [200] * 3
    (pid,) = answers[0][1]["pid"]
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_requests_that_come_together_are_computed_together_and_a_bad_row_fails_alone(
    front: Front, tmp_path: Path
) -> None:
    setup = {"most": 16, "wait_ms": 500.0, "workers": 2}
    assert front.load("batch", write_line(tmp_path), **setup) == ""
    asked = [[float(n), float(-n)] for n in range(7)] + [[101.0, 1.0]]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda values: front.ask("batch", *values), asked))
    assert [a[0] for a in answers] == [200] * 7 + [500]
    assert [a[1]["y"] for a in answers[:7]] == [[2 * x, 2 * y] for x, y in asked[:7]]
    assert answers[7][1] == "the model failed: ValueError: unlucky (predict.py:24)"
    front.unload("batch")


def test_a_request_waits_for_others_only_while_something_is_computed(front: Front, tmp_path: Path) -> None:
    assert front.load("alone", write_line(tmp_path), most=16, wait_ms=20_000.0, request_seconds=10.0) == ""
    assert front.ask("alone", 1.0, 2.0) == (200, {"y": [2.0, 4.0], "together": [2.0, 2.0], "pid": ANY})
    with ThreadPoolExecutor(9) as pool:
        slow = pool.submit(front.ask, "alone", 110.0)
        eventually(lambda: front.waiting() >= 1)
        answers = list(pool.map(lambda x: front.ask("alone", x), map(float, range(8))))
    assert slow.result()[0] == 200
    assert max(answer["together"][0] for _, answer in answers) > 1
    front.unload("alone")


def test_texts_categories_and_tensors_arrive_as_the_signature_says(front: Front, tmp_path: Path) -> None:
    inputs: list[dict[str, object]] = [
        {"name": "zone", "datatype": "BYTES", "categories": ["other", "centre"], "fallback": "other"},
        {"name": "note", "datatype": "BYTES"},
        {"name": "pair", "datatype": "INT32", "shape": [-1, 2]},
        {"name": "yes", "datatype": "BOOL"},
    ]
    outputs: list[dict[str, object]] = [
        {"name": "said", "datatype": "BYTES"},
        {"name": "sums", "datatype": "FP64", "shape": [-1, 2]},
    ]
    write_signature(tmp_path, inputs, outputs)
    (tmp_path / "predict.py").write_text("""
def load(folder):
    return None


def predict(model, inputs):
    texts = [f"{z} {n} {y}" for z, n, y in zip(inputs["zone"], inputs["note"], inputs["yes"])]
    return {"said": texts, "sums": inputs["pair"] + 0.5}
""")
    assert front.load("kinds", tmp_path, most=8, wait_ms=300.0) == ""
    one = {"zone": ["centre"], "note": ["ä"], "pair": [[1, 2]], "yes": [True]}
    two = {"zone": ["moon", "other"], "note": ["", "b" * 300], "pair": [[3, 4], [5, 6]], "yes": [False, True]}

    def ask(values: dict[str, Any]) -> Any:
        path = "/v1/models/line/versions/kinds:predict"
        return front.server.ask("POST", path, {"inputs": values})[1]

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(ask, (one, two)))
    assert answers == [
        {"outputs": {"said": ["centre ä True"], "sums": [[1.5, 2.5]]}},
        {
            "outputs": {
                "said": ["other  False", "other " + "b" * 300 + " True"],
                "sums": [[3.5, 4.5], [5.5, 6.5]],
            }
        },
    ]
    half = front.server.ask(
        "POST", "/v1/models/line/versions/kinds:predict", {"inputs": one | {"note": ["a\ud800"]}}
    )
    assert half == (
        400,
        {
            "error": "input 'note': found '\\ud800', half of a pair of surrogates, which is no character: "
            "send whole characters"
        },
    )
    front.unload("kinds")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "import not_there\n",
            (
                "it imports not_there, which its image lacks: add it to the image's requirements, or name an image that has "
                "it, image=…"
            ),
        ),
        (
            "def load(folder):\n    return 1\n",
            "predict.py has no function predict: it needs load(folder) and",
        ),
        (
            "def load(folder):\n    raise OSError('no weights')\n\n\ndef predict(model, inputs):\n    return {}\n",
            "it cannot be loaded: OSError: no weights (predict.py:2)",
        ),
        (
            "import os\n\n\ndef load(folder):\n    os.abort()\n\n\ndef predict(model, inputs):\n    return {}\n",
            "loading it: its process was ended by SIGABRT",
        ),
        (
            (
                "import pickle\n\n\nclass A:\n    pass\n\n\ndef load(folder):\n    return pickle.loads(pickle.dumps(A()))\n"
                "\n\ndef predict(model, inputs):\n    return {}\n"
            ),
            (
                "loading it unpickles predict.A, which can run any code: save the model in a format that cannot, such as "
                'skops, or trust it, trusted=["pickle"]'
            ),
        ),
        (
            "import time\n\n\ndef load(folder):\n    time.sleep(600)\n\n\ndef predict(model, inputs):\n    return {}\n",
            "it was not loaded within 2 s (load_timeout)",
        ),
    ],
    ids=["import", "function", "raises", "crash", "pickle", "slow"],
)
def test_what_cannot_be_loaded_is_refused_by_what_is_wrong(
    front: Front, tmp_path: Path, code: str, said: str
) -> None:
    seconds = 2.0 if "sleep" in code else 60.0
    assert front.load("r9", write_line(tmp_path, predict=code), load_seconds=seconds).startswith(said)
    if "pickle" in code:
        assert front.load("r9", tmp_path, trusted=["pickle"]) == ""
        front.unload("r9")


def test_a_version_of_no_model_or_of_two_is_refused(front: Front, tmp_path: Path) -> None:
    write_line(tmp_path)
    (tmp_path / "predict.py").rename(tmp_path / "model.ubj")
    (tmp_path / "model.pt2").touch()
    assert front.load("r9", tmp_path).endswith("this one holds model.ubj, model.pt2")
    (tmp_path / "model.pt2").unlink()
    (tmp_path / "model.ubj").rename(tmp_path / "model.pkl")
    assert front.load("r9", tmp_path).startswith("model.pkl is a pickle, which can run any code")
