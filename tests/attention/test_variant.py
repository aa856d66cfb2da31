"""Soft caps, sinks, windows and slopes in `observe`, with every mask, against their definitions in float64."""

import itertools
import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from glassformer.attention.kernels import choose
from glassformer.attention.kernels.blocks import Problem, groups
from glassformer.attention.kernels.blockwise import _kernels_take, _Settings
from glassformer.attention.observe import observe, observe_weights
from glassformer.attention.variant import Variant
from glassformer.attention.want import NOTHING, SUMMARY, Want
from glassformer.errors import ArgumentError

B, H, Q, K, D, V = 2, 3, 11, 13, 5, 7  # distinct primes: a swapped axis cannot pass
MASS, ALIGNED = torch.rand(B, 1, Q, K) < 0.5, torch.rand(1, Q, K) < 0.1  # some queries have no aligned key
NUMBERS = ("entropy", "received", "distance", "lse", "max_score")
EVERYTHING = Want(
    **dict.fromkeys(NUMBERS, True),
    **{"sink": 2, "mass": MASS, "agreement": ALIGNED, "top": 3, "rows": (4, -1), "head_mean": True, "weights": True},
)
KINDS: dict[str, Any] = {
    "softcap": 1.3,
    "sinks": torch.tensor([0.7, -math.inf, 1.5], dtype=torch.float64),
    "window": (3, 2),
    "slopes": torch.tensor([0.5, 0.25, 0.0625], dtype=torch.float64),
}
FACTS = ("output", *NUMBERS, "sink", "mass", "agreement", "top", "rows", "head_mean", "weights")
COMBINATIONS = [kinds for n in range(1, 5) for kinds in itertools.combinations(KINDS, n)]


def explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    window: Any = None,
    slopes: Tensor | None = None,
    stays: Tensor | float = 1.0,
    first_query: int = 0,
) -> dict[str, Tensor]:
    """The definitions, in float64: the output and every fact of EVERYTHING."""
    (*_, q_len, width), k_len, each = q.shape, k.shape[2], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
    i, j = torch.arange(q_len)[:, None] + (k_len - q_len if causal else first_query), torch.arange(k_len)
    s = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(width)
    s = s if softcap is None else softcap * (1 - 2 / ((2 * s / softcap).exp() + 1))  # tanh
    s = s if slopes is None else s - torch.einsum("h,qk->hqk", slopes, (i - j).abs().double())
    open_ = torch.ones_like(s, dtype=torch.bool) & (j <= i if causal else True) & (True if keep is None else keep)
    if window is not None:
        left, right = (math.inf if side is None else side for side in window)
        open_ = open_ & (i - j <= left) & (j - i <= right)
    if bias is not None:
        open_ = open_ & (bias > -math.inf)
        s = s + bias.where(bias > -math.inf, 0.0)
    exponentials = s.where(open_, 0.0).exp() * open_  # of small scores
    total = exponentials.sum(-1) + (0.0 if sinks is None else sinks.exp()[:, None])
    p = exponentials / total.where(total > 0, 1.0)[..., None]
    somewhere, w = open_.any(-1), p * stays
    return {
        "output": torch.einsum("bhqk,bhkd->bhqd", w, v),
        "entropy": -(p * p.where(p > 0, 1.0).log()).sum(-1),
        "received": torch.einsum("bhqk->bhk", w),
        "distance": torch.einsum("bhqk,qk->bhq", w, (i - j).abs().double()),
        "lse": total.where(total > 0, 1.0).log().where(total > 0, -math.inf),
        "max_score": s.where(open_, -1e9).amax(-1).where(somewhere, -math.inf),
        "sink": w[..., 0] + w[..., 1],
        "mass": torch.einsum("bhqk,bqk->bhq", w, MASS[:, 0].double()),
        "agreement": torch.einsum("bhqk,qk->bh", w, ALIGNED[0].double()) / (ALIGNED[0].sum(-1) > 0).sum(),
        "top": w.sort(-1, descending=True).values[..., :3],
        "rows": torch.stack([w[:, :, 4], w[:, :, -1]], 2),
        "head_mean": torch.einsum("bhqk->bqk", w) / w.shape[1],
        "weights": w,
    }


def heads(count: int = H, key_heads: int = H, dtype: Any = torch.float64) -> list[Tensor]:
    """Queries, keys and values as projections leave them, with gradients."""
    shapes = [(B, Q, count, D), (B, K, key_heads, D), (B, K, key_heads, V)]
    made = [2 * torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]
    return [x.transpose(1, 2).requires_grad_() for x in made]


def kinds_of(names: tuple[str, ...]) -> dict[str, Any]:
    """These arguments, with gradients where they are tensors."""
    return {name: x.clone().requires_grad_() if isinstance(x := KINDS[name], Tensor) else x for name in names}


@pytest.fixture(params=["plain", "4 rows of 2 heads", "all heads of both entries"])
def way(request, monkeypatch) -> None:
    """Attention goes this way, whatever the sizes."""
    monkeypatch.setattr(choose, "COMPILED_FROM_SCORES", 0)  # where it is installed it must not be taken
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", 10**9 if request.param == "plain" else 0)
    if request.param == "4 rows of 2 heads":
        monkeypatch.setattr(choose, "BLOCK_BYTES", {"cpu": 4 * 2 * K * 8})
        monkeypatch.setattr(choose, "BLOCK_ROWS", 4)


def rows_blocked() -> Tensor:
    """Random; two queries may look nowhere."""
    keep = torch.rand(B, H, Q, K) < 0.6
    keep[0, 1, 3] = keep[1, 2, -1] = False
    return keep


def padding() -> Tensor:
    keys = torch.arange(K)
    return torch.stack([(keys > 4) & (keys < 10), (keys > 1) & (keys < 6)])[:, None, None]


def some_bias() -> Tensor:
    bias = torch.randn(1, H, Q, K, dtype=torch.float64)
    return bias.masked_fill(torch.rand(bias.shape) < 0.2, -math.inf).requires_grad_()


MASKS = {
    "none": dict,
    "padding": lambda: {"keep": padding()},
    "of each": lambda: {"keep": rows_blocked()},
    "causal": lambda: {"causal": True},
    "bias": lambda: {"bias": some_bias()},
    "all": lambda: {"bias": some_bias(), "keep": rows_blocked(), "causal": True},
}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], close: float = 1e-10) -> None:
    for name, exact in expected.items():
        assert_close(
            found[name].to(exact.dtype), exact, atol=close, rtol=close, msg=lambda words, name=name: f"{name}: {words}"
        )


def assert_same_gradients(
    found: dict[str, Tensor], expected: dict[str, Tensor], inputs: list[Tensor], alone: Iterable[str] = FACTS
) -> None:
    """Compare gradients of all facts together and of some alone, in random directions."""
    names = [name for name, x in expected.items() if x.requires_grad]
    for chosen in (names, *([name] for name in names if name in alone)):
        towards = [torch.randn_like(expected[name]) for name in chosen]
        grads, exact = (
            torch.autograd.grad([one[n] for n in chosen], inputs, towards, materialize_grads=True, retain_graph=True)
            for one in (found, expected)
        )
        for grad, right in zip(grads, exact, strict=True):
            assert_close(grad, right, atol=1e-9, rtol=1e-9, msg=lambda words, chosen=chosen: f"{chosen}: {words}")


def in_turn(number: int) -> list[str]:
    """The one fact whose gradient this case takes alone; test_windows takes each alone in every case."""
    return [FACTS[number % len(FACTS)]]


# Every combination of four arguments, with every mask, in three forms.
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("names", COMBINATIONS, ids="+".join)
def test_every_fact_and_gradient_is_as_the_definitions_say(way, names, masks):
    inputs, kinds, given = heads(), kinds_of(names), MASKS[masks]()
    output, seen = observe(*inputs, **given, **kinds, want=EVERYTHING)
    found = {"output": output, **seen.tensors()}
    expected = explicit(*inputs, **given, **kinds)
    assert_same(found, expected)
    learnt = [*inputs, *(x for x in (given | kinds).values() if isinstance(x, Tensor) and x.requires_grad)]
    turn = COMBINATIONS.index(names) * len(MASKS) + list(MASKS).index(masks)
    assert_same_gradients(found, expected, learnt, in_turn(turn))


def test_numbers_computed_by_hand(way):
    # Query 0 has scores ln 3 and 0 beside a sink of ln 4: weights 3/8, 1/8 and 4/8. Query 1 has 0, 0: 1/6, 1/6, 4/6.
    q, k, v = (torch.tensor(x).view(1, 1, 2, 1) for x in ([math.log(3), 0.0], [1.0, 0.0], [8.0, 4.0]))
    sinks = torch.tensor([math.log(4)])
    output, seen = observe(q, k, v, sinks=sinks, want=Want(entropy=True, lse=True, max_score=True, sink=1))
    assert_close(output, torch.tensor([[[[3.5], [2.0]]]]))
    assert_close(seen.lse, torch.tensor([[[math.log(8), math.log(6)]]]))
    assert_close(seen.entropy, torch.tensor([[[3 / 8 * math.log(8 / 3) + math.log(8) / 8, math.log(6) / 3]]]))
    assert_close(seen.max_score, torch.tensor([[[math.log(3), 0.0]]]))
    assert_close(seen.sink, torch.tensor([[[3 / 8, 1 / 6]]]))


@pytest.mark.parametrize(("count", "key_heads"), [(6, 2), (6, 3), (5, 1), (4, 2)])
@pytest.mark.parametrize("names", [(), ("window",), tuple(KINDS)], ids=str)
@pytest.mark.parametrize("masks", ["none", "padding", "causal"])
def test_key_heads_that_serve_several(way, masks, names, count, key_heads):
    turn = count * key_heads + len(names) + 5 * list(MASKS).index(masks)
    inputs, given = heads(count, key_heads), MASKS[masks]()
    kinds = {name: KINDS[name] for name in names}
    kinds |= {n: torch.linspace(-1, 0.5, count).double() for n in ("sinks", "slopes") if n in kinds}
    output, seen = observe(*inputs, **given, **kinds, want=EVERYTHING)
    found, expected = {"output": output, **seen.tensors()}, explicit(*inputs, **given, **kinds)
    assert_same(found, expected)
    assert_same_gradients(found, expected, inputs, in_turn(turn))


def test_keys_that_serve_several_heads_are_not_repeated():
    q, k, v = (x.detach() for x in heads(6, 2))
    (group,) = groups(Problem(q, k, v, None, None, False, 1.0, q.dtype))
    assert group.k.shape == (B * 2, K, D)


@pytest.mark.parametrize("names", [("window",), ("slopes",), ("window", "slopes")], ids="+".join)
def test_windows_and_slopes_of_a_step_are_counted_from_its_first_query(way, names):
    inputs, given = heads(), {**kinds_of(names), "first_query": 4}
    output, seen = observe(*inputs, **given, want=EVERYTHING)
    found, expected = {"output": output, **seen.tensors()}, explicit(*inputs, **given)
    assert_same(found, expected)
    assert_same_gradients(found, expected, inputs)


@pytest.mark.parametrize("window", [0, 4, (None, None), (None, 1), (2, None), (0, 3), (20, 20)], ids=str)
@pytest.mark.parametrize("masks", ["none", "padding", "causal"])
def test_windows(way, masks, window):
    inputs, given = heads(), MASKS[masks]()
    sides = window if isinstance(window, tuple) else (window, window)
    output, seen = observe(*inputs, **given, window=window, want=EVERYTHING)
    found, expected = {"output": output, **seen.tensors()}, explicit(*inputs, **given, window=sides)
    assert_same(found, expected)
    assert_same_gradients(found, expected, inputs)


def test_queries_whose_window_has_no_keys_look_nowhere(way):
    q, k, v = heads()
    output, seen = observe(q, k[:, :, :2], v[:, :, :2], window=3, want=Want(lse=True, max_score=True, entropy=True))
    assert (seen.lse[:, :, 5:] == -math.inf).all()
    assert (seen.max_score[:, :, 5:] == -math.inf).all()
    assert not output[:, :, 5:].any()
    assert (seen.lse[:, :, :5] > -math.inf).all()


def test_blocks_compute_only_keys_within_the_window():
    q = torch.zeros(1, 2, 1009, D)
    problem = Problem(q, q, q, None, None, False, 1.0, q.dtype, variant=Variant(left=100, right=0))
    blocks = [block for group in groups(problem) for block in group.blocks()]
    assert max(block.keys.stop - block.keys.start for block in blocks) <= choose.BLOCK_ROWS + 100


def test_gradients_of_gradients(way):
    inputs, kinds = heads(), kinds_of(("softcap", "slopes"))
    kinds["sinks"] = torch.tensor([0.7, -1.0, 1.5], dtype=torch.float64, requires_grad=True)
    learnt = [*inputs, *(x for x in kinds.values() if isinstance(x, Tensor))]
    output, seen = observe(*inputs, **kinds, causal=True, want=EVERYTHING)
    both = []
    for one in ({"output": output, **seen.tensors()}, explicit(*inputs, **kinds, causal=True)):
        loss = sum(one[name].square().sum() for name in ("output", "entropy", "lse", "mass", "agreement", "max_score"))
        grads = torch.autograd.grad(loss, learnt, create_graph=True)
        both.append(torch.autograd.grad(sum(grad.square().sum() for grad in grads), learnt))
    assert_close(both[0], both[1])


@pytest.mark.parametrize("names", [(), tuple(KINDS)], ids=str)
def test_dropout_leaves_what_the_scores_say(way, names):
    inputs, kinds = heads(), kinds_of(names)
    output, seen = observe(*inputs, **kinds, dropout=0.4, want=EVERYTHING)
    found = {"output": output, **seen.tensors()}
    expected = explicit(*inputs, **kinds, stays=(seen.weights.detach() != 0).double() / 0.6)
    assert_same(found, expected)
    assert_same_gradients(found, expected, [*inputs, *(x for x in kinds.values() if isinstance(x, Tensor))])


@pytest.mark.parametrize("size", [-1e4, -50.0, 50.0, 1e4])
def test_sinks_much_larger_or_smaller_than_all_scores(way, size):
    inputs = [x.detach().requires_grad_() for x in heads(dtype=torch.float32)]
    sinks = torch.full((H,), size, requires_grad=True)
    output, seen = observe(*inputs, sinks=sinks, want=Want(entropy=True, lse=True))
    q, k, v = (x.double() for x in inputs)
    logits = torch.cat([q @ k.mT / math.sqrt(D), sinks.double()[:, None, None].expand(B, H, Q, 1)], -1)
    p = logits.log_softmax(-1)[..., :-1]
    exact = {"output": p.exp() @ v, "lse": logits.logsumexp(-1), "entropy": -(p.exp() * p).sum(-1)}
    assert_same({"output": output, **seen.tensors()}, exact, 1e-5)
    grads = torch.autograd.grad(seen.entropy.sum() + output.sum(), [*inputs, sinks])
    right = torch.autograd.grad(exact["entropy"].sum() + exact["output"].sum(), [*inputs, sinks])
    assert_close(grads, right, atol=1e-4, rtol=1e-4)


def test_half_precision(way):
    inputs = heads(dtype=torch.bfloat16)
    kinds = {name: x.bfloat16().requires_grad_() if isinstance(x, Tensor) else x for name, x in KINDS.items()}
    output, seen = observe(*inputs, **kinds, causal=True, want=EVERYTHING)
    assert output.dtype == torch.bfloat16
    exact = {name: x.double() if isinstance(x, Tensor) else x for name, x in kinds.items()}
    expected = explicit(*(x.double() for x in inputs), **exact, causal=True)
    assert_same({"output": output, **seen.tensors()}, expected, 5e-2)
    (grad,) = torch.autograd.grad(seen.lse.sum(), kinds["sinks"])
    (right,) = torch.autograd.grad(expected["lse"].sum(), kinds["sinks"])
    assert_close(grad, right, atol=5e-2, rtol=5e-2)


def test_a_query_that_may_look_nowhere_gives_all_to_the_sink(way):
    keep = torch.zeros(1, 1, 1, K, dtype=torch.bool)
    output, seen = observe(*heads(), keep=keep, sinks=KINDS["sinks"], want=EVERYTHING)
    assert_close(seen.lse[1, :, 4], KINDS["sinks"])
    assert (seen.max_score == -math.inf).all()
    assert not any(x.any() for x in (output, seen.entropy, seen.weights, seen.sink, seen.mass, seen.agreement))


def test_without_keys(way):
    q, k, v = heads()
    want = Want(entropy=True, lse=True, max_score=True, mass=MASS[..., :0], agreement=ALIGNED[..., :0])
    output, seen = observe(q, k[:, :, :0], v[:, :, :0], sinks=KINDS["sinks"], want=want)
    assert_close(seen.lse[1, :, 4], KINDS["sinks"])
    assert (seen.max_score == -math.inf).all()
    assert not any(x.any() for x in (output, seen.entropy, seen.mass, seen.agreement))


def test_equal_largest_scores_share_the_gradient(way):
    q, k, v = (x.detach() for x in heads())
    bias = torch.zeros(1, 1, Q, K, dtype=torch.float64, requires_grad=True)
    _, seen = observe(0 * q, k, v, bias=bias, want=Want(max_score=True))
    (grad,) = torch.autograd.grad(seen.max_score.sum(), bias)
    assert_close(grad, torch.full_like(grad, B * H / K))


def test_function_transforms(way):
    q, k, v = heads()
    both = torch.randn(2, H, dtype=torch.float64)
    found = torch.vmap(lambda x: observe(q, k, v, sinks=x, softcap=2.0)[1].entropy)(both)
    assert_close(found, torch.stack([explicit(q, k, v, sinks=x, softcap=2.0)["entropy"] for x in both]))


def test_a_mask_changed_before_the_backward_pass_is_an_error(monkeypatch):
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", 0)
    mask = MASS.clone()
    _, seen = observe(*heads(), want=Want(mass=mask))
    mask.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        seen.mass.sum().backward()


def test_facts_of_weights_that_exist():
    expected = explicit(*(x.detach() for x in heads()))
    seen = observe_weights(expected["weights"], EVERYTHING)
    for name in ("sink", "mass", "agreement"):
        assert_close(getattr(seen, name), expected[name])
    assert "max_score" not in seen.tensors()
    with pytest.raises(ArgumentError, match=r"mass must broadcast to .* = \(2, 3, 11, 13\), got \(2, 1, 11, 12\)"):
        observe_weights(expected["weights"], Want(mass=MASS[..., 1:]))


@pytest.mark.parametrize("length", [2, 300])
@pytest.mark.parametrize("window", [2**64, (10**30, None)])
def test_a_window_may_be_wider_than_any_text(window, length):
    q, k, v = (torch.randn(1, 2, length, 8) for _ in range(3))
    expected = observe(q, k, v, want=Want(entropy=True))
    found = observe(q, k, v, window=window, want=Want(entropy=True))
    assert found[0].shape == q.shape
    assert_close(found[0], expected[0])
    assert_close(found[1].entropy, expected[1].entropy)


OF_WINDOWS = r"window must be a whole number of positions, 0 or more, or \(left, right\), .* got "
WRONG = {
    r"softcap must be a number above 0, got 0: Gemma 2 has 50.0": {"softcap": 0},
    r"softcap must be a number above 0, got nan": {"softcap": math.nan},
    r"softcap must be a number above 0, got True": {"softcap": True},
    r"sinks must be floating-point, one for each head, \(3,\), got torch.float32 \(4,\)": {"sinks": torch.zeros(4)},
    r"sinks must be floating-point, .* got torch.int64 \(3,\)": {"sinks": torch.arange(3)},
    r"sinks must be a tensor, got \[0.0, 0.0, 0.0\]": {"sinks": [0.0] * 3},
    r"slopes must be floating-point, .* got torch.float32 \(1, 3\)": {"slopes": torch.zeros(1, 3)},
    r"slopes must be where q is, on cpu, got meta: pass slopes.to": {"slopes": torch.zeros(3, device="meta")},
    OF_WINDOWS + "-1": {"window": -1},
    OF_WINDOWS + "2.5": {"window": 2.5},
    OF_WINDOWS + r"\(1, 2, 3\)": {"window": (1, 2, 3)},
    OF_WINDOWS + "True": {"window": True},
    r"sink must be at most the number of keys, 13, got 14": {"want": Want(sink=14)},
    r"mass must broadcast to .* = \(2, 3, 11, 13\), got \(2, 1, 13, 11\): it looks transposed, pass mass.mT": {
        "want": Want(mass=MASS.mT)
    },
    r"mass must be where the weights are, on cpu, got meta": {"want": Want(mass=MASS.to("meta"))},
    r"agreement must be \(batch, q_len, k_len\) = \(2, 11, 13\), or 1 .*, got \(1, 13, 11\): it looks transposed": {
        "want": Want(agreement=ALIGNED.mT)
    },
    r"agreement must be .* got \(3, 11, 13\)$": {"want": Want(agreement=ALIGNED.expand(3, -1, -1))},
}


@pytest.mark.parametrize("message", WRONG)
@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments_are_explained(message):
    with pytest.raises(ArgumentError, match=message):
        observe(*heads(), **({"want": NOTHING} | WRONG[message]))


def test_a_square_alignment_of_another_batch_is_not_called_transposed():
    q, _, _ = heads()
    with pytest.raises(ArgumentError, match=r"agreement must be .*, got \(3, 11, 11\)$"):
        observe(q, q, q, want=Want(agreement=torch.ones(3, Q, Q, dtype=torch.bool)))


# Which form computes them


@pytest.mark.parametrize("names", [(), *((name,) for name in KINDS)], ids=lambda names: names[0] if names else "none")
def test_compiled_functions_leave_them_to_the_blocks(names, monkeypatch):
    if not choose.compiler_is_there():
        pytest.skip("numba isn't installed, or there is no FMA here")
    from glassformer.attention.kernels.compiled import attend as compiled

    taken: list[Problem] = []
    attend_compiled = compiled.attend_compiled
    monkeypatch.setattr(compiled, "attend_compiled", lambda of, want: taken.append(of) or attend_compiled(of, want))
    monkeypatch.setattr(choose, "COMPILED_FROM_SCORES", 0)
    monkeypatch.setattr(choose, "BLOCKS_FROM_SCORES", 0)
    observe(*heads(dtype=torch.float32), **{name: KINDS[name] for name in names})
    assert len(taken) == (not names)


VARIANTS = {
    "softcap": Variant(softcap=1.3),
    "sinks": Variant(sinks=torch.zeros(H)),
    "window": Variant(left=3, right=2),
    "slopes": Variant(slopes=torch.ones(H)),
}


@pytest.mark.parametrize("name", ["none", *VARIANTS])
def test_a_gpus_kernels_leave_them_to_the_blocks(name, monkeypatch):
    monkeypatch.setattr(choose, "triton_is_there", lambda: True)
    with FakeTensorMode():  # tensors that say they are on a GPU, where there is none
        q = torch.empty(B, H, Q, D, device="cuda")
        of = Problem(q, q, q, None, None, False, 1.0, torch.float32, variant=VARIANTS.get(name))
        assert _kernels_take(of, _Settings(0.0, 0, SUMMARY)) == (name == "none")
