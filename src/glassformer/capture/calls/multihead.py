"""Record a call of `F.multi_head_attention_forward`."""

import inspect
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from glassformer.attention.functional import multi_head_attention_forward, pose, unbatched
from glassformer.attention.projections import Projections
from glassformer.capture.record import Place
from glassformer.capture.torch_nn import recording_function

_SIGNATURE = inspect.signature(multi_head_attention_forward)


def record_multi_head(place: Place, *arguments: Any, **settings: Any) -> tuple[Tensor, Tensor | None]:
    """Return what `F.multi_head_attention_forward` does, recorded."""
    bound = _SIGNATURE.bind(*arguments, **settings)
    bound.apply_defaults()
    given = SimpleNamespace(**bound.arguments)
    projections = _projections(given)
    masks = (given.key_padding_mask, given.attn_mask, given.is_causal)
    wanted = (given.need_weights, given.average_attn_weights)
    problem, asked = pose(given.query, given.key, given.value, projections, *masks, *wanted)
    dropout = given.dropout_p if given.training else 0.0
    heads, weights = recording_function(place)(problem, dropout, asked)
    return projections.merge(heads, given.query).contiguous(), unbatched(weights, given.query)


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
