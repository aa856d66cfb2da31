"""observe()'s GPU kernels, in Triton's language: attention with online softmax (Milakov and Gimelshein 2018,
arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135), which gathers log-sum-exp, entropy and distance on its way; then,
from the log-sum-exp, what needs the finished weights: received, the heads' mean, tiles, the largest.

b entry of the batch, H heads, G heads that share a key head, L query length, S key length, D and E widths of keys and
values, M x N the block of queries and keys that a program holds. Pointers come with their strides: q[b, h, i, d] ...
Scores are in base 2, as exp2 is what the hardware has. A query's log-sum-exp is kept as its largest score, `peak`, and
what is to be added to that, `tilt`: where scores are huge their sum would lose the second. Programs are counted along
one axis, the only one with room for all.
"""

try:
    import triton
    import triton.language as tl
    from triton.runtime.errors import OutOfResources as OutOfResources
except ImportError as error:
    raise ImportError("the GPU kernels need triton: pip install 'glassformer[triton]'") from error


_LOG2_E = tl.constexpr(1.4426950408889634)
_LOWEST = tl.constexpr(-3.0e38)  # about the lowest float32: a bias of that size must not become -inf, which blocks


@triton.jit
def _load(x, x_b, x_h, x_i, x_d, b, h, rows, length, D, WIDTH: tl.constexpr, FULL: tl.constexpr):
    """Return rows of a head, (rows, WIDTH), zero beyond its length and width. FULL: its width is WIDTH."""
    d = tl.arange(0, WIDTH)
    at = (
        x
        + b.to(tl.int64) * x_b
        + h.to(tl.int64) * x_h
        + rows.to(tl.int64)[:, None] * x_i
        + d.to(tl.int64)[None, :] * x_d
    )
    if FULL:
        return tl.load(at, mask=rows[:, None] < length, other=0.0)
    return tl.load(at, mask=(rows[:, None] < length) & (d[None, :] < D), other=0.0)


@triton.jit
def _score(
    x, y, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i, bias_j, b, h, rows, keys, rate, L, S,
    offset, edge, KEEP: tl.constexpr, BIAS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the scores of queries x (M, D) and keys y (N, D), in base 2: (M, N), -inf where a query may not look.

    `edge` says whether some key may lie beyond the last one, or come after a query. Queries beyond the last get any
    scores.
    """
    s = tl.dot(x, tl.trans(y), input_precision=PRECISION) * rate
    if BIAS or KEEP:
        inside = (rows[:, None] < L) & (keys[None, :] < S)
        b, h, i, j = b.to(tl.int64), h.to(tl.int64), rows.to(tl.int64)[:, None], keys.to(tl.int64)[None, :]
        if BIAS:
            added = tl.load(bias + b * bias_b + h * bias_h + i * bias_i + j * bias_j, mask=inside, other=0.0)
            added = added.to(tl.float32)
            s += tl.where(added == float("-inf"), added, tl.maximum(added * _LOG2_E, _LOWEST))
        if KEEP:
            looks = tl.load(keep + b * keep_b + h * keep_h + i * keep_i + j * keep_j, mask=inside, other=0)
            s = tl.where(looks != 0, s, float("-inf"))
    if edge:
        s = tl.where(keys[None, :] < S, s, float("-inf"))
        if CAUSAL:
            s = tl.where(keys[None, :] <= rows[:, None] + offset, s, float("-inf"))
    return s


@triton.jit
def _weigh(s, peak, tilt):
    """Return weights from scores. Queries that look nowhere have a peak of -inf, and only scores of -inf."""
    return tl.exp2(s - tl.where(peak == float("-inf"), 0.0, peak)[:, None] - tilt[:, None])


@triton.jit
def _normaliser(peak, tilt, at, rows, L):
    """Return what weights are made with. Queries beyond the last get weights of zero."""
    inside = rows < L
    return tl.load(peak + at, mask=inside, other=0.0), tl.load(tilt + at, mask=inside, other=float("inf"))


@triton.jit
def attend(
    q, q_b, q_h, q_i, q_d, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i,
    bias_j, v, v_b, v_h, v_j, v_e, output, o_b, o_h, o_i, o_e, peak, tilt, entropy,
    distance, rate, H, G, L, S, offset, D, E,
    WIDTH_D: tl.constexpr, WIDTH_E: tl.constexpr, FULL_D: tl.constexpr, FULL_E: tl.constexpr, KEEP: tl.constexpr,
    BIAS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, ENTROPY: tl.constexpr, DISTANCE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0) % tl.cdiv(L, M), tl.program_id(0) // tl.cdiv(L, M)
    b, h = head // H, head % H
    rows = block * M + tl.arange(0, M)
    x = _load(q, q_b, q_h, q_i, q_d, b, h, rows, L, D, WIDTH_D, FULL_D)
    places = (rows + offset).to(tl.float32)
    largest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    score_sum = tl.zeros([M], tl.float32)
    distance_sum = tl.zeros([M], tl.float32)
    o = tl.zeros([M, WIDTH_E], tl.float32)
    stop = S
    whole = S  # up to here all of the block's queries look at every key
    if CAUSAL:
        stop = tl.minimum(S, (block + 1) * M + offset)
        whole = tl.minimum(S, block * M + offset + 1)
    for start in range(0, stop, N):
        keys = start + tl.arange(0, N)
        y = _load(k, k_b, k_h, k_j, k_d, b, h // G, keys, S, D, WIDTH_D, FULL_D)
        s = _score(
            x, y, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i, bias_j, b, h, rows, keys, rate,
            L, S, offset, start + N > whole, KEEP, BIAS, CAUSAL, PRECISION,
        )  # fmt: skip
        before, largest = largest, tl.maximum(largest, tl.max(s, 1))
        shift = tl.where(largest == float("-inf"), 0.0, largest)
        shrink = tl.exp2(before - shift)
        s -= shift[:, None]
        p = tl.exp2(s)
        if ENTROPY:
            # Counted from the largest, whatever that is now, so that large scores lose no digits.
            rise = tl.where(shrink == 0.0, 0.0, before - shift)
            score_sum = score_sum * shrink + total * shrink * rise
            score_sum += tl.sum(p * tl.maximum(s, _LOWEST), 1)
        total = total * shrink + tl.sum(p, 1)
        if DISTANCE:
            apart = tl.abs(places[:, None] - keys.to(tl.float32)[None, :])
            distance_sum = distance_sum * shrink + tl.sum(p * apart, 1)
        z = _load(v, v_b, v_h, v_j, v_e, b, h // G, keys, S, E, WIDTH_E, FULL_E)
        o = o * shrink[:, None] + tl.dot(p.to(z.dtype), z, input_precision=PRECISION)
    sees = total != 0.0  # so that NaN stays NaN
    total = tl.where(sees, total, 1.0)
    e = tl.arange(0, WIDTH_E)
    at = output + b.to(tl.int64) * o_b + h.to(tl.int64) * o_h + rows.to(tl.int64)[:, None] * o_i + e[None] * o_e
    o = o / total[:, None]
    tl.store(at, o.to(output.dtype.element_ty), mask=(rows[:, None] < L) & (e[None] < E))
    at = head.to(tl.int64) * L + rows
    added = tl.log2(total)  # 0 for queries that look nowhere
    tl.store(peak + at, tl.where(sees, largest, float("-inf")), mask=rows < L)
    tl.store(tilt + at, added, mask=rows < L)
    if ENTROPY:  # in nats
        tl.store(entropy + at, tl.where(sees, added - score_sum / total, 0.0) / _LOG2_E, mask=rows < L)
    if DISTANCE:
        tl.store(distance + at, distance_sum / total, mask=rows < L)


@triton.jit
def receive(
    q, q_b, q_h, q_i, q_d, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i,
    bias_j, peak, tilt, received, rate, H, G, L, S, offset, D, WIDTH_D: tl.constexpr, FULL_D: tl.constexpr,
    KEEP: tl.constexpr, BIAS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """Sum one block of keys over all queries: no two programs add to one number."""
    block, head = tl.program_id(0) % tl.cdiv(S, N), tl.program_id(0) // tl.cdiv(S, N)
    b, h = head // H, head % H
    keys = block * N + tl.arange(0, N)
    y = _load(k, k_b, k_h, k_j, k_d, b, h // G, keys, S, D, WIDTH_D, FULL_D)
    sum_ = tl.zeros([N], tl.float32)
    first = 0
    whole = 0  # from here on all queries look at every key of the block
    if CAUSAL:
        first = tl.maximum(0, block * N - offset) // M * M
        whole = (block + 1) * N - 1 - offset
    for start in range(first, L, M):
        rows = start + tl.arange(0, M)
        x = _load(q, q_b, q_h, q_i, q_d, b, h, rows, L, D, WIDTH_D, FULL_D)
        largest, added = _normaliser(peak, tilt, head.to(tl.int64) * L + rows, rows, L)
        s = _score(
            x, y, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i, bias_j, b, h, rows, keys, rate,
            L, S, offset, start < whole, KEEP, BIAS, CAUSAL, PRECISION,
        )  # fmt: skip
        sum_ += tl.sum(_weigh(s, largest, added), 0)
    tl.store(received + head.to(tl.int64) * S + keys, sum_, mask=keys < S)


@triton.jit
def average(
    q, q_b, q_h, q_i, q_d, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i,
    bias_j, peak, tilt, mean, rate, H, G, L, S, offset, D, WIDTH_D: tl.constexpr, FULL_D: tl.constexpr,
    KEEP: tl.constexpr, BIAS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """Average one block of the map over the heads."""
    across = tl.cdiv(S, N)
    b, place = tl.program_id(0) // (tl.cdiv(L, M) * across), tl.program_id(0) % (tl.cdiv(L, M) * across)
    rows, keys = place // across * M + tl.arange(0, M), place % across * N + tl.arange(0, N)
    sum_ = tl.zeros([M, N], tl.float32)
    for head in range(0, H):
        h = b * 0 + head  # a tensor, also in the interpreter, whose loops count in Python's numbers
        x = _load(q, q_b, q_h, q_i, q_d, b, h, rows, L, D, WIDTH_D, FULL_D)
        y = _load(k, k_b, k_h, k_j, k_d, b, h // G, keys, S, D, WIDTH_D, FULL_D)
        largest, added = _normaliser(peak, tilt, (b * H + h).to(tl.int64) * L + rows, rows, L)
        s = _score(
            x, y, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i, bias_j, b, h, rows, keys, rate,
            L, S, offset, CAUSAL, KEEP, BIAS, CAUSAL, PRECISION,
        )  # fmt: skip
        sum_ += _weigh(s, largest, added)
    at = mean + (b.to(tl.int64) * L + rows.to(tl.int64))[:, None] * S + keys[None, :]
    tl.store(at, (sum_ / H).to(mean.dtype.element_ty), mask=(rows[:, None] < L) & (keys[None, :] < S))


@triton.jit
def pool(
    q, q_b, q_h, q_i, q_d, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i,
    bias_j, peak, tilt, pooled, rate, H, G, L, S, offset, D, WIDTH_D: tl.constexpr, FULL_D: tl.constexpr,
    KEEP: tl.constexpr, BIAS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, ROWS, KEYS, MOST_ROWS, MOST_KEYS, HEADS,
):  # fmt: skip
    """Sum one part, at most MOST_ROWS x MOST_KEYS, of a tile of ROWS x KEYS of HEADS heads' mean, in blocks of M x N.

    pooled: (groups of heads, tiles, parts, tiles, parts)."""
    down, across = tl.cdiv(L, ROWS) * tl.cdiv(ROWS, MOST_ROWS), tl.cdiv(S, KEYS) * tl.cdiv(KEYS, MOST_KEYS)
    group, place = tl.program_id(0) // (down * across), tl.program_id(0) % (down * across)
    tile, part = place // across // tl.cdiv(ROWS, MOST_ROWS), place // across % tl.cdiv(ROWS, MOST_ROWS)
    row = tile * ROWS + part * MOST_ROWS
    last_row = tl.minimum(tl.minimum(row + MOST_ROWS, (tile + 1) * ROWS), L)
    tile, part = place % across // tl.cdiv(KEYS, MOST_KEYS), place % across % tl.cdiv(KEYS, MOST_KEYS)
    key = tile * KEYS + part * MOST_KEYS
    last_key = tl.minimum(tl.minimum(key + MOST_KEYS, (tile + 1) * KEYS), S)
    sum_ = tl.zeros([M, N], tl.float32)
    for n in range(0, HEADS):
        head = group * HEADS + n
        b, h = head // H, head % H
        for start in range(row, last_row, M):
            rows = start + tl.arange(0, M)
            x = _load(q, q_b, q_h, q_i, q_d, b, h, rows, L, D, WIDTH_D, FULL_D)
            largest, added = _normaliser(peak, tilt, head.to(tl.int64) * L + rows, rows, L)
            for begin in range(key, last_key, N):
                keys = begin + tl.arange(0, N)
                y = _load(k, k_b, k_h, k_j, k_d, b, h // G, keys, S, D, WIDTH_D, FULL_D)
                s = _score(
                    x, y, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i, bias_j, b, h, rows,
                    keys, rate, L, S, offset, CAUSAL, KEEP, BIAS, CAUSAL, PRECISION,
                )  # fmt: skip
                inside = (rows < last_row)[:, None] & (keys < last_key)[None, :]
                sum_ += tl.where(inside, _weigh(s, largest, added), 0.0)
    tl.store(pooled + tl.program_id(0), tl.sum(tl.sum(sum_, 1), 0) / HEADS)


@triton.jit
def rank(
    q, q_b, q_h, q_i, q_d, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i,
    bias_j, peak, tilt, top, top_keys, rate, H, G, L, S, offset, D, WIDTH_D: tl.constexpr, FULL_D: tl.constexpr,
    KEEP: tl.constexpr, BIAS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Find the K largest weights of each query, unsorted: a larger one takes the place of the smallest kept."""
    block, head = tl.program_id(0) % tl.cdiv(L, M), tl.program_id(0) // tl.cdiv(L, M)
    b, h = head // H, head % H
    rows = block * M + tl.arange(0, M)
    slots = tl.arange(0, SLOTS)
    x = _load(q, q_b, q_h, q_i, q_d, b, h, rows, L, D, WIDTH_D, FULL_D)
    # Slots beyond K hold infinity, so that nothing takes their place.
    best = tl.zeros([M, SLOTS], tl.float32) + tl.where(slots < K, float("-inf"), float("inf"))[None, :]
    found = tl.zeros([M, SLOTS], tl.int32)
    stop = S
    whole = S
    if CAUSAL:
        stop = tl.minimum(S, (block + 1) * M + offset)
        whole = tl.minimum(S, block * M + offset + 1)
    for start in range(0, stop, N):
        columns = tl.arange(0, N)
        y = _load(k, k_b, k_h, k_j, k_d, b, h // G, start + columns, S, D, WIDTH_D, FULL_D)
        s = _score(
            x, y, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i, bias_j, b, h, rows,
            start + columns, rate, L, S, offset, start + N > whole, KEEP, BIAS, CAUSAL, PRECISION,
        )  # fmt: skip
        largest = tl.max(s, 1)
        smallest = tl.min(best, 1)
        while tl.max((largest > smallest).to(tl.int32), 0) > 0:
            where = tl.argmax(s, 1)
            slot = tl.argmin(best, 1)
            enters = largest > smallest
            here = enters[:, None] & (slots[None, :] == slot[:, None])
            best = tl.where(here, largest[:, None], best)
            found = tl.where(here, (start + where)[:, None], found)
            s = tl.where(enters[:, None] & (columns[None, :] == where[:, None]), float("-inf"), s)
            largest = tl.max(s, 1)
            smallest = tl.min(best, 1)
    at = head.to(tl.int64) * L + rows
    largest, added = _normaliser(peak, tilt, at, rows, L)
    weights = _weigh(best, largest, added)
    at = at[:, None] * K + slots[None, :]
    inside = (rows[:, None] < L) & (slots[None, :] < K)
    tl.store(top + at, weights, mask=inside)
    tl.store(top_keys + at, found.to(tl.int64), mask=inside)
