"""What a client fetches: once, whole, checked, and gone on with where a connection broke."""

import socket
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.unit.volumes.service.inside import Inside
from tests.unit.volumes.service.process import Service, until

from muster.core.errors import Corrupt, NotFound, SpecError
from muster.volumes.folder import FolderStore
from muster.volumes.service.archives import ArchiveMember, members, pack


@pytest.fixture
def made(service, tmp_path, volume):
    """A version of some files, small ones, empty ones, and one of 3 MiB."""
    files = {"a/b/x": b"1", "a/b/y": b"", "a/z": b"z" * 5000, "b": bytes(range(256)) * 12288, "a.txt": b"t"}
    for path, data in files.items():
        (tmp_path / "in" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / path).write_bytes(data)
    folder = FolderStore(service.root)
    return folder.add(volume, tmp_path / "in"), files


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_version_is_fetched_once(service, made, tmp_path):
    version, files = made
    store = service.client(str(tmp_path / "cache"))
    path = store.path(version.address)
    assert contents(path) == files
    inode = (path / "b").stat().st_ino
    assert (store.path(version.address) / "b").stat().st_ino == inode
    assert not [each for each in path.parent.parent.iterdir() if each.name.startswith(".part")]


def test_modes_and_empty_folders_come_and_go_with_a_version(service, tmp_path, volume):
    (tmp_path / "in" / "logs" / "empty").mkdir(parents=True)
    for name, mode in (("run.sh", 0o755), ("read", 0o655)):
        (tmp_path / "in" / name).write_text(name)
        (tmp_path / "in" / name).chmod(mode)
    (tmp_path / "in" / "run").symlink_to("run.sh")
    store = service.client(str(tmp_path / "cache"))
    made = store.add(volume, tmp_path / "in")
    path = store.path(made.address)
    assert (path / "logs" / "empty").is_dir()
    assert [(path / name).stat().st_mode & 0o777 for name in ("run", "run.sh", "read")] == [
        0o555,
        0o555,
        0o444,
    ]
    assert (store.path(f"{made.address}/logs") / "empty").is_dir()
    assert FolderStore(service.root).manifest(made.address).digest == made.digest


@pytest.mark.parametrize("inner", ["a", "a/b", "a/b/y", "b", "a.txt"])
def test_a_part_of_a_version_is_fetched_alone(service, made, tmp_path, inner):
    version, files = made
    store = service.client(str(tmp_path / "cache"))
    path = store.path(f"{version.address}/{inner}")
    wanted = {name: data for name, data in files.items() if f"{name}/".startswith(f"{inner}/")}
    there = contents(tmp_path / "cache" / "versions")
    assert sorted(data for name, data in there.items() if "/data/" in name) == sorted(wanted.values())
    if path.is_file():
        assert path.read_bytes() == files[inner]
    else:
        assert {f"{inner}/{name}": data for name, data in contents(path).items()} == wanted


def test_a_part_of_what_is_there_is_not_fetched_again(service, made, tmp_path):
    version, _ = made
    store = service.client(str(tmp_path / "cache"))
    whole = store.path(version.address)
    assert store.path(f"{version.address}/a/z") == whole / "a" / "z"
    with pytest.raises(NotFound, match=r"holds no 'a/n'; at its top are a, a.txt, b"):
        store.path(f"{version.address}/a/n")


def test_many_at_once_fetch_it_once(service, made, tmp_path):
    version, files = made
    stores = [service.client(str(tmp_path / "cache")) for _ in range(2)]
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda n: stores[n % 2].path(version.address), range(8)))
    assert len(paths) == 1
    assert contents(paths.pop()) == files


class Cutting:
    """Stands between a client and its service, and cuts connections after some bytes."""

    def __init__(self, port, after_bytes):
        self._port, self._after = port, after_bytes
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listening.close()

    def _accept(self):
        while True:
            try:
                mine = self._listening.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(mine,), daemon=True).start()

    def _serve(self, mine):
        with mine, socket.create_connection(("127.0.0.1", self._port)) as theirs:
            threading.Thread(target=self._pass, args=(mine, theirs), daemon=True).start()
            left = self._after
            while left > 0 and (data := theirs.recv(min(left, 65536))):
                left -= len(data)
                mine.sendall(data)
            self.cuts += left <= 0
            for each in (mine, theirs):
                each.shutdown(socket.SHUT_RDWR)

    def _pass(self, mine, theirs):
        try:
            while data := mine.recv(65536):
                theirs.sendall(data)
        except OSError:
            return


def test_a_download_goes_on_where_its_connection_broke(service, made, tmp_path, monkeypatch):
    version, files = made
    between = Cutting(service.port, 700_000)
    monkeypatch.setattr(service, "url", between.url)
    assert contents(service.client(str(tmp_path / "cache")).path(version.address)) == files
    assert 4 <= between.cuts <= 8
    between.close()


@pytest.mark.parametrize("damage", ["changed", "shorter", "gone"])
def test_what_is_damaged_is_never_delivered(service, made, tmp_path, damage):
    version, _ = made
    file = service.root / "v" / version.volume / "1" / "data" / "a" / "z"
    file.chmod(0o644)
    file.parent.chmod(0o755)
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(b"y" * 5000 if damage == "changed" else b"z")
    store = service.client(str(tmp_path / "cache"), patience_seconds=1)
    for inner in ("a", "a/z"):
        with pytest.raises(Corrupt):
            store.path(f"{version.address}/{inner}")
    assert all(name.endswith(".lock") for name in contents(tmp_path / "cache" / "versions"))


def test_code_that_was_changed_on_its_way_is_not_kept(service, store, tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    digest = store.put(tmp_path, ["a.py"])
    kept = service.root / "code" / digest.removeprefix("b3:") / "a.py"
    kept.chmod(0o644)
    kept.write_text("x = 2\n")
    with pytest.raises(Corrupt, match="was sent as b3:"):
        service.client(str(tmp_path / "cache")).code(digest)


def test_code_is_kept_under_its_own_digest_alone(service, store):
    with service.asking(service.token()) as operator:
        answer = operator.put(f"/v1/code/b3:{'0' * 64}", content=b"\0" * 1024)
        assert (answer.status_code, answer.json()["error"]) == (400, "SpecError")


@pytest.mark.parametrize("asked", ["bytes=5-", "bytes=0-99", "bytes=-5", "items=0-1", "bytes=3-1"])
def test_a_range_that_is_not_there_is_refused(service, store, tmp_path, volume, asked):
    (tmp_path / "x").write_bytes(b"1234")
    store.add(volume, tmp_path / "x")
    with service.asking(service.token()) as operator:
        answer = operator.get("/v1/data", params={"address": f"{volume}@1"}, headers={"range": asked})
        assert (answer.status_code, answer.json()["error"]) == (400, "SpecError")


def test_a_version_of_nothing_but_empty_files(service, store, tmp_path, volume):
    (tmp_path / "x").touch()
    store.add(volume, tmp_path / "x")
    assert contents(store.path(volume)) == {"x": b""}


def test_several_versions_have_no_path(store, service, tmp_path, volume):
    (tmp_path / "x").touch()
    store.add(volume, tmp_path / "x", partition="2013-01")
    with pytest.raises(SpecError, match="names several versions"):
        store.path(f"{volume}@*")


def test_an_upload_that_is_sent_again_is_one_version(service, tmp_path, volume):
    """The answer is lost every time but the last: what was sent is one version."""
    (tmp_path / "big").write_bytes(b"x" * 3_000_000)
    with service.asking(service.token()) as operator:
        path, query = "/v1/uploads/0123456789abcdef", {"volume": volume}
        made = [operator.put(path, params=query, content=_tar(tmp_path / "big")) for _ in range(3)]
    assert len({answer.content for answer in made}) == 1
    assert service.client("other").count(volume) == 1


def test_an_upload_that_is_sent_again_while_the_first_is_under_way_is_one_version(tmp_path, volume):
    """The connection broke, and the service does not know yet: the second waits for the first."""
    (tmp_path / "big").write_bytes(b"x" * 3_000_000)
    body = _tar(tmp_path / "big")

    def slowly():
        yield body[:10_000]
        until(_waiting_for_their_turn, lambda count: count == 1)
        yield body[10_000:]

    with Inside(tmp_path) as service, service.asking(service.token()) as operator:

        def put(content):
            return operator.put("/v1/uploads/0123456789abcdef", params={"volume": volume}, content=content)

        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(put, slowly())
            until(lambda: list((service.root / "staging").glob("put-*/lock")), bool)
            made = [first, threads.submit(put, body)]
        assert [each.result().status_code for each in made] == [200, 200]
        assert made[0].result().content == made[1].result().content
        assert service.client().count(volume) == 1
        assert list((service.root / "staging").iterdir()) == []


def _waiting_for_their_turn():
    """How many threads of this process wait for a lock that another of them holds."""
    stacks = [traceback.extract_stack(frame) for frame in sys._current_frames().values()]
    return sum(any(call.name == "_turn" for call in stack) for stack in stacks)


def _tar(path):
    return b"".join(pack([ArchiveMember(name=path.name, source=path)]))


def test_data_docs_can_do_nothing(service, store, tmp_path, volume):
    (tmp_path / "index.html").write_text("<script>alert(1)</script>")
    (tmp_path / "model.bin").write_bytes(b"1")
    store.add(volume, tmp_path)
    with service.asking(service.token()) as operator:
        shown = operator.get(f"/v1/files/{volume}@1/index.html")
        assert shown.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        assert shown.headers["x-content-type-options"] == "nosniff"
        assert shown.headers["content-type"] == "text/html; charset=utf-8"
        other = operator.get(f"/v1/files/{volume}@1/model.bin")
        assert other.headers["content-disposition"].startswith("attachment")
        assert operator.get(f"/v1/files/{volume}@1/none.html").status_code == 404
        assert operator.get(f"/v1/files/{volume}/index.html").status_code == 400


def test_gc_and_fsck_are_done_where_the_store_is(tmp_path, volume):
    with Service(tmp_path) as service, service.client() as store:
        _collects(store, tmp_path, volume)


def test_a_check_names_a_file_whose_name_breaks_lines(service, store, tmp_path, volume):
    """A reader of lines may take other characters for the end of one, too (U+2028)."""
    (tmp_path / "x").touch()
    store.add(volume, tmp_path / "x")
    data = service.root / "v" / volume / "1" / "data"
    data.chmod(0o755)
    (data / "one\u2028two").touch()
    try:
        (problem,) = [each for each in store.check().problems if volume in each.where]
        assert problem.advice == f"delete {data}/one\u2028two"
    finally:
        (data / "one\u2028two").unlink()


def _collects(store, tmp_path, volume):
    for number in range(3):
        (tmp_path / "x").write_text(str(number))
        store.add(volume, tmp_path / "x")
    seen = []
    report = store.check(deep=True, progress=lambda *told: seen.append(told))
    assert report.clean
    assert report.versions == len(seen) == 3
    assert f"volume://{volume}@1" in [version.address for version in store.plan(keep_last=1).versions]
    done = store.collect(keep_last=2)
    assert [version.number for version in done.plan.versions if version.volume == volume] == [1]
    assert [version.number for version in store.versions(volume)] == [2, 3]
    with pytest.raises(SpecError, match="keep_last is 0"):
        store.plan(keep_last=0)


def test_code_that_comes_in_while_gc_frees_space_at_once_is_kept(tmp_path):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n" * 600_000)
    code = FolderStore(tmp_path / "here")
    digest = code.put(tmp_path, ["a.py", "b.py"])
    packed = b"".join(pack(members(code.code(digest))))

    def sent():
        yield packed[: len(packed) // 2]
        until(lambda: len([*service.root.glob("trash/*/a.py")]), bool)
        store.collect(now=True)
        yield packed[len(packed) // 2 :]

    (root := tmp_path / "service").mkdir()  # of its own, since gc refuses what other tests have damaged
    with (
        Service(root) as service,
        service.client() as store,
        service.asking(service.token()) as operator,
    ):
        answer = operator.put(f"/v1/code/{digest}", content=sent())
        assert (answer.status_code, answer.text) == (204, "")
        assert store.holds(digest)
