"""The computation of attention: every form, and `choose`, which says where each is used.

A form takes q, k and v of shape (batch, heads, length, width) and knows nothing of projections or modules. It may
import `attention.want` and `attention.masks`, and nothing else of ours. Start with `weigh`, the equation as it stands
in the paper.
"""
