import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer import SearchConfig, Translator, Want, memory, open_run
from glassformer.confidence.estimate import ConfidenceEstimator
from glassformer.errors import ArgumentError, ConfigError, OutOfMemoryError
from glassformer.generation.batches import search_all
from glassformer.generation.engines.engine import Engine
from glassformer.generation.engines.ensemble import Ensemble
from glassformer.text.tokenizer import EOS, SymbolTokenizer, train_tokenizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

SOURCE_VOCAB, TARGET_VOCAB = 13, 9
LINES = ["a b c", "c", "b a b c a b", "", "c a"]


def random_model(seed: int, **changes: Any) -> Transformer:
    torch.manual_seed(seed)
    sizes = dict(d_model=8, heads=2, encoder_layers=1, decoder_layers=2, d_ff=13, dropout=0.0, shared_vocab=False)
    vocabularies = dict(source_vocab_size=SOURCE_VOCAB, target_vocab_size=TARGET_VOCAB)
    model = Transformer(ModelConfig(**{**sizes, **vocabularies, **changes})).double().eval()
    with torch.no_grad():
        last_norm = model.decoder[-1].feed_forward_norm
        last_norm.weight.normal_(std=2)
        last_norm.bias.copy_(model.target_embedding.weight[EOS])  # so that some translations end
    return model


@pytest.fixture(scope="module")
def models() -> list[Transformer]:
    """Members of different sizes and kinds."""
    return [
        random_model(1),
        random_model(2, d_model=12, heads=3, decoder_layers=1),
        random_model(3, norm_first=True, final_norm=True, tied_output=False, output_bias=True),
    ]


def sources() -> list[list[int]]:
    generator = torch.Generator().manual_seed(4)
    return [[*torch.randint(1, SOURCE_VOCAB - 1, (n,), generator=generator).tolist(), EOS] for n in (5, 1, 3, 8, 2)]


@torch.no_grad()
def mean_of(models: list[Transformer], source: list[int], ids: list[int]) -> Tensor:
    """The logarithm of the mean of what the models themselves predict after each position."""
    target_in = torch.tensor([[TARGET_VOCAB - 1, *ids]])
    return torch.stack([model(torch.tensor([source]), target_in)[0].softmax(-1) for model in models]).mean(0).log()


@pytest.mark.parametrize(
    "config", [SearchConfig(beam=1, max_length=6), SearchConfig(beam=4, n_best=4, max_length=6, length_penalty=0.0)]
)
def test_tokens_have_the_mean_of_the_members_probabilities(models, config):
    ensemble = Ensemble([Engine.of(model) for model in models])
    found = search_all(ensemble, sources(), config)
    assert len({len(best[0].ids) for best in found}) > 1, "sources that leave the batch at different steps"
    for source, best in zip(sources(), found, strict=True):
        assert len(best) == config.n_best
        for one in best:
            log_probs = mean_of(models, source, one.ids)
            ids = [*one.ids, EOS][: len(one.token_log_probs)]
            expected = log_probs[range(len(ids)), ids]
            assert_close(torch.tensor(one.token_log_probs).double(), expected, rtol=1e-6, atol=1e-6)
            if config.beam == 1:
                assert ids == log_probs[: len(ids)].argmax(-1).tolist()


def test_a_beam_finds_more_likely_translations_than_any_member_does(models):
    engines = [Engine.of(model) for model in models]
    wide = SearchConfig(beam=50, max_length=4, stopping="exact", length_penalty=0.0)
    for source, [best] in zip(sources(), search_all(Ensemble(engines), sources(), wide), strict=True):
        for engine in engines:
            [[own]] = search_all(engine, [source], wide)
            ids = [*own.ids, EOS][: len(own.token_log_probs)]
            theirs = mean_of(models, source, own.ids)[range(len(ids)), ids].sum().item()
            assert best.log_prob >= theirs - 1e-6


def test_prefixes_draws_and_coverage_work_as_with_one_model(models):
    ensemble = Ensemble([Engine.of(model) for model in models])
    prefixes = [[1], [], [2, 3], [1, 1], []]
    begun = search_all(ensemble, sources(), SearchConfig(beam=2, max_length=6), prefixes=prefixes)
    assert all(best.ids[: len(prefix)] == prefix for [best], prefix in zip(begun, prefixes, strict=True))
    for config in (SearchConfig(sample=True, max_length=5, seed=3), SearchConfig(coverage_penalty=0.3, max_length=5)):
        for source, [best] in zip(sources(), search_all(ensemble, sources(), config), strict=True):
            ids = [*best.ids, EOS][: len(best.token_log_probs)]
            assert best.log_prob == pytest.approx(mean_of(models, source, best.ids)[range(len(ids)), ids].sum().item())


@pytest.fixture
def runs(random_run, tmp_path: Path) -> list[Path]:
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for seed, folder in enumerate(folders):
        random_run(folder, SymbolTokenizer("abc"), SymbolTokenizer("uvw"), seed=seed, decoder_layers=1 + seed)
    return folders


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_runs_translate_together(runs, precision):
    together = Translator.load_ensemble(runs, "cpu", precision)
    found = together.translations(LINES, SearchConfig(beam=3, max_length=7))
    alone = [
        Translator.load(run, "cpu", precision).translate(LINES, SearchConfig(beam=3, max_length=7)) for run in runs
    ]
    assert [one.text for one in found] not in alone
    assert found[3].text == ""
    for line, one in zip(LINES, found, strict=True):
        if line:
            read = together.read(line, one.text, attention=Want(entropy=True)).token_log_probs
            near = 2e-2 if precision == "bfloat16" else 1e-5
            assert read[: len(one.token_log_probs)] == pytest.approx(one.token_log_probs, abs=near)
    single = Translator.load_ensemble(runs[:1], "cpu", precision)
    assert single.translate(LINES, SearchConfig(beam=3, max_length=7)) == alone[0]


def test_attention_is_that_of_the_first(runs):
    together, first = Translator.load_ensemble(runs, "cpu", "float32"), Translator.load(runs[0], "cpu", "float32")
    [found] = together.translations(["a b c"], SearchConfig(max_length=5), attention=Want(entropy=True))
    read = first.read("a b c", found.text, attention=Want(entropy=True))
    steps = len(found.token_log_probs)
    for stack in ("encoder", "decoder", "source"):
        for layer, seen in getattr(found.attention, stack).items():
            expected = getattr(read.attention, stack)[layer].entropy
            assert_close(seen.entropy, expected if stack == "encoder" else expected[:, :, :steps])


def test_runs_that_cannot_write_together(runs, random_run, tmp_path, monkeypatch):
    random_run(tmp_path / "other", SymbolTokenizer("abc"), SymbolTokenizer("uwv"))
    with pytest.raises(ConfigError, match=r"those of .*one and .*other split the target in two ways: .*--from .*one$"):
        Translator.load_ensemble([runs[0], tmp_path / "other"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"an ensemble must have runs that differ, got .*one, one$"):
        Translator.load_ensemble([runs[0], "one"])
    for none in ([], "one"):
        with pytest.raises(ArgumentError, match=r"folders must be a list of run folders, got .*load takes one"):
            Translator.load_ensemble(none)
    turned = tmp_path / "two/config.json"
    config = json.loads(turned.read_text(encoding="utf-8"))
    config["training"]["languages"].reverse()
    turned.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"one translates from en to de, .*two from de to en: leave one out"):
        Translator.load_ensemble(runs)


@pytest.mark.parametrize(
    ("shared", "flags"), [(True, "--tokenizer one/source.spm"), (False, "--source-tokenizer one/source.spm --target-")]
)
def test_the_flags_that_are_named_train_a_run_that_fits(shared, flags, random_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (train_tokenizer(text, kind="char", vocab_size=None, seed=1) for text in (["abc"], ["xyz"]))
    random_run(Path("one"), first, first, shared=shared)
    random_run(Path("two"), first, second)
    with pytest.raises(ConfigError, match=f"split the target in two ways: train the second with {flags}"):
        Translator.load_ensemble(["one", "two"])


def test_models_have_room_together_or_not_at_all(runs, monkeypatch):
    alone = max(4 * open_run(run).parameters for run in runs)
    monkeypatch.setattr(memory, "total_memory", lambda: alone)
    assert Translator.load(runs[2], "cpu", "float32").translate(["a"])
    with pytest.raises(OutOfMemoryError, match=r"models of .* parameters, 4 bytes each, .*three need a larger machine"):
        Translator.load_ensemble(runs, "cpu", "float32")


def test_confidence_is_not_that_of_an_ensemble(runs):
    with pytest.raises(ConfigError, match="confidence is that of one run's model, and an ensemble has none"):
        ConfidenceEstimator(Translator.load_ensemble(runs, "cpu"))
