"""Stages: their names, and the records by which they are found again."""

import pytest

from glassformer.errors import RunError
from glassformer.synthesis.stages import Stage


def test_a_stage_is_complete_when_its_record_and_its_file_are_there(tmp_path):
    stage = Stage.of(tmp_path, "text", ".txt", {"side": "source"})
    assert stage.counts() is None
    stage.path.write_text("a\n")
    assert stage.counts() is None
    counts = {"text": {"lines": 3, "median": -0.25}}
    assert stage.complete(counts) == counts
    assert Stage.of(tmp_path, "text", ".txt", {"side": "source"}).counts() == counts
    assert isinstance(stage.counts()["text"]["lines"], int)
    stage.path.unlink()
    assert stage.counts() is None


def test_other_settings_have_another_name(tmp_path):
    one, other = (Stage.of(tmp_path, "text", ".txt", {"side": side}) for side in ("source", "target"))
    assert one.path.parent == other.path.parent == tmp_path
    assert one.path != other.path
    assert one.path.name.startswith("text-")


def test_a_damaged_record_is_named(tmp_path):
    stage = Stage.of(tmp_path, "text", ".txt", {})
    stage.path.touch()
    stage.record.write_text('{"settings": {}, "counts": {"text": {"lines": "7"}}}')
    with pytest.raises(
        RunError, match=rf"{stage.record.name} is damaged, .* must be a whole number or a number, got text"
    ):
        stage.counts()
