"""Attention and facts about its weights, tile by tile in the second-level cache.

A tile is TILE keys of a block of queries. Its scores become exponentials, and are summed and multiplied with the values
before they leave the cache. What a query's exponentials are counted from, the largest of its scores so far, grows from
tile to tile, and its sums are corrected (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022,
arXiv:2205.14135). For facts that need finished weights a block's exponentials are kept for all keys.

For the mean over the heads a block of queries goes through all heads, one after the other, while its means are in the
cache: the keys and values of all heads are packed beforehand.
"""

import math
from typing import Any, no_type_check

from glassformer.attention.kernels.compiled.jit import VERSION, F, I, inner, kept, np, types
from glassformer.attention.kernels.compiled.products import (
    multiply,
    multiply_panels,
    padded,
    panels_of,
    part_of_row,
    put_padded,
    put_panels,
    up_to,
)
from glassformer.attention.kernels.compiled.registers import COLUMNS, ROWS
from glassformer.attention.kernels.compiled.rows import (
    PART,
    add_scaled,
    exponentiate,
    exponentiate_alone,
    keep_largest,
    largest_of,
    mask_row,
)

TILE = 288
"""Keys of a tile: a multiple of COLUMNS and of ROWS."""

ANY, MASK, BIAS = types.float32[:, :, :, :], types.boolean[:, :, :, ::1], types.float32[:, :, :, ::1]
"""Types of arrays in any layout, and of masks, whose rows lie in memory as they are."""
QUERIES, SPANS, PLACES = types.float32[:, :, ::1], types.int64[:, ::1], types.int64[::1]


@inner()
@no_type_check
def open_keys(query, keys, origin, causal):
    """Return how many of the keys a query may look at, whatever masks say. `origin` is the position of query 0."""
    return min(keys, max(0, origin + query + 1)) if causal else keys


@inner()
@no_type_check
def may_look(keep, bias, entry, head, query, first, last):
    """Return whether masks let a query look at any of the keys from `first` to `last`."""
    kept = part_of_row(keep, entry, head, query, first, last)
    added = part_of_row(bias, entry, head, query, first, last)
    looks = 0
    for n in range(last - first):
        looks += (not len(kept) or kept[n]) and (not len(added) or added[n] > -math.inf)
    return looks > 0


@inner()
@no_type_check
def nth_largest(numbers, column, rows, n):
    """Return the n-th largest number of the first rows of a column, and set the n largest to -inf."""
    largest = F(0)
    for _ in range(n):
        at = 0
        for row in range(rows):
            at = row if numbers[row, column] > numbers[at, column] else at
        largest, numbers[at, column] = numbers[at, column], F(-math.inf)
    return largest


@inner()
@no_type_check
def attend_rows(
    q, key_panels, values, keys, v_width, keep, bias, scale, causal, origin, first_key, entry, head, first, last,
    height, e, output, peaks, tilts, entropy, distance, received, top, top_keys, head_mean, share_of_head,
    found_rows, row_of_query, on_first,
):  # fmt: skip
    """Compute the queries from `first` to `last` of a head, `height` of them, a multiple of ROWS, at a time.

    q (queries, width) is the head's, as are `key_panels` and `values`, the keys from `first_key` on. `e` has room for
    exponentials. The weights are added to `head_mean`, if it is wanted, of which the first head sets all, and
    those of chosen queries to `found_rows`, zeros, whose rows `row_of_query` tells, -1 for the others. `entropy` and
    `distance` are both set, or both empty. `on_first` are the weight on the first keys, empty if it isn't wanted, and
    their number: one argument, since numba takes at most 30.
    """
    width = q.shape[1]
    sink, first_keys = on_first
    v_padded = up_to(v_width, COLUMNS)
    chosen, sums_keys, means, masked = top.shape[1], len(received) > 0, len(head_mean) > 0, keep.size + bias.size > 0
    all_tiles, told = sums_keys or chosen > 0 or means, len(entropy) > 0
    tiles = up_to(keys, TILE) // TILE
    references, highest = np.empty((tiles, height), F), np.empty((tiles, height), F)
    parts = np.empty((chosen * TILE // PART, 1), F)
    totals, slopes = np.empty(height), np.empty(height)  # float64
    distances, sunk, peak = np.empty(height), np.empty(height), np.empty(height, F)
    for start in range(first, last, height):
        rows = min(height, last - start)
        multiplied = up_to(rows, ROWS)
        queries = padded(q[start : start + rows], multiplied, width, scale)
        sums = np.zeros(multiplied * v_padded, F)
        for row in range(height):
            totals[row], slopes[row], distances[row], sunk[row], peak[row] = 0.0, 0.0, 0.0, 0.0, F(-math.inf)
        stop = max(1, open_keys(start + rows - 1, keys, origin, causal))
        chosen_here = len(found_rows) > 0 and row_of_query[start : start + rows].max() >= 0
        kept_here = all_tiles or chosen_here
        for tile in range(up_to(stop, TILE) // TILE):
            tile_key = tile * TILE
            wide = min(TILE, stop - tile_key)
            here = tile * height * TILE if kept_here else 0
            multiply_panels(
                queries, width, key_panels, tile_key // COLUMNS, width, e, here, TILE, multiplied, up_to(wide, COLUMNS)
            )
            for row in range(rows):
                at, query = here + row * TILE, start + row
                seen = min(wide, max(0, open_keys(query, keys, origin, causal) - tile_key))
                scores = e[at : at + seen]
                for n in range(at + seen, at + wide):
                    e[n] = F(0)
                if masked:
                    key = first_key + tile_key
                    mask_row(
                        scores,
                        part_of_row(keep, entry, head, query, key, key + seen),
                        part_of_row(bias, entry, head, query, key, key + seen),
                    )
                highest[tile, row] = largest_of(scores)
                before, reference = peak[row], max(peak[row], highest[tile, row])
                if reference > before:
                    shrinks = math.exp(before - reference)
                    slopes[row] = shrinks * (slopes[row] + (before - reference) * totals[row]) if shrinks > 0 else 0.0
                    totals[row] *= shrinks
                    distances[row] *= shrinks
                    sunk[row] *= shrinks
                    for d in range(row * v_padded, (row + 1) * v_padded):
                        sums[d] *= F(shrinks)
                peak[row] = references[tile, row] = reference
                counted_from = reference if reference > -math.inf else F(0)
                if told:
                    total, slope, far = exponentiate(scores, counted_from, I(tile_key - query - origin))
                    totals[row] += total
                    slopes[row] += slope
                    distances[row] += far
                else:
                    totals[row] += exponentiate_alone(scores, counted_from)
                for n in range(min(seen, first_keys - first_key - tile_key) if len(sink) else 0):
                    sunk[row] += scores[n]
            multiply(
                e, here, TILE, 1, values, tile_key * v_padded, v_padded, sums, 0, v_padded, multiplied, v_padded, wide
            )
        for row in range(rows):
            total, query = totals[row], start + row
            open_to_it = open_keys(query, keys, origin, causal)
            if total == 0 and may_look(keep, bias, entry, head, query, first_key, first_key + open_to_it):
                total = math.nan  # its scores are too low for float32
            share = 1 / total if total != 0 else 0.0
            peaks[query], tilts[query] = peak[row], math.log(total) if total != 0 else 0.0
            for d in range(v_width):
                output[query, d] = sums[row * v_padded + d] * F(share)
            if told:
                entropy[query] = tilts[query] - slopes[row] * share
                distance[query] = distances[row] * share
            if len(sink):
                sink[query] = sunk[row] * share
            totals[row] = share
        if not kept_here:
            continue
        for tile in range(up_to(stop, TILE) // TILE):  # `references` become what an exponential's share of the row is
            for row in range(rows):
                shrinks = math.exp(references[tile, row] - peak[row]) if references[tile, row] > -math.inf else 0.0
                references[tile, row] = totals[row] * shrinks
        if sums_keys:
            for tile in range(up_to(stop, TILE) // TILE):
                tile_key = tile * TILE
                wide = min(TILE, stop - tile_key)
                for row in range(rows):
                    at = (tile * height + row) * TILE
                    add_scaled(references[tile, row], e[at : at + wide], received[tile_key : tile_key + wide])
        if chosen_here:
            for row in range(rows):
                n = row_of_query[start + row]
                for tile in range(up_to(stop, TILE) // TILE if n >= 0 else 0):
                    at, key = (tile * height + row) * TILE, first_key + tile * TILE
                    wide = min(TILE, stop - tile * TILE)
                    add_scaled(references[tile, row], e[at : at + wide], found_rows[n, key : key + wide])
        if means:
            for row in range(rows):
                mean = head_mean[start + row]
                if head == 0:
                    for n in range(len(mean)):
                        mean[n] = F(0)
                for tile in range(up_to(stop, TILE) // TILE):
                    at, key = (tile * height + row) * TILE, first_key + tile * TILE
                    wide = min(TILE, stop - tile * TILE)
                    add_scaled(references[tile, row] * share_of_head, e[at : at + wide], mean[key : key + wide])
        if chosen:
            for row in range(rows):
                weights, chosen_keys = top[start + row], top_keys[start + row]
                if math.isnan(totals[row]):
                    for n in range(chosen):
                        weights[n], chosen_keys[n] = F(math.nan), first_key + min(n, keys - 1)
                    continue
                used = up_to(stop, TILE) // TILE
                # So many tiles, or parts of them, have a weight as large as the least of their largest.
                if used > chosen:
                    least = F(0.999 * math.exp(nth_largest(highest, row, used, chosen) - peak[row]) * totals[row])
                else:
                    found = 0
                    for tile in range(used):
                        at = (tile * height + row) * TILE
                        for n in range(at, at + min(TILE, stop - tile * TILE), PART):
                            part = e[n : min(n + PART, at + min(TILE, stop - tile * TILE))]
                            parts[found, 0] = largest_of(part) * references[tile, row]
                            found += 1
                    least = nth_largest(parts, 0, found, chosen) if found >= chosen else F(0)
                for tile in range(used):
                    at = (tile * height + row) * TILE
                    wide = min(TILE, stop - tile * TILE)
                    keep_largest(
                        e[at : at + wide], references[tile, row], first_key + tile * TILE, least, weights, chosen_keys
                    )


def _compile(version: int) -> Any:
    @kept(
        types.void(
            *(ANY, ANY, ANY, MASK, BIAS, types.float32, types.boolean, types.int64, types.int64, SPANS),
            *(QUERIES, QUERIES, ANY, *[QUERIES] * 5, types.float32[:, ::1], BIAS, types.int64[:, :, :, ::1], QUERIES),
            *(BIAS, PLACES, PLACES, QUERIES, types.int64),
        )
    )
    @no_type_check
    def attend(
        q, k, v, keep, bias, scale, causal, offset, height, spans, packed_keys, packed_values,
        output, peaks, tilts, entropy, distance, received, parts, top, top_keys, head_mean,
        found_rows, row_of_query, row_of_head, sink, first_keys,
    ):  # fmt: skip
        """Compute the queries of some spans: see `Span`, and `with_places` for a span's last number.

        Keys and values are packed here unless `pack_spans` did it. `output` and facts are set (`entropy`, `distance`,
        `sink` unless they are empty), but `received`, if it is wanted, is added to, or `parts`. `top` holds zeros and
        `top_keys` -1. For `head_mean` the heads of a block of queries come in their order. `found_rows` has a row
        for each query and head that is chosen.
        """
        assert version
        served = q.shape[1] // max(1, k.shape[1])  # heads that share keys
        v_width, v_padded = v.shape[3], up_to(v.shape[3], COLUMNS)
        all_tiles = received.shape[2] + top.shape[3] + head_mean.shape[2] + len(row_of_query) > 0
        e = np.empty((up_to(k.shape[2], TILE) // TILE if all_tiles else 1) * height * TILE, F)
        for n in range(len(spans)):
            entry, head, first, last, first_key, last_key, part = spans[n]
            place, of_keys, keys = (entry, head), (entry, head // served), slice(first_key, last_key)
            if packed_keys.shape[2]:
                key_panels, values = packed_keys[of_keys], packed_values[of_keys]
            else:
                key_panels = panels_of(k[entry, head // served, keys])
                values = padded(v[entry, head // served, keys], last_key - first_key, v_padded, F(1))
            head_row = row_of_head[head] if len(row_of_head) else -1
            chosen_rows = found_rows[entry, max(0, head_row), : found_rows.shape[2] if head_row >= 0 else 0]
            onto = received[place] if part < 0 else parts[part]
            attend_rows(
                q[place], key_panels, values, last_key - first_key, v_width, keep, bias, scale, causal,
                offset - first_key, first_key, entry, head, first, last, height,
                e, output[place], peaks[place], tilts[place], entropy[place], distance[place],
                onto[first_key:last_key], top[place], top_keys[place], head_mean[entry], F(1 / q.shape[1]),
                chosen_rows, row_of_query, (sink[place], first_keys),
            )  # fmt: skip

    return attend


def _compile_packing(version: int) -> Any:
    @kept(types.void(ANY, ANY, SPANS, QUERIES, QUERIES))
    @no_type_check
    def pack(k, v, spans, packed_keys, packed_values):
        """Put what products read of the keys and values of some heads of keys, from the first to the last of a span."""
        assert version
        for n in range(len(spans)):
            entry, head, _, _, first_key, last_key = spans[n]
            # torch's zeros would leave a thread spinning.
            for found in (packed_keys[entry, head], packed_values[entry, head]):
                for place in range(len(found)):
                    found[place] = F(0)
            put_panels(k[entry, head, first_key:last_key], packed_keys[entry, head])
            put_padded(v[entry, head, first_key:last_key], up_to(v.shape[3], COLUMNS), F(1), packed_values[entry, head])

    return pack


attend_spans, pack_spans = _compile(VERSION), _compile_packing(VERSION)
