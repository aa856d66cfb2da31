"""Features in a text, and the tokenizer that reads each as one token."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import ConfigError, DataError
from glassformer.text.features import LONGEST_FEATURE, MOST_FEATURES, find_features, is_feature
from glassformer.text.loading import load_tokenizer
from glassformer.text.tokenizer import UNK, Tokenizer, train_tokenizer

TEXT = ["<V><PST>walk", "<V><PST>go on", "<N><PL>dög", "walked", "a < b > c", "<AT+ABL(PL)>x"]
FEATURES = ["<V>", "<PST>", "<N>", "<PL>", "<AT+ABL(PL)>"]
NONE = ["< >", "<a b>", "<>", "<<", "a>b<", "</s>", "<unk>", "<pad>", "<s>", "<a▁>", "<\0>", "<\u3000>"]


def train(text: list[str] = TEXT, **options: object) -> Tokenizer:
    return train_tokenizer(text, **{**dict(kind="features", vocab_size=None, seed=1), **options})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train()


def test_features_are_ordered_by_frequency_then_by_name():
    assert find_features(["<b><a>", "<c> <c>x<b>", "<<d>>"]) == ["<b>", "<c>", "<a>", "<d>"]


@pytest.mark.parametrize("text", NONE)
def test_what_only_looks_like_a_feature_is_text(text):
    assert find_features([text, f"x{text}y"]) == []
    assert not is_feature(text)
    tokenizer = train([text, "ab"])
    assert all(len(token) == 1 for token in tokenizer.tokens(range(2, tokenizer.pad)))


def test_a_feature_has_at_most_so_many_characters():
    longest = f"<{'x' * LONGEST_FEATURE}>"
    assert find_features([longest, f"<{'y' * (LONGEST_FEATURE + 1)}>"]) == [longest]
    assert is_feature(longest)
    assert not is_feature(f"{longest} ")


def test_markup_with_endless_tags_is_refused():
    tags = [f"<{n}>" for n in range(MOST_FEATURES + 1)]
    assert len(find_features(tags[1:])) == MOST_FEATURES
    with pytest.raises(
        DataError, match=r"5,001 different features, such as <0>, and may have 5,000: is it HTML or XML"
    ):
        train(tags)


def test_a_feature_is_one_token_and_all_else_is_characters(tokenizer):
    [ids] = tokenizer.encode(["<N><PST>go <V>"])
    assert tokenizer.tokens(ids) == ["▁", "<N>", "<PST>", "g", "o", "▁", "<V>"]
    assert tokenizer.surfaces("<N>go") == ["", "<N>", "g", "o"]
    assert [tokenizer.id_of(feature) for feature in ("<PST>", "<V>", "<X>")] == [2, 3, None]
    assert tokenizer.texts(ids)[:3] == [" ", "<N>", "<PST>"]


def test_without_features_it_is_the_tokenizer_of_characters(tmp_path):
    plain = ["walked", "dög", "go on"]
    kinds = [train(plain, kind=kind).save(tmp_path / kind).read_bytes() for kind in ("features", "char")]
    assert kinds[0] == kinds[1]


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from([*FEATURES, *"walkdöge<>b", " "]), max_size=20))
def test_text_comes_back_from_memory_and_from_the_file(tokenizer, saved, parts):
    text = " ".join("".join(parts).split(" ")).strip(" ")
    while "  " in text:
        text = text.replace("  ", " ")
    [ids] = tokenizer.encode([text])
    assert UNK not in ids
    assert tokenizer.decode([ids]) == [text]
    assert saved.encode([text]) == [ids]
    assert saved.decode([ids]) == [text]


@pytest.fixture(scope="module")
def saved(tokenizer, tmp_path_factory) -> Tokenizer:
    return load_tokenizer(tokenizer.save(tmp_path_factory.mktemp("saved") / "source"))


def test_a_feature_that_was_never_seen_is_unknown_but_for_its_known_characters(tokenizer):
    [ids] = tokenizer.encode(["<Q>go"])
    assert tokenizer.decode([ids]) == ["<⁇>go"]
    assert tokenizer.unknown(["<Q>go"]) == ["Q"]


def test_characters_are_decomposed_and_features_are_not():
    tokenizer = train(["<é>é", "<V>e"], decompose=True)
    [ids] = tokenizer.encode(["<é>é"])
    assert tokenizer.tokens(ids) == ["▁", "<é>", "e", "\u0301"]


def test_a_vocabulary_with_no_room_for_the_features_is_refused():
    with pytest.raises(ConfigError, match="vocab_size 5 cannot hold every feature of this text: give at least 9"):
        train(vocab_size=5)
    assert train(vocab_size=9).vocab_size == 9
