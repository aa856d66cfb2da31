"""Capture of torch.nn.MultiheadAttention and of glassformer's."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from glassformer.attention.functional import AttentionFunction, compute_attention
from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.multihead import MultiheadAttention
from glassformer.attention.observation import Observation
from glassformer.attention.observe import observe
from glassformer.attention.replace import as_ours
from glassformer.attention.want import Want
from glassformer.capture.record import Captured, Place
from glassformer.capture.running import attributes_set
from glassformer.errors import ArgumentError


def torch_attentions(model: nn.Module) -> dict[str, nn.MultiheadAttention]:
    """Return the attentions by their paths, without subclasses that compute something of their own."""
    forwards = (nn.MultiheadAttention.forward, MultiheadAttention.forward)
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.MultiheadAttention) and type(module).forward in forwards
    }


@contextmanager
def capturing_torch(modules: Mapping[str, nn.MultiheadAttention], captured: Captured) -> Iterator[None]:
    """Record the attention of these modules inside the context."""
    with ExitStack() as stack:
        for name, module in modules.items():
            if isinstance(copied := module.__dict__.get("forward"), _Uncaptured):
                copied.end()
            if "forward" in module.__dict__:
                raise ArgumentError(
                    f"{name or 'model'} is being captured already, or its forward was replaced: "
                    "leave that context first"
                )
            attention = recording_function(captured.place(name))
            if isinstance(module, MultiheadAttention):
                stack.enter_context(module.computed_by(attention))
            else:
                # Layers of torch.nn that find False here call the attention in place of their fast path.
                forward = _Forward(module, attention)
                stack.enter_context(attributes_set(module, forward=forward, _qkv_same_embed_dim=False))
        yield


class _Forward:
    """The forward pass of torch's module, computed by a module of ours with the same weights.

    It is made at each call: pruning, weight norm and adapters give the module other weights before one.
    """

    def __init__(self, theirs: nn.MultiheadAttention, attention: AttentionFunction) -> None:
        self._theirs, self._attention = theirs, attention

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        ours = as_ours(self._theirs)
        if is_parametrized(self._theirs):
            names = [name for name, _ in self._theirs.get_submodule("parametrizations").named_children()]
            ours.__dict__.update({name: getattr(self._theirs, name) for name in names})
        with ours.computed_by(self._attention):
            return MultiheadAttention.forward(ours, *arguments, **settings)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a copy of the module, made inside the context, gets in its place."""
        return _Uncaptured, (self._theirs,)


class _Uncaptured:
    """The forward pass of a module that was copied while it was captured: the first call makes it torch's own again."""

    def __init__(self, module: nn.MultiheadAttention) -> None:
        self._module = module

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        self.end()
        return self._module.forward(*arguments, **settings)

    def end(self) -> None:
        """Make the module torch's own again."""
        del self._module.__dict__["forward"]
        self._module._qkv_same_embed_dim = self._module.in_proj_weight is not None


def _without_padding(problem: Problem) -> Tensor | None:
    """Return where a query may look, which is nowhere for padding: its facts would say nothing."""
    queries, keep = problem.queries, problem.keep
    if queries is None or queries.all():
        return keep
    return queries.expand(-1, -1, -1, problem.k.shape[2]) if keep is None else queries & keep


def recording_function(place: Place) -> AttentionFunction:
    """Return an attention function that records what it computes."""

    def attend_and_record(problem: Problem, dropout: float, want: Want | None) -> tuple[Tensor, Tensor | None]:
        if place.is_elsewhere():
            return compute_attention(problem, dropout, want)
        batch, heads, q_len, _ = problem.q.shape
        reserved = place.reserve(batch, heads, q_len, problem.k.shape[2])
        asked = both = reserved.want
        if want is not None:
            both = replace(asked, head_mean=asked.head_mean or want.head_mean, weights=asked.weights or want.weights)
        with place.at_work():
            output, observation = observe(
                problem.q,
                problem.k,
                problem.v,
                keep=_without_padding(problem),
                bias=problem.bias,
                causal=problem.causal,
                scale=problem.scale,
                dropout=dropout,
                want=both,
                first_query=reserved.first_under(causal=problem.causal),
            )
        tensors = observation.tensors()
        weights = None if want is None else tensors["head_mean" if want.head_mean else "weights"]
        for fact in set(both.asked) - set(asked.asked):
            del tensors[fact]
        place.add(Observation(tensors, asked, observation.batch))
        return output, weights

    return attend_and_record
