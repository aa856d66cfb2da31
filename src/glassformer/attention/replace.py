"""Put our attention in the place of torch.nn's in a model that exists."""

from typing import TypeVar, cast

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from glassformer.attention.multihead import MultiheadAttention
from glassformer.errors import ArgumentError

Model = TypeVar("Model", bound=nn.Module)


def replace_attention(model: Model) -> Model:
    """Put a `glassformer.MultiheadAttention` in the place of every `torch.nn.MultiheadAttention` of a model.

    Changes the model in place and returns it; if it is itself an attention, returns its replacement. The parameters
    stay the same objects, so an optimizer that has them goes on; hooks, training mode, device and dtype stay too. A
    module that the model uses in several places stays one module. Results are torch's (see `MultiheadAttention` for
    what differs), also inside `nn.TransformerEncoderLayer`, which then calls the attention in inference as well.

    Subclasses of torch's attention are left alone: ours is one, and others may compute something else. Raises
    ArgumentError for a model that has no attention of torch's or ours.

    >>> model = replace_attention(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    >>> type(model.self_attn).__module__
    'glassformer.attention.multihead'
    """
    ours: dict[nn.Module, MultiheadAttention] = {}
    for module in model.modules():
        if type(module) is nn.MultiheadAttention:
            ours[module] = as_ours(module)
    if not ours and not any(isinstance(module, MultiheadAttention) for module in model.modules()):
        raise ArgumentError(f"model must contain a torch.nn.MultiheadAttention, and {_what_it_has(model)}")
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child in ours:
                setattr(parent, name, ours[child])
    return cast(Model, ours.get(model, model))


def _what_it_has(model: nn.Module) -> str:
    """Return a clause on what a model has in place of torch's attention, and what to do."""
    made_from_it = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    if made_from_it:
        kinds = ", ".join(sorted({type(module).__name__ for module in made_from_it}))
        fix = "put glassformer.MultiheadAttention in the place of those that compute what torch's does"
        if any(map(is_parametrized, made_from_it)):
            fix = "call replace_attention before weight norm or another parametrization is added"
        return f"{type(model).__name__} has only classes made from it, which are left alone ({kinds}): {fix}"
    return f"{type(model).__name__} has none: attention that a model computes in code of its own can't be replaced"


def as_ours(theirs: nn.MultiheadAttention) -> MultiheadAttention:
    """Return a module of ours that shares all that torch's module holds."""
    ours = MultiheadAttention.__new__(MultiheadAttention)
    nn.Module.__init__(ours)
    ours.__setstate__(theirs.__dict__.copy())
    return ours
