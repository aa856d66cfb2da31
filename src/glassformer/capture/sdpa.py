"""Capture of attention at the call itself: of torch's attention functions, whoever calls them."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from glassformer.attention.functional import multi_head_attention_forward, pose, unbatched
from glassformer.attention.masks import causal_from_start
from glassformer.attention.observe import observe
from glassformer.attention.projections import Projections
from glassformer.attention.want import Want
from glassformer.capture.record import Captured
from glassformer.capture.running import Running
from glassformer.capture.torch_nn import recording_function
from glassformer.errors import ArgumentError

CALLS = ("scaled_dot_product_attention", "multi_head_attention_forward")
"""Names of the functions whose calls are recorded."""


BACKWARD = (Tensor.backward, torch.autograd.grad)
"""Functions inside which a checkpoint computes a forward pass again."""


def possible_callers(model: nn.Module, known: Collection[str]) -> dict[str, nn.Module]:
    """Return the modules that may call attention themselves, by their paths.

    These are all but torch.nn's, those whose attention is `known`, and those that only hold known ones.
    """
    callers: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        inside = f"{name}." if name else ""
        holds_known = any(path == name or path.startswith(inside) for path in known)
        if names_a_call(module) if holds_known else not type(module).__module__.startswith("torch.nn.modules."):
            callers[name] = module
    return {name: module for name, module in callers.items() if name not in known}


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


@contextmanager
def capturing_calls(
    callers: Mapping[str, nn.Module],
    known: Collection[nn.Module],
    patterns: Collection[str] | None,
    running: Running,
    captured: Captured,
    want: Want,
) -> Iterator[None]:
    """Record calls of torch's attention functions by these modules, but not inside those whose attention is `known`.

    `patterns` are of the paths of modules whose calls are recorded; None is all.
    """
    chosen = {name: module for name, module in callers.items() if matches(name, patterns)}
    if not _CALLERS.isdisjoint(chosen.values()):
        raise ArgumentError("model is being captured already: one capture at a time")

    def name_of_caller() -> str | None:
        """Return the path of the innermost module if its calls are recorded, and make room for it."""
        if not running.modules or running.is_elsewhere() or not known_modules.isdisjoint(running.modules):
            return None
        name = running.names[running.modules[-1]]
        if not matches(name, patterns):
            return None
        kind = type(running.modules[-1])
        kin = sum(type(module) is kind and matches(path, patterns) for module, path in running.names.items())
        captured.add_name(name, want, kin)
        return name

    known_modules = set(known)
    _CALLERS.update(chosen.values())
    try:
        with _Calls(name_of_caller, running, captured):
            yield
    finally:
        _CALLERS.difference_update(chosen.values())


_CALLERS: set[nn.Module] = set()
"""The modules whose calls are being recorded."""


def matches(name: str, patterns: Collection[str] | None) -> bool:
    """Return whether a path matches one of the patterns; None is all."""
    return patterns is None or any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


class _Calls(TorchFunctionMode):
    """Records calls of attention functions under the name of their caller."""

    def __init__(self, name_of_caller: Callable[[], str | None], running: Running, captured: Captured) -> None:
        super().__init__()
        self._name_of_caller, self._running, self._captured = name_of_caller, running, captured

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        settings = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **settings)
        if func is F.scaled_dot_product_attention:
            return self._scaled_dot_product(*args, **settings)
        if func is F.multi_head_attention_forward and (name := self._name_of_caller()) is not None:
            return self._multi_head(name, *args, **settings)
        if func in BACKWARD:
            self._running.suspended = self
            try:
                return func(*args, **settings)
            finally:
                self._running.suspended = None
        return func(*args, **settings)

    def _scaled_dot_product(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        name = self._name_of_caller()
        if name is None:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if query.is_nested or key.is_nested:
            raise ArgumentError(
                f"{name or 'model'} computes attention of nested tensors, which observe doesn't: pad them, or choose "
                "other layers"
            )
        return self._observe(name, query, key, value, attn_mask, dropout_p, is_causal, scale)

    def _observe(
        self,
        name: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        dropout: float,
        causal: bool,
        scale: float | None,
    ) -> Tensor:
        """Return what `F.scaled_dot_product_attention` does, recorded.

        Axes before the heads are one batch, and there may be none; (length, width) has one head.
        """
        query, key, value = cast_as_autocast(query, key, value)
        leading = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
        q, k, v = (_with_heads(x, leading) for x in (query, key, value))
        if k.shape[1] != v.shape[1]:  # one of them has a single head for all
            k, v = (x.expand(-1, max(k.shape[1], v.shape[1]), -1, -1) for x in (k, v))
        q_len, k_len = q.shape[2], k.shape[2]
        keep = bias = None
        if mask is not None:
            mask = mask.expand(*mask.shape[:-1], k_len)
            mask = mask[(None,) * (2 - mask.dim())]
            if mask.dim() > 3:
                mask = mask.expand(*leading, *mask.shape[-3:]) if leading else mask
                mask = mask.flatten(0, -4)
            else:
                mask = mask[(None,) * (4 - mask.dim())]
            keep, bias = (mask, None) if mask.dtype == torch.bool else (None, mask)
        if causal and q_len != k_len:  # torch counts both from their beginnings, observe from their ends
            before = causal_from_start(q_len, k_len, q.device)
            keep, causal = before if keep is None else keep & before, False
        want = self._captured.reserve(name, q.shape[0], q.shape[1], q_len, k_len)
        output, observation = observe(
            q, k, v, keep=keep, bias=bias, causal=causal, scale=scale, dropout=dropout, want=want
        )
        self._captured.add(name, observation)
        # Torch's fused forms lay the output out as (batch, length, heads, width), and models merge the heads by a view.
        output = output.transpose(1, 2).contiguous().transpose(1, 2)
        return output.reshape(*leading, *(q.shape[1:3] if query.dim() > 2 else q.shape[2:3]), v.shape[3])

    def _multi_head(self, name: str, *arguments: Any, **settings: Any) -> tuple[Tensor, Tensor | None]:
        """Return what `F.multi_head_attention_forward` does, recorded."""
        bound = _MULTI_HEAD.bind(*arguments, **settings)
        bound.apply_defaults()
        given = SimpleNamespace(**bound.arguments)
        projections = _projections(given)
        masks = (given.key_padding_mask, given.attn_mask, given.is_causal)
        wanted = (given.need_weights, given.average_attn_weights)
        problem, asked = pose(given.query, given.key, given.value, projections, *masks, *wanted)
        dropout = given.dropout_p if given.training else 0.0
        heads, weights = recording_function(name, self._captured)(problem, dropout, asked)
        return projections.merge(heads, given.query).contiguous(), unbatched(weights, given.query)


_MULTI_HEAD = inspect.signature(multi_head_attention_forward)


def _projections(given: SimpleNamespace) -> Projections:
    """Return the projections among the arguments of `multi_head_attention_forward`."""
    separate = (given.q_proj_weight, given.k_proj_weight, given.v_proj_weight)
    return Projections(
        given.embed_dim_to_check,
        given.num_heads,
        given.in_proj_weight,
        separate if given.use_separate_proj_weight else None,
        given.in_proj_bias,
        given.out_proj_weight,
        given.out_proj_bias,
        *(given.bias_k, given.bias_v, given.add_zero_attn, given.static_k, given.static_v),
    )


def _with_heads(x: Tensor, leading: torch.Size) -> Tensor:
    """Return (batch, heads, length, width)."""
    x = x[(None,) * (3 - x.dim())]
    x = x.expand(*leading, *x.shape[-3:])
    return x.flatten(0, -4) if leading else x[None]


def cast_as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return these tensors in the dtype that autocast gives to attention, where it is on."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind) or tensors[0].dtype == torch.float64:
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(kind)) for x in tensors)
