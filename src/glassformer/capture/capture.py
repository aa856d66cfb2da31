"""The public function `capture`: records the attention of a model that already exists."""

import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import TypeVar

import torch
from torch import nn

from glassformer.attention.want import SUMMARY, Want
from glassformer.capture.huggingface import capturing_huggingface, huggingface_attentions
from glassformer.capture.record import Captured
from glassformer.capture.reference import capturing_reference, reference_attentions
from glassformer.capture.torch_nn import capturing_torch, torch_attentions
from glassformer.errors import ArgumentError

Kind = TypeVar("Kind", bound=nn.Module)


@contextmanager
def capture(
    model: nn.Module, want: Want = SUMMARY, *, layers: str | Sequence[str] | None = None, budget: int | None = None
) -> Iterator[Captured]:
    """Record facts about every attention of a model while the model is called inside the context.

    Three kinds of attention are found: `torch.nn.MultiheadAttention` and glassformer's, alone or inside any model, in
    training and inference, on torch's fast path too; Hugging Face models that use `AttentionInterface`, as nearly all
    do, including generation with a cache; and the step-by-step forms of `glassformer.reference`. `observe` computes the
    facts, exactly. The model's outputs stay the same up to rounding. Where gradients are on, the facts have gradients.
    Afterwards the model is as it was, also after an error.

    `layers` are paths of attentions as in `model.named_modules()`; `*` stands for any part of a path. Left out, every
    attention is recorded. `budget` is the most bytes that the record may take; the attentions share it equally. Where
    the maps that `want` asks for don't fit, tiles, the largest weights of each query and exact statistics replace them,
    and the record's `dropped` says so.

    Raises ArgumentError if the model has no attention that can be captured, is compiled, or is being captured already;
    if a layer is unknown; and, during a call, if the budget is too small even for statistics.

    >>> import torch
    >>> model = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True).eval()
    >>> with torch.no_grad(), capture(model, Want(entropy=True, top=3)) as captured:
    ...     _ = model(torch.randn(2, 7, 32))
    >>> captured
    Captured 1 attention
      self_attn  4 heads, 7 queries x 7 keys
    >>> captured["self_attn"].entropy.shape  # (batch, heads, queries)
    torch.Size([2, 4, 7])
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(want, Want):
        raise ArgumentError(f"want must be a Want, got {want!r}: pass Want(entropy=True), for example")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget <= 0):
        raise ArgumentError(f"budget must be a whole number of bytes above 0, got {budget!r}: 2**30 is 1 GiB")
    _check_not_compiled(model)
    torch_modules, huggingface_modules = torch_attentions(model), huggingface_attentions(model)
    reference_modules = reference_attentions(model)
    known = torch_modules.keys() | huggingface_modules.keys() | reference_modules.keys()
    names = [name for name, _ in model.named_modules() if name in known]
    if not names:
        raise ArgumentError(
            f"model must contain attention that can be captured, and {type(model).__name__} has none: neither "
            "torch.nn.MultiheadAttention, nor glassformer's, nor Hugging Face's AttentionInterface. Where a model "
            "computes attention in its own code, call observe(q, k, v) there"
        )
    chosen = names if layers is None else _choose(names, layers)
    captured = Captured(dict.fromkeys(chosen, want), budget)
    with ExitStack() as stack:
        stack.enter_context(capturing_torch(_only(torch_modules, chosen), captured))
        stack.enter_context(capturing_huggingface(model, _only(huggingface_modules, chosen), captured))
        stack.enter_context(capturing_reference(_only(reference_modules, chosen), captured))
        yield captured


def _only(found: Mapping[str, Kind], chosen: Sequence[str]) -> dict[str, Kind]:
    return {name: found[name] for name in chosen if name in found}


def _choose(names: Sequence[str], layers: str | Iterable[str]) -> list[str]:
    """Return the names that match one of the patterns, in their order in the model."""
    patterns = [layers] if isinstance(layers, str) else layers
    if not isinstance(patterns, Iterable):
        raise ArgumentError(f"layers must be paths of attentions, such as {names[0]!r}, got {layers!r}")
    chosen = set()
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ArgumentError(f"layers must be paths of attentions, such as {names[0]!r}, got {pattern!r}")
        matches = [name for name in names if name == pattern or fnmatchcase(name, pattern)]
        if not matches:
            near = difflib.get_close_matches(pattern, names, n=5, cutoff=0.3) or names[:5]
            raise ArgumentError(
                f"layers must be among the model's {len(names)} attentions, got {pattern!r}: near it "
                f"{'is' if len(near) == 1 else 'are'} {', '.join(map(repr, near))}"
            )
        chosen.update(matches)
    return [name for name in names if name in chosen]


def _check_not_compiled(model: nn.Module) -> None:
    dynamo = sys.modules.get("torch._dynamo")  # loading it takes over a second, and without it nothing is compiled
    for name, module in model.named_modules():
        path = f"model.{name}" if name else "model"
        if dynamo is not None and isinstance(module, dynamo.OptimizedModule):
            raise ArgumentError(f"{path} is compiled, so its attention can't be recorded: capture {path}._orig_mod")
        if getattr(module, "_compiled_call_impl", None) is not None:
            raise ArgumentError(
                f"{path} is compiled by its compile(), so its attention can't be recorded: capture one that isn't"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise ArgumentError(f"{path} is TorchScript, so its attention can't be recorded: capture its source")
