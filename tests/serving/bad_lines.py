"""Versions that a release must not take: each is written into a folder, by what is wrong with it."""

from __future__ import annotations

from pathlib import Path

from tests.serving import onnx_graph


def crashes(folder: Path) -> Path:
    """A version whose model is none."""
    (onnx_graph.write_line(folder / "line") / "model.onnx").write_bytes(b"no model")
    return folder / "line"


def answers_500(folder: Path) -> Path:
    """A version whose answers are not what its signature promises."""
    return onnx_graph.write_line(folder / "line", slope=30_000.0)


def answers_wrongly(folder: Path) -> Path:
    """A version that answers well and wrong."""
    return onnx_graph.write_line(folder / "line", slope=3.0)


def other_shape(folder: Path) -> Path:
    """A version that takes and gives other columns."""
    return onnx_graph.write_mixed(folder / "line")


def eats_memory(folder: Path) -> Path:
    """A version that wants 16 GB for one row."""
    return onnx_graph.write_greedy(folder / "line", values=4_000_000_000)


def slow(folder: Path) -> Path:
    """A version that takes some tens of milliseconds a row."""
    return onnx_graph.write_greedy(folder / "line", values=30_000_000)
