import json
import subprocess
import sys

import pytest
from tests.waiting import GUARD_SECONDS

from muster.core.errors import Corrupt, StoreError
from muster.volumes import layout as layouts
from muster.volumes.folder import FolderStore
from muster.volumes.layout import open_layout

OPEN = """
import pathlib, sys
from muster.volumes.layout import open_layout
print(open_layout(pathlib.Path(sys.argv[1])).uuid)
"""


def test_five_processes_at_once_make_one_store(tmp_path):
    root = tmp_path / "deep" / "store"
    openers = [subprocess.Popen([sys.executable, "-c", OPEN, root], stdout=subprocess.PIPE) for _ in range(5)]
    made = {opener.communicate(timeout=GUARD_SECONDS)[0] for opener in openers}
    assert len(made) == 1
    assert b"" not in made
    assert [path.name for path in root.parent.iterdir()] == ["store"]


def test_a_store_that_another_has_made_since_it_was_looked_for_is_opened(tmp_path, monkeypatch):
    create, theirs = layouts.create, []

    def outrun(root):
        theirs.append(create(root).uuid)
        return create(root)

    monkeypatch.setattr(layouts, "create", outrun)
    assert [open_layout(tmp_path / "store").uuid] == theirs


def test_an_empty_folder_becomes_a_store(tmp_path):
    assert FolderStore(tmp_path).volumes() == []
    assert open_layout(tmp_path).uuid == open_layout(tmp_path).uuid


def test_what_the_file_system_can_do_is_probed_once(tmp_path):
    layout = open_layout(tmp_path / "store")
    abilities = json.loads((layout.root / "VOLUME.json").read_text())["abilities"]
    assert set(abilities) == {"link", "syncfs"}
    assert (layout.links, layout.syncfs) == (abilities["link"], abilities["syncfs"])
    assert not list(layout.root.glob("probe-*"))


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ('{"format": 2}', "needs format 1"),
        ("[]", "needs format 1"),
        ("{", "cannot be opened"),
        ('{"format": 1, "uuid": "0f", "digest": "b3:0e"}', "is not as it was written"),
        (None, "is not empty"),
    ],
)
def test_what_is_no_store_is_refused(tmp_path, marker, message):
    (tmp_path / "precious").write_text("x")
    if marker is not None:
        (tmp_path / "VOLUME.json").write_text(marker)
    with pytest.raises(StoreError, match=message):
        FolderStore(tmp_path)
    assert (tmp_path / "precious").read_text() == "x"


def test_a_file_and_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("x")
    for root in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(StoreError):
            FolderStore(root)


def test_volumes_nest(work, store):
    work.run("a-1", {"x": b"1"}, volume="flights")
    work.run("a-2", {"x": b"1"}, volume="flights/features")
    work.run("a-3", {"x": b"1"}, volume="flights/features/v2")
    assert store.volumes() == ["flights", "flights/features", "flights/features/v2"]


def test_without_syncfs_and_links_everything_still_holds(work, store):
    marker = store.layout.root / "VOLUME.json"
    document = json.loads(marker.read_text())
    del document["digest"]
    marker.write_text(json.dumps(document).replace("true", "false"))
    plain = type(work)(store.layout.root)
    assert not plain.store.layout.links
    first, second = (plain.run(f"a-{n}", {"d/x": b"1"}) for n in range(2))
    assert (plain.store.path(second.address) / "d/x").stat().st_nlink == 1
    assert first.digest == second.digest
    digest = plain.store.put(plain.store.path(first.address), ["d/x"])
    assert (plain.store.code(digest) / "d/x").read_bytes() == b"1"


def test_a_root_that_leads_nowhere_is_refused(tmp_path):
    (tmp_path / "store").symlink_to("nowhere")
    with pytest.raises(StoreError, match="no store can be made"):
        FolderStore(tmp_path / "store")


def test_a_flipped_bit_in_the_name_of_a_store_is_seen_and_one_without_a_digest_is_read(tmp_path):
    marker = open_layout(tmp_path / "store").root / "VOLUME.json"
    document = json.loads(marker.read_text())
    wrong = document | {"uuid": f"{int(document['uuid'][0], 16) ^ 1:x}{document['uuid'][1:]}"}
    marker.write_text(json.dumps(wrong))
    with pytest.raises(Corrupt, match="not as it was written"):
        open_layout(tmp_path / "store")
    del wrong["digest"]
    marker.write_text(json.dumps(wrong))
    assert open_layout(tmp_path / "store").uuid == wrong["uuid"]
