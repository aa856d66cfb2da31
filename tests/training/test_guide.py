"""Guided attention against the same computed pair by pair, and what a head learns by it."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer.alignment.hmm import MOST_FERTILE, Direction
from glassformer.alignment.jumps import LONGEST_JUMP
from glassformer.alignment.model import AlignmentModel
from glassformer.attention.functional import compute_attention
from glassformer.data.corpus import Corpus
from glassformer.errors import ConfigError, RunError
from glassformer.insight.prune import without_heads
from glassformer.run.config import TrainingRecord
from glassformer.run.folder import load_run, write_config, write_weights
from glassformer.text.batching import Batch
from glassformer.text.tokenizer import SymbolTokenizer
from glassformer.training import guide
from glassformer.training.config import TrainConfig
from glassformer.training.guide import GUIDED, Guide
from glassformer.training.objective import Objective
from glassformer.training.train import resume, train
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

SOURCE_VOCAB, TARGET_VOCAB = 17, 19
SOURCE_PAD, TARGET_PAD = SOURCE_VOCAB - 1, TARGET_VOCAB - 1
WEIGHT = 0.3
LENGTHS = [(5, 7), (11, 3), (2, 2), (7, 13), (3, 1)]
CLOSE = dict(rtol=1e-6, atol=1e-6)  # alignments are float32

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def model() -> Transformer:
    sizes = dict(d_model=6, heads=2, encoder_layers=1, decoder_layers=2, d_ff=13, dropout=0.0)
    vocabularies = dict(source_vocab_size=SOURCE_VOCAB, target_vocab_size=TARGET_VOCAB, shared_vocab=False)
    return Transformer(ModelConfig(**sizes, **vocabularies)).double()


@pytest.fixture
def aligner() -> AlignmentModel:
    """One that has any pair of tokens for likely, by chance more or less."""

    def drawn(source_vocab: int, target_vocab: int) -> Direction:
        cells, likely = torch.arange(source_vocab * target_vocab), torch.rand(source_vocab * target_vocab)
        none, jumps = torch.full((target_vocab,), 1 / target_vocab), torch.rand(2 * LONGEST_JUMP + 1)
        return Direction(cells, likely, none, jumps, torch.rand(source_vocab, MOST_FERTILE))

    return AlignmentModel(drawn(SOURCE_VOCAB, TARGET_VOCAB), drawn(TARGET_VOCAB, SOURCE_VOCAB))


@pytest.fixture
def sequences() -> list[list[Tensor]]:
    """Ids that end with `</s>`, 0."""
    return [
        [torch.cat([torch.randint(1, pad, (n - 1,)), torch.zeros(1).long()]) for n, pad in sides]
        for sides in (zip(both, (SOURCE_PAD, TARGET_PAD), strict=True) for both in LENGTHS)
    ]


def heads_of(model: Transformer, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys of the guided attention for one pair."""
    found = []

    def looking(of, dropout, want):
        found.append((of.q[0], of.k[0]))
        return compute_attention(of, dropout, want)

    target_in = torch.cat([torch.tensor([model.target_pad]), target[:-1]])
    with model.attentions[GUIDED].computed_by(looking):
        model.decode(target_in[None], model.start(model.encode(source[None])))
    return found[0]


def test_it_equals_the_sum_over_pairs(model, aligner, sequences):
    expected = torch.zeros((), dtype=torch.double)
    for source, target in sequences:
        (alignment,) = aligner.align(source[None], target[None])
        q, k = heads_of(model, source, target)
        weights = (q[0] @ k[0].T / 3**0.5).softmax(1)
        for t in range(1, len(target)):  # what was read at t is target token t - 1
            expected = expected - WEIGHT * (alignment[t - 1] * weights[t].log()).sum()
    expected_grads = torch.autograd.grad(expected, parameters := list(model.parameters()), allow_unused=True)

    batch = Batch.of(*zip(*sequences, strict=True), SOURCE_PAD, TARGET_PAD)
    plain, plain_nll = Objective(model, torch.float64, 0.1)(batch)
    guided, nll = Objective(model, torch.float64, 0.1, guide=Guide(aligner, WEIGHT))(batch)

    assert_close(guided - plain, expected, **CLOSE)
    assert_close(nll, plain_nll, **CLOSE)
    grads = torch.autograd.grad(guided - plain, parameters)
    for ours, theirs in zip(grads, expected_grads, strict=True):
        assert_close(ours, torch.zeros_like(ours) if theirs is None else theirs, **CLOSE)


def test_with_r_drop_it_is_the_mean_of_both_passes(model, aligner, sequences):
    batch = Batch.of(*zip(*sequences, strict=True), SOURCE_PAD, TARGET_PAD)
    (once, twice) = (
        Objective(model, torch.float64, 0.1, r_drop, Guide(aligner, WEIGHT))(batch)[0]
        - Objective(model, torch.float64, 0.1, r_drop)(batch)[0]
        for r_drop in (0.0, 5.0)
    )
    assert_close(once, twice, **CLOSE)


def right_looks(folder: Path, pairs: Corpus) -> list[float]:
    """By head: for how many of the tokens that have been read it looks most at what they stand for."""
    model = load_run(folder).model
    aligner = AlignmentModel.of_corpus(pairs, model.config.source_vocab_size, model.config.target_vocab_size)
    right = []
    for source, target in ((pairs.source[n].long(), pairs.target[n].long()) for n in range(30)):
        q, k = heads_of(model, source, target)
        looks = (q[:, 1:] @ k.transpose(1, 2)).argmax(2)
        right.append(looks == aligner.align(source[None], target[None])[:, :-1].argmax(2))
    return torch.cat(right, dim=1).float().mean(1).tolist()


@pytest.mark.usefixtures("unchecked")
def test_the_head_comes_to_look_at_the_source_of_the_token_just_written(interrupted):
    # Slow: it is learned, in 200 updates.
    changes = dict(max_updates=201, learning_rate=1e-2, d_model=32, dropout=0.0, validate_every=200)
    config = interrupted(200, guide=1.0, **changes)  # or the pairs would be gone
    guided, free = right_looks(config.out, Corpus(config.out / "resume" / "train"))
    assert guided > 0.75
    assert free < 0.5


def test_an_interrupted_run_goes_on_as_it_would_have(settings, interrupted, files, monkeypatch):
    train(whole := settings("whole", guide=0.5, max_updates=12))
    config = interrupted(7, guide=0.5, max_updates=12)
    monkeypatch.setattr(guide.AlignmentModel, "of_corpus", None)  # it was learned
    resume(config.out)
    assert files.outcome(config.out) == files.outcome(whole.out)


def test_a_damaged_alignment_is_reported(interrupted):
    config = interrupted(7, guide=0.5, max_updates=12)
    path = config.out / "resume" / "alignment.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunError, match=r"alignment\.safetensors is damaged"):
        resume(config.out)


def test_without_a_head_to_guide_it_says_so(random_run, pairs, tmp_path):
    symbols, folder = SymbolTokenizer("abcdefg"), tmp_path / "run"
    model = without_heads(random_run(folder, symbols, symbols).model, {GUIDED: [0, 1, 2]})
    write_config(folder, model.config, symbols, symbols, TrainingRecord())
    write_weights(folder, model.state_dict())
    message = "`guide` needs a head in decoder.0.source_attention, of which the model has none left: leave it out"
    with pytest.raises(ConfigError, match=f"^{message}$"):
        train(TrainConfig(source=pairs / "train.tsv", from_=folder, out=tmp_path / "guided", guide=0.5, device="cpu"))
    assert not (tmp_path / "guided").exists(), "a run in its place would be lost for settings that can't be trained"
