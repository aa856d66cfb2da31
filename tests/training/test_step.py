"""A step against the same computed with padded batches, torch's cross-entropy and torch's plain Adam."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close

from glassformer.text.batching import Batch
from glassformer.training.config import OPTIMIZERS
from glassformer.training.distributed import Processes
from glassformer.training.step import Step
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

SOURCE_VOCAB, TARGET_VOCAB = 17, 19
SOURCE_PAD, TARGET_PAD = SOURCE_VOCAB - 1, TARGET_VOCAB - 1
LENGTHS = [(5, 7), (11, 3), (2, 2), (7, 13), (3, 11), (1, 5)]
"""In rows of 30 for 29 source tokens, and of 44 for 41 target ones: what fills them up must count for nothing."""
TOKENS = 41
SMOOTHING = 0.1
EXACT = dict(rtol=1e-10, atol=1e-10)

# torch says so of float64, in which nothing is cast.
pytestmark = pytest.mark.filterwarnings("ignore:In CPU autocast, but the target dtype is not supported")

Pair = tuple[Tensor, Tensor]


def make(dtype: torch.dtype = torch.float64, **changes) -> Transformer:
    sizes = dict(d_model=6, heads=2, encoder_layers=2, decoder_layers=2, d_ff=13, dropout=0.0)
    vocabularies = dict(source_vocab_size=SOURCE_VOCAB, target_vocab_size=TARGET_VOCAB, shared_vocab=False)
    return Transformer(ModelConfig(**{**sizes, **vocabularies, **changes})).to(dtype)


def step_of(model: Transformer, dtype: torch.dtype = torch.float64, **changes) -> Step:
    return Step(model, dtype=dtype, label_smoothing=SMOOTHING, **{"clip_norm": 0.0, "optimizer": "adam", **changes})


def some_pairs(lengths: list[tuple[int, int]] = LENGTHS) -> list[Pair]:
    """Ids that end with `</s>`, 0."""
    return [
        tuple(torch.cat([torch.randint(1, pad, (n - 1,)), torch.zeros(1, dtype=torch.long)]) for n, pad in sides)
        for sides in (zip(pair, (SOURCE_PAD, TARGET_PAD), strict=True) for pair in lengths)
    ]


def batch_of(pairs: list[Pair], source_pad: int = SOURCE_PAD) -> Batch:
    return Batch.of(*zip(*pairs, strict=True), source_pad, TARGET_PAD)


def padded_loss(model: Transformer, pairs: list[Pair], smoothing: float = SMOOTHING) -> Tensor:
    """Summed over the tokens, from the logits of a padded batch."""
    source, target = (
        pad_sequence(side, batch_first=True, padding_value=pad)
        for side, pad in zip(zip(*pairs, strict=True), (model.source_pad, TARGET_PAD), strict=True)
    )
    target_in = torch.cat([torch.full((len(pairs), 1), TARGET_PAD), target[:, :-1]], dim=1)
    logits, real = model(source, target_in), target != TARGET_PAD
    return F.cross_entropy(logits[real], target[real], label_smoothing=smoothing, reduction="sum")


def gradients(model: Transformer, loss: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def gradients_taken(step: Step, batches: list[Batch], tokens: int | None = None) -> dict[str, Tensor]:
    """Those with which the optimizer is called."""
    seen: dict[str, Tensor] = {}
    handle = step.optimizer.adam.register_step_pre_hook(
        lambda *_: seen.update({name: p.grad.clone() for name, p in step.model.named_parameters()})
    )
    step.update(batches, rate=0.1, number=3, tokens=tokens)
    handle.remove()
    return seen


def norm(gradients: dict[str, Tensor]) -> float:
    return torch.cat([grad.flatten() for grad in gradients.values()]).norm().item()


# The loss


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_first": True, "final_norm": True},
        {"shared_vocab": True, "source_vocab_size": TARGET_VOCAB},
        {"tied_output": False, "activation": "gelu", "scale_embedding": False},
    ],
    ids=str,
)
def test_loss_and_gradients_are_those_of_a_padded_batch(changes):
    model, pairs = make(**changes), some_pairs()
    expected = padded_loss(model, pairs)
    loss, nll = step_of(model).loss(batch_of(pairs, model.source_pad))
    assert_close(loss, expected, **EXACT)
    assert_close(nll, padded_loss(model, pairs, smoothing=0.0), **EXACT)
    assert_close(gradients(model, loss), gradients(model, expected), **EXACT)
    with torch.no_grad():
        assert_close(step_of(model).loss(batch_of(pairs, model.source_pad)), (loss.detach(), nll.detach()), **EXACT)


def test_bfloat16_is_near_float32():
    model, batch = make(torch.float32, d_model=64, heads=4), batch_of(some_pairs())
    seen: list[torch.dtype] = []
    model.encoder[0].feed_forward.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    loss, nll = step_of(model, torch.float32).loss(batch)
    half_loss, half_nll = step_of(model, torch.bfloat16).loss(batch)
    assert loss.dtype == half_loss.dtype == torch.float32
    assert seen == [torch.float32, torch.bfloat16]
    assert_close(half_loss, loss, rtol=1e-2, atol=0.0)
    assert_close(half_nll, nll, rtol=1e-2, atol=0.0)
    exact, half = gradients(model, loss), gradients(model, half_loss)
    apart = norm({name: half[name] - exact[name] for name in exact})
    assert apart < 0.03 * norm(exact)
    assert all(grad.dtype == torch.float32 for grad in half.values())


# The step


def test_it_returns_the_summed_loss_and_divides_gradients_by_the_tokens():
    model, pairs = make(), some_pairs()
    expected = padded_loss(model, pairs)
    wanted = gradients(model, expected / TOKENS)
    before = copy.deepcopy(model)
    step = step_of(model)
    assert_close(gradients_taken(step, [batch_of(pairs)]), wanted, **EXACT)
    assert all(parameter.grad is None for parameter in model.parameters())
    taken = step_of(before).update([batch_of(pairs)], rate=0.1, number=3)
    assert not taken.loss.requires_grad
    assert_close(taken.loss.double(), expected.detach(), rtol=1e-6, atol=0.0)
    assert taken.tokens == TOKENS


def test_the_tokens_of_other_processes_make_its_gradients_shorter():
    model, pairs = make(), some_pairs()
    expected = gradients_taken(step_of(copy.deepcopy(model)), [batch_of(pairs)])
    found = gradients_taken(step_of(model), [batch_of(pairs)], tokens=3 * TOKENS)
    assert_close(found, {name: grad / 3 for name, grad in expected.items()}, **EXACT)


def test_a_batch_that_stands_in_counts_for_nothing():
    model, pairs = make(), some_pairs()
    alone = step_of(copy.deepcopy(model))
    expected = alone.update([batch_of(pairs)], rate=0.1, number=3)
    step, stand_in = step_of(model), replace(batch_of(pairs[:2]), counted=False)
    assert step.update([batch_of(pairs), stand_in], rate=0.1, number=3, tokens=TOKENS) == expected
    assert_close(step.model.state_dict(), alone.model.state_dict(), **EXACT)


def test_the_gradients_of_several_batches_are_those_of_one():
    pairs = some_pairs()
    model = make()
    expected = gradients_taken(step_of(copy.deepcopy(model)), [batch_of(pairs)])
    parts = [batch_of(pairs[:1]), batch_of(pairs[1:4]), batch_of(pairs[4:])]
    assert_close(gradients_taken(step_of(copy.deepcopy(model)), parts), expected, **EXACT)
    whole = step_of(copy.deepcopy(model)).update([batch_of(pairs)], rate=0.1, number=3)
    assert_close(step_of(model).update(parts, rate=0.1, number=3), whole)


def test_gradients_are_clipped_to_their_norm():
    model, batches = make(), [batch_of(some_pairs())]
    whole = gradients_taken(step_of(copy.deepcopy(model)), batches)
    length = norm(whole)
    clipped = gradients_taken(step_of(copy.deepcopy(model), clip_norm=length / 7), batches)
    assert_close(clipped, {name: grad / 7 for name, grad in whole.items()}, rtol=1e-4, atol=1e-10)
    assert norm(clipped) == pytest.approx(length / 7, rel=1e-4)
    untouched = gradients_taken(step_of(copy.deepcopy(model), clip_norm=7 * length), batches)
    assert_close(untouched, whole, **EXACT)


def test_steps_are_adams_with_the_papers_constants_and_the_rate_of_each():
    model, pairs = make(), some_pairs()
    step, expected = step_of(model), copy.deepcopy(model)
    adam = torch.optim.Adam(expected.parameters(), betas=(0.9, 0.98), eps=1e-9)  # section 5.3
    for number, rate in enumerate((0.003, 0.1, 0.0, 0.02), start=1):
        step.update([batch_of(pairs)], rate=rate, number=number)
        adam.param_groups[0]["lr"] = rate
        adam.zero_grad()
        (padded_loss(expected, pairs) / TOKENS).backward()
        adam.step()
        # Far from zero Adam divides by the gradient: where that is rounding alone, so is the step (the keys' bias).
        for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            certain = adam.state[theirs]["exp_avg"].abs() > 1e-9
            assert_close(ours[certain], theirs[certain], rtol=1e-6, atol=1e-8)
            theirs.data.copy_(ours.data)
    assert (model.target_embedding.weight[-1] == 0).all()
    assert (model.source_embedding.weight[-1] == 0).all()


def test_dropout_follows_the_seed_of_the_step():
    model, batches = make(torch.float32, dropout=0.3), [batch_of(some_pairs())]
    taken = {}
    for run, seed in (("a", 5), ("b", 5), ("c", 6)):
        own = copy.deepcopy(model)
        torch.rand(len(taken))  # what was drawn before has no part in it
        loss = step_of(own, torch.float32).update(batches, rate=0.1, number=seed).loss
        taken[run] = (loss, *own.state_dict().values(), torch.rand(1))
    assert all(torch.equal(x, y) for x, y in zip(taken["a"], taken["b"], strict=True))
    assert taken["a"][0] != taken["c"][0]


def test_each_process_run_and_update_draws_its_own_dropout():
    drawn = set()
    for rank in range(5):
        for seed in (0, 1):
            step = step_of(make(), processes=Processes(rank), seed=seed)
            for number in (7, 8):
                step.update([batch_of(some_pairs([(2, 3)]))], rate=0.0, number=number)
                drawn.add(torch.initial_seed())
    assert len(drawn) == 5 * 2 * 2
    assert {7, 8} <= drawn


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_and_the_optimizers_state_stay_as_long_as_they_are(optimizer):
    model = make(torch.float32)
    step = step_of(model, torch.bfloat16, optimizer=optimizer)
    step.update([batch_of(some_pairs())], rate=0.1, number=3)
    assert len(state(step)) > 2 * len(list(model.parameters()))
    assert {tensor.dtype for tensor in state(step).values()} == {torch.float32}


# Updates that would do harm


@contextmanager
def spoiling(model: Transformer, *, output: float = 1.0, gradient: float = 1.0) -> Iterator[None]:
    """A layer's activations are multiplied by `output`, their gradient by `gradient`."""

    def spoil(module: torch.nn.Module, inputs: object, activations: Tensor) -> Tensor:
        if activations.requires_grad:
            activations.register_hook(lambda grad: grad * gradient)
        return activations * output

    handle = model.decoder[0].feed_forward.register_forward_hook(spoil)
    try:
        yield
    finally:
        handle.remove()


def state(step: Step) -> dict[str, Tensor]:
    """Weights and the optimizer's state."""
    named = dict(step.model.named_parameters())
    kept = {f"{name} {key}": t.clone() for name, p in named.items() for key, t in step.optimizer.state(p).items()}
    return kept | {name: parameter.detach().clone() for name, parameter in named.items()}


@pytest.mark.parametrize(("taken_before", "clip_norm"), [(0, 0.0), (2, 0.1)])
@pytest.mark.parametrize("place", ["output", "gradient"])
@pytest.mark.parametrize("harm", [math.nan, math.inf])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_harmful_update_changes_nothing_and_the_next_goes_on(taken_before, clip_norm, place, harm, optimizer):
    model = make(torch.float32, dropout=0.3, encoder_layers=1, decoder_layers=1)
    changes = dict(clip_norm=clip_norm, optimizer=optimizer)
    step, undisturbed = (step_of(copy.deepcopy(model), torch.float32, **changes) for _ in range(2))
    pairs = some_pairs()
    parts = [batch_of(pairs[:1]), batch_of(pairs[1:])]
    for seed in range(taken_before):
        for each in (step, undisturbed):
            each.update(parts, rate=0.1, number=seed)
    before = state(step)
    with spoiling(step.model, **{place: harm}):
        assert step.update(parts, rate=0.1, number=7) == (0, 0)
    assert step.outliers.left_out() == (1, 1)
    assert_close(state(step), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in step.model.parameters())
    for seed in (8, 9):
        for each in (step, undisturbed):
            assert each.update(parts, rate=0.1, number=seed).tokens == TOKENS
    assert_close(state(step), state(undisturbed), rtol=0, atol=0)
    assert state(step)["target_embedding.weight step"] == taken_before + 2
    assert step.outliers.left_out() == (0, 1)


def test_one_of_several_batches_spoils_the_update():
    step = step_of(make(torch.float32, encoder_layers=1, decoder_layers=1), torch.float32)
    good, bad = batch_of(some_pairs()), batch_of(some_pairs([(7, 3)]))
    before = state(step)
    spoil = step.model.decoder[0].feed_forward.register_forward_hook(
        lambda module, inputs, output: output * (math.nan if output.shape[-2] < 40 else 1)
    )
    assert step.update([good, bad, good], rate=0.1, number=3).tokens == 0
    assert_close(state(step), before, rtol=0, atol=0)
    spoil.remove()
    assert step.update([good, bad, good], rate=0.1, number=3).tokens == 2 * TOKENS + 3


def test_a_loss_that_jumps_is_left_out_though_all_is_finite():
    model, batches = make(torch.float32, encoder_layers=1, decoder_layers=1), [batch_of(some_pairs([(2, 3)]))]
    step = step_of(model, torch.float32)
    for seed in range(3):
        step.update(batches, rate=1e-3, number=seed)
    step.outliers.state[2] = 100  # as many as it takes to tell a jump
    before = state(step)
    weight = model.target_embedding.weight.detach()
    weight *= 300  # which makes the output's logits larger too
    assert step.update(batches, rate=1e-3, number=3).tokens == 0
    weight.copy_(before["target_embedding.weight"])
    assert_close(state(step), before, rtol=0, atol=0)
    assert step.update(batches, rate=1e-3, number=4).tokens == 3
    assert step.outliers.left_out() == (0, 1)
