"""Every message of every form, and the kinds of error that catch it."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.reference import transformer
from glassformer.reference.errors import InputError
from glassformer.reference.multi_head import MultiHeadAttention as SequenceFirst
from glassformer.reference.self_attention import SelfAttention
from glassformer.reference.transformer import MultiHeadAttention as PerHead

Shape = tuple[int, ...]
Refusal = tuple[str, Callable[[], Any]]
B, H, Q, K, E = 2, 3, 5, 7, 33


def zeros(*shapes: Shape, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.zeros(shape, dtype=dtype) for shape in shapes]


def sequence_first(message: str, *shapes: Shape) -> Refusal:
    """Inputs, or only the mask, in these shapes."""
    inputs = shapes if len(shapes) == 3 else ((Q, B, E), (K, B, E), (K, B, E), *shapes)
    return message.format(*shapes), lambda: SequenceFirst(H, E)(*zeros(*inputs))


def per_head(message: str, *shapes: Shape) -> Refusal:
    return message.format(*shapes), lambda: PerHead(E, H)(*zeros(*shapes))


def blocked(module: Any, message: str, shape: Shape, dtype: torch.dtype = torch.bool) -> Refusal:
    inputs = zeros((B, Q, E), (B, K, E), (B, K, E))
    return message.format(shape, dtype), lambda: module(*inputs, torch.zeros(shape, dtype=dtype))


def single_head(message: str, x: Shape, *mask: Shape) -> Refusal:
    return message.format(*mask or [x]), lambda: SelfAttention(11, 7, 3)(*zeros(x, *mask))


def sizes(kind: Any, message: str, first: int, second: int) -> Refusal:
    return message.format(first, second), lambda: kind(first, second)


def unhooked(kind: Any, *arguments: Any) -> None:
    """Make a module without the test suite's check of types, which would refuse some arguments before we do."""
    inspect.unwrap(kind.__init__)(kind.__new__(kind), *arguments)


def padding(pad: int) -> list[Refusal]:
    message, rest = f"pad_idx must be one of the 17 ids, got {pad}", (E, 1, 13, H, 0.0, 1e-5)
    return [
        (message, lambda: unhooked(transformer.Embedding, 17, E, pad)),
        (message, lambda: transformer.TransformerEncoder(17, 19, pad, *rest)),
        (message, lambda: transformer.TransformerDecoder(17, 19, pad, *rest)),
    ]


def too_long() -> list[Refusal]:
    message, rest = "x must be at most max_len = 19 long, got length 20", (17, 19, 16, E, 1, 13, H, 0.0, 1e-5)
    ids = torch.zeros(B, 20, dtype=torch.long)
    return [
        (message, lambda: transformer.AddPositionalEncoding(E, 19)(torch.zeros(B, 20, E))),
        (message, lambda: transformer.TransformerEncoder(*rest)(ids)),
        (message, lambda: transformer.TransformerDecoder(*rest)(ids, torch.zeros(B, K, E), None, None)),
    ]


HEADS_FIRST = "d_model must be a positive multiple of heads, got heads {}, d_model {}"
OTHER = " The class with d_model first is glassformer.reference.transformer.MultiHeadAttention"
D_MODEL_FIRST = "d_model must be a positive multiple of h, got d_model {}, h {}"
A_WIDTH = "query, key and value must be (seq, batch, d_model) with d_model = 33, got {}, {}, {}"
A_DIFFER = "query, key and value must have one batch size (or 1), and key and value one length, got {}, {}, {}"
D_WIDTH = "{} must be (batch, length, {}), got {}"
D_DIFFER = "q, k and v must have one batch size, and k and v one length, got {}, {}, {}"
QUERY, KEY, BATCH = "0 (query) must be 1 or seq_q = 5", "1 (key) must be seq_k = 7", "2 (batch) must be 1 or batch = 2"
HINT = "{}: padding is (1, 7, 2), causal is (5, 7, 1)"
THREE = "mask must have 3 axes (seq_q or 1, seq_k, batch or 1), got "
C_MASK = "mask must broadcast to (batch, query, key) = (2, 5, 5), got {}"
C_INPUT = "x must be (batch, seq, dim_q) with dim_q = 11, got {}"
D_AXES = "mask must have as many axes as the scores, 3 (2, 5, 7), got "
D_SIZES = "mask must broadcast to the scores (batch, q_len, k_len) = (2, 5, 7), got {}"
REFUSALS = [
    # A
    sizes(SequenceFirst, HEADS_FIRST + ": heads come first, was MultiHeadAttention(8, 512) meant?" + OTHER, 512, 8),
    sizes(SequenceFirst, HEADS_FIRST + ": heads come first, was MultiHeadAttention(3, 33) meant?" + OTHER, 33, 3),
    # swapped, 10 and 3 don't fit, either: no hint
    *(sizes(SequenceFirst, HEADS_FIRST, *pair) for pair in [(3, 10), (10, 3), (0, 8), (8, 0), (-2, 8)]),
    sequence_first(A_DIFFER, (Q, 3, E), (K, B, E), (K, B, E)),
    sequence_first(A_DIFFER, (Q, B, E), (K, 1, E), (K, 3, E)),
    sequence_first(A_DIFFER, (Q, B, E), (K, B, E), (Q, B, E)),
    sequence_first(A_DIFFER, (Q, B, E), (K, B, E), (1, B, E)),
    sequence_first(A_DIFFER, (Q, B, E), (1, B, E), (K, B, E)),
    sequence_first(A_WIDTH, (Q, B, 10), (K, B, E), (K, B, E)),
    sequence_first(A_WIDTH, (Q, B, E), (K, E), (K, B, E)),
    sequence_first(A_WIDTH, (Q, B, E), (K, B, E), (E,)),
    sequence_first(f"mask axis {QUERY}, got 2 in {HINT}", (B, K, Q)),  # the axes of the notes' prose
    sequence_first(f"mask axis {QUERY}, got 2 in {HINT}", (B, K, 1)),  # its mask of padding
    sequence_first(f"mask axis {BATCH}, got 7 in {HINT}", (1, K, K)),  # and its causal mask
    sequence_first(f"mask axis {KEY}, got 5 in {HINT}", (Q, 5, B)),
    sequence_first(f"mask axis {KEY}, got 1 in {HINT}", (Q, 1, B)),
    sequence_first(f"mask axis {BATCH}, got 3 in {HINT}", (Q, K, 3)),
    sequence_first(THREE + "2: {}: for all of the batch pass mask[:, :, None]", (Q, K)),
    sequence_first(THREE + "4: {}", (Q, K, B, H)),
    # C
    *(single_head(C_INPUT, x) for x in [(B, Q, 13), (11,)]),
    single_head(C_INPUT + ": for one sequence pass x[None]", (Q, 11)),
    single_head(C_MASK, (B, Q, 11), (B, Q)),  # padding without its axis of queries
    *(single_head(C_MASK, (B, Q, 11), x) for x in [(3,), (3, Q, Q), (B, 3, Q), (B, Q, 3), (1, B, Q, Q)]),
    *((f"dim_q must be at least 1, got {size}", lambda size=size: SelfAttention(size, 7, 3)) for size in (0, -3)),
    ("dim_k must be at least 1, got 0", lambda: SelfAttention(11, 0, 3)),
    ("dim_v must be at least 1, got 0", lambda: SelfAttention(11, 7, 0)),
    # D
    sizes(PerHead, D_MODEL_FIRST + ": d_model comes first, was MultiHeadAttention(512, 8) meant?", 8, 512),
    sizes(PerHead, D_MODEL_FIRST + ": d_model comes first, was MultiHeadAttention(33, 3) meant?", 3, 33),
    *(sizes(PerHead, D_MODEL_FIRST, *pair) for pair in [(10, 3), (3, 10), (0, 8), (8, 0), (8, -2)]),
    *(
        (D_WIDTH.format(name, E, shapes[n]) + hint, lambda shapes=shapes: PerHead(E, H)(*zeros(*shapes)))
        for n, name in enumerate("qkv")
        for shape, hint in (((B, Q, 10), ""), ((B, E), ": for one sequence pass x[None]"), ((E,), ""))
        for shapes in [[*[(B, Q, E)] * n, shape, *[(B, Q, E)] * (2 - n)]]
    ),
    (
        D_WIDTH.format("k", 11, (B, K, 13)),
        lambda: transformer.ScaledDotProductAttention(11)(*zeros((B, Q, 11), (B, K, 13), (B, K, 11))),
    ),
    (
        D_WIDTH.format("v", "d", (K, 11)) + ": for one sequence pass x[None]",
        lambda: transformer.ScaledDotProductAttention(11)(*zeros((B, Q, 11), (B, K, 11), (K, 11))),
    ),
    per_head(D_DIFFER, (B, Q, E), (1, K, E), (1, K, E)),
    per_head(D_DIFFER, (B, Q, E), (B, K, E), (1, K, E)),
    per_head(D_DIFFER, (B, Q, E), (B, K, E), (B, Q, E)),
    *(
        blocked(module, message, *mask)
        for module in (transformer.ScaledDotProductAttention(E), PerHead(E, H))
        for message, *mask in [
            (D_AXES + "2 {}", (Q, K)),
            (D_AXES + "1 {}", (K,)),
            (D_AXES + "4 {}", (B, H, Q, K)),
            *((D_SIZES, shape) for shape in [(H, Q, K), (B, K, Q), (B, Q, Q), (B * H, Q, K)]),
            *(
                ("mask must be boolean, True = blocked, got {1}", (B, Q, K), dtype)
                for dtype in (torch.float32, torch.uint8, torch.int64)
            ),
        ]
    ),
    *padding(-1),
    *padding(17),
    ("pad_idx must be one of the 17 ids, got None", lambda: unhooked(transformer.Embedding, 17, E, None)),
    *too_long(),
]


@pytest.mark.parametrize(("message", "call"), REFUSALS)
def test_what_does_not_fit_is_refused(message, call):
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == message
    # The notes' code raises AssertionError, or promises ValueError.
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, ValueError)
