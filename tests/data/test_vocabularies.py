from collections import Counter

import pytest

from glassformer.data import vocabularies
from glassformer.data.vocabularies import VocabularySettings, train_vocabularies
from glassformer.errors import ConfigError, DataError
from glassformer.text.loading import load_tokenizer
from glassformer.text.tokenizer import SymbolTokenizer, train_tokenizer


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_vocabularies_are_those_of_the_text_wherever_they_are_learned(tmp_path, workers):
    text, symbols = ["ab ba", "é d c"], Counter({"x": 3, "ü": 5, "a": 3})
    settings = [
        VocabularySettings(None, str(tmp_path / "left"), "char", None, 1, 1.0),
        VocabularySettings(None, str(tmp_path / "right"), "symbols", 5, 1, 1.0),
    ]
    left, right = train_vocabularies(settings, [text, symbols], workers)
    assert (left.name, right.name) == ("left.spm", "right.symbols")
    expected = train_tokenizer(text, kind="char", vocab_size=None, seed=1).save(tmp_path / "expected")
    assert left.read_bytes() == expected.read_bytes()
    assert load_tokenizer(right).tokens(range(5)) == ["</s>", "<unk>", "ü", "a", "<pad>"]


def test_the_settings_are_what_train_tokenizer_is_told(monkeypatch, tmp_path):
    told = []

    def note(text: list[str], **settings: object) -> SymbolTokenizer:
        told.append((text, settings))
        return SymbolTokenizer(text)

    monkeypatch.setattr(vocabularies, "train_tokenizer", note)
    train_vocabularies([VocabularySettings(None, str(tmp_path / "left"), "bpe", 17, 7, 0.9, True)], [["a", "ü"]], 0)
    assert told == [(["a", "ü"], dict(kind="bpe", vocab_size=17, seed=7, coverage=0.9, decompose=True))]


@pytest.mark.parametrize(
    ("side", "kind", "message"),
    [
        (None, "char", r"^the shared vocabulary: vocab_size 500 is larger than"),
        ("source", "char", r"^the source's vocabulary: source_vocab_size 500 is larger than"),
        (
            "target",
            "my_vocab_size.model",
            r"^the target's vocabulary: target_vocab_size 500 can't be chosen for my_vocab_size\.model,",
        ),
    ],
)
def test_an_error_names_the_vocabulary_and_the_field_that_sets_its_size(tmp_path, side, kind, message):
    settings = VocabularySettings(side, str(tmp_path / "left"), kind, 500, 1, 1.0)
    with pytest.raises((ConfigError, DataError), match=message):
        train_vocabularies([settings], [["ab ba"]], 0)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ["users.model", "source.spm"])
def test_a_model_of_the_users_needs_no_text(tmp_path, workers, name):
    model = train_tokenizer(["ab ba", "abc"], kind="bpe", vocab_size=None, seed=1).save(tmp_path / "users")
    model = model.rename(tmp_path / name)
    [path] = train_vocabularies(
        [VocabularySettings(None, str(tmp_path / "left"), str(model), None, 1, 1.0)], [[]], workers
    )
    assert path.read_bytes() == model.read_bytes()
