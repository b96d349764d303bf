"""Of a large manifest a client fetches the pages that it is asked for; each is checked, and kept."""

import httpx
import pytest

from muster.core.errors import Corrupt, NotFound
from muster.volumes.folder import FolderStore
from muster.volumes.service import downloads

FILES = 2_500


@pytest.fixture(scope="module")
def made(service, tmp_path_factory):
    """A version whose manifest has some pages."""
    folder = tmp_path_factory.mktemp("in")
    for number in range(FILES):
        (folder / f"part-{number // 1000}").mkdir(exist_ok=True)
        (folder / f"part-{number // 1000}" / f"rows-{number:05d}.txt").write_text(f"row {number}")
    store = FolderStore(service.root)
    version = store.add("raw/rows", folder)
    return version, store.manifest(version.address)


@pytest.fixture(autouse=True)
def _of_a_few_bytes(monkeypatch):
    """Have the client take a manifest of a few files for a large one."""
    monkeypatch.setattr(downloads, "LARGE_BYTES", 1000)


@pytest.fixture
def client(service, tmp_path):
    return service.client(str(tmp_path / "cache"))


@pytest.fixture
def asked(monkeypatch):
    """Every request: its path, and the number of bytes of the range that it asks for."""
    found = []
    send = httpx.Client.send

    def noted(self, request, **options):
        first, _, last = request.headers.get("range", "bytes=1-0").removeprefix("bytes=").partition("-")
        found.append((request.url.path, int(last) - int(first) + 1))
        return send(self, request, **options)

    monkeypatch.setattr(httpx.Client, "send", noted)
    return found


def ranges(asked):
    return [size for path, size in asked if path == "/v1/manifest"]


def test_one_file_costs_one_page(made, client, asked):
    version, files = made
    assert len(files.index.pages) >= 3
    assert client.path(f"{version.address}/part-2/rows-02234.txt").read_text() == "row 2234"
    first, page = ranges(asked)
    assert first == downloads.FIRST_BYTES
    assert page in {each.end - each.begin for each in files.index.pages}


def test_all_files_are_those_of_the_store(made, client):
    version, files = made
    assert list(client.manifest(version.address).values()) == list(files.values())
    assert client.manifest(version.address).digest == version.digest
    data = client.path(version.address)
    assert sorted(path.read_text() for path in data.rglob("*.txt")) == sorted(
        f"row {n}" for n in range(FILES)
    )


def test_a_folder_is_fetched_alone(made, client):
    version, _ = made
    folder = client.path(f"{version.address}/part-2")
    assert sorted(path.read_text() for path in folder.iterdir()) == sorted(
        f"row {n}" for n in range(2000, FILES)
    )
    with pytest.raises(NotFound, match="holds no 'part-3'; at its top are part-0, part-1, part-2"):
        client.path(f"{version.address}/part-3")


def test_pages_are_fetched_once(made, service, tmp_path, client, asked):
    version, files = made
    assert list(client.manifest(version.address)) == list(files)
    asked.clear()
    again = service.client(str(tmp_path / "cache"))
    assert list(again.manifest(version.address)) == list(files)
    assert [path for path, _ in asked] == ["/v1/record"]


@pytest.mark.parametrize("what", [".index", ".pages"])
def test_what_was_torn_in_the_cache_is_fetched_again(made, service, tmp_path, client, asked, what):
    version, files = made
    assert list(client.manifest(version.address)) == list(files)
    (kept,) = (service.folder / str(tmp_path / "cache") / "manifests").glob(f"*{what}")
    kept.write_bytes(kept.read_bytes()[:-100])
    asked.clear()
    assert list(client.manifest(version.address).values()) == list(files.values())
    assert len(asked) > 1


def test_a_manifest_of_some_pages_that_is_not_large_comes_whole(made, client, asked, monkeypatch):
    version, files = made
    monkeypatch.setattr(downloads, "LARGE_BYTES", 1 << 20)
    assert list(client.manifest(version.address)) == list(files)
    assert ranges(asked) == [downloads.FIRST_BYTES, files.index.pages[-1].end - downloads.FIRST_BYTES]


def test_a_manifest_of_a_few_files_is_one_request(service, client, asked, tmp_path):
    (tmp_path / "x").write_text("1")
    version = FolderStore(service.root).add("raw/one", tmp_path / "x")
    assert list(client.manifest(version.address)) == ["x"]
    assert [path for path, _ in asked] == ["/v1/record", "/v1/manifest"]


def test_a_manifest_that_was_changed_in_the_store_is_not_believed(service, client, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{number:05d}").write_text("")
    store = FolderStore(service.root)
    version = store.add("raw/changed", folder)
    path = store.layout.version("raw/changed", version.number) / "MANIFEST"
    sound = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(sound[:-10] + b"9" + sound[-9:])
    with pytest.raises(Corrupt, match="torn or was changed"):
        list(client.manifest(version.address))
    path.write_bytes(sound)
    assert len(list(client.manifest(version.address))) == FILES
