import re

import pytest

from glassformer.errors import DataError, RunError
from glassformer.text.loading import load_tokenizer


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
