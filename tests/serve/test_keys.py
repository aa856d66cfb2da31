"""Keys: made once, kept as hashes, withdrawn by removing an entry."""

import errno
import json
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import Mock

import pytest

from glassformer.errors import ConfigError, DataError
from glassformer.serve import keys
from glassformer.serve.keys import KeyFile, add_key


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "LOOKED_AT_EVERY", 0.0)
    return tmp_path / "keys.json"


def test_a_key_has_128_bits_and_only_its_hash_is_kept(path):
    alice, bob = add_key(path, "alice"), add_key(path, "bob")
    assert re.fullmatch("gf_[0-9a-f]{32}", alice)
    assert alice != bob
    text = path.read_text(encoding="utf-8")
    assert alice not in text
    assert alice.removeprefix("gf_") not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = KeyFile(path)
    assert [found.name_of(key) for key in (alice, bob)] == ["alice", "bob"]
    path.chmod(0o644)
    carol = add_key(path, "carol")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "another user may run the server"
    assert found.name_of(carol) == "carol"
    for wrong in (None, "", alice[:-1], alice.upper(), alice + " ", "gf_", "\ud800", "ä" * 300):
        assert found.name_of(wrong) is None


def test_a_key_is_withdrawn_by_removing_its_entry(path):
    alice, bob = add_key(path, "alice"), add_key(path, "bob")
    found = KeyFile(path)
    assert found.name_of(alice) == "alice"
    held = json.loads(path.read_text(encoding="utf-8"))
    held["keys"] = [key for key in held["keys"] if key["name"] != "alice"]
    path.write_text(json.dumps(held), encoding="utf-8")
    assert (found.name_of(alice), found.name_of(bob)) == (None, "bob")
    path.write_text("damaged", encoding="utf-8")
    assert found.name_of(bob) is None, "a file that can't be read lets nobody in"
    os.remove(path)
    path.mkdir()
    assert found.name_of(bob) is None
    path.rmdir()
    assert found.name_of(bob) is None


def test_a_file_that_is_away_lets_nobody_in_until_it_is_back(path, monkeypatch):
    alice = add_key(path, "alice")
    found = KeyFile(path)
    assert found.name_of(alice) == "alice"
    away = path.rename(path.with_suffix(".away"))
    assert found.name_of(alice) is None
    monkeypatch.setattr(keys, "LOOKED_AT_EVERY", 60.0)
    assert found.name_of(alice) is None, "between two looks at the file, too"
    away.rename(path)
    monkeypatch.setattr(keys, "LOOKED_AT_EVERY", 0.0)
    assert found.name_of(alice) == "alice"


def test_wrong_names_and_files_are_said(path, tmp_path):
    add_key(path, "alice")
    with pytest.raises(ConfigError, match=r"^new_key alice is in .* already: choose another name"):
        add_key(path, "alice")
    for name in ("", "a b", "x" * 65, "a\n"):
        with pytest.raises(ConfigError, match=r"^new_key must be a name of at most 64 letters"):
            add_key(path, name)
    with pytest.raises(DataError, match=r"none\.json: no such file of keys: make one with glassformer serve --keys"):
        KeyFile(tmp_path / "none.json")
    for damage in ("[]", '{"keys": [{"name": "a", "sha256": "0"}]}', '{"keys": [], "more": 1}'):
        path.write_text(damage, encoding="utf-8")
        with pytest.raises(DataError, match="is damaged, or not of glassformer"):
            KeyFile(path)
    for nothing in ("", '{"keys": []}'):
        path.write_text(nothing, encoding="utf-8")
        with pytest.raises(DataError, match=r"has no keys, so that nobody could use the server: make one with gl"):
            KeyFile(path)


def test_keys_that_are_added_at_the_same_time_are_all_there(path):
    names = [f"user{n}" for n in range(8)]
    with ThreadPoolExecutor(8) as adding:
        made = list(adding.map(partial(add_key, path), names))
    found = KeyFile(path)
    assert [found.name_of(key) for key in made] == names
    assert [one.name for one in path.parent.iterdir()] == ["keys.json"]


def test_a_key_that_cannot_be_written_leaves_the_others(path, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(keys, "format_json", Mock(side_effect=full))
        with pytest.raises(OSError, match="No space left"):
            add_key(path, "alice")
        assert list(path.parent.iterdir()) == []
    alice = add_key(path, "alice")
    monkeypatch.setattr(keys, "format_json", Mock(side_effect=full))
    with pytest.raises(OSError, match="No space left"):
        add_key(path, "bob")
    assert KeyFile(path).name_of(alice) == "alice"
    assert [one.name for one in path.parent.iterdir()] == ["keys.json"]


def test_a_link_is_no_file_of_keys_to_add_to(path):
    path.symlink_to(path.with_name("elsewhere"))
    with pytest.raises(DataError, match=r"keys\.json must be a file, and is a link"):
        add_key(path, "alice")
    assert not path.with_name("elsewhere").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")
def test_a_file_of_keys_keeps_its_owner(path):
    add_key(path, "alice")
    os.chown(path, 65534, 65534)
    path.chmod(0o640)
    add_key(path, "bob")
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (65534, 65534, 0o640)
    assert [key.name for key in keys._read(path)] == ["alice", "bob"]


def test_a_file_of_keys_whose_owner_cannot_be_kept_stays_as_it_is(path, monkeypatch):
    add_key(path, "alice")
    before, make_like, shown = path.read_bytes(), keys._make_like, list[str]()

    def of_another(new, found, place) -> None:
        make_like(new, os.stat_result([*found[:4], found.st_uid + 1, *found[5:]]), place)

    monkeypatch.setattr(keys, "_make_like", of_another)
    monkeypatch.setattr(os, "fchown", Mock(side_effect=PermissionError))
    with pytest.raises(DataError, match="belongs to a user or group that this user can't give a file to"):
        add_key(path, "bob", shown.append)
    assert (path.read_bytes(), shown) == (before, [])
    assert [one.name for one in path.parent.iterdir()] == [path.name]
