"""capture(): what every attention of a model looks at, without a change to the model."""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase

import torch
from torch import nn

from glassformer.attention.want import SUMMARY, Want
from glassformer.capture.huggingface import capturing_huggingface, huggingface_attentions
from glassformer.capture.record import Captured
from glassformer.capture.torch_nn import capturing_torch, torch_attentions
from glassformer.errors import ArgumentError


@contextmanager
def capture(
    model: nn.Module, want: Want = SUMMARY, *, layers: str | Sequence[str] | None = None, budget: int | None = None
) -> Iterator[Captured]:
    """Record what the attentions of a model look at while it is called inside the context.

        with torch.no_grad(), capture(model, Want(entropy=True, top=8)) as seen:
            model(inputs)
        seen["encoder.layer.0.attention.self"].entropy      # (batch, heads, queries)

    Of `torch.nn.MultiheadAttention` and glassformer's, alone and in any model, in training and inference, fast path or
    not; and of Hugging Face models that look their attention up in `AttentionInterface`, as nearly all do, generation
    with a cache included. Everything is computed by `observe`, exactly; outputs are those of the model up to rounding.
    Where gradients are on, the facts have them. Afterwards the model is as before, also after an error.

    `layers` are paths of attentions, as they stand in `model.named_modules()`, `*` for any part of one; left out, all.
    `budget` is the most bytes that the record may take, shared equally among them: where `want` asks for maps that are
    larger, tiles, the largest weights of each query and exact statistics stand in for them, and `seen.dropped` says so.

    Raises ArgumentError for a model without attention that can be captured, a compiled one, one that is being captured
    already, an unknown layer, and during a call if the budget is too small even for statistics.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(want, Want):
        raise ArgumentError(f"want must be a Want, got {want!r}: Want(entropy=True), say")
    if budget is not None and (not isinstance(budget, int) or budget <= 0):
        raise ArgumentError(f"budget must be a whole number of bytes above 0, got {budget!r}: 2**30 is 1 GiB")
    _check_not_compiled(model)
    ours, theirs = torch_attentions(model), huggingface_attentions(model)
    if not ours and not theirs:
        raise ArgumentError(
            f"model must contain attention, and {type(model).__name__} has none that is torch.nn.MultiheadAttention, "
            "glassformer's, or looked up by Hugging Face's AttentionInterface: attention in a model's own code can be "
            "seen by calling observe(q, k, v) there"
        )
    names = [name for name, _ in model.named_modules() if name in ours or name in theirs]
    chosen = names if layers is None else _choose(names, [layers] if isinstance(layers, str) else layers)
    captured = Captured(dict.fromkeys(chosen, want), budget)
    with ExitStack() as stack:
        stack.enter_context(capturing_torch({name: ours[name] for name in chosen if name in ours}, captured))
        stack.enter_context(
            capturing_huggingface(model, {name: theirs[name] for name in chosen if name in theirs}, captured)
        )
        yield captured


def _choose(names: Sequence[str], layers: Sequence[str]) -> list[str]:
    """Those of the names that are asked for, in their order."""
    chosen = set()
    for layer in layers:
        if not isinstance(layer, str):
            raise ArgumentError(f"layers must be paths of attentions, such as {names[0]!r}, got {layer!r}")
        found = [name for name in names if name == layer or fnmatchcase(name, layer)]
        if not found:
            near = difflib.get_close_matches(layer, names, n=5, cutoff=0.3) or names[:5]
            raise ArgumentError(
                f"layers must be among the model's {len(names)} attentions, got {layer!r}: near it "
                f"{'is' if len(near) == 1 else 'are'} {', '.join(map(repr, near))}"
            )
        chosen |= set(found)
    return [name for name in names if name in chosen]


def _check_not_compiled(model: nn.Module) -> None:
    for name, module in model.named_modules():
        where = f"model.{name}" if name else "model"
        if isinstance(module, torch._dynamo.OptimizedModule):
            raise ArgumentError(f"{where} is compiled, and what it looks at can't be seen: capture {where}._orig_mod")
        if getattr(module, "_compiled_call_impl", None) is not None:
            raise ArgumentError(
                f"{where} is compiled, by its compile(), and what it looks at can't be seen: capture one that isn't"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise ArgumentError(f"{where} is TorchScript, and what it looks at can't be seen: capture its source")
