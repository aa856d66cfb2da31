"""A folder, here or elsewhere: files appear whole or not at all."""

from pathlib import Path

import pytest

from glassformer.cluster.storage import UNFINISHED, Storage, place_of
from glassformer.errors import DataError


def test_a_file_is_written_read_and_removed(tmp_path):
    storage = Storage.of(str(tmp_path))
    storage.write("deep/er/name", b"content")
    assert storage.read("deep/er/name") == (tmp_path / "deep/er/name").read_bytes() == b"content"
    assert storage.names("deep/er") == {"name": 7}
    storage.remove("deep/er/name")
    assert not storage.is_file("deep/er/name")


def test_a_file_that_is_not_finished_has_no_name(tmp_path):
    storage = Storage.of(str(tmp_path))

    def stop() -> None:
        with storage.writing("name") as file:
            file.write(b"half of it")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert not storage.is_file("name")
    storage.remove_folder(UNFINISHED)
    assert list(tmp_path.iterdir()) == []


def test_writing_again_replaces(tmp_path):
    storage = Storage.of(str(tmp_path))
    storage.write("name", b"old")
    storage.write("name", b"new")
    assert storage.read("name") == b"new"


def test_a_missing_folder_has_no_files(tmp_path):
    assert Storage.of(str(tmp_path / "missing")).names() == {}


def test_a_packed_file_is_read_as_it_is(tmp_path):
    (tmp_path / "a.gz").write_bytes(b"\x1f\x8bnot really")
    assert Storage.of(str(tmp_path)).read("a.gz") == b"\x1f\x8bnot really"


@pytest.mark.parametrize("place", ["s3://bucket/folder", "gs://bucket/a/*.txt", "hdfs://host:9000/x"])
def test_a_uri_survives_being_a_path(place):
    assert place_of(Path(place)) == place


def test_an_unknown_kind_of_store_is_named():
    with pytest.raises(DataError, match="nosuch://bucket can't be opened: "):
        Storage.of("nosuch://bucket")
