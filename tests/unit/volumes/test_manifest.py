import pytest

from muster.core.errors import Corrupt
from muster.volumes.listing import parse, read
from muster.volumes.manifest import Entry, Head, read_head, render

ENTRIES = [Entry("b/x", "a" * 64, 3), Entry("a \u2028 b", "b" * 64, 4), Entry("b", "c" * 64, 0)]


@pytest.fixture
def path(tmp_path):
    (tmp_path / "MANIFEST").write_bytes(render(ENTRIES))
    return tmp_path / "MANIFEST"


def test_what_is_written_is_read_back(path):
    assert sorted(read(path).values(), key=lambda e: e.path) == sorted(ENTRIES, key=lambda e: e.path)
    digest = path.read_text().partition("\n")[0]
    assert read_head(path) == Head(digest, files=3, size_bytes=7)


def test_the_order_of_files_does_not_matter():
    assert render(ENTRIES) == render(reversed(ENTRIES))


@pytest.mark.parametrize(
    "change", [lambda d: d[:-1], lambda d: d.replace(b"x", b"y"), lambda d: b"", lambda d: d + d]
)
def test_a_change_is_found(path, change):
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(Corrupt, match="torn or was changed"):
        read(path)


def test_a_line_that_is_no_file_is_found(path):
    body = render([Entry("x", "no hash", 1)])
    path.write_bytes(body)
    with pytest.raises(Corrupt, match="holds a line that is no file"):
        list(read(path).values())


def test_files_are_found_by_path_in_manifests_of_all_sizes():
    for count in (0, 1, 2, 3, 1500):
        entries = [Entry(f"é/{number}/x y", "a" * 64, number) for number in range(0, 2 * count, 2)]
        found = parse(render(entries), where="it")
        wanted = {entry.path: entry for entry in sorted(entries, key=lambda entry: entry.path)}
        assert (len(found), list(found), list(found.items())) == (count, list(wanted), list(wanted.items()))
        assert found == wanted
        for path, entry in list(wanted.items()) * 2:
            assert found[path] == entry
        assert not {"", "é", "é/1/x y", "é/99999/x y", "zz"} & found.keys()
        with pytest.raises(KeyError):
            found["é/1/x y"]


def test_a_head_that_is_torn_is_found(path):
    path.write_bytes(b"b3:123")
    with pytest.raises(Corrupt, match="fsck"):
        read_head(path)
