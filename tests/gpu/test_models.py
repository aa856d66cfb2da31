"""On a GPU: training, resume, translation with recorded steps, capture in bfloat16, pruning, against the CPU."""

import gc
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from glassformer import (
    ModelConfig,
    PruneConfig,
    SearchConfig,
    TrainConfig,
    Transformer,
    Translator,
    Want,
    capture,
    observe,
    prune,
    resume,
    train,
)
from glassformer.generation.batches import search_all
from glassformer.generation.engines.engine import Engine, inference
from glassformer.generation.engines.graph import FixedCache
from glassformer.text.batching import Batch, pad_source
from glassformer.training.step import Step

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("unchecked")
TASK = dict(d_model=64, heads=4, encoder_layers=2, decoder_layers=1, d_ff=128, preset="small")
LEARNING = dict(batch_tokens=1024, learning_rate=3e-3, warmup=50, validate_every=100, average=2, cooldown=0.2)


@pytest.fixture(scope="module")
def reversed_pairs(tmp_path_factory, reversed_symbols) -> Path:
    """A folder with train.tsv (4,000 pairs) and valid.tsv (200)."""
    folder = tmp_path_factory.mktemp("reversed")
    for name, count, seed in (("train", 4000, 1), ("valid", 200, 2)):
        lines = reversed_symbols(count, seed, shortest=3, longest=7)
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def settings(pairs: Path, out: Path, **changes: object) -> TrainConfig:
    files = dict(source=pairs / "train.tsv", valid_source=pairs / "valid.tsv", out=out)
    return TrainConfig(**{**files, **TASK, **LEARNING, "tokenizer": "symbols", "device": "cuda", **changes})


@pytest.fixture(scope="module")
def trained(reversed_pairs, tmp_path_factory) -> Path:
    """A run folder of a model that has learned, on the GPU, to reverse symbols."""
    folder = tmp_path_factory.mktemp("gpu") / "run"
    assert train(settings(reversed_pairs, folder, max_updates=1000)).finished
    return folder


@pytest.fixture(scope="module")
def held_out(reversed_pairs) -> tuple[list[str], list[str]]:
    lines = [line.split("\t") for line in (reversed_pairs / "valid.tsv").read_text().splitlines()]
    return [source for source, _ in lines], [target for _, target in lines]


def test_a_training_on_the_gpu_learns_its_task(trained, held_out):
    sources, targets = held_out
    found = Translator.load(trained, "cuda", "float32").translate(sources, SearchConfig(beam=4))
    assert sum(one == other for one, other in zip(found, targets, strict=True)) >= 0.9 * len(targets)


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_have_the_ids_of_the_cpu(trained, held_out, beam):
    config = SearchConfig(beam=beam)
    ids = [
        [best[0].tokens for best in Translator.load(trained, device, "float32").translate_n_best(held_out[0], config)]
        for device in ("cuda", "cpu")
    ]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("precision", ["auto", "bfloat16", "float16"])
def test_half_precision_translates_as_well(trained, held_out, precision):
    found = Translator.load(trained, "cuda", precision).translate(held_out[0], SearchConfig(beam=4))
    assert sum(one == other for one, other in zip(found, held_out[1], strict=True)) >= 0.9 * len(found)


def test_a_training_goes_on_where_it_was_interrupted(reversed_pairs, tmp_path, interrupting):
    whole, stopped = (settings(reversed_pairs, tmp_path / name, max_updates=60) for name in ("whole", "stopped"))
    train(whole)
    with interrupting(31):
        assert not train(stopped).finished
    assert resume(stopped.out).updates == 60
    logits = []
    for one in (whole, stopped):
        translator = Translator.load(one.out, "cpu", "float32")
        with inference(translator.engine.device):
            ids = torch.tensor([[3, 4, 5, 0]])
            logits.append(translator.engine.decode(ids, ids))
    assert_close(logits[0], logits[1], atol=2e-3, rtol=2e-3)  # a GPU adds up in an order of its own


# A step of training


def some_batch(vocabulary: int) -> Batch:
    lengths = [(5, 7), (11, 3), (2, 2), (7, 13), (130, 140)]
    ids = [[torch.randint(1, vocabulary - 1, (n,)) for n in side] for side in zip(*lengths, strict=True)]
    return Batch.of(*ids, vocabulary - 1, vocabulary - 1)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)])
def test_a_batch_has_the_loss_and_the_gradients_of_the_cpu(dtype, close):
    sizes = ModelConfig.tiny(source_vocab_size=211, target_vocab_size=211, dropout=0.0)
    on_cpu = Transformer(sizes)
    on_gpu = deepcopy(on_cpu).cuda()
    batch = some_batch(211)
    settings = dict(label_smoothing=0.1, clip_norm=0.0, optimizer="adam")
    expected, _ = Step(on_cpu, dtype=torch.float32, **settings).loss(batch)
    found, _ = Step(on_gpu, dtype=dtype, **settings).loss(batch.to(torch.device("cuda")))
    assert_close(found.float().cpu(), expected.float(), atol=0, rtol=close)
    expected.backward()
    found.backward()
    for (name, one), other in zip(on_cpu.named_parameters(), on_gpu.parameters(), strict=True):
        assert one.grad is not None, name
        assert other.grad is not None, name
        distance = (other.grad.cpu() - one.grad).norm()
        assert distance <= 3 * close * one.grad.norm() + 1e-4, name


# Steps of generation recorded as CUDA graphs


@pytest.mark.parametrize("beam", [1, 3])
def test_recorded_steps_are_replayed_and_change_no_id(beam):
    torch.manual_seed(2)
    model = Transformer(ModelConfig.tiny(source_vocab_size=97, target_vocab_size=97)).eval()
    on_gpu = Engine.of(deepcopy(model).cuda())
    sources = [torch.randint(1, 96, (n,)).tolist() for n in (13, 3, 7, 5, 2, 31)]
    found = [
        search_all(engine, sources, SearchConfig(beam=beam, max_length=90, min_length=70))
        for engine in (Engine.of(model), on_gpu)
    ]
    assert [[h.ids for h in best] for best in found[0]] == [[h.ids for h in best] for best in found[1]]


def test_a_recorded_step_gives_what_a_step_gives_that_is_not_recorded():
    model = Transformer(ModelConfig.tiny(source_vocab_size=97, target_vocab_size=97)).eval().cuda()
    engine = Engine.of(model)
    source, keep = pad_source([torch.randint(1, 96, (n,)) for n in (13, 3, 7)], 96)
    source, keep = source.cuda(), keep.cuda()
    with inference(engine.device):
        recorded, plain = (engine.start(source, keep, 2) for _ in range(2))
        assert isinstance(recorded, FixedCache)
        for _ in range(5):
            tokens = torch.randint(1, 96, (6,), device="cuda")
            found = engine.step(tokens, recorded)[0]
            plain.extend()
            expected = engine._decoder.step(tokens, plain, plain.position)[0]
            assert recorded.graph is not None
            finite = expected.isfinite()
            assert_close(found[finite], expected[finite], atol=1e-4, rtol=1e-4)


# Capture and pruning


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_capture_records_the_weights_of_an_encoder(dtype):
    layer = nn.TransformerEncoderLayer(96, 6, 128, batch_first=True, dtype=dtype, device="cuda")
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(3, 37, 96, device="cuda", dtype=dtype)
    padding = torch.arange(37, device="cuda") >= torch.tensor([[37], [9], [30]], device="cuda")
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=padding)
        with capture(model, Want(head_mean=True, entropy=True, received=True)) as captured:
            found = model(x, src_key_padding_mask=padding)
        _, weights = layer_attention(model, 0)(x, x, x, key_padding_mask=padding, average_attn_weights=False)
    rough = 1e-4 if dtype == torch.float32 else 6e-2
    assert_close(found[~padding], plain[~padding], atol=rough, rtol=rough)
    first = captured["layers.0.self_attn"]
    assert_close(first.head_mean.float(), weights.float().mean(1), atol=rough / 3, rtol=rough)
    assert_close(first.entropy.float(), torch.special.entr(weights.float()).sum(-1), atol=rough, rtol=rough)
    assert_close(first.received.float(), weights.float().sum(2), atol=rough, rtol=rough)


def layer_attention(model: nn.TransformerEncoder, number: int) -> nn.MultiheadAttention:
    attention = model.layers[number].self_attn
    assert isinstance(attention, nn.MultiheadAttention)
    return attention


def test_capture_records_a_hugging_face_model_in_bfloat16_while_it_generates():
    transformers = pytest.importorskip("transformers")
    sizes = dict(d_model=64, vocab_size=97, pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2)
    layers = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in LAYERS.items()}
    model = transformers.MarianMTModel(transformers.MarianConfig(**sizes, **layers, decoder_vocab_size=97))
    model = model.eval().to("cuda", torch.bfloat16)
    ids = torch.randint(3, 96, (2, 11), device="cuda")
    settings = dict(max_new_tokens=6, min_new_tokens=6, do_sample=False)
    with torch.no_grad():
        plain = model.generate(ids, **settings)
        with capture(model, Want(entropy=True, received=True, top=3)) as captured:
            assert torch.equal(model.generate(ids, **settings), plain)
    assert len(captured) == 6
    for name in captured:
        assert captured[name].entropy.isfinite().all()
        assert captured[name].received.isfinite().all()
        assert (captured[name].top.weights.sum(-1) <= 1 + 1e-3).all()


LAYERS = dict(layers=2, attention_heads=4, ffn_dim=96)


def test_observing_long_sequences_takes_memory_linear_in_their_length():
    peaks = []
    for length in (8192, 16384):
        q, k, v = (torch.randn(1, 4, length, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        observe(q, k, v, want=Want(entropy=True, received=True, distance=True, lse=True, top=8))
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 2.2 * peaks[0]


def test_pruning_on_the_gpu_leaves_half_the_heads(trained, reversed_pairs, tmp_path):
    files = dict(data=(reversed_pairs / "train.tsv",), valid=(reversed_pairs / "valid.tsv",))
    prune(PruneConfig(run=trained, out=tmp_path / "pruned", **files, updates=60, device="cuda"))
    config = Translator.load(tmp_path / "pruned", "cuda", "float32").engine.config
    names = [f"encoder.{n}.self_attention" for n in range(2)]
    names += [f"decoder.0.{name}" for name in ("self_attention", "source_attention")]
    assert sum(map(config.heads_of, names)) == 8
