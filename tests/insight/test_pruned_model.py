"""A model that has lost heads: the same as one whose heads add nothing, everywhere."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer import Want, capture
from glassformer.attention.multihead import MultiheadAttention
from glassformer.attention.packing import Packing
from glassformer.errors import ArgumentError, ConfigError, RunError
from glassformer.generation.attention import align
from glassformer.generation.config import SearchConfig
from glassformer.generation.engines.engine import Engine
from glassformer.generation.translator import Translator
from glassformer.insight.prune import without_heads
from glassformer.interop.huggingface import export_marian
from glassformer.run.config import TrainingRecord
from glassformer.run.folder import Run, load_run, open_run, write_config, write_weights
from glassformer.text.tokenizer import train_tokenizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer, weight_shapes

SIZES = dict(d_model=24, heads=3, encoder_layers=2, decoder_layers=2, d_ff=40)
REMOVED = {
    "encoder.0.self_attention": [1],
    "encoder.1.self_attention": [0, 1, 2],
    "decoder.0.self_attention": [0, 2],
    "decoder.0.source_attention": [0, 1, 2],
    "decoder.1.self_attention": [0, 1, 2],
    "decoder.1.source_attention": [2],
}
TEXT = ["ka to mi", "to to ka nu", "mi ka nu", "nu mi", "ka ka to", "nu nu mi ka"] * 5


def silenced(model: Transformer, removed: Mapping[str, Sequence[int]]) -> Transformer:
    """The same model in which these heads' columns of the output projections are zero."""
    with torch.no_grad():
        for name, heads in removed.items():
            attention = model.get_submodule(name)
            for head in heads:
                attention.out_proj.weight[:, head * 8 : (head + 1) * 8] = 0.0
    return model


@pytest.fixture
def model() -> Transformer:
    config = ModelConfig(source_vocab_size=29, target_vocab_size=31, shared_vocab=False, **SIZES)
    model = Transformer(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    return silenced(model, REMOVED)


@pytest.fixture
def pruned(model) -> Transformer:
    return without_heads(model, REMOVED)


@pytest.fixture
def ids() -> tuple[Tensor, Tensor]:
    source, target = torch.randint(2, 28, (3, 7)), torch.randint(2, 30, (3, 5))
    source[1, 4:] = 28  # padding
    return source, target


def test_removing_heads_that_add_nothing_changes_no_output(model, pruned, ids):
    before = sum(parameter.numel() for parameter in model.parameters())
    after = sum(parameter.numel() for parameter in pruned.parameters())
    assert before - after == 13 * (3 * 8 * 24 + 3 * 8 + 8 * 24)
    assert_close(pruned(*ids), model(*ids), rtol=1e-12, atol=1e-12)
    assert pruned.config.heads_left == {name: 3 - len(removed) for name, removed in REMOVED.items()}


def test_a_row_of_sequences_is_as_a_grid_of_them(pruned, ids):
    source, target = ids
    lengths = [7, 4, 7]
    sources, targets = Packing.of(lengths), Packing.of([5, 5, 5])
    row = sources.fill(torch.cat([line[:n] for line, n in zip(source, lengths, strict=True)]), 28)
    memory = pruned.encode(row, packing=sources)
    states, _ = pruned.decode(targets.fill(target.flatten(), 30), pruned.start(memory, packing=sources), targets)
    assert_close(pruned.logits(states[0, :15]), pruned(*ids).flatten(0, 1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 3])
def test_the_engine_generates_the_same(model, pruned, ids, dtype, width):
    source, target = ids
    keep = (source != 28)[:, None, None]
    engines = [Engine.of(one, dtype) for one in (model, pruned)]
    close = dict(rtol=0.0, atol=1e-10 if dtype == torch.float64 else 1e-3 if dtype == torch.float32 else 0.2)
    found = [engine.decode(target, source, keep) for engine in engines]
    assert_close(found[1], found[0], **close)
    caches = [engine.start(source, keep, width) for engine in engines]
    for n in range(5):
        tokens = target[:, n].repeat_interleave(width)
        steps = [engine.step(tokens, cache) for engine, cache in zip(engines, caches, strict=True)]
        assert_close(steps[1][0], steps[0][0], **close)
        for cache in caches:
            cache.branch(torch.zeros(3, width, dtype=torch.long))
    for cache in caches:
        cache.take_sources(torch.tensor([0, 2]))
    tokens = target[[0, 2], 0].repeat_interleave(width)
    steps = [engine.step(tokens, cache) for engine, cache in zip(engines, caches, strict=True)]
    assert_close(steps[1][0], steps[0][0], **close)


def test_the_engine_in_eight_bits(model, pruned, ids):
    source = ids[0][:1]
    for engine in (Engine.of(one.float(), int8=True) for one in (model, pruned)):
        cache = engine.start(source, None, 1)
        logits, _ = engine.step(torch.tensor([3]), cache)
        assert logits[:, :30].isfinite().all()


def test_capture_sees_what_is_left(model, pruned, ids):
    with torch.no_grad():
        with capture(pruned, Want(weights=True)) as seen:
            pruned(*ids)
        with capture(model, Want(weights=True)) as whole:
            model(*ids)
    assert list(seen) == [name for name, removed in REMOVED.items() if len(removed) < 3]
    assert_close(seen["encoder.0.self_attention"].weights, whole["encoder.0.self_attention"].weights[:, [0, 2]])


# Run folders


@pytest.fixture
def runs(random_run: Callable, tmp_path: Path) -> tuple[Run, Run]:
    """A run with silent heads, and the same without them, which was written and read again."""
    tokenizer = train_tokenizer(TEXT, kind="bpe", vocab_size=None, seed=1)
    run = random_run(tmp_path / "whole", tokenizer, tokenizer, shared=True, **SIZES)
    silenced(run.model, REMOVED)
    pruned = without_heads(run.model, REMOVED)
    (tmp_path / "pruned").mkdir()
    for folder, model in (("whole", run.model), ("pruned", pruned)):
        write_weights(tmp_path / folder, model.state_dict())
        write_config(tmp_path / folder, model.config, tokenizer, tokenizer, TrainingRecord())
    return load_run(tmp_path / "whole"), load_run(tmp_path / "pruned")


def test_a_run_folder_keeps_it(runs, tmp_path):
    _, pruned = runs
    assert pruned.model.config.heads_left == {name: 3 - len(removed) for name, removed in REMOVED.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in pruned.model.state_dict().items()}
    assert weight_shapes(pruned.model.config) == shapes
    size = [(tmp_path / folder / "model.safetensors").stat().st_size for folder in ("whole", "pruned")]
    assert size[1] < 0.8 * size[0]
    translators = [Translator.load(tmp_path / folder, "cpu", "float32") for folder in ("whole", "pruned")]
    for search in (SearchConfig(beam=1), SearchConfig(beam=4)):
        found = [translator.translate(TEXT[:6], search) for translator in translators]
        assert found[0] == found[1]
    scores = [translator.score(TEXT[:4], TEXT[2:6]) for translator in translators]
    assert scores[1] == pytest.approx(scores[0], abs=1e-4)


def test_weights_of_another_number_of_heads_are_refused(runs, tmp_path):
    (tmp_path / "pruned" / "model.safetensors").write_bytes((tmp_path / "whole" / "model.safetensors").read_bytes())
    with pytest.raises(RunError, match=r"does not fit the model of config.json: decoder.0.self_attention"):
        open_run(tmp_path / "pruned")


def test_exported_to_marian_it_has_its_heads_again_as_zeros(runs, tmp_path):
    transformers = pytest.importorskip("transformers")
    _, pruned = runs
    export_marian(pruned, tmp_path / "marian")
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "marian").eval()
    pad = pruned.model.target_pad
    source, target = torch.randint(2, pad, (2, 6)), torch.randint(2, pad, (2, 4))
    with torch.no_grad():
        logits = theirs(input_ids=source, decoder_input_ids=target).logits
        assert_close(logits[..., :pad], pruned.model(source, target), rtol=1e-4, atol=1e-4)


def test_what_reads_attention_to_the_source_needs_heads(runs):
    whole, _ = runs
    of_last = without_heads(whole.model, {"decoder.1.source_attention": [0, 1, 2]})
    translator = Translator.of(of_last, whole.source_tokenizer, whole.target_tokenizer)
    reads = "reads the .*attention to the source, "
    with pytest.raises(ConfigError, match=f"coverage_penalty {reads}which has no"):
        translator.translate(["ka to"], SearchConfig(coverage_penalty=0.1))
    assert translator.translate(["ka Ω"], SearchConfig(replace_unknown=True))  # the layer before has heads
    none = without_heads(of_last, {"decoder.0.source_attention": [0, 1, 2]})
    source, target = torch.tensor([[2, 3, 0]]), torch.tensor([[none.target_pad, 2]])
    with pytest.raises(ConfigError, match=f"replace_unknown {reads}of which this run has no"):
        align(Translator.of(none, whole.source_tokenizer, whole.target_tokenizer).engine, source, target, [0])


def test_the_command_says_that_the_marian_copy_is_no_smaller(runs, tmp_path, capsys, run_command):
    for name, expected in (("whole", 1), ("pruned", 2)):
        assert run_command(f"export {tmp_path / name} --to huggingface --out {tmp_path / name}-marian") == 0
        said = capsys.readouterr().out.splitlines()
        assert len(said) == expected
    assert said[0].startswith("heads that were pruned are zeros in it")


# What can't be


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ({"encoder.7.self_attention": [0]}, r"removed must name the model's attentions, .*, got encoder\.7"),
        ({"encoder.0.self_attention": [3]}, r"heads from 0 to 2 for encoder\.0\.self_attention, got 3"),
    ],
)
def test_heads_that_do_not_exist_are_refused(model, removed, message):
    with pytest.raises(ArgumentError, match=message):
        without_heads(model, removed)


def test_frozen_weights_stay_frozen():
    attention = MultiheadAttention(24, 3, batch_first=True)
    attention.in_proj_weight.requires_grad_(False)
    attention.keep_heads([0, 2])
    assert [name for name, one in attention.named_parameters() if not one.requires_grad] == ["in_proj_weight"]


def test_the_module_as_a_whole_says_how_it_is_called():
    attention = MultiheadAttention(24, 3, batch_first=True)
    attention.keep_heads([1])
    with pytest.raises(ArgumentError, match=r"this attention has lost heads, .*: call its methods project and attend"):
        attention(*[torch.randn(2, 5, 24)] * 3)
