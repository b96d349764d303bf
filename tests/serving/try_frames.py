"""Frames of HTTP/2 are followed however their bytes are cut; runs in the image ``serve``."""

from __future__ import annotations

from muster_serving.rpc.gate import Frames


def frame(size: int, kind: bytes = b"\x04") -> bytes:
    return size.to_bytes(3, "big") + kind + b"\0\0\0\0\1" + b"x" * size


SIZES = (0, 1, 8, 300, 9)
WHOLE = b"".join(map(frame, SIZES[:-1])) + frame(SIZES[-1], b"\x01")
ENDS = {sum(len(frame(size)) for size in SIZES[: n + 1]) for n in range(len(SIZES))}

assert not Frames(
    lambda *_: None
).between  # the server's first frame is its settings: nothing may come before
seen: list[tuple[int, ...]] = []
for step in (1, 2, 7, 9, 10, 50, len(WHOLE)):
    frames, found = Frames(lambda *told: seen.append(told)), set()
    for at in range(0, len(WHOLE), step):
        frames.passed(WHOLE[at : at + step])
        if frames.between:
            found.add(min(at + step, len(WHOLE)))
    kinds = [4] * (len(SIZES) - 1) + [1]
    assert seen == [(kind, 0, 1, size) for kind, size in zip(kinds, SIZES, strict=True)]
    seen.clear()
    assert found == {end for end in ENDS if end % step == 0 or end == len(WHOLE)}, (step, found)
