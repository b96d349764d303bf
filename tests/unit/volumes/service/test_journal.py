"""The journal: every byte once, whatever was cut off, wherever."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from muster.core.errors import SpecError
from muster.volumes.service import journal as journals
from muster.volumes.service.journal import Journal


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def log(folder):
    return (folder / "log").read_bytes()


def test_what_is_sent_again_is_left_out(folder):
    journal = Journal(folder)
    assert journal.append("a", b"1\n2\n", offset=0) == 4
    assert journal.append("a", b"1\n2\n", offset=0) == 4
    assert journal.append("a", b"2\n3\n", offset=2) == 6
    assert journal.append("b", b"1\n", offset=0) == 2
    assert journal.append("a", b"", offset=0) == 6
    assert log(folder) == b"1\n2\n3\n1\n"


def test_another_process_goes_on_where_one_ended(folder):
    Journal(folder).append("a", b"1\n2\n", offset=0)
    Journal(folder).append("b", b"x\n", offset=0)
    assert Journal(folder).append("a", b"1\n2\n3\n", offset=0) == 6
    assert log(folder) == b"1\n2\nx\n3\n"


def test_an_unfinished_last_line_is_ended(folder):
    journal = Journal(folder)
    assert journal.append("a", b"1\n2", offset=0) == 3
    assert Journal(folder).append("a", b"1\n23\n", offset=0) == 5
    assert log(folder) == b"1\n2\n3\n"


def test_a_gap_is_said(folder):
    journal = Journal(folder)
    journal.append("a", b"1\n", offset=0)
    assert journal.append("a", b"3\n", offset=4) == 6
    assert journal.append("a", b"3\n", offset=4) == 6
    assert log(folder) == b"1\n[muster] 2 bytes of a were lost\n3\n"


def test_a_log_that_is_long_enough_takes_no_more_and_says_how_much_was_left_out(folder):
    journal = Journal(folder)
    assert journal.append("a", b"1\n2\n", offset=0, most_bytes=4) == 4
    full = journal.append("a", b"3\n", offset=4, most_bytes=4)
    for again in (journal, Journal(folder)):  # the next process knows as much
        assert full == again.append("a", b"3\n", offset=4, most_bytes=4) == 6
        assert again.append("a", b"", offset=6, most_bytes=4) == 6
        assert again.append("b", b"1\n2\n", offset=0, most_bytes=4) == 4
    lines = log(folder).splitlines()
    assert lines[:2] == [b"1", b"2"]
    assert lines[2].startswith(b"[muster] this log is as long as a job's may be")
    assert lines[3:] == []
    for again in (journal, Journal(folder)):
        again.tell_left_out()
        assert again.append("once-verdict", b"user error\n", offset=0) == 11
    told = b"[muster] 6 bytes of what ranks printed are left out of this log"
    assert log(folder).splitlines()[3:] == [told, b"user error"]


def test_what_is_left_out_for_long_takes_no_room(folder, monkeypatch):
    monkeypatch.setattr(journals, "MOST_RECORDS", 20)
    journal = Journal(folder)
    for number in range(200):
        journal.append("a", b"1\n", offset=2 * number, most_bytes=0)
    assert (folder / "log.parts").stat().st_size < 2000
    assert Journal(folder).append("a", b"", offset=0) == 400
    assert b"400 bytes of what" in log(folder)


def test_a_log_that_others_wrote_before_is_gone_on_with(folder):
    (folder / "log").write_bytes(b"old line\ntorn")
    assert Journal(folder).append("a", b"1\n", offset=0) == 2
    assert log(folder) == b"old line\ntorn\n1\n"


@pytest.mark.parametrize("stream", ["a b", "a\nb", "\x00", "a\u2028"])
def test_a_stream_needs_a_name_that_a_line_can_hold(folder, stream):
    with pytest.raises(SpecError):
        Journal(folder).append(stream, b"1\n", offset=0)


def _cuts(folder):
    """Every state that a kill can leave after the files' last appends: parts first, then log."""
    parts, text = (folder / "log.parts").read_bytes(), (folder / "log").read_bytes()
    last = parts[:-1].rfind(b"\n") + 1
    start = int(parts[last:].split(b" ")[0])
    for end in range(last, len(parts)):
        yield parts[:end], text[:start]
    for end in range(start, len(text) + 1):
        yield parts, text[:end]


def test_a_kill_at_any_byte_loses_and_doubles_nothing(folder):
    sent = {"a": b"a1\na2\n", "b": b"b1\n"}
    last = b"a3\na four\na5\n"
    journal = Journal(folder)
    for stream, data in sent.items():
        journal.append(stream, data, offset=0)
    journal.append("a", last, offset=6)
    cuts = list(_cuts(folder))
    assert len(cuts) > 20
    for number, (parts, text) in enumerate(cuts):
        cut = folder / str(number)
        cut.mkdir()
        (cut / "log.parts").write_bytes(parts)
        (cut / "log").write_bytes(text)
        read = text[: text.rfind(b"\n") + 1]  # what a reader may have got by then
        again = Journal(cut)
        again.append("b", b"b1\nb2\n", offset=0)  # another writer comes first
        assert again.append("a", last, offset=6) == 6 + len(last)
        assert log(cut).startswith(read)
        lines = log(cut).splitlines(keepends=True)
        assert b"".join(line for line in lines if line[:1] == b"a") == sent["a"] + last
        assert b"".join(line for line in lines if line[:1] == b"b") == b"b1\nb2\n"


def test_a_full_disk_loses_and_doubles_nothing(folder, monkeypatch):
    journal = Journal(folder)
    journal.append("a", b"1\n", offset=0)
    room = iter([10_000, 5])  # the record goes in, of the lines 5 bytes
    whole = journals.write_all

    def full(file, data):
        left = next(room)
        whole(file, data[:left])
        if left < len(data):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(journals, "write_all", full)
    with pytest.raises(Exception, match="No space left"):
        journal.append("a", b"two\nthree\n", offset=2)
    monkeypatch.undo()
    journal.append("b", b"b\n", offset=0)
    assert journal.append("a", b"two\nthree\n", offset=2) == 12
    assert log(folder) == b"1\ntwo\nb\nthree\n"


def test_what_is_remembered_does_not_grow_for_ever(folder, monkeypatch):
    monkeypatch.setattr(journals, "MOST_RECORDS", 20)
    monkeypatch.setattr(journals, "MOST_ONCE", 3)
    journal = Journal(folder)
    for number in range(200):
        journal.append("a", b"%03d\n" % number, offset=4 * number)
        journal.append(f"once-{number}", b"x\n", offset=0)
    assert len((folder / "log.parts").read_bytes().splitlines()) < 60
    for again in (journal, Journal(folder)):
        assert again.append("a", b"199\n200\n", offset=4 * 199) == 804
        assert again.append("once-199", b"x\n", offset=0) == 2
    assert log(folder).count(b"x\n") == 200
    assert [int(line) for line in log(folder).split() if line != b"x"] == list(range(201))


def test_ten_writers_do_not_mix_lines(folder):
    journal = Journal(folder)
    lines = {n: b"%d" % n * 2000 + b"\n" for n in range(10)}

    def write(n):
        for count in range(1, 6):
            journal.append(str(n), lines[n] * count, offset=0)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(write, range(10)))
    assert sorted(log(folder).splitlines(keepends=True)) == sorted(5 * list(lines.values()))


def test_random_kills_and_retries(folder):
    """Cut both files at random in the middle of sends, as kills would; the streams come out whole."""
    chance = random.Random(7)
    streams = {name: b"".join(b"%s%d\n" % (name.encode(), n) for n in range(60)) for name in "abc"}
    held = dict.fromkeys(streams, 0)
    (folder / "log").touch()
    for _ in range(300):
        name = chance.choice(list(streams))
        data = streams[name][held[name] :][: chance.randint(4, 40)]
        data = data[: data.rfind(b"\n") + 1]
        before = len(log(folder))
        answer = Journal(folder).append(name, data, offset=held[name])
        if len(log(folder)) > before and chance.random() < 0.5:
            parts, text = chance.choice(list(_cuts(folder)))
            (folder / "log.parts").write_bytes(parts)
            (folder / "log").write_bytes(text)
        else:
            held[name] = answer
    for name, whole in streams.items():
        Journal(folder).append(name, whole[held[name] :], offset=held[name])
    for name, whole in streams.items():
        assert b"".join(x for x in log(folder).splitlines(keepends=True) if x[:1] == name.encode()) == whole
