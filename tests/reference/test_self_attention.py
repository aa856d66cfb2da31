import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer.attention.multihead import MultiheadAttention
from glassformer.reference.self_attention import SelfAttention
from glassformer.reference.weights import self_attention_to_fast

B, L, X, D, V = 2, 5, 11, 7, 3  # batch, length, dim_q, dim_k, dim_v: distinct primes, a swapped axis cannot pass
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FORMS = ["none", "open", "padding", "causal", "key alone", "random", "blocked rows"]


def sequence(dtype: torch.dtype = torch.float64, width: int = X) -> Tensor:
    return torch.randn(B, L, width, dtype=dtype, requires_grad=True)


def mask_of(form: str) -> Tensor | None:
    """Broadcasts to (batch, query, key), True = may look."""
    random = torch.rand(B, L, L) < 0.5
    blocked_rows = random.clone()
    blocked_rows[:, 2] = False  # one query of every sentence, and every query of the second
    blocked_rows[1] = False
    return {
        "none": None,
        "open": torch.ones(B, L, L, dtype=torch.bool),
        "padding": (torch.arange(L) < torch.tensor([L, 3])[:, None])[:, None],
        "causal": torch.ones(L, L, dtype=torch.bool).tril(),
        "key alone": torch.tensor([True, False, True, True, False]),
        "random": random,
        "blocked rows": blocked_rows,
    }[form]


def expanded(mask: Tensor | None) -> Tensor:
    return torch.ones(B, L, L, dtype=torch.bool) if mask is None else mask.expand(B, L, L)


# What it computes


def test_the_demonstration_blocks_the_last_eight_keys():
    attention = SelfAttention(dim_q=512, dim_k=64, dim_v=64)
    mask = torch.ones(2, 16, 16)
    mask[:, :, 8:] = 0
    attended, weights = attention(torch.randn(2, 16, 512), mask)
    assert attended.shape == (2, 16, 64)
    assert weights.shape == (2, 16, 16)
    assert f"{weights[:, :, 8:].mean():.6f}" == "0.000000"
    assert_close(weights[:, :, :8].sum(-1), torch.ones(2, 16))


def test_attention_worked_by_hand():
    # Keys are 4 wide: scores are halved, sqrt(4). Values, not inputs, are what the weights multiply.
    attention = SelfAttention(dim_q=2, dim_k=4, dim_v=1).double()
    x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    attention.linear_q.weight.data = torch.tensor([[2.0, 0], [0, 0], [0, 2], [0, 0]], dtype=torch.float64)
    attention.linear_k.weight.data = torch.tensor(
        [[math.log(3), 0.0], [0, 7], [0, math.log(4)], [7, 0]], dtype=torch.float64
    )
    attention.linear_v.weight.data = torch.tensor([[40.0, 80.0]], dtype=torch.float64)
    attended, weights = attention(x)
    # q = (2, 0, 0, 0), (0, 0, 2, 0); k = (log 3, 0, 0, 7), (0, 7, log 4, 0); v = 40, 80. Halved, the first query's
    # scores are log 3 and 0: weights 3 : 1. The second's are 0 and log 4: 1 : 4.
    assert_close(weights, torch.tensor([[[3 / 4, 1 / 4], [1 / 5, 4 / 5]]], dtype=torch.float64))
    assert_close(attended, torch.tensor([[[50.0], [72.0]]], dtype=torch.float64))


@pytest.mark.parametrize("form", FORMS)
def test_it_looks_as_one_query_after_the_other(look, form):
    attention, x, mask = SelfAttention(X, D, V).double(), sequence(), mask_of(form)
    attended, weights = attention(x, mask)
    assert attended.shape == (B, L, V)
    assert weights.shape == (B, L, L)
    q, k, v = (x @ linear.weight.T for linear in (attention.linear_q, attention.linear_k, attention.linear_v))
    for b in range(B):
        expected, expected_weights = look(q[b], k[b], v[b], expanded(mask)[b])
        assert_close(attended[b], expected)
        assert_close(weights[b], expected_weights)


def test_it_is_three_linear_maps_without_bias():
    shapes = {name: tuple(parameter.shape) for name, parameter in SelfAttention(X, D, V).named_parameters()}
    assert shapes == {"linear_q.weight": (D, X), "linear_k.weight": (D, X), "linear_v.weight": (V, X)}


def test_patches_of_an_image_are_a_sequence_like_any_other():
    patches = F.unfold(torch.randn(B, 3, 8, 8), kernel_size=4, stride=4).transpose(1, 2)  # 2 x 2 patches of 3 x 4 x 4
    attention = SelfAttention(3 * 4 * 4, D, V)
    attended, weights = attention(patches)
    order = torch.tensor([2, 0, 3, 1])
    moved, moved_weights = attention(patches[:, order])
    assert_close(moved, attended[:, order])
    assert_close(moved_weights, weights[:, order][:, :, order])


# Masks: exactly 0 blocks


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("form", FORMS[1:])
def test_a_mask_may_have_any_dtype(form, dtype):
    attention, x, mask = SelfAttention(X, D, V).double(), sequence(), mask_of(form)
    attended, weights = attention(x, mask.to(dtype))
    assert torch.equal(weights > 0, expanded(mask))
    assert torch.equal(attended, attention(x, mask)[0])


@pytest.mark.parametrize("shape", [(), (1,), (L, 1), (1, L), (B, 1, 1), (B, L, 1), (1, L, L)])
def test_a_mask_may_have_any_shape_that_broadcasts(shape):
    attention, mask = SelfAttention(X, D, V).double(), torch.rand(shape) < 0.5
    assert torch.equal(attention(sequence(), mask)[1] > 0, expanded(mask))


def test_whatever_is_not_zero_looks_and_nothing_is_added():
    attention, x = SelfAttention(X, D, V).double(), torch.randn(B, 7, X, dtype=torch.float64)
    numbers = torch.tensor([0.0, -0.0, 1e-30, -1.0, -1e9, -math.inf, math.nan])
    looked = torch.tensor([False, False, True, True, True, True, True])
    _, weights = attention(x, numbers)
    assert torch.equal(weights > 0, looked.expand(B, 7, 7))
    assert torch.equal(weights, attention(x, looked)[1])


# Rows with nothing to see, gradients, precision


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_query_that_may_look_nowhere_gets_zeros(dtype, training):
    attention, x, mask = SelfAttention(X, D, V).to(dtype).train(training), sequence(dtype), mask_of("blocked rows")
    attended, weights = attention(x, mask)
    nowhere = ~mask.any(-1)
    assert nowhere.sum() >= L + 1
    assert (weights[nowhere] == 0).all()
    assert (attended[nowhere] == 0).all()
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way, either
        attended.sum().backward()
    for gradient in (x.grad, *(parameter.grad for parameter in attention.parameters())):
        assert gradient.isfinite().all()
        assert (gradient != 0).any()


def test_gradients_are_finite_where_nobody_may_look_anywhere():
    attention, x = SelfAttention(X, D, V), sequence(torch.float32)
    attended, _ = attention(x, torch.zeros(L, L))
    attended.sum().backward()
    assert (attended == 0).all()
    assert (x.grad == 0).all()


def test_a_mask_that_blocks_nothing_changes_no_gradient():
    attention, x = SelfAttention(X, D, V).double(), sequence()
    towards = torch.randn(B, L, V, dtype=torch.float64)
    wanted = [x, *attention.parameters()]
    without = torch.autograd.grad(attention(x)[0], wanted, towards)
    masked = torch.autograd.grad(attention(x, torch.ones(B, L, L))[0], wanted, towards)
    for gradient, expected in zip(masked, without, strict=True):
        assert (gradient != 0).any()
        assert_close(gradient, expected)


def test_gradients_are_the_slopes_of_the_result():
    attention, x = SelfAttention(X, D, V).double(), sequence()
    mask = torch.tensor([[1, 1, 0, 1, 0], [0] * 5, [1] * 5, [0, 0, 0, 0, 1], [1, 0, 0, 1, 1]])  # some, no and all keys
    assert torch.autograd.gradcheck(lambda x: attention(x, mask), [x])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_blocks_without_overflow(dtype, autocast):
    attention, x, mask = SelfAttention(X, D, V), sequence(torch.float32), mask_of("blocked rows")
    expected, expected_weights = attention(x, mask)
    if autocast:
        with torch.autocast("cpu", dtype):
            attended, weights = attention(x, mask)
    else:
        attended, weights = attention.to(dtype)(x.to(dtype), mask)
    assert attended.dtype == dtype
    assert_close(attended.float(), expected, atol=0.02, rtol=0.0)
    assert_close(weights.float(), expected_weights, atol=0.01, rtol=0.0)
    assert (weights[~mask] == 0).all()


# The fast form


@pytest.mark.parametrize("form", FORMS)
def test_results_weights_and_gradients_are_the_fast_forms(dtype, close, form):
    ours, fast = SelfAttention(X, X, X), MultiheadAttention(X, 1, batch_first=True)
    self_attention_to_fast(ours, fast)
    x, mask = sequence(dtype), mask_of(form)
    other = x.detach().clone().requires_grad_()
    attended, weights = ours(x, mask)
    expected, expected_weights = fast(other, other, other, attn_mask=None if mask is None else ~expanded(mask))
    assert_close(attended, expected, **close)
    assert_close(weights, expected_weights, **close)

    towards = torch.randn_like(attended), torch.randn_like(weights)
    torch.autograd.backward((attended, weights), towards)
    torch.autograd.backward((expected, expected_weights), towards)
    assert_close(x.grad, other.grad, **close)
    gradients = [linear.weight.grad for linear in (ours.linear_q, ours.linear_k, ours.linear_v)]
    assert_close(torch.cat(gradients), fast.in_proj_weight.grad, **close)


# Errors


@pytest.mark.parametrize(("shape", "got"), [((B, L, 13), r"\(2, 5, 13\)"), ((L, X), r"\(5, 11\)"), ((X,), r"\(11,\)")])
def test_an_input_of_another_width_or_rank_is_refused(shape, got):
    with pytest.raises(ValueError, match=rf"^x must be \(batch, seq, dim_q\) with dim_q = 11, got {got}$"):
        SelfAttention(X, D, V)(torch.zeros(shape))


@pytest.mark.parametrize(
    ("shape", "got"),
    [
        ((B, L), r"\(2, 5\)"),  # padding without its axis of queries
        ((3,), r"\(3,\)"),
        ((3, L, L), r"\(3, 5, 5\)"),
        ((B, 3, L), r"\(2, 3, 5\)"),
        ((B, L, 3), r"\(2, 5, 3\)"),
        ((1, B, L, L), r"\(1, 2, 5, 5\)"),
    ],
)
def test_a_mask_that_does_not_broadcast_is_refused(shape, got):
    with pytest.raises(ValueError, match=rf"^mask must broadcast to \(batch, query, key\) = \(2, 5, 5\), got {got}$"):
        SelfAttention(X, D, V).double()(sequence(), torch.ones(shape))


@pytest.mark.parametrize("name", ["dim_q", "dim_k", "dim_v"])
@pytest.mark.parametrize("width", [0, -3])
def test_every_width_must_be_positive(name, width):
    with pytest.raises(ValueError, match=rf"^{name} must be at least 1, got {width}$"):
        SelfAttention(**{"dim_q": X, "dim_k": D, "dim_v": V, name: width})


# Learned: a question about one noun


NOUNS = ["dog", "cat", "horse", "bird"]
COLOURS = ["red", "blue", "green", "white", "black", "brown", "grey"]
WORDS = [*NOUNS, *COLOURS, ".", "?"]
CLAUSES = (slice(0, 3), slice(3, 6))


def questions() -> tuple[Tensor, Tensor, Tensor]:
    """All of "dog red . cat blue . ? dog": ids, the answer among the colours, which clause is irrelevant."""
    sentences, answers, irrelevant = [], [], []
    for nouns, colours in itertools.product(itertools.permutations(NOUNS, 2), itertools.permutations(COLOURS, 2)):
        for asked in (0, 1):
            sentence = [nouns[0], colours[0], ".", nouns[1], colours[1], ".", "?", nouns[asked]]
            sentences.append([WORDS.index(word) for word in sentence])
            answers.append(COLOURS.index(colours[asked]))
            irrelevant.append(1 - asked)
    return torch.tensor(sentences), torch.tensor(answers), torch.tensor(irrelevant)


class Reader(nn.Module):
    """Each word is read together with the one before it; the last one, the noun asked for, looks for its colour."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.word, self.before = nn.Embedding(len(WORDS), width), nn.Embedding(len(WORDS), width)
        self.attention = SelfAttention(width, width, width)
        self.answer = nn.Linear(width, len(COLOURS))

    def forward(self, sentences: Tensor) -> tuple[Tensor, Tensor]:
        x = self.word(sentences) + F.pad(self.before(sentences[:, :-1]), (0, 0, 1, 0))
        attended, weights = self.attention(x)
        return self.answer(attended[:, -1]), weights[:, -1]


def on_irrelevant_clause(weights: Tensor, irrelevant: Tensor) -> float:
    of_clause = torch.stack([weights[:, clause].sum(1) for clause in CLAUSES], dim=1)
    return of_clause.gather(1, irrelevant[:, None]).mean().item()


def test_a_question_about_the_dog_learns_not_to_look_at_the_cat():
    sentences, answers, irrelevant = questions()
    shuffled = torch.randperm(len(sentences))
    seen, unseen = shuffled[len(shuffled) // 4 :], shuffled[: len(shuffled) // 4]
    model = Reader(32)
    with torch.no_grad():
        assert on_irrelevant_clause(model(sentences[unseen])[1], irrelevant[unseen]) > 0.2  # it has all to learn
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        batch = seen[torch.randint(len(seen), (64,))]
        loss = F.cross_entropy(model(sentences[batch])[0], answers[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        logits, weights = model(sentences[unseen])
    assert (logits.argmax(1) == answers[unseen]).double().mean() > 0.99
    assert on_irrelevant_clause(weights, irrelevant[unseen]) < 0.05
