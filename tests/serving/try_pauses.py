"""Prints whom a stream of one second blames, of a slow client or a slow model: ``try_pauses.py FOLDER client|model``."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

from muster_serving.errors import PredictionError, RequestError
from muster_serving.process.predictor import ProcessPredictor
from muster_serving.process.start import Setup

SECONDS = 1.0


async def blamed(folder: Path, slow: str) -> str:
    setup = Setup(stream=True, request_seconds=SECONDS, memory_gib=1.0)
    predictor = ProcessPredictor(folder, setup, revision="r1", told=lambda *_: None)
    await predictor.start()
    columns: dict[str, list[Any]] = {"count": [1 << 40], "act": ["slow" if slow == "model" else ""]}
    begun = time.monotonic()
    try:
        async with aclosing(predictor.parts(columns, 1)) as parts:
            async for _ in parts:
                if slow == "client":
                    time.sleep(
                        1.1 * SECONDS
                    )  # so that nothing looks at the clock before it asks for the next
                elif time.monotonic() - begun > 0.75 * SECONDS:
                    await asyncio.sleep(0.5 * SECONDS)  # it is looked at while it is paused
    except (PredictionError, RequestError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        predictor.close()
    return "none"


print(asyncio.run(blamed(Path(sys.argv[1]), sys.argv[2])))
