"""The worker as a backend sees it: a process, its log, its report, its exit code."""

from __future__ import annotations

from muster.core.verdict import Cause, ExitCode


def test_an_entrypoint_runs_seals_and_reports(bench) -> None:
    bench.code(
        pipe__train="""
        from __future__ import annotations
        from pathlib import Path
        from pipe import parts

        def train(features: Path, model: Path, *, epochs: int, checkpoints: Path) -> dict[str, float]:
            print("epochs", epochs, (features / "x.txt").read_text())
            (model / "deep").mkdir()
            (model / "deep" / "weights").write_bytes(b"12345")
            return {"auc": parts.AUC}
        """,
        pipe__parts="AUC = 0.75",
    )
    (bench.root / "in").mkdir()
    (bench.root / "in" / "x.txt").write_text("rows")
    ended = bench.run(
        entrypoint="pipe.train:train",
        inputs={"features": ((str(bench.root / "in"),), False)},
        outputs=("model",),
        params={"epochs": "5"},
    )
    assert ended.code == ExitCode.SEALED, ended.log
    assert ended.lines == ["[rank 0] epochs 5 rows"]
    assert ended.report.metrics == {"auc": 0.75}
    assert ended.report.modules == ("pipe/parts.py", "pipe/train.py")
    assert [(f.output, f.path, f.size_bytes) for f in ended.part.files] == [("model", "deep/weights", 5)]


def test_what_a_rank_raises_ends_the_log(bench) -> None:
    bench.code(train="def train():\n    print('before')\n    raise ValueError('loss is\\nnan')\n")
    ended = bench.run(entrypoint="train:train")
    assert ended.code == ExitCode.USER_ERROR
    assert ended.lines == [
        "[rank 0] before",
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in train',
        "    raise ValueError('loss is\\nnan')",
        "ValueError: loss is",
        "nan",
        "rank 0: ValueError: loss is nan",
    ]
    assert ended.report.verdict.cause is Cause.USER_ERROR
