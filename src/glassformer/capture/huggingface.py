"""Capture of Hugging Face models, through their registries of attention functions and masks."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.attention.observe import observe
from glassformer.capture.record import Captured
from glassformer.errors import ArgumentError

NAME = "glassformer_capture"
"""What the attention function is called in Hugging Face's registries."""


def huggingface_attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that look their attention up, by their paths."""
    if "transformers" not in sys.modules:  # then the model isn't one of its
        return {}
    return {name: module for name, module in model.named_modules() if _looks_up(module)}


def _looks_up(module: nn.Module) -> bool:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names and hasattr(module, "config")


@contextmanager
def capturing_huggingface(model: nn.Module, modules: Mapping[str, nn.Module], captured: Captured) -> Iterator[None]:
    """Inside, what these modules of the model look at is added to the record."""
    if not modules:
        yield
        return
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    except ImportError as error:
        raise ImportError(
            "capturing Hugging Face models needs transformers 5 or newer: pip install 'glassformer[huggingface]'"
        ) from error

    everywhere = huggingface_attentions(model)
    if any(module in _LOOKS for module in everywhere.values()):
        raise ArgumentError("model is being captured already: one capture at a time")
    AttentionInterface.register(NAME, _dispatch)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    configs: dict[int, Any] = {id(module.config): module.config for module in model.modules() if _has_config(module)}
    before = {key: config._attn_implementation for key, config in configs.items()}
    names = {module: name for name, module in modules.items()}
    look = _looking(names, captured, ALL_ATTENTION_FUNCTIONS["sdpa"])
    try:
        _LOOKS.update(dict.fromkeys(everywhere.values(), look))
        for config in configs.values():
            config._attn_implementation_internal = NAME
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]
        for module in everywhere.values():
            _LOOKS.pop(module, None)


_LOOKS: dict[nn.Module, Callable[..., Any]] = {}
"""What looks for each module that is being captured: the registry knows one function, for all models."""


def _dispatch(module: nn.Module, *arguments: Any, **settings: Any) -> tuple[Tensor, None]:
    if module not in _LOOKS:
        raise ArgumentError(
            f"{NAME} works inside capture() alone: this model was copied or saved there; "
            "model.set_attn_implementation('sdpa') mends it"
        )
    return _LOOKS[module](module, *arguments, **settings)


def _has_config(module: nn.Module) -> bool:
    return hasattr(getattr(module, "config", None), "_attn_implementation")


def _looking(names: Mapping[nn.Module, str], captured: Captured, unseen: Callable[..., Any]) -> Callable[..., Any]:
    """An attention function for the registry, which adds what `names` look at to the record."""

    def look(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        **settings: Any,
    ) -> tuple[Tensor, None]:
        if module not in names:
            return unseen(
                module,
                query,
                key,
                value,
                attention_mask,
                dropout=dropout,
                scaling=scaling,
                is_causal=is_causal,
                position_bias=position_bias,
                **settings,
            )
        for name in ("softcap", "s_aux", "cache"):
            if settings.get(name) is not None:
                raise ArgumentError(
                    f"{names[module]} computes attention with {name}, which observe doesn't: choose other layers"
                )
        q_len, k_len = query.shape[2], key.shape[2]
        flag = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = bool(flag) and q_len > 1 and attention_mask is None
        if causal and k_len > q_len:  # a cache of fixed size that is being filled: what follows is empty
            key, value = key[:, :, :q_len], value[:, :, :q_len]
            position_bias = None if position_bias is None else position_bias[..., :q_len]
            k_len = q_len
        keep, bias = _masks(attention_mask, position_bias)
        # Queries that come after cached keys stand at the end of them: distances count from there.
        if flag and q_len < k_len and (keep is None or bool(keep[..., -1, -1].all())):
            causal = True
        want = captured.want(names[module], query.shape[0], query.shape[1], q_len, k_len)
        output, seen = observe(
            query, key, value, keep=keep, bias=bias, causal=causal, scale=scaling, dropout=dropout, want=want
        )
        captured.add(names[module], seen)
        return output.transpose(1, 2).contiguous(), None

    return look


def _masks(mask: Tensor | None, position_bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Hugging Face's mask, boolean (True = may look) or added to the scores, and T5's bias, as keep and bias."""
    if mask is None or mask.dtype == torch.bool:
        return mask, position_bias
    blocked = mask <= torch.finfo(mask.dtype).min  # such a number blocks, and is no part of what the rest adds
    bias = mask.masked_fill(blocked, 0.0)
    return ~blocked, bias if position_bias is None else bias + position_bias
