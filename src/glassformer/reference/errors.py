"""The error that every step-by-step form raises."""


class InputError(ValueError, AssertionError):
    """An input, mask or size that a form cannot take; the message says which, what was expected and what came.

    The notes that describe these forms check with `assert` or promise a ValueError: code that catches either works.
    """
