import io
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import ConfigError, DataError
from glassformer.text.kinds import KINDS, SUBWORD_KINDS
from glassformer.text.loading import load_tokenizer
from glassformer.text.tokenizer import EOS, UNK, SymbolTokenizer, Tokenizer, check_kind, train_tokenizer

TEXT = [
    "the cat sat on the mat",
    "the dog sat on the log, and 42 more <unk> </s>",
    "Grüße aus Köln; naïve façade",
    "cafe\u0301 re\u0301sume\u0301",  # combining marks, not the composed letters
    "早上好，世界！今天是星期三。",
    "مرحبا بالعالم، كيف حالك؟",
    "😀 👩‍👩‍👧 ok 🇩🇪",
    "ＡＢＣ！？ ｱｲｳ ½ ﬁ ² №",  # all of it would be changed by NFKC
    "tab\there\u00a0no break\u3000wide",
    "< > / u n k s",
]
CHARACTERS = sorted(set("".join(TEXT)))
WORDS = sorted({word for line in TEXT for word in line.split(" ")} - {"<unk>", "</s>"})
SYMBOLS = sorted({symbol for line in TEXT for symbol in line.split()})


def train(kind: str, vocab_size: int | None = None, text: list[str] = TEXT, seed: int = 1) -> Tokenizer:
    return train_tokenizer(iter(text), kind=kind, vocab_size=vocab_size, seed=seed)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {kind: train(kind) for kind in KINDS}


def one_space(text: str) -> str:
    return re.sub(" +", " ", text).strip(" ")


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
@settings(max_examples=60, deadline=None)
@given(text=st.text(st.sampled_from([*CHARACTERS, " ", " "]), max_size=40))
def test_text_of_known_characters_comes_back_but_for_surplus_spaces(tokenizers, kind, text):
    tokenizer = tokenizers[kind]
    [ids] = tokenizer.encode([text])
    assert UNK not in ids
    assert tokenizer.decode([ids]) == [one_space(text)]


@pytest.mark.parametrize(("kind", "known", "spaces"), [("word", WORDS, " "), ("symbols", SYMBOLS, " \t")])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_known_words_come_back_from_one_token_each(tokenizers, kind, known, spaces, data):
    words = data.draw(st.lists(st.sampled_from(known), max_size=10))
    text = "".join(word + data.draw(st.text(spaces, min_size=1, max_size=3)) for word in words)
    [ids] = tokenizers[kind].encode([text])
    assert len(ids) == len(words)
    assert UNK not in ids
    assert tokenizers[kind].decode([ids]) == [" ".join(words)]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
def test_every_character_but_the_reserved_ones_comes_back(kind):
    # U+2581, U+2585 and U+0000 are stated to be reserved, surrogates aren't characters, and a newline ends a line.
    odd = ["\t", "\r", "\x1c", "\x7f", "\x85", "\xa0", "\u200b", "\u2028", "\u202e", "\u3000", "\ufeff", "\ufffd", "⁇"]
    blocks = [chr(c) for c in range(0x2580, 0x25A0) if c not in (0x2581, 0x2585)]
    text = [f"a{c}b" for c in (*odd, *blocks, "\U0010ffff", " ")]
    tokenizer = train(kind, text=text)
    back = tokenizer.decode(tokenizer.encode(text))
    changed = {f"U+{ord(a[1]):04X}": b for a, b in zip(text, back, strict=True) if a != b}
    assert not changed
    assert tokenizer.encode(["a▁b"]) == tokenizer.encode(["a b"])
    assert tokenizer.decode(tokenizer.encode(["a▁b"])) == ["a b"]


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_follow_the_marian_layout_and_are_no_text(tokenizers, kind):
    tokenizer = tokenizers[kind]
    assert tokenizer.tokens([EOS, UNK, tokenizer.pad]) == ["</s>", "<unk>", "<pad>"]
    assert (EOS, UNK, tokenizer.pad) == (0, 1, tokenizer.vocab_size - 1)
    assert {i for row in tokenizer.encode(TEXT) for i in row} <= {*range(UNK, tokenizer.pad)}
    [ids] = tokenizer.encode(["the cat sat"])
    assert tokenizer.decode([[tokenizer.pad, *ids, EOS, tokenizer.pad], [EOS], []]) == ["the cat sat", "", ""]
    assert tokenizer.encode(["", "   ", "the"])[:2] == [[], []]
    assert tokenizer.encode([]) == tokenizer.decode([]) == []
    [ids] = tokenizer.encode(["ЖЖ the ЖЖ"])
    assert ids.count(UNK) == 2, "one token for a run of unknown characters"
    assert tokenizer.decode([ids]) == ["⁇ the ⁇"]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "symbols"])
def test_markup_in_the_text_is_text(tokenizers, kind):
    tokenizer = tokenizers[kind]
    [ids] = tokenizer.encode(["<unk> </s>"])
    assert EOS not in ids
    assert UNK not in ids
    assert tokenizer.decode([ids]) == ["<unk> </s>"]


PHONES = ["K AE T", "B AE T", "AE"]


@pytest.mark.parametrize(
    ("kind", "size", "text", "line", "tokens", "decoded", "vocab_size"),
    [
        ("char", None, ["abc ab a"], "ab c", ["▁", "a", "b", "▁", "c"], "ab c", 7),
        ("word", None, ["abc ab abc"], "ab  abc", ["▁ab", "▁abc"], "ab abc", 5),
        ("symbols", None, PHONES, "K AE\u3000K", ["K", "AE", "K"], "K AE K", 7),
        ("symbols", 5, PHONES, "K AE T", ["<unk>", "AE", "T"], "⁇ AE T", 5),  # K isn't among the most frequent
        ("symbols", None, ["<pad> </s> <unk> ⁇"], "</s> <pad> ⁇", ["</s>", "<pad>", "⁇"], "</s> <pad> ⁇", 7),
    ],
)
def test_tokens_by_hand(kind, size, text, line, tokens, decoded, vocab_size):
    tokenizer = train(kind, size, text)
    [ids] = tokenizer.encode([line])
    assert (tokenizer.tokens(ids), tokenizer.decode([ids]), tokenizer.vocab_size) == (tokens, [decoded], vocab_size)
    assert not {EOS, tokenizer.pad} & set(ids)
    assert (UNK in ids) == (size is not None)


def test_bpe_merges_the_most_frequent_pairs_first():
    # Of "▁a a b" counted over the text, "ab" stands 5 times, "▁c" twice: with one merge allowed it must be "ab".
    tokenizer = train("bpe", 9, text=["dab dab dab cab cab"])
    assert set(tokenizer.tokens(range(9))) == {"</s>", "<unk>", "<pad>", "ab", "▁", "a", "b", "c", "d"}


def test_coverage_below_one_leaves_rare_characters_unknown():
    text = ["ab" * 50] * 20 + ["z"]
    assert UNK not in train("char", text=text).encode(["z"])[0]
    rare = train_tokenizer(text, kind="char", vocab_size=None, seed=1, coverage=0.99)
    assert UNK in rare.encode(["z"])[0]
    assert UNK not in rare.encode(["ab"])[0]


def test_symbols_are_ordered_by_frequency_then_by_name():
    for text in (PHONES, Counter({"K": 1, "T": 2, "B": 1, "AE": 3})):
        tokenizer = SymbolTokenizer.train(text, vocab_size=None)
        assert tokenizer.tokens(range(7)) == ["</s>", "<unk>", "AE", "T", "B", "K", "<pad>"]


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_it_is_the_same_tokenizer(tokenizers, tmp_path, kind):
    path = tokenizers[kind].save(tmp_path / "source")
    assert path == tmp_path / ("source.symbols" if kind == "symbols" else "source.spm")
    loaded = load_tokenizer(path)
    assert (loaded.vocab_size, loaded.pad) == (tokenizers[kind].vocab_size, tokenizers[kind].pad)
    ids = loaded.encode([*TEXT, "ЖЖ"])
    assert ids == tokenizers[kind].encode([*TEXT, "ЖЖ"])
    assert loaded.decode(ids) == tokenizers[kind].decode(ids)
    assert loaded.tokens(range(loaded.vocab_size)) == tokenizers[kind].tokens(range(loaded.vocab_size))
    assert loaded.save(tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_trained_twice_it_is_the_same_file(tmp_path, kind):
    first, second = (train(kind).save(tmp_path / name).read_bytes() for name in ("first", "second"))
    assert first == second


def named(pattern: str, kind: str, vocab_size: int, text: list[str]) -> int:
    """The number that the error for this vocab_size names."""
    with pytest.raises(ConfigError, match=pattern) as caught:
        train(kind, vocab_size, text)
    assert f"vocab_size {vocab_size} " in str(caught.value)
    return int(re.search(pattern, str(caught.value))[1])


SENTENCES = [f"{a} {b} the {c}" for a in ("one", "two") for b in ("old", "new") for c in ("house", "horse", "nurse")]


@pytest.mark.parametrize("text", [TEXT, SENTENCES, ["ab"]], ids=["many scripts", "English", "one word"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_too_large_names_the_most_it_can_be(kind, text):
    most = named(rf"larger than this text allows for a {kind} tokenizer: give at most (\d+)", kind, 5000, text)
    assert train(kind, most, text).vocab_size == most
    assert named(r"give at most (\d+)", kind, most + 1, text) == most


@pytest.mark.parametrize("text", [TEXT, SENTENCES], ids=["many scripts", "English"])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_vocabulary_too_small_for_the_characters_names_the_least_it_can_be(kind, text):
    least = named(r"cannot hold every character of this text: give at least (\d+)", kind, 5, text)
    tokenizer = train(kind, least, text)
    assert tokenizer.vocab_size == least
    assert not any(UNK in ids for ids in tokenizer.encode(text))
    assert named(r"give at least (\d+)", kind, least - 1, text) == least


@pytest.mark.parametrize(("kind", "token"), [("char", "a"), ("word", "▁aaa"), ("symbols", "aaa")])
def test_the_smallest_vocabulary_holds_the_most_frequent_token(kind, token):
    tokenizer = train(kind, 4, ["aaa b aaa", "aaa"])
    assert (tokenizer.vocab_size, tokenizer.tokens([2])) == (4, [token])


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_size_any_text_will_do_but_none_is_an_error(kind):
    for text in (["a"], ["ab ab"], ["a", "", "b"], ["早"]):
        tokenizer = train(kind, text=text)
        assert tokenizer.vocab_size >= 4
        assert tokenizer.decode(tokenizer.encode(text)) == text
    for text in ([], ["", "   "]):
        with pytest.raises(DataError, match="no text to learn a tokenizer from"):
            train(kind, text=text)


def users_model(path: Path, **options) -> Path:
    """What a person gets who trains with sentencepiece's own trainer."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=20, minloglevel=2, **options
    )
    path.write_bytes(model.getvalue())
    return path


def test_a_model_of_the_users_is_taken_as_it_is(tmp_path):
    path = users_model(tmp_path / "mine.model", eos_id=0, unk_id=1, bos_id=-1, pad_id=-1)
    tokenizer = train(str(path))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert tokenizer.vocab_size == 21
    assert tokenizer.encode(SENTENCES) == theirs.encode(SENTENCES)
    assert tokenizer.decode(tokenizer.encode(SENTENCES)) == SENTENCES
    # Its own normalisation is kept: NFKC by default, which makes a full-width letter plain.
    assert tokenizer.encode(["ｏｎｅ"]) == tokenizer.encode(["one"])
    assert load_tokenizer(tokenizer.save(tmp_path / "source")).encode(SENTENCES) == theirs.encode(SENTENCES)


def test_a_model_with_sentencepieces_own_ids_gets_ours(tmp_path):
    path = users_model(tmp_path / "mine.model")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert (theirs.unk_id(), theirs.bos_id(), theirs.eos_id()) == (0, 1, 2)
    ours = train(str(path))
    assert ours.tokens([0, 1, ours.pad]) == ["</s>", "<unk>", "<pad>"]
    assert ours.vocab_size == theirs.get_piece_size()  # without <s>, with <pad>
    for line in [*SENTENCES, "☃ unseen"]:
        assert ours.tokens(ours.encode([line])[0]) == [theirs.id_to_piece(i) for i in theirs.encode(line)]
    assert ours.decode(ours.encode(SENTENCES)) == theirs.decode(theirs.encode(SENTENCES))


def test_a_model_without_an_end_or_with_another_size_is_refused(tmp_path):
    path = users_model(tmp_path / "mine.model", eos_id=-1)
    with pytest.raises(DataError, match=f"{re.escape(str(path))}: .*must have the piece </s>"):
        train(str(path))
    with pytest.raises(ConfigError, match=r"vocab_size 100 can't be chosen for .*mine.model"):
        train(str(path), 100)


def test_words_are_read_by_characters_and_sentences_by_longer_tokens(tokenizers):
    characterwise = {kind for kind, tokenizer in tokenizers.items() if tokenizer.is_characterwise}
    assert characterwise == {"char", "features", "symbols"}


def test_kinds_are_checked_by_name_and_models_by_their_file(tmp_path):
    for kind in (*KINDS, str(users_model(tmp_path / "mine.model"))):
        check_kind(kind)
    message = r"tokenizer must be one of unigram, .*, symbols, or the path of a .model or .spm file, got 'bpc'"
    for check in (train, check_kind):
        with pytest.raises(ConfigError, match=message):
            check("bpc")
        with pytest.raises(DataError, match=re.escape(f"{tmp_path}/no.model: no such sentencepiece model")):
            check(str(tmp_path / "no.model"))


# The text of each token


@pytest.mark.parametrize("kind", KINDS)
def test_surfaces_are_one_for_each_token(tokenizers, kind):
    tokenizer = tokenizers[kind]
    for line in [*TEXT, "", "   ", "the ЖЖ cat", "  Ж  on\t the  Ж"]:
        [ids], surfaces = tokenizer.encode([line]), tokenizer.surfaces(line)
        assert len(surfaces) == len(ids)
        assert surfaces == [surface.strip() for surface in surfaces]
        assert "".join("".join(surfaces).split()) == "".join(line.split()), "joined they are the line but for spaces"
        for i, surface in zip(ids, surfaces, strict=True):
            if i != UNK:
                assert surface == tokenizer.tokens([i])[0].replace("▁", " ").strip()
        spans = [line[start:end] for start, end in tokenizer.spans(line)]
        assert [span.split() for span in spans] == [surface.split() for surface in surfaces]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_end_is_no_part_of_the_text(tokenizers, kind, end):
    """The lines of `file.readlines()` had an unknown token each at their end."""
    tokenizer, lines = tokenizers[kind], [*TEXT, "", "the ЖЖ cat "]
    ended = [line + end for line in lines]
    assert tokenizer.encode(ended) == tokenizer.encode(lines)
    assert tokenizer.unknown(ended) == tokenizer.unknown(lines)
    for line, whole in zip(lines, ended, strict=True):
        assert tokenizer.surfaces(whole) == tokenizer.surfaces(line)
        assert tokenizer.spans(whole) == tokenizer.spans(line)
    if tokenizer.can_sample:
        assert tokenizer.sample(ended, seed=1) == tokenizer.sample(lines, seed=1)


def test_spans_are_those_of_the_line_where_a_vocabulary_reads_it_otherwise(tmp_path):
    """Korean read as letters stood at the beginning of its line, each token, and so did all that aligned it."""
    lines = ["한국어 문장 하나 더", "é 😀 Rad"] * 9
    decomposed = train_tokenizer(lines, kind="word", vocab_size=None, seed=1, decompose=True)
    line = " 문장  한국어 é é 😀 더"
    assert [line[start:end] for start, end in decomposed.spans(line)] == line.split()
    letters = train_tokenizer(lines, kind="char", vocab_size=None, seed=1, decompose=True)
    assert letters.spans("é한 Ж") == [(0, 0), (0, 0), (0, 1), (1, 1), (1, 1), (1, 2), (2, 2), (3, 4)]
    own = train(str(users_model(tmp_path / "mine.model")))
    line = "ｏｎｅ ﬁne old ☃ ﷺ"
    spans = own.spans(line)
    assert len(spans) == len(own.encode([line])[0])
    assert "".join(line[start:end] for start, end in spans) == "".join(line.split())


@pytest.mark.parametrize("kind", KINDS)
def test_each_token_but_padding_has_its_id_and_other_texts_have_none(tokenizers, kind):
    tokenizer = tokenizers[kind]
    every = tokenizer.tokens(range(tokenizer.vocab_size))
    *ids, padding = [tokenizer.id_of(token) for token in every]
    assert padding is None
    assert tokenizer.tokens(ids) == every[:-1]
    assert sum(i != n for n, i in enumerate(ids)) == (2 if kind == "symbols" else 0), (
        "text may have symbols </s> and <unk>"
    )
    assert [tokenizer.id_of(text) for text in ("Щ", "no such token", "")] == [None] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_pieces_are_named_once(tokenizers, kind):
    assert tokenizers[kind].unknown(["the Ж cat", "Щ the Ж"]) == ["Ж", "Щ"]
    assert tokenizers[kind].unknown(["the cat", "", "the\u2003cat"]) in ([], ["the\u2003cat"])  # a word, or a space


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the switches of a thread")
def test_no_thread_is_started_to_read_a_line_back(tokenizers):
    import resource

    rows = tokenizers["bpe"].encode(TEXT) * 50
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    texts = [tokenizers["bpe"].decode([row])[0] for row in rows]
    waited = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
    assert texts == [one_space(line) for line in TEXT] * 50
    assert waited < len(rows)  # with a thread each, this one waits twice for each


@pytest.mark.parametrize("kind", SUBWORD_KINDS)
def test_subwords_can_be_drawn_where_there_is_a_choice(tokenizers, kind):
    tokenizer = tokenizers[kind]
    assert tokenizer.can_sample == (kind in ("bpe", "unigram"))
    if tokenizer.can_sample:
        lines = TEXT[:3] * 5
        drawn = tokenizer.sample(lines, seed=1)
        assert drawn == tokenizer.sample(lines, seed=1) != tokenizer.sample(lines, seed=2)
        assert drawn != tokenizer.encode(lines)
        assert tokenizer.decode(drawn) == tokenizer.decode(tokenizer.encode(lines))


def test_one_merge_in_ten_is_left_out():
    tokenizer = train("bpe", text=["a"] * 50)  # its only merge: of the space and the letter
    assert tokenizer.tokens(tokenizer.encode(["a"])[0]) == ["\u2581a"]
    drawn = [tokenizer.tokens(ids) for ids in tokenizer.sample(["a"] * 4000, seed=1)]
    assert drawn.count(["\u2581a"]) / 4000 == pytest.approx(0.9, abs=0.02)
    assert drawn.count(["\u2581", "a"]) / 4000 == pytest.approx(0.1, abs=0.02)


def test_surfaces_of_a_users_model_are_as_it_normalises(tmp_path):
    tokenizer = train(str(users_model(tmp_path / "mine.model")))
    surfaces = tokenizer.surfaces("ｏｎｅ old ☃")  # full-width letters
    assert len(surfaces) == len(tokenizer.encode(["ｏｎｅ old ☃"])[0])
    assert "".join(surfaces) == "oneold☃"
