"""Runs in an image: ``try_hostile.py FOLDER …`` loads each version with nothing trusted, as its deployment and a scoring do, and
asks it once; prints what was said, and which code of the file ran.

``try_hostile.py --write FOLDER`` writes the hostile versions of the formats whose libraries are here. Each holds :data:`MARK`
wherever its format has room for text that a careless loader would run.
"""

from __future__ import annotations

import json
import pickle
import shutil
import sys
import zipfile
from pathlib import Path
from types import CodeType
from typing import Any

MARK = "muster_hostile"
SHELL = f"echo {MARK} > {MARK}"
CODE = f"__import__('os').system('{SHELL}')"
RUNS = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "exec", "compile", "import")


class Pickled:
    """What is unpickled by running a shell."""

    def __reduce__(self) -> Any:
        import os

        return os.system, (SHELL,)


def tries(folder: Path) -> tuple[str, list[str]]:
    """Return what loading said, and the audit events that had to do with text of the file."""
    ran: list[str] = []
    on = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if on and event in RUNS and MARK in told(arguments):
            ran.append(event)

    sys.addaudithook(hook)
    from muster_serving.errors import ServingError

    said = "answered"
    try:
        if (folder / "model.onnx").exists():
            from muster_serving.predictor import Predictor

            predictor: Any = Predictor(folder)
        else:
            from muster_serving.process.worker import AlonePredictor

            predictor = AlonePredictor(folder, trusted=[])
        values = ["text" if c.datatype == "BYTES" else 1.0 for c in predictor.signature.inputs.values()]
        predictor.predict({n: [v] for n, v in zip(predictor.signature.inputs, values, strict=True)}, 1)
    except ServingError as error:
        said = str(error)
    on = False
    return said, ran


def told(value: Any) -> str:
    """Return the texts in the arguments of an event."""
    if isinstance(value, CodeType):
        return told((value.co_names, value.co_consts, value.co_filename))
    if isinstance(value, (tuple, list)):
        return " ".join(map(told, value))
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def skops(root: Path) -> None:
    """Each kind of node that names what to call, in the place of a model's coefficients; pickles in the place of an array."""
    import io

    import numpy as np
    import skops.io
    from sklearn.linear_model import LogisticRegression

    good = root / "good.skops"
    skops.io.dump(LogisticRegression().fit([[0.0], [1.0]], [0, 1]), good)
    shell = {"__class__": "str", "__module__": "builtins", "__loader__": "JsonNode", "content": f'"{SHELL}"'}
    one = {"__class__": "tuple", "__module__": "builtins", "__loader__": "TupleNode", "content": [shell]}
    system = {"__class__": "system", "__module__": "os", "__loader__": "FunctionNode"}
    system["content"] = {"module_path": "os", "function": "system"}  # type: ignore[assignment]
    nodes: dict[str, Any] = {
        "function": system,
        "type": {"__class__": MARK, "__module__": f"{MARK}.os", "__loader__": "TypeNode"},
        "object": {
            "__class__": "Popen",
            "__module__": "subprocess",
            "__loader__": "ObjectNode",
            "content": one,
        },
        "reduce": {
            "__class__": "system",
            "__module__": "os",
            "__loader__": "ReduceNode",
            "reduce": {"args": one},
            "content": one,
        },
        "method": {
            "__class__": "system",
            "__module__": "os",
            "__loader__": "MethodNode",
            "content": {"func": "system", "obj": system},
        },
        "operator": {
            "__class__": "call",
            "__module__": "operator",
            "__loader__": "OperatorFuncNode",
            "attrs": one,
        },
        "partial": {
            "__class__": "partial",
            "__module__": "functools",
            "__loader__": "PartialNode",
            "content": {"func": system, "args": one, "kwds": one, "namespace": one},
        },
        "array": None,
    }
    for name, node in nodes.items():
        with (
            zipfile.ZipFile(good) as read,
            zipfile.ZipFile(version(root, f"skops-{name}", "model.skops"), "w") as out,
        ):
            for each in read.namelist():
                data = read.read(each)
                if each == "schema.json" and node is not None:
                    schema = json.loads(data)
                    attributes = schema["content"]["content"]
                    attributes["coef_"] = {"__id__": 1, **node}
                    data = json.dumps(schema).encode()
                elif each != "schema.json" and node is None:
                    held = io.BytesIO()
                    np.save(held, np.array([Pickled()], dtype=object), allow_pickle=True)
                    data = held.getvalue()
                out.writestr(each, data)
    for name in ("model.skops", "model.pkl", "model.joblib", "model.ubj", "model.lightgbm.txt"):
        version(root, f"pickle-{name}", name).write_bytes(pickle.dumps(Pickled()))
    good.unlink()


def boosters(root: Path) -> None:
    """Code in the place of names, objectives and categories."""
    import lightgbm
    import numpy as np
    import xgboost

    matrix, answers = np.arange(40.0).reshape(40, 1), np.arange(40) % 2
    booster = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(matrix, answers), 2)
    booster.feature_names, booster.feature_types = [CODE.replace("'", '"')], ["float"]
    booster.set_attr(best_iteration="1", **{CODE: CODE})
    booster.save_model(version(root, "xgboost-names", "model.ubj"))
    made = json.loads(booster.save_raw("json"))
    made["learner"]["objective"]["name"] = CODE
    version(root, "xgboost-objective", "model.ubj").write_text(json.dumps(made))
    trees = lightgbm.train({"objective": "binary", "verbose": -1}, lightgbm.Dataset(matrix, answers), 2)
    text = trees.model_to_string()
    version(root, "lightgbm-categories", "model.lightgbm.txt").write_text(
        text.replace("pandas_categorical:null", f"pandas_categorical:[{CODE}]")
    )
    version(root, "lightgbm-names", "model.lightgbm.txt").write_text(
        text.replace("feature_names=Column_0", f"feature_names={CODE.replace(' ', '_')}")
    )
    version(root, "lightgbm-objective", "model.lightgbm.txt").write_text(
        text.replace("objective=binary", f"objective={CODE}")
    )


def torch(root: Path) -> None:
    """Code among the guards, and in the name of an input."""
    import torch as library

    class Line(library.nn.Module):
        def forward(self, x: Any) -> Any:
            return 2 * x

    good = root / "good.pt2"
    rows = library.export.Dim("rows")
    library.export.save(
        library.export.export(Line(), (library.ones(3),), dynamic_shapes=({0: rows},)), str(good)
    )
    for name in ("guards", "names"):
        with (
            zipfile.ZipFile(good) as read,
            zipfile.ZipFile(version(root, f"torch-{name}", "model.pt2"), "w") as out,
        ):
            for each in read.namelist():
                data = read.read(each)
                if each.endswith("models/model.json"):
                    program = json.loads(data)
                    if name == "guards":
                        program["guards_code"] = [
                            f"(__import__('os').system('echo > {root}/ran # {MARK}') == 0)"
                        ]
                        data = json.dumps(program).encode()
                    else:
                        data = json.dumps(program).replace('"x"', json.dumps(f"x={CODE}")).encode()
                out.writestr(each, data)
    good.unlink()


def pipeline(root: Path) -> None:
    """A pickle for weights, and code that the configuration names; ROOT/good holds a pipeline that answers."""
    good = root / "good"
    code = f"{CODE}\nfrom transformers import BertForSequenceClassification as Own\n"
    for name in ("weights", "config", "tokenizer"):
        folder = version(root, f"pipeline-{name}", "pipeline")
        shutil.copytree(good / "pipeline", folder)
        shutil.copy(good / "signature.json", folder.parent)
        (folder / f"{MARK}.py").write_text(code)
        if name == "weights":
            import torch as library

            (folder / "model.safetensors").unlink()
            library.save({"classifier.bias": Pickled()}, folder / "pytorch_model.bin")
            continue
        file = folder / ("config.json" if name == "config" else "tokenizer_config.json")
        told_of = json.loads(file.read_text())
        named = {"AutoConfig": f"{MARK}.Own", "AutoModelForSequenceClassification": f"{MARK}.Own"}
        told_of["auto_map"] = named if name == "config" else {"AutoTokenizer": [f"{MARK}.Own", None]}
        told_of |= {"model_type": MARK} if name == "config" else {"tokenizer_class": "Own"}
        file.write_text(json.dumps(told_of))
    shutil.rmtree(good)


def version(root: Path, name: str, file: str) -> Path:
    """Return where a version's model is to lie; its signature has one number in and one out."""
    folder = root / name
    folder.mkdir()
    column = {"name": "x", "datatype": "FP32"}
    signature = {"format": 1, "inputs": [column], "outputs": [{**column, "name": "y"}]}
    (folder / "signature.json").write_text(json.dumps(signature))
    return folder / file


WRITERS = {"tables": (skops, boosters), "train": (torch,), "hugging-face": (pipeline,)}

if __name__ == "__main__":
    if sys.argv[1] == "--write":
        for write in WRITERS[sys.argv[2]]:
            write(Path(sys.argv[3]))
    else:
        print(json.dumps({folder: tries(Path(folder)) for folder in sys.argv[1:]}))
