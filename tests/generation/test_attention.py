"""What Translator.translations(attention=...) observes, against the weights of the Transformer module itself."""

import math
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer.attention.want import Want
from glassformer.errors import ConfigError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translation, Translator
from glassformer.text.tokenizer import EOS, SymbolTokenizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

H, D_HEAD, ENCODER, DECODER = 3, 5, 2, 3
LINES = ["b a d", "c", "a a b e d c a", "", "e d"]
FACTS = Want(entropy=True, received=True, distance=True, top=2, rows=(0, -1), head_mean=True, weights=True)
STACKS = ("encoder", "decoder", "source")
LAYERS = {"encoder": ENCODER, "decoder": DECODER, "source": DECODER}
BEAM = SearchConfig(beam=3, max_length=7)
NO_WANT = r"attention must be a Want, or one for each stack, such as \{'source': Want\(top=3\)\}, got"
SAY_WHAT = r"say what is wanted, Want\(entropy=True\)"
NO_LAYERS = r"layers must be a sequence of whole numbers, such as \[0, 2\], got"
PASS_ONE = r"for one layer pass \[0\], for all of them None"


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(2)  # with translations that differ, of which one ends by itself
    vocabularies = dict(source_vocab_size=8, target_vocab_size=7, shared_vocab=False)
    sizes = dict(d_model=H * D_HEAD, heads=H, encoder_layers=ENCODER, decoder_layers=DECODER, d_ff=17)
    config = ModelConfig(**vocabularies, **sizes, output_bias=True)
    model = Transformer(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter *= 2  # so that the weights aren't all alike
        model.decoder[-1].feed_forward_norm.weight.normal_(std=2)
        model.output_bias[EOS] = 1.0
    return model


@pytest.fixture(scope="module")
def translator(model) -> Translator:
    return Translator.of(model, SymbolTokenizer(list("abcde")), SymbolTokenizer(list("VWXY")))


def weights_of(model: Transformer, source: list[int], target_in: list[int]) -> dict[tuple[str, int], Tensor]:
    """All attention weights of the model as it reads `target_in` after `source`, by stack and layer: (H, Q, K)."""
    found: dict[tuple[str, int], Tensor] = {}

    def noting(name: tuple[str, int], look: Any) -> Any:
        def noted(q: Tensor, k: Tensor, v: Tensor, *, keep: Any = None, causal: bool = False, packing: None) -> Tensor:
            assert keep is None or keep.all()
            scores = torch.einsum("hqd,hkd->hqk", q[0], k[0]) / math.sqrt(D_HEAD)
            later = torch.arange(k.shape[2]) > torch.arange(q.shape[2])[:, None]
            found[name] = scores.masked_fill(later & causal, -torch.inf).softmax(-1)
            return look(q, k, v, causal=causal)

        return noted

    attentions = {("encoder", n): layer.self_attention for n, layer in enumerate(model.encoder)}
    attentions |= {("decoder", n): layer.self_attention for n, layer in enumerate(model.decoder)}
    attentions |= {("source", n): layer.source_attention for n, layer in enumerate(model.decoder)}
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        for name, attention in attentions.items():
            patch.setattr(attention, "attend", noting(name, attention.attend))
        model(torch.tensor([source]), torch.tensor([target_in]))
    return found


def ids_of(translator: Translator, line: str, translation: Translation) -> tuple[list[int], list[int]]:
    """The source, and what the decoder has read: from the tokenizers and the translation's tokens alone."""
    [source] = translator.source_tokenizer.encode([line])
    [target] = translator.target_tokenizer.encode([" ".join(translation.tokens)])
    ended = len(translation.token_log_probs) == len(target) + 1
    return [*source, EOS], [translator.target_tokenizer.pad, *target][: len(target) + ended]


def check_facts(seen: Any, w: Tensor) -> None:
    """Each fact of an observation, computed from all weights of its one entry."""
    queries, keys = w.shape[1:]
    positions = (torch.arange(queries)[:, None] - torch.arange(keys)).abs()
    assert len(seen) == 1
    expected = {
        "weights": w,
        "head_mean": w.mean(0),
        "entropy": -(w * w.where(w > 0, 1.0).log()).sum(-1),
        "received": w.sum(1),
        "distance": (w * positions).sum(-1),
        "rows": w[:, [0, -1]],
    }
    for name, value in expected.items():
        assert_close(getattr(seen, name)[0], value, rtol=0, atol=1e-9, msg=name)
    assert_close(seen.top.weights[0], w.topk(min(2, keys)).values, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "config",
    [
        BEAM,
        SearchConfig(beam=1, max_length=7),
        SearchConfig(beam=3, n_best=2, max_length=2),
        SearchConfig(beam=2, max_length=7, min_length=5, no_repeat_ngram=2),
        SearchConfig(sample=True, max_length=7, seed=3),
    ],
    ids=["beam", "greedy", "cut off", "with rules", "sample"],
)
def test_facts_are_those_of_the_models_weights_along_the_path_that_was_taken(model, translator, config):
    """In every stack and layer, unless told otherwise, and as if each line were alone."""
    translations = translator.translations(LINES, config, attention=FACTS)
    for line, translation in zip(LINES, translations, strict=True):
        if not line:
            continue
        weights = weights_of(model, *ids_of(translator, line, translation))
        for stack in STACKS:
            seen = getattr(translation.attention, stack)
            assert list(seen) == list(range(LAYERS[stack]))
            for layer, observation in seen.items():
                check_facts(observation, weights[stack, layer])


def test_layers_and_stacks_may_be_chosen(translator):
    want, other = Want(weights=True), Want(entropy=True)
    [every] = translator.translations(LINES[:1], BEAM, attention=want)
    [some] = translator.translations(LINES[:1], BEAM, attention={"source": want, "decoder": other}, layers=[2, 0])
    assert some.attention.encoder == {}
    assert set(some.attention.source) == set(some.attention.decoder) == {0, 2}
    for layer, observation in some.attention.source.items():
        assert_close(observation.weights, every.attention.source[layer].weights, rtol=0, atol=1e-12)
        assert some.attention.decoder[layer].want == other
    [one] = translator.translations(LINES[:1], BEAM, attention=want, layers=[1])
    assert [list(getattr(one.attention, stack)) for stack in STACKS] == [[1]] * 3


def test_queries_and_keys_have_their_tokens(translator):
    ended, cut_off = translator.translations(["c", "b a x"], BEAM, attention=Want(weights=True))
    assert (len(ended.token_log_probs), len(cut_off.token_log_probs)) == (len(ended.tokens) + 1, len(cut_off.tokens))
    assert ended.attention.source_tokens == ["c", "</s>"]
    assert cut_off.attention.source_tokens == ["b", "a", "<unk>", "</s>"]
    assert ended.attention.target_out == [*ended.tokens, "</s>"]
    assert cut_off.attention.target_out == cut_off.tokens
    for attention in (ended.attention, cut_off.attention):
        assert attention.target_in == ["<pad>", *attention.target_out[:-1]]
        queries, keys = len(attention.target_in), len(attention.source_tokens)
        assert attention.encoder[0].weights.shape == (1, H, keys, keys)
        assert attention.decoder[0].weights.shape == (1, H, queries, queries)
        assert attention.source[0].weights.shape == (1, H, queries, keys)


@pytest.mark.parametrize(
    "config",
    [BEAM, SearchConfig(beam=1, max_length=7), SearchConfig(sample=True, max_length=7, n_best=3)],
    ids=["beam", "greedy", "sample"],
)
def test_what_is_looked_at_translates_as_ever(translator, config):
    plain = translator.translate_n_best(LINES, config)
    seen = translator.translations(LINES, config, attention=Want(entropy=True), layers=[1] if config.beam == 1 else [])
    assert len({translation.text for translation in seen}) > 3
    for with_attention, (best, *_) in zip(seen, plain, strict=True):
        for name in ("text", "score", "log_prob", "tokens", "token_log_probs"):
            assert getattr(with_attention, name) == getattr(best, name)
        assert best.attention is None


def test_an_empty_line_has_seen_nothing(translator):
    found = translator.translations(["", "b", "  "], BEAM, attention=Want(entropy=True))
    assert [translation.attention is None for translation in found] == [True, False, True]
    assert found[0] == Translation("", 0.0, 0.0, [], [])
    assert translator.translations([], BEAM, attention=Want(entropy=True)) == []


@pytest.mark.parametrize("stack", STACKS)
def test_what_a_short_translation_has_not_is_left_out(translator, stack):
    """However many lines of whatever lengths: top is of the keys and rows of the queries that there are."""
    want = Want(top=5, rows=(0, 3, -4, 1, -1), row_heads=(2,), weights=True)
    translations = translator.translations(LINES, BEAM, attention={stack: want})
    sizes = set()
    for translation in filter(lambda translation: translation.attention, translations):
        for seen in getattr(translation.attention, stack).values():
            queries, keys = seen.weights.shape[2:]
            sizes.add((queries < 4, keys < 5))
            rows = [n for n in want.rows if -queries <= n < queries]
            assert (seen.want.top, list(seen.want.rows)) == (min(5, keys), rows)
            assert_close(seen.top.weights, seen.weights.topk(min(5, keys)).values, rtol=0, atol=1e-12)
            assert_close(seen.rows, seen.weights[:, 2:][:, :, rows], rtol=0, atol=1e-12)
    assert len(sizes) > 1, "shorter and longer ones"


def test_no_row_of_a_short_translation_may_be_left(translator):
    want = Want(rows=(9,), row_heads=(0,), entropy=True)
    [found] = translator.translations(["c"], BEAM, attention=want)
    for stack in STACKS:
        for seen in getattr(found.attention, stack).values():
            assert (seen.want, list(seen.tensors())) == (Want(entropy=True), ["entropy"])


@pytest.mark.parametrize(
    ("attention", "layers", "message"),
    [
        ({"cross": Want()}, None, "attention must be asked for by stack, one of encoder, decoder, source, got 'cross'"),
        (True, None, f"{NO_WANT} True: {SAY_WHAT}"),
        ("source", None, f"{NO_WANT} 'source': {SAY_WHAT}"),
        ({"source": True}, None, f"{NO_WANT} True for source: {SAY_WHAT}"),
        (Want(), 0, f"{NO_LAYERS} 0: {PASS_ONE}"),
        (Want(), "12", f"{NO_LAYERS} '12': {PASS_ONE}"),
        (Want(), [True], f"{NO_LAYERS} \\[True\\]: {PASS_ONE}"),
        (Want(), [0, 1.0], f"{NO_LAYERS} \\[0, 1.0\\]: {PASS_ONE}"),
        (Want(), [2], "layers must be from 0 to 1 for the encoder, got 2"),
        (Want(), [-1], "layers must be from 0 to 1 for the encoder, got -1"),
        ({"source": Want()}, [1, 3], "layers must be from 0 to 2 for the source, got 3"),
        ({"decoder": Want()}, [5], "layers must be from 0 to 2 for the decoder, got 5"),
    ],
)
def test_stacks_and_layers_that_are_not_there_are_named_before_anything_is_translated(
    translator, monkeypatch, attention, layers, message
):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # our own checks, not the test suite's
    monkeypatch.setattr(translator.engine, "encode", lambda *_: pytest.fail("translated"))
    with pytest.raises(ConfigError, match=f"^{message}$"):
        translator.translations(LINES, BEAM, attention=attention, layers=layers)


def test_half_precision_sees_nearly_the_same(model, translator):
    half = Translator.of(model, translator.source_tokenizer, translator.target_tokenizer, precision="bfloat16")
    [found] = half.translations(["a a b e d c a"], SearchConfig(beam=1, max_length=7), attention=Want(weights=True))
    weights = weights_of(model, *ids_of(translator, "a a b e d c a", found))
    for stack in STACKS:
        for layer, observation in getattr(found.attention, stack).items():
            assert (observation.weights[0].double() - weights[stack, layer]).abs().mean() < 0.03
