import pytest
import torch

from glassformer.reference import multi_head, self_attention, transformer
from glassformer.reference.errors import InputError

X = torch.zeros(2, 3, 8)
WRONG = {
    "sequence first, sizes": lambda: multi_head.MultiHeadAttention(3, 8),
    "sequence first, inputs": lambda: multi_head.MultiHeadAttention(2, 8)(X, X, X[:1]),
    "sequence first, mask": lambda: multi_head.MultiHeadAttention(2, 8)(X, X, X, torch.ones(3, 3)),
    "single head, sizes": lambda: self_attention.SelfAttention(8, 0, 8),
    "single head, inputs": lambda: self_attention.SelfAttention(7, 8, 8)(X),
    "single head, mask": lambda: self_attention.SelfAttention(8, 8, 8)(X, torch.ones(5)),
    "per head, mask": lambda: transformer.ScaledDotProductAttention(8)(X, X, X, torch.ones(3, 3).bool()),
}


@pytest.mark.parametrize("kind", [AssertionError, ValueError, InputError])
@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_code_that_expects_an_assertion_or_a_value_error_catches_it(call, kind):
    with pytest.raises(kind, match=" must "):
        call()
