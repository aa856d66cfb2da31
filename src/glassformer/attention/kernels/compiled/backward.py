"""The gradients of attention and of facts about its weights, tile by tile as in `forward`.

With p the weights, o the output, x = log p, and d the distance to a key, the gradient of a query's scores is
p (do vᵀ + g + d(distance) d - d(entropy) x + d(top) - constant), where g is d(received) + d(head mean) / heads +
d(rows). The constant is the mean over its weights of all that is before it, less d(lse). But for g, whose mean needs a
sweep of its own, it follows from the facts.
"""

from typing import Any, no_type_check

from glassformer.attention.kernels.compiled.forward import ANY, BIAS, MASK, PLACES, QUERIES, SPANS, TILE, open_keys
from glassformer.attention.kernels.compiled.jit import VERSION, F, I, inner, kept, np, types
from glassformer.attention.kernels.compiled.products import (
    multiply,
    multiply_panels,
    padded,
    panels_of,
    part_of_row,
    up_to,
)
from glassformer.attention.kernels.compiled.registers import COLUMNS, ROWS
from glassformer.attention.kernels.compiled.rows import mask_row, push, weigh_sum


@inner()
@no_type_check
def score_tile(
    queries, width, key_panels, tile_key, keys, wide, start, rows, keep, bias, causal, origin, first_key, entry, head, s
):
    """Compute the scores of a tile, -inf where a query may not look but for keys behind `open_keys`."""
    row_length = up_to(width, COLUMNS)
    multiply_panels(
        queries, row_length, key_panels, tile_key // COLUMNS, width, s, 0, TILE, up_to(rows, ROWS), up_to(wide, COLUMNS)
    )
    if keep.size + bias.size > 0:
        key = first_key + tile_key
        for row in range(rows):
            seen = min(wide, max(0, open_keys(start + row, keys, origin, causal) - tile_key))
            mask_row(
                s[row * TILE : row * TILE + seen],
                part_of_row(keep, entry, head, start + row, key, key + seen),
                part_of_row(bias, entry, head, start + row, key, key + seen),
            )


@inner()
@no_type_check
def pushed_on_keys(of_keys, first_key, query, tile_key, seen, scratch):
    """Return g of a query for the keys of a tile, from `of_keys`: see `add_gradients`."""
    of_received, of_mean, of_rows, row_of_query = of_keys
    row = row_of_query[query] if len(of_rows) else -1
    if not len(of_mean) and row < 0:
        return of_received[tile_key : tile_key + seen]
    key = first_key + tile_key
    for n in range(seen):
        scratch[n] = of_received[tile_key + n]
    if len(of_mean):
        for n in range(seen):
            scratch[n] += of_mean[query, key + n]
    if row >= 0:
        for n in range(seen):
            scratch[n] += of_rows[row, key + n]
    return scratch[:seen]


@inner()
@no_type_check
def add_gradients(
    q, key_panels, keys_padded, value_panels, keys, v_width, keep, bias, scale, causal, origin, first_key, entry, head,
    first, last, height, grad_output, peaks, tilts, constants, of_entropy, of_distance, of_keys, sweep, of_top,
    top_keys, grad_q, grad_keys, grad_values,
):  # fmt: skip
    """Set the gradient of the queries from `first` to `last` of a head, and add to those of its keys and values.

    `of_keys` are the gradients of `received`, of the sum over the heads and of the chosen queries' rows, and these
    queries' rows, -1 for others: one argument, since numba takes at most 30.
    """
    width = q.shape[1]
    padded_width, v_padded = up_to(width, COLUMNS), up_to(v_width, COLUMNS)
    p, ds, scratch = np.empty(height * TILE, F), np.empty(height * TILE, F), np.empty(TILE, F)
    for start in range(first, last, height):
        rows = min(height, last - start)
        multiplied = up_to(rows, ROWS)
        queries = padded(q[start : start + rows], multiplied, padded_width, scale)
        pushed = padded(grad_output[start : start + rows], multiplied, v_padded, F(1))
        dq = np.zeros(multiplied * padded_width, F)
        stop = max(1, open_keys(start + rows - 1, keys, origin, causal))
        if sweep:
            for tile_key in range(0, stop, TILE):
                wide = min(TILE, stop - tile_key)
                score_tile(
                    queries, width, key_panels, tile_key, keys, wide, start, rows, keep, bias, causal, origin,
                    first_key, entry, head, p,
                )  # fmt: skip
                for row in range(rows):
                    seen = min(wide, max(0, open_keys(start + row, keys, origin, causal) - tile_key))
                    constants[start + row] += weigh_sum(
                        p[row * TILE : row * TILE + seen],
                        peaks[start + row],
                        tilts[start + row],
                        pushed_on_keys(of_keys, first_key, start + row, tile_key, seen, scratch),
                    )
        for tile_key in range(0, stop, TILE):
            wide = min(TILE, stop - tile_key)
            score_tile(
                queries, width, key_panels, tile_key, keys, wide, start, rows, keep, bias, causal, origin, first_key,
                entry, head, p,
            )  # fmt: skip
            multiply_panels(
                pushed, v_padded, value_panels, tile_key // COLUMNS, v_width, ds, 0, TILE, multiplied,
                up_to(wide, COLUMNS),
            )  # fmt: skip
            for row in range(rows):
                at, query = row * TILE, start + row
                seen = min(wide, max(0, open_keys(query, keys, origin, causal) - tile_key))
                push(
                    p[at : at + seen],
                    ds[at : at + seen],
                    peaks[query],
                    tilts[query],
                    I(tile_key - query - origin),
                    pushed_on_keys(of_keys, first_key, query, tile_key, seen, scratch),
                    of_entropy[query],
                    of_distance[query],
                    constants[query],
                )
                for n in range(at + seen, at + up_to(wide, ROWS)):
                    p[n] = ds[n] = F(0)
                for n in range(of_top.shape[1]):
                    key = top_keys[query, n] - first_key - tile_key
                    if 0 <= key < seen:
                        ds[at + key] += p[at + key] * of_top[query, n]
            multiply(
                p, 0, 1, TILE, pushed, 0, v_padded, grad_values, tile_key * v_padded, v_padded, up_to(wide, ROWS),
                v_padded, rows,
            )  # fmt: skip
            multiply(
                ds, 0, 1, TILE, queries, 0, padded_width, grad_keys, tile_key * padded_width, padded_width,
                up_to(wide, ROWS), padded_width, rows,
            )  # fmt: skip
            multiply(
                ds, 0, TILE, 1, keys_padded, tile_key * padded_width, padded_width, dq, 0, padded_width, multiplied,
                padded_width, wide,
            )  # fmt: skip
        for row in range(rows):
            for d in range(width):
                grad_q[start + row, d] = dq[row * padded_width + d] * scale


@inner()
@no_type_check
def add_flat(flat, width, onto):
    """Add the rows of a flat array, which are as wide as `width` padded, to another array."""
    for n in range(onto.shape[0]):
        for d in range(width):
            onto[n, d] += flat[n * up_to(width, COLUMNS) + d]


def _compile(version: int) -> Any:
    @kept(
        types.void(
            *(ANY, ANY, ANY, MASK, BIAS, types.float32, types.boolean, types.int64, types.int64, SPANS),
            *(ANY, *[QUERIES] * 7, BIAS, PLACES, PLACES, types.boolean, BIAS, types.int64[:, :, :, ::1]),
            *(ANY, ANY, ANY, BIAS, BIAS),
        )
    )
    @no_type_check
    def push_back(
        q, k, v, keep, bias, scale, causal, offset, height, spans,
        grad_output, peaks, tilts, constants, of_entropy, of_distance, of_received, of_mean, of_rows,
        row_of_query, row_of_head, sweep, of_top, top_keys, grad_q, grad_k, grad_v, shared_k, shared_v,
    ):  # fmt: skip
        """Set the gradient of the queries of some spans, and add their part to those of their keys and values.

        Where `with_places` has a place for them, they are added to `shared_k` and `shared_v`. `peaks` are 0 where a
        query may look nowhere, and with `sweep` the part of `of_received`, `of_mean` and `of_rows` is added to
        `constants`.
        """
        assert version
        served = q.shape[1] // max(1, k.shape[1])  # heads that share keys
        width, v_width = k.shape[3], v.shape[3]
        n = 0
        while n < len(spans):
            entry, first_head, _, _, first_key, last_key, slot = spans[n]
            of_keys = first_head // served
            keys, open_ = last_key - first_key, slice(first_key, last_key)
            key_panels, value_panels = panels_of(k[entry, of_keys, open_]), panels_of(v[entry, of_keys, open_])
            keys_padded = padded(k[entry, of_keys, open_], keys, up_to(width, COLUMNS), F(1))
            grad_keys = np.zeros(up_to(keys, TILE) * up_to(width, COLUMNS), F)
            grad_values = np.zeros(up_to(keys, TILE) * up_to(v_width, COLUMNS), F)
            while n < len(spans) and spans[n, 0] == entry and spans[n, 1] // served == of_keys:
                head, first, last = spans[n, 1], spans[n, 2], spans[n, 3]
                place = (entry, head)
                head_row = row_of_head[head] if len(row_of_head) else -1
                chosen_rows = of_rows[entry, max(0, head_row), : of_rows.shape[2] if head_row >= 0 else 0]
                on_keys = (of_received[entry, head, open_], of_mean[entry], chosen_rows, row_of_query)
                add_gradients(
                    q[place], key_panels, keys_padded, value_panels, keys, v_width, keep, bias, scale, causal,
                    offset - first_key, first_key, entry, head, first, last, height,
                    grad_output[place], peaks[place], tilts[place], constants[place], of_entropy[place],
                    of_distance[place], on_keys, sweep, of_top[place],
                    top_keys[place], grad_q[place], grad_keys, grad_values,
                )  # fmt: skip
                n += 1
            if slot < 0:
                add_flat(grad_keys, width, grad_k[entry, of_keys, open_])
                add_flat(grad_values, v_width, grad_v[entry, of_keys, open_])
            else:
                add_flat(grad_keys, width, shared_k[slot, 0, open_])
                add_flat(grad_values, v_width, shared_v[slot, 0, open_])

    return push_back


push_back_spans = _compile(VERSION)
