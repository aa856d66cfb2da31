"""The modules of a model that may call attention themselves."""

import inspect
import sys
from collections.abc import Collection
from fnmatch import fnmatchcase
from types import FunctionType

from torch import nn
from torch.nn.attention.flex_attention import flex_attention

CALLS = ("scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention", "varlen_attn")
"""Names of the functions whose calls are recorded."""


def possible_callers(model: nn.Module, known: Collection[str]) -> dict[str, nn.Module]:
    """Return the modules that may call attention themselves, by their paths.

    These are all but torch.nn's and those whose attention is `known`.
    """
    return {
        name: module
        for name, module in model.named_modules()
        if name not in known and not type(module).__module__.startswith("torch.nn.modules.")
    }


def names_a_call(module: nn.Module) -> bool:
    """Return whether the code of the module's class has the name of an attention function in it."""
    functions = (
        inspect.unwrap(value)
        for kind in type(module).__mro__
        if not kind.__module__.startswith("torch.nn.modules.")
        for value in vars(kind).values()
        if isinstance(value, FunctionType)
    )
    codes = (getattr(function, "__code__", None) for function in functions)
    return any(call in code.co_names for code in codes if code is not None for call in CALLS)


def may_call_flex(module: nn.Module) -> bool:
    """Return whether the file of the module's class has imported `flex_attention`."""
    files = (sys.modules.get(kind.__module__) for kind in type(module).__mro__ if kind is not nn.Module)
    return any(value is flex_attention for file in files if file is not None for value in vars(file).values())


def matches(name: str, patterns: Collection[str] | None) -> bool:
    """Return whether a path matches one of the patterns; None is all."""
    return patterns is None or any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
