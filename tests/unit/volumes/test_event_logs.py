"""The event logs of a folder store: what is not a log beside them, and events that no reader could take."""

import os

import pytest

from muster.core.errors import SpecError
from muster.volumes.event_logs import MOST_BYTES


@pytest.mark.parametrize("kind", ["reviews", "searches"])
def test_what_is_no_log_is_passed_over_by_gc(store, kind):
    store.begin_log(kind, "r-1", "about")
    store.append_events(kind, "r-1", [{"what": "asked"}], after=0)
    events = store.layout.root / "events"
    (head,) = (store.layout.root / ("" if kind == "searches" else "events") / kind / "r-1").glob("*.json")
    for folder in (events, head.parents[1], head.parents[0]):
        folder.mkdir(exist_ok=True)
        (folder / "lost+found").mkdir()
        for name in (".DS_Store", "notes.txt", "notes", ".nfs0001"):
            (folder / name).write_text("stray")
    assert store.logs(kind) == ["r-1"]
    store.collect()
    assert store.logs(kind) == ["r-1"]
    for path in (head, head.parent / "events"):
        os.utime(path, (1, 1))
    store.collect()
    assert store.logs(kind) == []
    assert (head.parents[1] / "notes.txt").read_text() == "stray"


def test_an_event_that_no_reader_could_get_past_is_refused(store):
    store.begin_log("reviews", "r-1", "about")
    fits = {"text": "x" * (MOST_BYTES - len('{"text": ""}\n'))}
    end = store.append_events("reviews", "r-1", [fits], after=0)
    with pytest.raises(SpecError, match=f"an event of r-1 of reviews has {MOST_BYTES + 1} bytes"):
        store.append_events("reviews", "r-1", [{"text": fits["text"] + "x"}], after=end)
    last = store.append_events("reviews", "r-1", [{"text": "next"}], after=end)
    first = store.log_events("reviews", "r-1")
    assert (first.events, first.end) == ((fits,), end)
    assert store.log_events("reviews", "r-1", after=end).end == last
