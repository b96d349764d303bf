"""Generates serving/muster_serving/rpc/generated.py from the protocol's definition, by protoc.

``python -m tests.unit.serving.messages`` writes it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

RPC = Path(__file__).parents[3] / "serving" / "muster_serving" / "rpc"
DEFINITION, GENERATED = RPC / "open_inference.proto", RPC / "generated.py"
_WIDTH = 96
_HEAD = '''"""The messages of the Open Inference Protocol over gRPC.

Generated from open_inference.proto by ``python -m tests.unit.serving.messages``: change that file instead. The messages are in
a pool of their own, since KServe's SDK puts some of the same names into the default pool.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool, message_factory

_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(
'''
_BETWEEN = """)


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"inference.{name}"))


"""


def definition() -> FileDescriptorProto:
    """Return what protoc reads in the definition."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "set")
        words = [f"--proto_path={RPC}", f"--descriptor_set_out={found}", DEFINITION.name]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *words], check=True)
        (file,) = FileDescriptorSet.FromString(found.read_bytes()).file
    for kind in file.message_type:
        _forget_json_names(kind)
    return file


def _forget_json_names(kind: DescriptorProto) -> None:
    """Leave out what each reader of a descriptor makes of the fields' names by itself."""
    for field in kind.field:
        field.ClearField("json_name")
    for inner in kind.nested_type:
        _forget_json_names(inner)


def source() -> str:
    """Return the module."""
    file = definition()
    lines = "".join(f'    b"{line}"\n' for line in _lines(file.SerializeToString(deterministic=True)))
    names = "".join(f'{kind.name} = _message("{kind.name}")\n' for kind in file.message_type)
    return _HEAD + lines + _BETWEEN + names


def _lines(data: bytes) -> Iterator[str]:
    line = ""
    for byte in data:
        plain = 32 <= byte < 127 and byte not in b'"\\'
        line += chr(byte) if plain else f"\\x{byte:02x}"
        if len(line) > _WIDTH:
            yield line
            line = ""
    yield line


if __name__ == "__main__":
    GENERATED.write_text(source())
