import pytest

from muster.core.errors import Corrupt
from muster.volumes.manifest import Entry, Head, read, read_head, render

ENTRIES = [Entry("b/x", "a" * 64, 3), Entry("a \u2028 b", "b" * 64, 4), Entry("b", "c" * 64, 0)]


@pytest.fixture
def path(tmp_path):
    (tmp_path / "MANIFEST").write_text(render(ENTRIES))
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
    path.write_text(body)
    with pytest.raises(Corrupt, match="holds a line that is no file"):
        read(path)


def test_a_head_that_is_torn_is_found(path):
    path.write_bytes(b"b3:123")
    with pytest.raises(Corrupt, match="fsck"):
        read_head(path)
