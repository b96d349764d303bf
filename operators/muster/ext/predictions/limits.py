"""How far predictions may be from what their model was trained on."""

from __future__ import annotations

from dataclasses import dataclass, fields

from muster.core.errors import SpecError


@dataclass(frozen=True, kw_only=True)
class DriftLimits:
    """A column has drifted where one measure is above its limit, and above what chance explains at `false_alarms`.

    The formulas, with their sources, are in ``docs/howto/drift.md``.

    :param psi: the population stability index, 0 for equal distributions.
    :param ks: the two-sample Kolmogorov-Smirnov distance, 0 to 1, of numbers.
    :param unseen: the share of values that the reference has not, of texts and of numbers with few values.
    :param nulls: how much greater the share of nulls is than the reference's.
    :param false_alarms: the share of windows without a shift in which chance may call any column drifted.
    :param fewest_rows: a window with fewer rows is not judged.
    """

    psi: float = 0.1
    ks: float = 0.1
    unseen: float = 0.01
    nulls: float = 0.01
    false_alarms: float = 0.001
    fewest_rows: int = 500

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise SpecError(f"{each.name} is {value!r:.40}: need a number from 0 on")
        for name in ("ks", "unseen", "nulls"):
            if getattr(self, name) > 1:
                raise SpecError(f"{name} is {getattr(self, name)!r}: need a share, 0 to 1")
        if not 0 < self.false_alarms < 1:
            raise SpecError(f"false_alarms is {self.false_alarms!r}: need a share, above 0 and below 1")
        if type(self.fewest_rows) is not int or self.fewest_rows < 1:
            raise SpecError(f"fewest_rows is {self.fewest_rows!r}: need a whole number, 1 or more")
