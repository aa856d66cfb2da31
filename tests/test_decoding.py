import os
import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from glassformer.decoding import FileName, Natural, decode_json, decode_message, read_json, read_limited
from glassformer.errors import DataError, RunError


class Tower(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    floors: Natural
    height: Annotated[float, Meta(gt=0)] = 1.0
    name: FileName = "tower"
    stairs: tuple[str, ...] = ()
    notes: dict[str, Any] = {}
    parts: dict[str, int] = {}


def test_what_fits_is_decoded():
    tower = decode_json(b'{"floors": 3, "height": 2, "stairs": ["a"], "notes": {"x": [1]}}', Tower)
    assert tower == Tower(floors=3, height=2.0, stairs=("a",), notes={"x": [1]})


WRONG = {
    b'{"floors": "3"}': 'floors must be a whole number, got "3"',
    b'{"floors": true}': "floors must be a whole number, got true",
    b'{"floors": 3.0}': "floors must be a whole number, got 3.0",
    b'{"floors": null}': "floors must be a whole number, got null",
    b'{"floors": -1}': "floors must be a whole number of at least 0, got -1",
    b'{"floors": 1e3}': "floors must be a whole number, got 1000.0",
    b'{"floors": 9999999999999999999}': "floors must be a whole number of at most 4611686018427387904",
    b'{"floors": ' + b"9" * 5000 + b"}": "floors must be a smaller number, got one of thousands of digits",
    b'{"floors": 3, "height": 1e400}': "height must be a smaller number",
    b'{"floors": 3, "height": NaN}': "it is not JSON .*: NaN is no number of JSON",
    b'{"floors": 3, "name": "../x"}': 'name must be the bare name of a file, got "../x"',
    b'{"floors": 3, "name": "\\ud800"}': r"it is not JSON .*: \\ud800 may be half of a surrogate pair",
    b'{"floors": 3, "name": "C:x"}': "name must be the bare name of a file",
    b'{"floors": 3, "name": "x\\n"}': "name must be the bare name of a file",
    b'{"floors": 3, "name": ".."}': "name must be the bare name of a file",
    b'{"floors": 3, "name": ""}': "name must be the bare name of a file",
    b'{"floors": 3, "stairs": [1]}': r"stairs\[0\] must be text, got 1",
    b'{"floors": 3, "parts": {"x": "1"}}': r"parts\[...\] must be a whole number, got text",
    b'{"floors": 3, "parts": [1]}': r"parts must be an object, got \[1\]",
    b'{"height": 3}': "the object lacks floors",
    b'{"floors": 3, "lift": 1}': "the object has lift, which is unknown",
    b"[]": r"the value must be an object, got \[\]",
    b"": "it is not JSON",
    b"\xff": "it is not JSON",
    b'\xef\xbb\xbf{"floors": 3}': "it begins with a byte order mark",
    b'{"floors": 3, "notes": ' + b'{"x":' * 50_000 + b"1" + b"}" * 50_001: "nested too deeply",
}


@pytest.mark.parametrize("data", WRONG, ids=[*map(str, range(len(WRONG)))])
def test_what_does_not_fit_is_named_with_what_was_expected(data):
    with pytest.raises(ValueError, match=WRONG[data]) as wrong:
        decode_json(data, Tower)
    assert len(str(wrong.value)) < 200


def test_a_file_is_named_in_the_message(tmp_path):
    path = tmp_path / "tower.json"
    path.write_text('{"floors": []}')
    with pytest.raises(RunError, match=r"tower\.json is damaged.*: floors must be a whole number, got \[\]"):
        read_json(path, Tower)
    with pytest.raises(DataError, match=r"tower\.json is damaged"):
        read_json(path, Tower, error=DataError)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json", Tower)


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "link to a device"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "odd.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(RunError, match="must be a regular file"):
        read_json(path, Tower)


def test_a_file_above_the_limit_is_not_read(tmp_path):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole, which takes no room
    with pytest.raises(RunError, match="holds 1,099,511,627,776 bytes, and at most 10 are read"):
        read_limited(path, 10)
    path.write_bytes(b"ten bytes.")
    assert read_limited(path, 10) == b"ten bytes."


def test_messages_between_processes_hold_names_that_are_not_utf_8():
    assert decode_message(b'["\\udcff", NaN]')[0] == "\udcff"


def test_json_is_decoded_nowhere_else():
    source = Path(__file__).parents[1] / "src" / "glassformer"
    elsewhere = [path for path in source.rglob("*.py") if re.search(r"json\.loads?\b|\.JSONDecoder", path.read_text())]
    assert elsewhere == [source / "decoding.py"]
