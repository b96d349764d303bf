"""The module of gRPC's messages is what protoc makes of the definition."""

from __future__ import annotations

from tests.unit.serving import messages

from muster_serving.rpc import generated


def test_the_module_is_generated_from_the_definition() -> None:
    assert messages.GENERATED.read_text() == messages.source(), "python -m tests.unit.serving.messages"


def test_each_message_reads_what_it_has_written() -> None:
    names = [kind.name for kind in messages.definition().message_type]
    assert len(names) == 15
    for name in names:
        kind = getattr(generated, name)
        assert kind.FromString(kind().SerializeToString()) == kind()
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "contents": {"fp32_contents": [0.5, 1.0]}}
    asked = generated.ModelInferRequest(
        model_name="m", inputs=[tensor], parameters={"n": {"double_param": 0.5}}
    )
    assert generated.ModelInferRequest.FromString(asked.SerializeToString()) == asked
