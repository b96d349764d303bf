from typing import Any

import pytest

from muster.core.data import Input, OutputTarget, Pinned
from muster.core.errors import SpecError

DIGEST = "b3:" + "0" * 64


def test_an_input_is_pinned() -> None:
    with pytest.raises(SpecError, match="not pinned"):
        Pinned(address="volume://a/b@latest", digest=DIGEST)
    with pytest.raises(SpecError, match="was given 0"):
        Input(versions=())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"after": -1}, "after is -1, need the number of a version, or 0"),
        ({"after": True}, "after is True, need the number of a version, or 0"),
        ({"partition": "*", "after": 1}, "one with partition '\\*' follows no version and has no base"),
        ({"partition": "*", "base": "rows"}, "one with partition '\\*' follows no version and has no base"),
        ({"retires": (1,)}, "retires 1, after is None: only versions up to the one"),
        ({"after": 2, "retires": (1, 3)}, "retires 3, after is 2: only versions up to the one"),
    ],
)
def test_an_output_refuses_nonsense_when_built(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"output to a/b: {message}"):
        OutputTarget(volume="a/b", **fields)
