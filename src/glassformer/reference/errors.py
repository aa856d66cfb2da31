"""The error that every step-by-step form raises."""


class InputError(ValueError, AssertionError):
    """An input, mask or size that a form cannot take; the message says which, what was expected and what came.

    The notes that describe these forms check with `assert` or promise a ValueError: code that catches either works.

    >>> from glassformer.reference import SelfAttention
    >>> SelfAttention(dim_q=8, dim_k=0, dim_v=4)
    Traceback (most recent call last):
        ...
    glassformer.reference.errors.InputError: dim_k must be at least 1, got 0
    """
