import os

import pytest
from blake3 import blake3

from muster.volumes.hashing import BIG_BYTES, freeze_file, hash_file


@pytest.mark.parametrize("size", [0, 1, BIG_BYTES - 1, BIG_BYTES, 3 * BIG_BYTES + 17])
def test_every_way_to_hash_gives_the_same(tmp_path, size):
    data = os.urandom(size)
    (tmp_path / "x").write_bytes(data)
    assert hash_file(str(tmp_path / "x")) == blake3(data).hexdigest()
    entry = freeze_file(str(tmp_path / "x"), name="x", spare=str(tmp_path / "spare"))
    assert (entry.hash, entry.size_bytes) == (blake3(data).hexdigest(), size)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o444


def test_no_link_is_followed(tmp_path):
    (tmp_path / "x").write_bytes(b"1")
    (tmp_path / "link").symlink_to("x")
    with pytest.raises(OSError, match="symbolic link"):
        hash_file(str(tmp_path / "link"))
