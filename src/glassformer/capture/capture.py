"""The public function `capture`: records the attention of a model that already exists."""

import difflib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import torch
from torch import nn

from glassformer.attention.want import SUMMARY, Want
from glassformer.capture.adapters import adapted_attentions, capturing_adapted
from glassformer.capture.calls.callers import matches, names_a_call, possible_callers
from glassformer.capture.calls.mode import capturing_calls
from glassformer.capture.calls.uncompiled import uncompiled
from glassformer.capture.huggingface import capturing_huggingface, huggingface_attentions
from glassformer.capture.record import Captured
from glassformer.capture.reference import capturing_reference, reference_attentions
from glassformer.capture.running import Running
from glassformer.capture.torch_nn import capturing_torch, torch_attentions
from glassformer.errors import ArgumentError, shown

Kind = TypeVar("Kind", bound=nn.Module)
Record = TypeVar("Record", bound=Captured)


@contextmanager
def capture(
    model: nn.Module, want: Want = SUMMARY, *, layers: str | Sequence[str] | None = None, budget: int | None = None
) -> Iterator[Captured]:
    """Record facts about every attention of a model while the model is called inside the context.

    It finds three kinds of attention, in this order. First, `torch.nn.MultiheadAttention` and glassformer's, alone or
    inside any model, in training and inference, on torch's fast path too, and the step-by-step forms of
    `glassformer.reference`. Second, that of Hugging Face models which use `AttentionInterface`, as nearly all do,
    including generation with a cache; for 17 families with code of their own (15 since transformers 5.24) it takes the
    weights that they return. Third, any call of `F.scaled_dot_product_attention`, `F.multi_head_attention_forward`,
    `flex_attention`, `varlen_attn` or `attend` in another module, under the path of that module.

    `observe` computes the facts, exactly. The model's outputs stay the same up to rounding, except at padding whose
    query may look nowhere: it looks at nothing, where eager models of Hugging Face let it look everywhere. Where
    gradients are on, the facts have gradients. Afterwards the model is as it was, also after an error. If the model
    uses activation checkpointing, call `backward` inside the context: the forward pass that it repeats is not recorded
    twice. Compiled code runs uncompiled inside the context, in all threads.

    A module that computes attention in another way, with a softmax and a product of its own or with an operator of
    another library, is not recorded. A warning at the end of the context names it, and so does the record's `unseen`.

    `layers` are paths of attentions, or of modules that call attention, as in `model.named_modules()`; `*` stands for
    any part of a path. Left out, every attention is recorded. An attention that is called several times in one forward
    pass has a name for each call: `path@0`, `path@1`. `budget` is the most bytes that the record may take; the
    attentions share it equally. Where the maps that `want` asks for don't fit, tiles, the largest weights of each query
    and exact statistics replace them, and the record's `dropped` says so.

    Raises ArgumentError if the model has no attention that can be captured, is a compiled one, runs in replicas, or is
    being captured already; if a layer is unknown; and, during a call, if the budget is too small even for statistics.

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
        raise ArgumentError(f"want must be a Want, got {shown(want)}: pass Want(entropy=True), for example")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget <= 0):
        raise ArgumentError(f"budget must be a whole number of bytes above 0, got {budget!r}: 2**30 is 1 GiB")
    with capture_into(Captured, model, want, layers=layers, budget=budget) as captured:
        yield captured


@contextmanager
def capture_into(
    record: Callable[[Mapping[str, Want], int | None, Running], Record],
    model: nn.Module,
    want: Want,
    *,
    layers: str | Sequence[str] | None,
    budget: int | None,
) -> Iterator[Record]:
    """Do what `capture` does, with another kind of record, made by `record` as a `Captured` is."""
    _check_not_compiled(model)
    _check_not_replicated(model)
    torch_modules, huggingface_modules = torch_attentions(model), huggingface_attentions(model)
    reference_modules, adapted_modules = reference_attentions(model), adapted_attentions(model)
    known = torch_modules | huggingface_modules | reference_modules
    names = [name for name, _ in model.named_modules() if name in known.keys() | adapted_modules.keys()]
    callers = possible_callers(model, names)
    if not names and (not callers or not _may_be_seen(model, callers)):
        raise ArgumentError(
            f"model must contain attention that can be captured, and {type(model).__name__} has none: neither "
            "torch.nn.MultiheadAttention, nor glassformer's, nor Hugging Face's AttentionInterface, nor a call of "
            "F.scaled_dot_product_attention. Where a model computes attention in its own code, call observe(q, k, v) "
            "there, or observe_weights(weights) with weights that it returns"
        )
    patterns = _read_patterns(layers, names, callers)
    chosen = names if patterns is None else [name for name in names if matches(name, patterns)]
    running = Running(model)
    captured = record(dict.fromkeys(chosen, want), budget, running)
    with ExitStack() as stack:
        stack.enter_context(capturing_torch(_only(torch_modules, chosen), captured))
        stack.enter_context(capturing_huggingface(model, _only(huggingface_modules, chosen), captured))
        stack.enter_context(capturing_reference(_only(reference_modules, chosen), captured))
        stack.enter_context(capturing_adapted(_only(adapted_modules, chosen), captured))
        own = (known | adapted_modules).values()
        stack.enter_context(capturing_calls(callers, own, patterns, running, captured, want))
        stack.enter_context(uncompiled(callers.values()))
        stack.enter_context(running.followed())
        yield captured
    if captured.unseen or captured.is_blind:
        warnings.warn(captured.describe_unseen(), stacklevel=5)


def _only(found: Mapping[str, Kind], chosen: Sequence[str]) -> dict[str, Kind]:
    return {name: found[name] for name in chosen if name in found}


def _may_be_seen(model: nn.Module, callers: Mapping[str, nn.Module]) -> bool:
    """Return whether attention can be found when it is called: not where the code is known to have no such call."""
    of_transformers = type(model).__module__.startswith("transformers.")
    return not of_transformers or any(names_a_call(module) for module in callers.values())


def _read_patterns(
    layers: str | Iterable[str] | None, names: Sequence[str], callers: Iterable[str]
) -> tuple[str, ...] | None:
    """Return the patterns of paths, each of which matches an attention or a module that may call attention."""
    if layers is None:
        return None
    known = [*names, *callers]
    example = known[0]
    patterns = [layers] if isinstance(layers, str) else layers
    if not isinstance(patterns, Iterable):
        raise ArgumentError(f"layers must be paths of attentions, such as {example!r}, got {shown(layers)}")
    read: list[str] = []
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ArgumentError(f"layers must be paths of attentions, such as {example!r}, got {shown(pattern)}")
        if not any(matches(name, [pattern]) for name in known):
            likely = names or known
            near = difflib.get_close_matches(pattern, likely, n=5, cutoff=0.3) or likely[:5]
            kinds = "attentions" if names else "modules that may call attention"
            raise ArgumentError(
                f"layers must be among the model's {len(likely)} {kinds}, got {pattern!r}: near it "
                f"{'is' if len(near) == 1 else 'are'} {', '.join(map(repr, near))}"
            )
        read.append(pattern)
    if not read:
        raise ArgumentError(f"layers must be paths of attentions, such as {example!r}, got none: leave it out for all")
    return tuple(read)


def _check_not_replicated(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.DataParallel) and len(module.device_ids) > 1:
            path = f"model.{name}" if name else "model"
            raise ArgumentError(
                f"{path} runs copies in threads of their own, whose attention can't be recorded: capture {path}.module"
            )


def _check_not_compiled(model: nn.Module) -> None:
    dynamo = sys.modules.get("torch._dynamo")  # loading it takes over a second, and without it nothing is compiled
    for name, module in model.named_modules():
        path = f"model.{name}" if name else "model"
        if dynamo is not None and isinstance(module, dynamo.OptimizedModule):
            raise ArgumentError(f"{path} is compiled, so its attention can't be recorded: capture {path}._orig_mod")
        if isinstance(module, torch.jit.ScriptModule):
            raise ArgumentError(f"{path} is TorchScript, so its attention can't be recorded: capture its source")
