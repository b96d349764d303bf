"""Runs in an image: asks whether a version answers what its model answers on its own training rows, whatever these are.

``python round_trips.py KINDS FRAMES SEED`` makes frames of columns by chance, with missing values, categories of every type
and whole numbers beyond 2**53; trains a model of each kind on each; writes the version with ``muster.signature``; and asks
it the training rows as JSON. It prints by kind how many were answered the ``same``, how many were ``refused`` and in what
words, which were ``wrong``, and, beside FRAMES, how many the library itself could not be trained on (``untrained``).
"""

from __future__ import annotations

import datetime
import json
import math
import pickle
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - it runs in the image

import muster
from muster.core.errors import SpecError
from muster_serving.errors import ServingError
from muster_serving.process.worker import AlonePredictor

ROWS = 60
Columns = dict[str, Any]
Make = Callable[[Columns, Path], tuple[Any, Any]]  # the inputs as the model had them, and its answers


def plain(random: np.random.Generator, *, nulls: bool) -> Any:
    """One column of an array or a list."""
    kind = random.integers(0, 6)
    hides = random.random(ROWS) < 0.2
    if kind == 0:
        values = random.normal(size=ROWS).astype(random.choice(["float32", "float64"]))
        values[hides & nulls] = math.nan
        return values
    if kind == 1:
        bits = random.choice([8, 16, 32, 64])
        low, high = -(2 ** (int(bits) - 1)), 2 ** (int(bits) - 1) - 1
        return random.integers(low, high, ROWS, f"int{bits}", endpoint=True)
    if kind == 2:
        return random.integers(2**64 - 100, 2**64 - 1, ROWS, "uint64", endpoint=True)
    if kind == 3:
        return random.random(ROWS) < 0.5
    if kind == 4:
        return np.full(ROWS, random.integers(-9, 9), "int64")
    texts = random.choice(["centre", "", "münchen", "a:b"], ROWS).tolist()
    return [None if hidden and nulls else text for text, hidden in zip(texts, hides, strict=True)]


def framed(random: np.random.Generator) -> Any:
    """One column of a pandas frame."""
    import pandas as pd

    hides = random.random(ROWS) < random.choice([0, 0.2])
    kind = random.integers(0, 9)
    if kind < 3:
        return plain(random, nulls=True)
    if kind == 3:
        whole = random.integers(-(2**62), 2**62, ROWS).tolist()
        return pd.array(
            [None if hidden else v for v, hidden in zip(whole, hides, strict=True)], dtype="Int64"
        )
    if kind == 4:
        flags = (random.random(ROWS) < 0.5).tolist()
        held = [None if hidden else v for v, hidden in zip(flags, hides, strict=True)]
        return pd.array(held, dtype="boolean") if random.random() < 0.5 else pd.Series(held, dtype=object)
    if kind == 5:
        null = None if random.random() < 0.5 else math.nan
        texts = random.choice(["x", "y", "z"], ROWS).tolist()
        return pd.Series(
            [null if hidden else v for v, hidden in zip(texts, hides, strict=True)], dtype=object
        )
    if kind == 6:
        values = random.normal(size=ROWS)
        held = [None if hidden else v for v, hidden in zip(values.tolist(), hides, strict=True)]
        return pd.array(held, dtype=random.choice(["Float64", "double[pyarrow]"]))
    day = datetime.date(2026, 1, 1)
    several: list[Any] = [
        [10, 20, 30],
        [True, False],
        [0.1, 2.5, 1e9],
        ["b", "a", "never"],
        [day, day.replace(day=2)],
        list(pd.to_datetime(["2026-01-01 07:45", "2026-01-02 00:00"])),
    ]
    own = several[random.integers(0, len(several))]
    codes = random.integers(0, min(len(own), 3) - (own[-1] == "never"), ROWS)
    codes[hides] = -1
    return pd.Categorical.from_codes(codes, own, ordered=bool(random.random() < 0.2))


def columns_of(random: np.random.Generator, kind: str) -> Columns:
    """The columns of one frame."""
    several = int(random.integers(1, 6))
    if kind in ("onnx", "torch"):
        nulls = bool(random.random() < 0.7)
        return {f"c{i}": plain(random, nulls=nulls) for i in range(several)}
    return {f"c{i}": framed(random) for i in range(several)}


def _frame(columns: Columns) -> Any:
    import pandas as pd

    return pd.DataFrame(columns)


def _target(random: np.random.Generator) -> Any:
    return random.normal(size=ROWS)


def _numbers(frame: Any) -> Any:
    """Leave out text, which a booster does not take."""
    import pandas as pd

    wrong = [
        n for n in frame if not (pd.api.types.is_numeric_dtype(frame[n]) or str(frame[n].dtype) == "category")
    ]
    frame = frame.drop(columns=wrong)
    return frame if len(frame.columns) else frame.assign(x=np.arange(float(ROWS)))


def pipeline(random: np.random.Generator, columns: Columns, folder: Path) -> tuple[Any, Any]:
    """Imputed numbers beside encoded texts and categories, and a linear model."""
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    frame = _frame(columns)
    numbers = [
        n for n in frame if pd.api.types.is_numeric_dtype(frame[n]) and "bool" not in str(frame[n].dtype)
    ]
    others = [n for n in frame if n not in numbers]
    before = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore"), others),
    )
    model = make_pipeline(before, Ridge()).fit(frame, _target(random))
    (folder / "model.pkl").write_bytes(pickle.dumps(model))
    return frame, model.predict(frame)


def trees(random: np.random.Generator, columns: Columns, folder: Path) -> tuple[Any, Any]:
    """scikit-learn's histogram trees, which take missing values and categorical columns as they are."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    frame = _numbers(_frame(columns))
    made = HistGradientBoostingRegressor(max_iter=5, min_samples_leaf=3, categorical_features="from_dtype")
    model = made.fit(frame, _target(random))
    (folder / "model.pkl").write_bytes(pickle.dumps(model))
    return frame, model.predict(frame)


def xgboost(random: np.random.Generator, columns: Columns, folder: Path) -> tuple[Any, Any]:
    """A booster on the frame itself."""
    import xgboost as library

    frame = _numbers(_frame(columns))
    matrix = library.DMatrix(frame, _target(random), enable_categorical=True)
    model = library.train({"nthread": 1, "max_depth": 3}, matrix, 5)
    model.save_model(folder / "model.ubj")
    return frame, model.predict(matrix)


def lightgbm(random: np.random.Generator, columns: Columns, folder: Path) -> tuple[Any, Any]:
    """A booster on the frame itself."""
    import lightgbm as library

    frame = _numbers(_frame(columns))
    told = {"num_threads": 1, "verbose": -1, "min_data_in_leaf": 3, "min_data_per_group": 1, "cat_smooth": 1}
    model = library.train(told, library.Dataset(frame, _target(random)), 5)
    model.save_model(folder / "model.lightgbm.txt")
    return frame, model.predict(frame)


_PREDICT = """
import zlib

import numpy as np


def load(folder):
    return None


def predict(model, inputs):
    rows = zip(*(values.tolist() for values in inputs.values()))
    return {"y": np.array([zlib.crc32(repr(row).encode()) for row in rows], "float64")}
"""


def python(random: np.random.Generator, columns: Columns, folder: Path) -> tuple[Any, Any]:
    """Code that tells every value from every other: it has the values as Python has them, and None for null."""
    import zlib

    frame = _frame(columns)
    (folder / "predict.py").write_text(_PREDICT)
    described = {e["name"]: e for e in muster.signature(inputs=frame, outputs=[0.0]).document["inputs"]}

    def value(name: str, given: Any) -> Any:
        if given is None or given is _na() or given != given:
            return math.nan if described[name]["datatype"].startswith("FP") else None
        return str(given) if described[name]["datatype"] == "BYTES" else given

    rows = zip(*([value(n, v) for v in frame[n].tolist()] for n in frame), strict=True)
    return frame, np.array([zlib.crc32(repr(row).encode()) for row in rows], "float64")


def _na() -> Any:
    import pandas as pd

    return pd.NA


def torch(random: np.random.Generator, columns: Columns, folder: Path) -> tuple[Any, Any]:
    """A program that adds its inputs, text as its place among the sorted texts; NaN counts as 1."""
    import torch as library

    given = {n: v for n, v in columns.items() if not isinstance(v, np.ndarray) or v.dtype != np.uint64}
    given = given or {"x": random.normal(size=ROWS)}
    tensors = [library.from_numpy(_placed(values)) for values in given.values()]

    class Sum(library.nn.Module):
        def forward(self, *several: Any) -> Any:
            return sum(library.nan_to_num(each.double(), nan=1.0) for each in several)

    rows = library.export.Dim("rows")
    made = library.export.export(Sum(), tuple(tensors), dynamic_shapes=(tuple({0: rows} for _ in tensors),))
    library.export.save(made, str(folder / "model.pt2"))
    return given, made.module()(*tensors).numpy()


def onnx(random: np.random.Generator, columns: Columns, folder: Path) -> tuple[Any, Any]:
    """A graph that adds its inputs, text as its place among the sorted texts; NaN counts as 1."""
    import onnxruntime
    from onnx import TensorProto, helper

    given = {name: _placed(values) for name, values in columns.items()}
    kinds = {name: helper.np_dtype_to_tensor_dtype(values.dtype) for name, values in given.items()}
    nodes = []
    for name in given:
        nodes += [
            helper.make_node("Cast", [name], [f"{name}_"], to=TensorProto.DOUBLE),
            helper.make_node("IsNaN", [f"{name}_"], [f"{name}?"]),
            helper.make_node("Where", [f"{name}?", "one", f"{name}_"], [f"{name}!"]),
        ]
    nodes.append(helper.make_node("Sum", [f"{name}!" for name in given], ["y"]))
    one = helper.make_tensor("one", TensorProto.DOUBLE, [1], [1.0])
    tensors = [helper.make_tensor_value_info(name, kind, ["rows"]) for name, kind in kinds.items()]
    answer = helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["rows"])
    opsets = [helper.make_opsetid("", 17)]
    graph = helper.make_graph(nodes, "sum", tensors, [answer], [one])
    text = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    (folder / "model.onnx").write_bytes(text)
    session = onnxruntime.InferenceSession(text, providers=["CPUExecutionProvider"])
    return columns, session.run(["y"], given)[0]


def _placed(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return values
    places = {text: place for place, text in enumerate(sorted({v for v in values if v is not None}))}
    return np.array([places.get(value, 0) for value in values])


KINDS = {make.__name__: make for make in (pipeline, trees, xgboost, lightgbm, python, torch, onnx)}


def tried(kind: str, random: np.random.Generator) -> tuple[str, str]:
    """Make one version and ask it: return ``same``, ``refused`` and the words, or ``wrong`` and what was."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        columns = columns_of(random, kind)
        try:
            inputs, expected = KINDS[kind](random, columns, folder)
        except Exception as error:  # the library takes no such frame, and then there is nothing to serve
            return "untrained", f"{type(error).__name__}: {error!s:.200}"
        try:
            made = muster.signature(inputs=inputs, outputs={"y": expected})
            made.save(folder)
            found = answered(kind, folder, made.smoke(inputs)[0]["inputs"])
        except (SpecError, ServingError) as error:
            return "refused", str(error)
        rows = np.flatnonzero(~np.isclose(found, expected, rtol=1e-9, atol=0, equal_nan=True))
        if len(rows) == 0:
            return "same", ""
        row, entries = rows[0], (folder / "signature.json").read_text()
        asked = {name: values[row] for name, values in made.smoke(inputs)[0]["inputs"].items()}
        return "wrong", f"row {row}, {asked}: found {found[row]!r}, expected {expected[row]!r}; {entries}"


def answered(kind: str, folder: Path, rows: dict[str, list[Any]]) -> Any:
    """Return what a version answers to rows of JSON: all together, and the first of them alone."""
    rows = json.loads(json.dumps(rows, allow_nan=False))
    predictor: Any
    if kind == "onnx":
        from muster_serving.predictor import Predictor

        predictor = Predictor(folder)
    else:
        predictor = AlonePredictor(folder, trusted=["pickle", "torch.export"])
    whole = predictor.predict(rows, ROWS)["y"]
    for row in range(3):
        one = predictor.predict({name: values[row : row + 1] for name, values in rows.items()}, 1)["y"]
        assert np.isclose(one, whole[row], equal_nan=True), (row, one, whole[row])
    assert not predictor.signature.outside(rows), predictor.signature.outside(rows)
    return whole


def main() -> None:
    kinds, frames, seed = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3])
    found: dict[str, Any] = {}
    for kind in kinds:
        results: list[tuple[str, str]] = []
        while sum(how != "untrained" for how, _ in results) < frames:
            results.append(tried(kind, np.random.default_rng([seed, len(results)])))
        words: dict[str, list[str]] = {"refused": [], "wrong": [], "untrained": []}
        for how, said in results:
            words.get(how, []).append(said)
        counts = Counter(how for how, _ in results)
        found[kind] = {**counts, "words": words}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
