"""What the cards of a replica do, as NVIDIA's management library says (NVML, ``libnvidia-ml.so.1``, of the driver).

The library is only there where the driver is. It is loaded in the worker after its ranks were forked, and makes no
context on a card.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_GIB = 1 << 30


class _Rates(ctypes.Structure):
    """nvmlUtilization_t: percent of the time in which a kernel ran, in which memory was read or written."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class CardReader:
    """The cards of one replica; none where there is no library, or it refuses.

    :param names: the cards as CUDA_VISIBLE_DEVICES names them, by number or UUID; all that are seen unless given.
    :param library: its file.
    """

    def __init__(self, names: Sequence[str] = (), *, library: str = _LIBRARY) -> None:
        self._nvml: Any = None
        self._cards: list[ctypes.c_void_p] = []
        with suppress(OSError, AttributeError):  # no driver here, or one without a function of these
            nvml = ctypes.CDLL(library)
            if nvml.nvmlInit_v2() == 0:
                self._nvml = nvml
                self._cards = [
                    card for name in names or self._all() if (card := self._card(name)) is not None
                ]

    def use(self) -> dict[str, float]:
        """Return what each card does now; what it does not say is left out."""
        found: dict[str, float] = {}
        for number, card in enumerate(self._cards):
            rates, memory = _Rates(), _Memory()
            if self._nvml.nvmlDeviceGetUtilizationRates(card, ctypes.byref(rates)) == 0:
                found[f"gpu{number}_share"] = rates.gpu / 100
            if self._nvml.nvmlDeviceGetMemoryInfo(card, ctypes.byref(memory)) == 0:
                found[f"gpu{number}_memory_gib"] = memory.used / _GIB
        return found

    def _all(self) -> list[str]:
        count = ctypes.c_uint()
        return list(
            map(str, range(count.value if self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 else 0))
        )

    def _card(self, name: str) -> ctypes.c_void_p | None:
        card = ctypes.c_void_p()
        if name.isdigit():
            code = self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(card))
        else:
            code = self._nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(card))
        return card if code == 0 else None
