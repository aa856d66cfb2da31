import json
import os
from pathlib import Path

import pytest

from glassformer.data import kept
from glassformer.data.kept import KeptCorpora, fingerprint, read_entry, write_entry

FACTS = {"source": "source.spm", "target": "target.spm", "pairs": {"train": {"kept": 3}}}
DIGESTS = [f"{i:032x}" for i in range(6)]


@pytest.fixture
def corpora(tmp_path: Path) -> KeptCorpora:
    return KeptCorpora(tmp_path / "there" / ".prepared")


def made(tmp_path: Path, text: str = "text") -> Path:
    """A folder that is sealed."""
    folder = tmp_path / "made"
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "source.ids").write_bytes(b"\x00\x01\x02\x03")
    (folder / "source.spm").write_text(text)
    write_entry(folder, FACTS)
    return folder


def test_what_is_kept_is_found(corpora, tmp_path):
    assert corpora.find(DIGESTS[0]) is None
    corpora.keep(made(tmp_path), DIGESTS[0])
    assert not (tmp_path / "made").exists()
    entry = corpora.find(DIGESTS[0])
    assert entry == tmp_path / "there" / ".prepared" / DIGESTS[0]
    assert (entry / "source.spm").read_text() == "text"
    facts, files = read_entry(entry)
    assert facts == FACTS
    assert files["train/source.ids"] == fingerprint(entry / "train" / "source.ids")
    assert set(files) == {"train/source.ids", "source.spm"}
    assert corpora.find(DIGESTS[1]) is None


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: (entry / "train" / "source.ids").unlink(),
        lambda entry: os.truncate(entry / "train" / "source.ids", 3),
        lambda entry: flip(entry / "train" / "source.ids"),
        lambda entry: flip(entry / "source.spm"),
        lambda entry: (entry / "entry.json").unlink(),
        lambda entry: os.truncate(entry / "entry.json", 40),
        lambda entry: (entry / "entry.json").write_text("[]"),
        lambda entry: (entry / "entry.json").write_text('{"checksum": ""}'),
        lambda entry: (entry / "entry.json").write_text((entry / "entry.json").read_text().replace("3", "4", 1)),
        lambda entry: (entry / "entry.json").write_bytes(b"\xff\xfe"),
    ],
    ids=range(10),
)
def test_what_is_damaged_is_not_found_and_can_be_replaced(corpora, tmp_path, monkeypatch, damage):
    corpora.keep(made(tmp_path), DIGESTS[0])
    entry = corpora.find(DIGESTS[0])
    assert set(values := json.loads((entry / "entry.json").read_text())) == {"format", "facts", "files", "checksum"}
    assert set(values["files"]) == {"train/source.ids", "source.spm"}
    with monkeypatch.context() as patch:
        patch.setattr(kept, "FORMAT", kept.FORMAT + 1)
        assert corpora.find(DIGESTS[0]) is None, "of another format"
    damage(entry)
    assert corpora.find(DIGESTS[0]) is None
    corpora.keep(made(tmp_path, "anew"), DIGESTS[0])
    assert corpora.find(DIGESTS[0]) == entry
    assert (entry / "source.spm").read_text() == "anew"


def test_of_a_large_array_the_size_counts_until_its_content_is_asked_for(corpora, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "CHECKED", 3)
    corpora.drop_damaged()  # there is no folder yet
    for digest in DIGESTS[:3]:
        corpora.keep(made(tmp_path), digest)
    entry, array, tokenizer = (corpora.find(digest) for digest in DIGESTS[:3])
    flip(array / "train" / "source.ids")
    flip(tokenizer / "source.spm")
    assert [corpora.find(digest) for digest in DIGESTS[:3]] == [entry, array, None]
    corpora.drop_damaged()
    assert [corpora.find(digest) for digest in DIGESTS[:3]] == [entry, None, None]
    assert not array.exists()
    os.truncate(entry / "train" / "source.ids", 3)
    assert corpora.find(DIGESTS[0]) is None


def test_what_another_process_has_kept_meanwhile_stays(corpora, tmp_path):
    corpora.keep(made(tmp_path), DIGESTS[0])
    corpora.keep(made(tmp_path, "anew"), DIGESTS[0])
    assert (corpora.find(DIGESTS[0]) / "source.spm").read_text() == "text"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_may_only_be_read_is_found(corpora, tmp_path):
    corpora.keep(made(tmp_path), DIGESTS[0])
    (tmp_path / "there" / ".prepared" / DIGESTS[0]).chmod(0o500)
    assert corpora.find(DIGESTS[0])


def test_the_four_that_were_used_last_are_kept(corpora, tmp_path):
    folder = tmp_path / "there" / ".prepared"
    folder.mkdir(parents=True)
    (folder / "somebody's").mkdir()
    for age, digest in enumerate(DIGESTS[:5]):
        corpora.keep(made(tmp_path), digest)
        os.utime(folder / digest, (1000 + age, 1000 + age))
        if digest == DIGESTS[3]:
            assert corpora.find(DIGESTS[0]), "which counts as use"
    assert {path.name for path in folder.iterdir()} == {DIGESTS[i] for i in (0, 2, 3, 4)} | {"somebody's"}
