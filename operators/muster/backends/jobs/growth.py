"""When an elastic gang may grow: at a checkpoint, since it begins another attempt and goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Seen = Mapping[str, tuple[float, ...]]


class Growth:
    """Looks for a checkpoint that is whole, and newer than the first look.

    It is whole where a file is as it was at the look before, or another file has taken its name: what is written in
    place all the time never counts.

    :param see: returns by path what changes when a file does, first what changes when another takes its place.
    """

    def __init__(self, see: Callable[[], Seen]) -> None:
        self._see = see
        self._first = self._before = see()

    def look(self) -> bool:
        """Look again, a while after the look before."""
        before, self._before = self._before, self._see()
        return any(
            path in before
            and before[path] != self._first.get(path)
            and (now == before[path] or now[0] != before[path][0])
            for path, now in self._before.items()
        )
