"""A large manifest is read in pages, as if it were read whole, and no page that was changed is believed."""

from itertools import accumulate, pairwise

import pytest
from blake3 import blake3

from muster.core.errors import Corrupt
from muster.volumes.lineage import FileDifference, compare
from muster.volumes.listing import AHEAD_PAGES, KEPT_PAGES, Listing, open_manifest, parse
from muster.volumes.manifest import Entry, render
from muster.volumes.pages import INDEX, LARGE_BYTES, LEAST_BYTES, MOST_BYTES, Index, beside

FILES = 12_000


def entry(number, content=None):
    """One of many files: folders of a thousand, some of its names unlike ASCII, some files empty."""
    named = "é" if number % 7 == 0 else "rows"
    size = 0 if number % 5 == 0 else number
    return Entry(
        f"part-{number // 1000:04d}/{named}-{number:07d}.txt",
        of(number if content is None else content),
        size,
    )


def of(content):
    return blake3(b"%d" % content).hexdigest()


@pytest.fixture(scope="module")
def entries():
    return sorted((entry(number) for number in range(FILES)), key=lambda each: each.path)


@pytest.fixture(scope="module")
def data(entries):
    return render(entries)


@pytest.fixture
def path(tmp_path, data):
    return written(tmp_path, data)


def written(folder, data):
    (folder / "MANIFEST").write_bytes(data)
    for name, index in beside(data).items():
        (folder / name).write_bytes(index)
    return folder / "MANIFEST"


@pytest.fixture(params=["in pages", "whole"])
def listing(request, path, data):
    """The same files, of a manifest with an index, and of one without."""
    return open_manifest(path) if request.param == "in pages" else parse(data, where=path)


class Counted:
    """A listing that says which bytes were read."""

    def __init__(self, data):
        self.read = []
        index = Index.of(data)
        self.files = Listing.of(index, self._read, where="it")
        self._data = data

    def _read(self, begin, end):
        self.read.append(end - begin)
        return self._data[begin:end]


def test_an_index_is_read_back(data):
    index = Index.of(data)
    assert Index.parse(index.render(), where="it") == index
    assert sum(page.files for page in index.pages) == FILES
    assert [page.end for page in index.pages[:-1]] == [page.begin for page in index.pages[1:]]
    assert all(LEAST_BYTES <= page.end - page.begin <= MOST_BYTES + 1000 for page in index.pages[:-1])


def test_a_small_manifest_has_no_index(entries):
    assert not beside(render(entries[:1000]))
    assert set(beside(render(entries))) == {INDEX}


def test_pages_give_what_the_whole_has(listing, entries):
    assert (len(listing), list(listing), list(listing.values())) == (
        FILES,
        [e.path for e in entries],
        entries,
    )
    assert dict(listing.items()) == {each.path: each for each in entries}
    assert listing.size_bytes == sum(each.size_bytes for each in entries)
    for each in entries[::97]:
        assert listing[each.path] == each
    for absent in ("", "a", "part-0003", "part-0003/", "part-0003/rows-0003000", "part-9999/x", "zz", "é"):
        assert absent not in listing


def test_a_folder_is_found_without_what_is_beside_it(listing, entries):
    for inner in ("part-0003", "part-0000", "part-0011", entries[4321].path):
        wanted = [each for each in entries if f"{each.path}/".startswith(f"{inner}/")]
        assert list(listing.below(inner)) == wanted
        begins = [0, *accumulate(each.size_bytes for each in entries)]
        first = entries.index(wanted[0])
        assert listing.span(inner) == (begins[first], begins[first + len(wanted)])
    assert list(listing.below("part-00")) == list(listing.below("x")) == []
    assert list(listing.below("")) == entries
    assert listing.span("") == (0, listing.size_bytes)


def test_names_of_a_folder(listing, entries):
    assert list(listing.names()) == [(f"part-{number:04d}", None) for number in range(FILES // 1000)]
    inner = [each for each in entries if each.path.startswith("part-0007/")]
    assert list(listing.names("part-0007")) == [(each.path.partition("/")[2], each) for each in inner]
    assert list(listing.names("part-0007/x")) == []


def test_names_of_files_beside_a_folder_of_like_name():
    paths = ["a-b/x", "a.txt", "a/x", "a/y/z", "a0", "b"]
    listing = parse(render([Entry(each, "0" * 64, 1) for each in paths]), where="it")
    assert [(name, entry is None) for name, entry in listing.names()] == [
        ("a-b", True),
        ("a.txt", False),
        ("a", True),
        ("a0", False),
        ("b", False),
    ]
    assert [name for name, _ in listing.names("a")] == ["x", "y"]


def test_the_file_with_a_byte_is_found(listing, entries):
    begins = [0, *accumulate(each.size_bytes for each in entries)]
    for number in (1, 2, 777, 11_998):
        if entries[number].size_bytes:
            for byte in (begins[number], begins[number + 1] - 1):
                assert next(listing.from_byte(byte)) == (begins[number], entries[number])
    assert list(listing.from_byte(listing.size_bytes)) == []
    assert sum(each.size_bytes for _, each in listing.from_byte(0)) == listing.size_bytes


def test_empty_manifests_have_no_files():
    nothing = parse(render([]), where="it")
    assert (len(nothing), list(nothing), list(nothing.names()), nothing.span("x")) == (0, [], [], (0, 0))
    assert "x" not in nothing
    assert Index.parse(nothing.index.render(), where="it") == nothing.index


def test_one_file_costs_one_page(data, entries):
    counted = Counted(data)
    assert counted.files[entries[11_345].path] == entries[11_345]
    assert "part-0011/nothing" not in counted.files
    assert len(counted.read) <= 2
    assert sum(counted.read) <= 2 * MOST_BYTES


def test_a_walk_reads_ever_more_pages_at_once(data):
    counted = Counted(data)
    assert len(list(counted.files)) == FILES
    pages = len(counted.files.index.pages)
    assert len(counted.read) <= pages.bit_length() + pages // AHEAD_PAGES
    assert sum(counted.read) == sum(page.end - page.begin for page in counted.files.index.pages)


def test_a_walk_of_folders_reads_ever_more_pages_at_once(data):
    counted = Counted(data)
    assert len(list(counted.files.names())) == FILES // 1000
    pages = len(counted.files.index.pages)
    assert len(counted.read) <= pages.bit_length() + pages // KEPT_PAGES
    assert sum(counted.read) <= len(data)


def test_the_first_files_cost_the_first_page(data):
    counted = Counted(data)
    assert next(iter(counted.files.values())).path == next(iter(counted.files))
    assert max(counted.read) <= MOST_BYTES


def test_a_difference_costs_the_pages_that_differ(entries):
    changed = {entries[5000].path: entry(5000, content=-1), entries[11_000].path: None}
    after = [changed.get(each.path, each) for each in entries]
    after = [each for each in after if each is not None] + [Entry("part-0011/zz", "0" * 64, 3)]
    old, new = Counted(render(entries)), Counted(render(after))
    assert compare(old.files, new.files) == FileDifference(
        added={"part-0011/zz": 3},
        removed={entries[11_000].path: entries[11_000].size_bytes},
        changed={entries[5000].path: (entries[5000].size_bytes, changed[entries[5000].path].size_bytes)},
        same_files=FILES - 2,
    )
    assert sum(old.read) + sum(new.read) < len(render(entries))
    assert len(old.files.index.pages) > 10
    assert compare(old.files, old.files) == FileDifference(added={}, removed={}, changed={}, same_files=FILES)


def test_a_changed_page_is_not_believed_and_others_are(path, data, entries):
    index = Index.of(data)
    torn = bytearray(data)
    torn[index.pages[3].begin + 200] ^= 1
    path.write_bytes(torn)
    listing = open_manifest(path)
    assert listing[index.pages[2].first] == next(
        each for each in entries if each.path == index.pages[2].first
    )
    with pytest.raises(Corrupt, match="torn or was changed"):
        listing[index.pages[3].first]
    with pytest.raises(Corrupt, match="torn or was changed"):
        list(listing)


@pytest.mark.parametrize(
    "change", [lambda i: i[:-1], lambda i: i.replace(b"part-0001", b"part-0002"), lambda i: b"", None]
)
def test_a_torn_index_and_none_have_the_manifest_read_whole(path, entries, change):
    index = path.with_name(INDEX)
    if change is None:
        index.unlink()
    else:
        index.write_bytes(change(index.read_bytes()))
    assert list(open_manifest(path).values()) == entries


def test_the_index_of_another_manifest_is_not_used(path, entries):
    other = render([*entries, Entry("zz", "0" * 64, 1)])
    path.with_name(INDEX).write_bytes(Index.of(other).render())
    assert list(open_manifest(path).values()) == entries


def test_files_alike_have_pages_too():
    data = render(Entry(f"rows-{number:022d}", "a" * 64, 1) for number in range(FILES))
    assert len(data) > LARGE_BYTES
    index = Index.of(data)
    assert all(page.end - page.begin <= MOST_BYTES + 1000 for page in index.pages)
    listing = Listing.of(index, lambda begin, end: data[begin:end], where="it")
    assert f"rows-{11345:022d}" in listing
    assert all(one < two for one, two in pairwise(listing))
