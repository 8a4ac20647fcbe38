"""The page cache before a slot."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from harness import pagecache
from harness.errors import ConfigurationError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs mincore and posix_fadvise")


@pytest.fixture
def files(tmp_path):
    """Two files on a disk; a file system in memory cannot evict."""
    folder = tmp_path
    for path in ("one.bin", "below/two.bin"):
        target = folder / path
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(os.urandom(1 << 20))
    (folder / "empty").touch()
    pagecache._evict(folder / "one.bin")
    if pagecache.cached_share([folder / "one.bin"]) > 0.1:
        pytest.skip(f"{tempfile.gettempdir()} keeps everything in memory")
    return folder


def test_own_files_are_evicted_and_read_back(files):
    assert pagecache.prepare("own-files-evicted", [files]) < 0.1
    assert pagecache.prepare("warm", [files]) == 1.0
    assert pagecache.prepare("own-files-evicted", [files / "one.bin"]) < 0.1
    assert pagecache.cached_share([files / "below/two.bin"]) == 1.0


def test_the_share_is_of_bytes_not_of_files(files):
    pagecache.prepare("warm", [files])
    pagecache._evict(files / "one.bin")
    assert 0.4 < pagecache.cached_share(pagecache.files([files])) < 0.6
    assert pagecache.cached_share([files / "empty"]) == 1.0


def test_folders_are_walked_and_missing_files_named(files):
    assert [path.name for path in pagecache.files([files])] == ["two.bin", "empty", "one.bin"]
    with pytest.raises(ConfigurationError, match="page_cache: expected files that are there, found '/no/such'"):
        pagecache.prepare("warm", [Path("/no/such")])


def test_a_mode_that_is_not_known_is_named():
    with pytest.raises(ConfigurationError, match="expected one of warm, cold, own-files-evicted, found 'hot'"):
        pagecache.prepare("hot", [])


def test_dropping_everything_needs_the_right(monkeypatch, files):
    def refused(path, mode):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refused)
    with pytest.raises(ConfigurationError, match="expected the right to drop the machine's cache, found permission"):
        pagecache.prepare("cold", [files])
