import io
import math
import re
from itertools import pairwise, product
from typing import Any

import pytest
import sentencepiece
import torch

from glassformer.attention.want import Want
from glassformer.errors import ArgumentError, ConfigError
from glassformer.generation.config import SearchConfig
from glassformer.generation.kernels.passes import best_classes
from glassformer.generation.lexical.glossary import Glossary
from glassformer.generation.translator import Translation, Translator, ids_of_prefixes
from glassformer.text.tokenizer import EOS, UNK, SubwordTokenizer, SymbolTokenizer, Tokenizer, train_tokenizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

WORDS = ["the cat sat", "a dog and a cat", "Grüße", "早上好", "on the mat", "b", "sat on a log and a mat", "dog"]
UNSEEN = ["Жук", "the Жук sat", "😀", "\u0301", "\x00", "\ufffd \u202e"]
GREEDY = SearchConfig(beam=1, max_length=13)
LONGEST = SearchConfig(beam=2, max_length=5, length_penalty=10.0)  # never an empty translation
BEAM = SearchConfig(beam=3, n_best=3, max_length=13, batch_tokens=40)


def random_model(seed: int, source_vocab: int, target_vocab: int, **changes: Any) -> Transformer:
    """Tiny, in float64 so that a batch and a line alone round alike, and with translations that differ."""
    torch.manual_seed(seed)
    sizes = dict(d_model=8, heads=2, encoder_layers=1, decoder_layers=1, d_ff=13, dropout=0.0)
    vocabularies = dict(source_vocab_size=source_vocab, target_vocab_size=target_vocab, shared_vocab=False)
    config = ModelConfig(**{**sizes, **vocabularies, **changes})
    model = Transformer(config).double().eval()
    with torch.no_grad():
        for embedding in (model.source_embedding, model.target_embedding):
            embedding.weight *= 0.5  # positions weigh more
        model.decoder[-1].feed_forward_norm.weight.normal_(std=2)
    return model


def make_both(kind: str = "char", target_kind: str = "letters") -> tuple[Transformer, Translator]:
    source: Tokenizer = train_tokenizer(WORDS, kind=kind, vocab_size=None, seed=1)
    target = SymbolTokenizer(list("ABCDE"))
    if target_kind != "letters":
        target = train_tokenizer(WORDS, kind=target_kind, vocab_size=None, seed=1)
    model = random_model(40, source.vocab_size, target.vocab_size)
    return model, Translator.of(model, source, target)


def make_translator(kind: str = "char", target_kind: str = "letters") -> Translator:
    return make_both(kind, target_kind)[1]


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make_both()[0]


@pytest.fixture(scope="module")
def translator() -> Translator:
    return make_translator()


@torch.no_grad()
def token_log_probs_of(model: Transformer, translator: Translator, line: str, target_ids: list[int]) -> list[float]:
    """The model's own log-probability of each token of a translation and of `</s>`, read whole."""
    [source_ids] = translator.source_tokenizer.encode([line])
    logits = model(torch.tensor([[*source_ids, EOS]]), torch.tensor([[model.target_pad, *target_ids]]))
    steps = logits[0].log_softmax(-1)
    return [step[i].item() for step, i in zip(steps, [*target_ids, EOS], strict=True)]


ODD = ["", "   ", "x" * 900, *UNSEEN]
KINDS = ["unigram", "bpe", "char", "word", "features", "symbols"]


@pytest.mark.parametrize("config", [GREEDY, BEAM], ids=["greedy", "beam"])
def test_lines_of_any_length_come_back_in_their_order_whatever_their_neighbours(translator, config):
    pairs = zip([*WORDS, *WORDS[::-1]], [*ODD, "cat " * 30, "a", "the dog " * 9], strict=False)
    lines = [line for pair in pairs for line in pair]
    alone = [translator.translate([line], config)[0] for line in lines]
    assert len(set(alone)) > len(lines) / 3, "else order would not show"
    assert translator.translate(lines, config) == alone


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_line_stays_empty(kind):
    translator = make_translator(kind)
    assert translator.translate(["", "    ", ""], LONGEST) == ["", "", ""]
    found = translator.translate(["", "the cat sat", "  "], LONGEST)
    assert found == ["", *translator.translate(["the cat sat"], LONGEST), ""]
    assert found[1], "and the other line has a translation"
    assert translator.translate([]) == translator.translate_n_best([], BEAM) == []
    assert translator.translate(["\u3000", "\t", "\u00a0 \n"], LONGEST) == ["", "", ""]  # of which some have tokens


@pytest.mark.parametrize("kind", KINDS)
def test_unseen_characters_are_translated_as_unknown(kind):
    translator = make_translator(kind)
    zh, yu, known = (translator.translate_n_best([line], GREEDY)[0][0] for line in ("ЖЖЖ", "ЮЮЮ", "dog"))
    assert zh == yu, "one unknown is like another"
    assert zh.log_prob != known.log_prob


def test_a_line_of_ten_thousand_characters_is_cut_with_a_warning(translator):
    long = ("cat sat on " * 910)[:10_000]
    # one token for each character, and sentencepiece's space at the start
    with pytest.warns(
        UserWarning, match="^a source of 10,001 tokens is cut to its first 1,023: 'cat sat on.*'…; split"
    ):
        found = translator.translate(["dog", long], GREEDY)
    assert found == translator.translate(["dog", long[:1_022]], GREEDY), "what is left of it is translated"


def test_a_line_that_just_fits_is_not_cut(translator):
    config = SearchConfig(beam=1, max_length=13, max_source_tokens=7)
    # ▁ a b c d e and </s> are seven; a warning would be an error here
    assert translator.translate(["catsa"], config) == translator.translate(["catsa"], GREEDY)
    with pytest.warns(UserWarning, match="a source of 7 tokens is cut to its first 6: 'catsat'"):
        cut = translator.translate(["catsat"], config)
    assert cut == translator.translate(["catsa"], GREEDY)


@pytest.mark.parametrize(
    ("limits", "most_batches"),
    [
        (dict(beam=1, batch_tokens=60), 19),  # lines of like length share a batch
        (dict(beam=3, batch_tokens=180), 19),
        (dict(beam=1, batch_lines=7), 6),
    ],
)
def test_batches_hold_at_most_their_lines_and_their_tokens_with_padding(translator, monkeypatch, limits, most_batches):
    shapes: list[tuple[int, int]] = []
    encode = translator.engine.encode
    monkeypatch.setattr(translator.engine, "encode", lambda ids, *more: shapes.append(ids.shape) or encode(ids, *more))
    config = SearchConfig(max_length=3, **limits)
    found = translator.translate(WORDS * 5, config)
    assert all(config.beam * rows * length <= config.batch_tokens for rows, length in shapes)
    assert all(rows <= (config.batch_lines or rows) for rows, _ in shapes)
    assert sum(rows for rows, _ in shapes) == 40
    assert len(shapes) <= most_batches
    assert found == translator.translate(WORDS * 5, SearchConfig(beam=config.beam, max_length=3))


def test_n_best_are_different_best_first_and_begin_with_the_translation(translator):
    found = translator.translate_n_best(WORDS, BEAM)
    for translations in found:
        scores = [translation.score for translation in translations]
        assert scores == sorted(scores, reverse=True)
        assert len({translation.text for translation in translations}) == len(translations) == 3
        assert all(translation.log_prob <= translation.score <= 0 for translation in translations)
    assert [translations[0].text for translations in found] == translator.translate(WORDS, BEAM)
    assert translator.translate_n_best(["", "b"], BEAM)[0] == [Translation("", 0.0, 0.0, [], [])]


@pytest.mark.parametrize(
    "config", [BEAM, GREEDY, SearchConfig(sample=True, n_best=3, max_length=3)], ids=["beam", "greedy", "sample"]
)
def test_each_token_comes_with_its_log_prob(model, translator, config):
    ended = 0
    for line, translations in zip(WORDS, translator.translate_n_best(WORDS, config), strict=True):
        for found in translations:
            assert found.text == " ".join(found.tokens).replace("<unk>", "⁇")
            [ids] = translator.target_tokenizer.encode([" ".join(found.tokens)])
            expected = token_log_probs_of(model, translator, line, ids)
            if len(found.tokens) == config.max_length:
                expected.pop()  # cut off before `</s>`
            assert found.token_log_probs == pytest.approx(expected, abs=1e-9)
            assert found.log_prob == pytest.approx(sum(expected), abs=1e-9)
            ended += len(expected) > len(ids)
    assert ended >= 2


@pytest.mark.parametrize(
    ("line", "most", "prefix", "expected"),
    [
        ("b", 100, "", 3 * 3 + 50),  # ▁ b </s>
        ("b", 100, "A " * 11, 11 + 3 * 3 + 50),
        ("the cat sat on a mat", 100, "", 100),
        ("b", 5, "", 5),
    ],
)
def test_a_translation_is_at_most_three_tokens_a_source_token_and_fifty(translator, line, most, prefix, expected):
    config = SearchConfig(beam=2, length_penalty=10.0, max_length=most, stopping="exact")
    [text] = translator.translate([line], config, prefixes=[prefix] if prefix else None)
    assert len(text.split()) == expected


def test_samples_repeat_with_the_seed_and_leave_the_global_generator_alone(translator):
    def draws(seed: int) -> list[list[Translation]]:
        config = SearchConfig(sample=True, temperature=1.5, n_best=5, seed=seed, max_length=13)
        return translator.translate_n_best(WORDS, config)

    before = torch.get_rng_state()
    first = draws(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert first == draws(1) != draws(2)
    for translations in first:
        scores = [translation.score for translation in translations]
        assert len(scores) == 5
        assert scores == sorted(scores, reverse=True)
    assert any(len({translation.text for translation in translations}) > 1 for translations in first)


def test_progress_adds_up_to_the_lines(translator):
    config, done = SearchConfig(beam=1, max_length=3, batch_tokens=60), []
    for work in (translator.translate, lambda lines, *more: translator.score(lines, lines, *more)):
        work(WORDS * 3, config, done.append)
        assert sum(done) == 24
        assert len(done) > 1, "reported on the way"
        assert min(done) >= 1
        done.clear()


def test_without_settings_it_searches_as_searchconfig_says(translator):
    assert translator.translate(WORDS[:3]) == translator.translate(WORDS[:3], SearchConfig())


def test_a_score_is_the_sum_of_the_targets_log_probabilities(model, translator):
    sources = ["the cat", "a", "on the mat and the dog", "", "b"]
    targets = ["A B", "", "C", "A A", "E D C B A E D C B A"]
    target_ids = translator.target_tokenizer.encode(targets)
    expected = [
        sum(token_log_probs_of(model, translator, source, ids)) for source, ids in zip(sources, target_ids, strict=True)
    ]
    for batch_tokens in (1, 20, 4096):
        found = translator.score(sources, targets, SearchConfig(batch_tokens=batch_tokens))
        assert found == pytest.approx(expected, abs=1e-9)
    assert translator.score([], []) == []


def test_a_cut_target_says_that_it_is_one(translator):
    config = SearchConfig(max_source_tokens=5)
    with pytest.warns(UserWarning, match="^a target of 6 tokens is cut to its first 4: 'A B C D E A'"):
        found = translator.score(["b"], ["A B C D E A"], config)
    assert found == translator.score(["b"], ["A B C D"], config)


# Prefixes


SAMPLED = SearchConfig(sample=True, n_best=2, max_length=13)
FIRST = SearchConfig(beam=2, max_length=13, stopping="first")
SUBWORDS = ["the cat", "on", "a", "dog", "", "sat on a", "b", "the"]
LETTERS = ["A", "", "B C A D", "E E E E E E", "", "C", "D A", "B"]


@pytest.mark.parametrize(
    ("kind", "prefixes", "config"),
    [
        *product(["letters"], [LETTERS], [BEAM, GREEDY, SAMPLED, FIRST]),
        *product(["unigram", "char", "word"], [SUBWORDS], [BEAM, GREEDY]),
    ],
)
def test_translations_begin_with_their_prefixes(kind, prefixes, config):
    translator = make_translator("char", kind)
    free = translator.translate_n_best(WORDS, config)
    found = translator.translate_n_best(WORDS, config, prefixes=prefixes)
    assert [best[0].text for best in found] == translator.translate(WORDS, config, prefixes=prefixes)
    for translations, prefix, of_free in zip(found, prefixes, free, strict=True):
        assert all(translation.text.startswith(prefix) for translation in translations)
        if not prefix and not config.sample:
            assert [best.tokens for best in translations] == [best.tokens for best in of_free]
    assert any(len(best[0].text) > len(prefix) > 0 for best, prefix in zip(found, prefixes, strict=True))


def test_a_prefix_may_be_given_as_tokens():
    translator = make_translator("char", "unigram")
    free, written = translator.translations(["the cat", "b"], GREEDY)
    cut = free.tokens[:3]
    found = translator.translations(["the cat", "b"], GREEDY, prefixes=[cut, []])
    assert found == [free, written]
    chosen = next(token for token in translator.target_tokenizer.tokens(range(2, 9)) if token != free.tokens[2])
    [other] = translator.translations(["the cat"], GREEDY, prefixes=[[*free.tokens[:2], chosen]])
    assert other.tokens[:3] == [*free.tokens[:2], chosen]
    for token in ("no such token", "</s>", "<pad>"):
        with pytest.raises(
            ConfigError, match=rf"^prefixes\[1\] must be tokens of the target's vocabulary, got '{token}'"
        ):
            translator.translate(["b", "b"], GREEDY, prefixes=["", [token]])


def test_a_prefix_may_be_as_long_as_a_translation_and_no_longer(translator):
    config = SearchConfig(beam=2, max_length=5)
    assert translator.translate(["b"], config, prefixes=["A B C D E"]) == ["A B C D E"]
    message = "^a prefix must be at most max_length = 5 tokens long, got 6"
    with pytest.raises(ConfigError, match=message):
        translator.translate(["cat", "b"], config, prefixes=["A", "A B C D E A"])


# Unknown tokens


@pytest.mark.parametrize("kind", ["symbols", "word", "char"])
@pytest.mark.parametrize("beam", [1, 3])
def test_each_unknown_token_becomes_the_source_token_that_got_most_of_its_attention(kind, beam):
    lines = ["the qq sat", "qq ww", "on rr a mat", "dog", "a ww log and tt the zz mat on"]
    source, target = train_tokenizer(WORDS, kind=kind, vocab_size=None, seed=1), SymbolTokenizer(list("ABC"))
    model = random_model(23, source.vocab_size, target.vocab_size, decoder_layers=2, output_bias=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "source_attention.in_proj_weight" in name:
                parameter *= 3  # so that it looks here and there
        model.output_bias[UNK] = 1.0
    translator = Translator.of(model, source, target)
    config = SearchConfig(beam=beam, max_length=7)
    attention = {"source": Want(head_mean=True)}
    marked = translator.translations(lines, config, attention=attention, layers=[1])  # the last layer
    replaced = translator.translate(lines, SearchConfig(beam=beam, max_length=7, replace_unknown=True))
    places: set[int] = set()
    for line, found, text in zip(lines, marked, replaced, strict=True):
        weights = found.attention.source[1].head_mean[0, :, :-1]  # `</s>` is no text
        surfaces = source.surfaces(line)
        expected = []
        for step, token in zip(weights, found.tokens, strict=False):
            place = max((n for n, surface in enumerate(surfaces) if surface), key=step.tolist().__getitem__)
            expected.append(surfaces[place] if token == "<unk>" else token)
            places |= {place} if token == "<unk>" else set()
        assert text == " ".join(expected)
    assert len(places) >= 4


@pytest.mark.parametrize(
    ("written", "text"),
    [("a ⁇ b", "a ⁇ b"), ("a ⁇ <unk>", "a ⁇ ⁇"), ("a <unk>", "a Xu")],  # which of two marks is which can't be said
)
def test_a_mark_of_the_unknown_that_the_text_has_of_its_own_is_kept(written, text, monkeypatch):
    source, target = SymbolTokenizer(["a"]), SymbolTokenizer(["a", "b", "⁇"])
    translator = Translator.of(random_model(40, source.vocab_size, target.vocab_size), source, target)
    [ids] = target.encode([written])
    write(ids, translator, monkeypatch)
    assert translator.translate(["Xu"], SearchConfig(beam=1, replace_unknown=True)) == [text]


# Piece by piece


CHOSEN = [GREEDY, SearchConfig(beam=1, max_length=13, min_length=7, no_repeat_ngram=2)]
DRAWN = [SearchConfig(sample=True, temperature=1.5, seed=n, min_length=2, max_length=13) for n in range(4)]


@pytest.mark.parametrize(
    ("target_kind", "configs"),
    [*product(["letters", "unigram", "char", "word"], [CHOSEN]), *product(["letters", "char"], [DRAWN])],
)
def test_pieces_joined_are_the_translation_or_the_draw_of_the_same_seed(target_kind, configs):
    translator = make_translator("char", target_kind)
    texts, several = set(), 0
    for config, line in product(configs, [*WORDS[:5], *UNSEEN[:2]]):
        pieces = list(translator.stream(line, config))
        assert ["".join(pieces)] == translator.translate([line], config)
        assert all(pieces)
        several += len(pieces) > 3
        texts.add("".join(pieces))
    assert several > 5
    assert len(texts) > 5


def test_bytes_that_are_no_character_yet_wait_for_the_rest():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS * 5),
        model_writer=model,
        vocab_size=290,
        hard_vocab_limit=False,
        byte_fallback=True,
        eos_id=EOS,
        unk_id=UNK,
        bos_id=-1,
        pad_id=-1,
        minloglevel=2,
    )
    target = SubwordTokenizer(model.getvalue())
    translator = Translator.of(random_model(40, target.vocab_size, target.vocab_size), target, target)
    assert len(target.encode(["Ж"])[0]) > 1, "several bytes"
    end = target.id_of("<0x0A>")
    assert target.decode([[*target.encode(["ab"])[0], end, *target.encode(["Ж"])[0]]]) == ["ab  Ж"]
    [ids] = target.encode(["Жa😀"])
    with pytest.MonkeyPatch.context() as patch:
        write(ids, translator, patch)
        pieces = list(translator.stream("b", SearchConfig(beam=1)))
    assert "".join(pieces) == "Жa😀"
    assert not any("\ufffd" in piece for piece in pieces)
    for seed in range(20):  # and what never becomes one is said in the end
        drawn = SearchConfig(sample=True, max_length=7, seed=seed)
        assert ["".join(translator.stream("the cat", drawn))] == translator.translate(["the cat"], drawn)


def write(ids: list[int], translator: Translator, patch: pytest.MonkeyPatch) -> None:
    """Let the model of this translator find these ids likeliest, then `</s>`, one row at a time."""
    step, following = translator.engine.step, iter([*ids, EOS])

    def certain(*arguments: Any) -> Any:
        logits, query = step(*arguments)
        return torch.zeros_like(logits).index_fill_(1, torch.tensor([next(following)]), 100.0), query

    def certain_best(tokens: Any, cache: Any, k: int, forbidden: int | None) -> Any:
        logits, query = certain(tokens, cache)
        return *best_classes(logits, k, forbidden), query

    patch.setattr(translator.engine, "step", certain)
    patch.setattr(translator.engine, "step_best", certain_best)


def test_a_stream_comes_as_it_is_written_and_may_be_left(translator, monkeypatch):
    steps: list[int] = []
    step = translator.engine.step_best
    monkeypatch.setattr(translator.engine, "step_best", lambda ids, *given: steps.append(len(ids)) or step(ids, *given))
    pieces = translator.stream("the cat", SearchConfig(beam=1, max_length=13, min_length=7))
    assert steps == []
    for count in (1, 2, 3):
        assert len(next(pieces).split()) == 1
        assert steps == [1] * count
    pieces.close()
    assert len(steps) == 3


def test_written_tokens_are_the_translations_and_their_text_grows(translator):
    config = SearchConfig(beam=1, max_length=13)
    [whole] = translator.translations(["the cat"], config)
    written = list(translator.write("the cat", config))
    ended = len(whole.token_log_probs) > len(whole.tokens)
    assert [one.token for one in written] == [*whole.tokens, *["</s>"] * ended]
    assert [one.log_prob for one in written] == whole.token_log_probs
    assert all(after.text.startswith(before.text) for before, after in pairwise(written))
    assert written[-1].text == whole.text


def test_alternatives_are_the_likeliest_next_tokens(model, translator):
    [whole] = translator.translations(["the cat"], SearchConfig(beam=1, max_length=13))
    for length in (0, 1, 4):
        prefix = whole.tokens[:length]
        found = translator.alternatives("the cat", prefix, 5)
        assert found[0].token == whole.tokens[length]
        assert found[0].log_prob == pytest.approx(whole.token_log_probs[length], abs=1e-4)
        assert [one.log_prob for one in found] == sorted((one.log_prob for one in found), reverse=True)
        assert all(
            one.text == translator.target_tokenizer.decode([[*ids, one.id]])[0]
            for one in found
            for ids in ids_of_prefixes(translator.target_tokenizer, [prefix])
        )
    everything = translator.alternatives("the cat", [], 1000)
    assert sum(math.exp(one.log_prob) for one in everything) == pytest.approx(1.0, abs=1e-4)
    assert {one.token for one in everything} == set(translator.target_tokenizer.tokens(range(model.target_pad)))
    with pytest.raises(ConfigError, match=r"^line is empty"):
        translator.alternatives(" ")
    with pytest.warns(UserWarning, match=r"is cut to its first 1:"):
        assert translator.alternatives("the cat", max_source_tokens=2) != translator.alternatives("the cat")


def test_a_stream_of_nothing_is_empty_and_by_default_greedy(translator):
    assert list(translator.stream("  ")) == []
    assert list(translator.stream("b")) == list(translator.stream("b", SearchConfig(beam=1)))


# What can't work

LINES_OF = "must be a sequence of lines, got"
CONSENSUS = SearchConfig(sample=True, n_best=2, consensus=True)


NO_LINES = [
    (lambda it: it.translate("a"), f"lines {LINES_OF} one str: pass [line]"),
    (lambda it: it.translate(iter("a")), f"lines {LINES_OF} str_ascii_iterator: pass list(lines)"),
    (lambda it: it.translate(["a", b"b"]), "lines must be str, got bytes for lines[1]"),
    (lambda it: it.translate(["a"], prefixes="A"), f"prefixes {LINES_OF} one str: pass [line]"),
    (
        lambda it: it.translate(["a"], prefixes=iter("A")),
        f"prefixes {LINES_OF} str_ascii_iterator: pass list(prefixes)",
    ),
    (lambda it: it.translate(["a", "b"], prefixes=["A", None]), "prefixes[1] must be text or tokens, got None: ''"),
    (lambda it: it.alternatives("a", 5), "prefixes[0] must be text or tokens, got 5: ''"),
    (lambda it: it.score("a", "b"), f"sources {LINES_OF} one str: pass [line]"),
    (lambda it: it.score(["a"], "b"), f"targets {LINES_OF} one str: pass [line]"),
    (lambda it: it.stream(["b"]), "line must be a str, got list: stream takes one line at a time"),
]
NO_SUCH_WORK = [
    (lambda it: it.translate(["a", "b"], prefixes=["A"]), "prefixes must be one for each line, got 1"),
    (lambda it: it.alternatives("a", max_source_tokens=1), "max_source_tokens must be at least 2 (with </s>), got 1"),
    (lambda it: it.score(["a", "b"], ["a"]), "score needs a target for each source, got 2 and 1"),
    (lambda it: it.read(" ", "A", attention=Want()), "source is empty: it has no attention to observe"),
    (lambda it: it.stream("b", BEAM), "stream needs beam 1 or sample: a beam of 3 decides only at the "),
    (lambda it: it.stream("b", CONSENSUS), "stream can't choose by consensus: it writes one tran"),
    (
        lambda it: it.stream("b", SearchConfig(beam=1, replace_unknown=True)),
        "stream can't replace_unknown: which source token got most attention is known at the end",
    ),
]


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [(ArgumentError, *case) for case in NO_LINES] + [(ConfigError, *case) for case in NO_SUCH_WORK],
)
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_work_is_said(call, error, message, translator):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        call(translator)


# Precision


@pytest.mark.parametrize(("precision", "far"), [("float32", 1e-4), ("bfloat16", 0.1), ("float16", 0.02)])
def test_a_precision_may_be_chosen(model, translator, precision, far):
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    chosen = Translator.of(model, *tokenizers, precision=precision)
    assert str(chosen.precision) == precision
    assert str(translator.precision) == "float64"
    assert chosen.device == torch.device("cpu")
    targets = ["A B C"] * len(WORDS)
    assert chosen.score(WORDS, targets) == pytest.approx(translator.score(WORDS, targets), rel=far)
    if precision == "float32":
        for config in (GREEDY, BEAM):
            assert chosen.translate(WORDS, config) == translator.translate(WORDS, config)
    assert all(chosen.translate(WORDS, LONGEST))


def test_half_a_surrogate_pair_is_named_wherever_text_is_given():
    translator, half = make_translator("unigram"), "a\ud800"
    for call in (
        lambda: translator.translate(["a", half]),
        lambda: translator.translate(["a", "b"], prefixes=["", half]),
        lambda: translator.score(["a", half], ["a", "b"]),
        lambda: translator.score(["a", "b"], ["a", half]),
    ):
        with pytest.raises(
            ArgumentError, match=r"\w+\[1\] has half a surrogate pair, which is no character: take it out"
        ):
            call()
    for call in (
        lambda: list(translator.stream(half)),
        lambda: translator.alternatives(half),
        lambda: translator.read(half, "a", attention={}),
        lambda: translator.read("a", half, attention={}),
        lambda: Glossary({"a": half}),
        lambda: Glossary({half: "a"}),
    ):
        with pytest.raises(ArgumentError, match="has half a surrogate pair"):
            call()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("count", [0, -1, True, 2.5, "x"])
def test_the_number_of_alternatives_is_checked(count):
    with pytest.raises(ConfigError, match=r"^count must be "):
        make_translator("unigram").alternatives("a", count=count)
