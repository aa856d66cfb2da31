import re
import struct
import subprocess
import sys

import pytest

from glassformer.errors import DataError, RunError
from glassformer.text.loading import load_tokenizer
from glassformer.text.tokenizer import SubwordTokenizer


@pytest.mark.parametrize("content", [b"", b"this is no model\n", bytes(range(256))], ids=["empty", "text", "bytes"])
def test_a_file_that_is_not_a_model_is_refused(tmp_path, content):
    path = tmp_path / "mine.model"
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(f"{path}: not a sentencepiece model: ")):
        load_tokenizer(path)


def test_a_missing_tokenizer_file_is_named(tmp_path):
    with pytest.raises(RunError, match=re.escape(f"{tmp_path}/source.spm: the tokenizer file is missing")):
        load_tokenizer(tmp_path / "source.spm")


def test_a_damaged_file_of_symbols_is_named(tmp_path):
    (tmp_path / "source.symbols").write_bytes(b"caf\xe9\n")
    with pytest.raises(RunError, match=r"source\.symbols is damaged, it must be UTF-8 text"):
        load_tokenizer(tmp_path / "source.symbols")


def with_field(model: bytes, number: int, content: bytes) -> bytes:
    """Return a protocol buffer with one more field of bytes, which is merged into one of its number."""
    length, size = len(content), b""
    while length > 127:
        size, length = size + bytes([length & 127 | 128]), length >> 7
    return model + bytes([number << 3 | 2]) + size + bytes([length]) + content


NORMALIZER, PIECE = 3, 1
TRIE = struct.pack("<257I", 1024, 0xFFFFFFFF, *[1 << 31] * 255) + b"a\0"
"""A table of characters whose first node points far behind its end (sentencepiece#1269)."""
CRAFTED = {
    "table": lambda model: with_field(model, NORMALIZER, with_field(b"", 2, TRIE)),
    "piece": lambda model: with_field(model, PIECE, with_field(b"", 1, b"a" * 1_000_000)),  # sentencepiece#1263
}


@pytest.mark.parametrize("craft", CRAFTED.values(), ids=CRAFTED)
def test_a_model_made_to_crash_sentencepiece_is_refused(tmp_path, craft):
    """In a process of its own: 0.2.1 ended it with SIGSEGV."""
    model = SubwordTokenizer.train(["two dogs run", "a man sings"] * 5, kind="unigram", vocab_size=None, seed=1)
    path = model.save(tmp_path / "source")
    path.write_bytes(craft(path.read_bytes()))
    program = "import sys; from pathlib import Path; from glassformer.text.loading import load_tokenizer; " + (
        "load_tokenizer(Path(sys.argv[1])).encode('two dogs')"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"glassformer.errors.DataError: {path}: not a sentencepiece model: " in done.stderr
