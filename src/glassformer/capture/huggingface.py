"""Capture of Hugging Face models, through their registries of attention functions and masks."""

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.attention import masks
from glassformer.attention.autocast import cast_as_autocast
from glassformer.attention.observe import observe
from glassformer.attention.want import NOTHING
from glassformer.capture.record import Asked, Captured
from glassformer.capture.steps import without
from glassformer.errors import ArgumentError

NAME, EAGER_NAME = "glassformer_capture", "glassformer_capture_eager"
"""Names of the attention function in Hugging Face's registries.

The second is for models in the eager form. There the mask alone says which keys a query may look at: without one it may
look at all. A model's own code adds this mask to its scores.
"""


def huggingface_attentions(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that get their attention function from the registry, by their paths."""
    if "transformers" not in sys.modules:  # then the model isn't one of its
        return {}
    return {name: module for name, module in model.named_modules() if uses_registry(module)}


def uses_registry(module: nn.Module) -> bool:
    """Return whether a module takes its attention function from the registry when it is called."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names and hasattr(module, "config")


@contextmanager
def capturing_huggingface(model: nn.Module, modules: Mapping[str, nn.Module], captured: Captured) -> Iterator[None]:
    """Record the attention of these modules of the model inside the context."""
    if not modules:
        yield
        return
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask, sdpa_mask
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    except ImportError as error:
        raise ImportError(
            "capturing Hugging Face models needs transformers 5 or newer: pip install 'glassformer[huggingface]'"
        ) from error

    all_modules = huggingface_attentions(model)
    if any(module in _FUNCTIONS for module in all_modules.values()):
        raise ArgumentError("model is being captured already: leave that context first")
    for name, mask in ((NAME, sdpa_mask), (EAGER_NAME, eager_mask)):
        AttentionInterface.register(name, _dispatch)
        AttentionMaskInterface.register(name, mask)
    configs = list({id(module.config): module.config for module in model.modules() if _has_config(module)}.values())
    names = {module: name for name, module in modules.items()}
    function = _recording_function(names, captured, ALL_ATTENTION_FUNCTIONS["sdpa"])
    try:
        _FUNCTIONS.update(dict.fromkeys(all_modules.values(), function))
        for config in configs:
            _redirect(config)
        yield
    finally:
        for config in configs:
            _restore(config)
        for module in all_modules.values():
            _FUNCTIONS.pop(module, None)


_FUNCTIONS: dict[nn.Module, Callable[..., Any]] = {}
"""The attention function of each module that is being captured: the registry knows one function for all models."""


_REDIRECTED: dict[int, tuple[Any, Any, int]] = {}
"""Each config of a model that is being captured, by its id: with what it said before, and how many captures use it."""
_LOCK = threading.Lock()
"""Guard `_REDIRECTED`."""


def _redirect(config: Any) -> None:
    """Let the models of a config take their attention from here."""
    with _LOCK:
        _, before, count = _REDIRECTED.get(id(config), (config, config._attn_implementation, 0))
        _REDIRECTED[id(config)] = config, before, count + 1
        config._attn_implementation_internal = EAGER_NAME if before == "eager" else NAME


def _restore(config: Any) -> None:
    """Let a config say what it said before, once no capture uses it."""
    with _LOCK:
        if id(config) not in _REDIRECTED:
            return
        _, before, count = _REDIRECTED.pop(id(config))
        if count > 1:
            _REDIRECTED[id(config)] = config, before, count - 1
        else:
            config._attn_implementation_internal = before


def _dispatch(module: nn.Module, *arguments: Any, **settings: Any) -> tuple[Tensor, Tensor | None]:
    function = _FUNCTIONS.get(module)
    if function is None:  # it isn't captured, but others with its config are: their function computes for it, too
        config = getattr(module, "config", None)
        function = next((one for known, one in list(_FUNCTIONS.items()) if known.config is config), None)
    if function is None:
        name, form = (EAGER_NAME, "eager") if _is_eager(module) else (NAME, "sdpa")
        raise ArgumentError(
            f"{name} works inside capture() alone: this model was copied or saved there; "
            f"model.set_attn_implementation('{form}') mends it"
        )
    return function(module, *arguments, **settings)


def _is_eager(module: nn.Module) -> bool:
    """Return whether a module that is being captured has the eager form by itself."""
    return getattr(getattr(module, "config", None), "_attn_implementation", NAME) == EAGER_NAME


def _weights_are_wanted() -> bool:
    """Return whether the model was asked to return its weights."""
    collector = getattr(sys.modules.get("transformers.utils.output_capturing"), "_active_collector", None)
    collected = None if collector is None else collector.get()
    return bool(collected) and any("attentions" in name for name in collected)


def _has_config(module: nn.Module) -> bool:
    return hasattr(getattr(module, "config", None), "_attn_implementation")


def _recording_function(
    names: Mapping[nn.Module, str], captured: Captured, unrecorded: Callable[..., Any]
) -> Callable[..., Any]:
    """Return an attention function for the registry that records the modules in `names`, and only computes others."""

    def attend_and_record(
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
    ) -> tuple[Tensor, Tensor | None]:
        if settings.get("sinks") is not None:
            raise ArgumentError(
                f"{names.get(module, NAME)} computes attention with a sink for each query (`sinks`), which observe "
                "doesn't: this model can't be captured"
            )
        softcap, sinks = settings.get("softcap"), settings.get("s_aux")
        is_eager = _is_eager(module)
        recorded = module in names and not captured.is_elsewhere()
        returned = is_eager and _weights_are_wanted()
        looks_back = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        causal = looks_back and query.shape[2] > 1 and attention_mask is None and not is_eager
        if not recorded and not returned and softcap is None and sinks is None:
            return unrecorded(
                module,
                query,
                key,
                value,
                attention_mask,
                dropout=dropout,
                scaling=scaling,
                is_causal=causal,
                position_bias=position_bias,
                **settings,
            )
        if settings.get("cache") is not None:
            raise ArgumentError(
                f"{names.get(module, NAME)} computes attention with a paged cache, which observe doesn't: generate "
                "with another cache"
            )
        query, key, value = cast_as_autocast(query, key, value)
        q_len, k_len = query.shape[2], key.shape[2]
        if causal and k_len > q_len:  # a cache of fixed size that is being filled: the keys after the queries are empty
            key, value = key[:, :, :q_len], value[:, :, :q_len]
            position_bias = None if position_bias is None else position_bias[..., :q_len]
            k_len = q_len
        keep, bias = _split_mask(attention_mask, position_bias)
        if looks_back and q_len < k_len and keep is not None and (filled := _filled(keep)) < k_len:
            # The rest of a cache of fixed size is empty yet: positions count from the last key that is there.
            key, value, keep = key[:, :, :filled], value[:, :, :filled], keep[..., :filled]
            bias = None if bias is None else bias[..., :filled]
            k_len = filled
        if looks_back and q_len < k_len and _looks_back_from_the_end(keep, q_len, k_len):
            causal = True  # the queries come after cached keys: distances count from the end
        asked = Asked(NOTHING)  # torch's fused form has neither cap nor sinks
        if recorded:
            asked = captured.reserve(names[module], query.shape[0], query.shape[1], q_len, k_len)
        output, observation = observe(
            query,
            key,
            value,
            keep=keep,
            bias=bias,
            causal=causal,
            scale=scaling,
            softcap=softcap,
            sinks=sinks,
            dropout=dropout,
            want=replace(asked.want, weights=True) if returned else asked.want,
            first_query=asked.first_under(causal=causal),
        )
        if recorded:
            added = observation if asked.want.weights or not returned else without(observation, ("weights",))
            captured.add(names[module], added)
        return output.transpose(1, 2).contiguous(), observation.weights.to(output.dtype) if returned else None

    return attend_and_record


def _filled(keep: Tensor) -> int:
    """Return how many keys there are up to the last one that any query may look at; all where none may look."""
    if keep[..., -1].any():  # in any other cache the last key is that of the last query
        return keep.shape[-1]
    looked_at = keep.flatten(0, -2).any(0).nonzero()
    return 1 + int(looked_at[-1]) if len(looked_at) else keep.shape[-1]


def _looks_back_from_the_end(keep: Tensor | None, q_len: int, k_len: int) -> bool:
    """Return whether the queries are the last positions of the keys, and none may look at a later one.

    A mask of the user's may let queries look at later ones.
    """
    if keep is None:
        return q_len == 1
    if not keep[..., -1, -1].all():
        return False
    return q_len == 1 or not (keep & ~masks.causal(q_len, k_len, keep.device)).any()


def _split_mask(mask: Tensor | None, position_bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return `keep` and `bias` of Hugging Face's mask and T5's position bias.

    The mask is boolean (True = may look) or added to the scores.
    """
    if mask is None or mask.dtype == torch.bool:
        return mask, position_bias
    blocked = mask <= torch.finfo(mask.dtype).min  # this number blocks a key; it must not be added to the bias
    bias = mask.masked_fill(blocked, 0.0)
    if not bias.requires_grad and not bias.any():
        return ~blocked, position_bias
    return ~blocked, bias if position_bias is None else bias + position_bias
