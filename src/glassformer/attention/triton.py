"""observe()'s GPU kernels, in Triton's language: attention with online softmax (Milakov and Gimelshein 2018,
arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135), which gathers log-sum-exp, entropy and distance on its way; then,
from the log-sum-exp, what needs the finished weights: received, the heads' mean, tiles, the largest.

b entry of the batch, H heads, G heads that share a key head, L query length, S key length, D and E widths of keys and
values, M x N the block of queries and keys that a program holds. Pointers come with their strides: q[b, h, i, d] ...
Scores and log-sum-exp are in base 2: exp2 is what the hardware has.
"""

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("the GPU kernels need triton: pip install 'glassformer[triton]'") from error


@triton.jit
def _load_q(q, q_b, q_h, q_i, q_d, b, h, rows, L, D, WIDTH_D: tl.constexpr):
    d = tl.arange(0, WIDTH_D)
    at = q + b.to(tl.int64) * q_b + h.to(tl.int64) * q_h + rows.to(tl.int64)[:, None] * q_i + d[None, :] * q_d
    return tl.load(at, mask=(rows[:, None] < L) & (d[None, :] < D), other=0.0)


@triton.jit
def _score(
    x, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i, bias_j, b, h, rows,
    keys, rate, G, L, S, offset, D, WIDTH_D: tl.constexpr, KEEP: tl.constexpr, BIAS: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The scores of queries x (M, D) and keys, in base 2: (M, N), -inf where a query may not look."""
    d = tl.arange(0, WIDTH_D)
    at = k + b.to(tl.int64) * k_b + (h // G).to(tl.int64) * k_h + keys.to(tl.int64)[None, :] * k_j + d[:, None] * k_d
    y = tl.load(at, mask=(keys[None, :] < S) & (d[:, None] < D), other=0.0)
    s = tl.dot(x, y, input_precision=PRECISION) * rate
    looks = (rows[:, None] < L) & (keys[None, :] < S)
    b, h, i, j = b.to(tl.int64), h.to(tl.int64), rows.to(tl.int64)[:, None], keys.to(tl.int64)[None, :]
    if BIAS:
        added = tl.load(bias + b * bias_b + h * bias_h + i * bias_i + j * bias_j, mask=looks, other=0.0)
        s += added.to(tl.float32) * 1.4426950408889634
    if KEEP:
        looks &= tl.load(keep + b * keep_b + h * keep_h + i * keep_i + j * keep_j, mask=looks, other=0) != 0
    if CAUSAL:
        looks &= keys[None, :] <= rows[:, None] + offset
    return tl.where(looks, s, float("-inf"))


@triton.jit
def _weigh(s, lse):
    """Weights from scores. Queries that look nowhere have an lse of -inf, and only scores of -inf."""
    return tl.exp2(s - tl.where(lse == float("-inf"), 0.0, lse)[:, None])


@triton.jit
def attend(
    q, q_b, q_h, q_i, q_d, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i,
    bias_j, v, v_b, v_h, v_j, v_e, output, o_b, o_h, o_i, o_e, lse, entropy, distance, rate, H, G, L, S, offset, D, E,
    WIDTH_D: tl.constexpr, WIDTH_E: tl.constexpr, KEEP: tl.constexpr, BIAS: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, ENTROPY: tl.constexpr, DISTANCE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(1) // H, tl.program_id(1) % H
    rows = tl.program_id(0) * M + tl.arange(0, M)
    e = tl.arange(0, WIDTH_E)
    x = _load_q(q, q_b, q_h, q_i, q_d, b, h, rows, L, D, WIDTH_D)
    largest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    score_sum = tl.zeros([M], tl.float32)
    distance_sum = tl.zeros([M], tl.float32)
    o = tl.zeros([M, WIDTH_E], tl.float32)
    stop = S
    if CAUSAL:
        stop = tl.minimum(S, (tl.program_id(0) + 1) * M + offset)
    for start in range(0, stop, N):
        keys = start + tl.arange(0, N)
        s = _score(
            x, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i, bias_j, b,
            h, rows, keys, rate, G, L, S, offset, D, WIDTH_D, KEEP, BIAS, CAUSAL, PRECISION,
        )  # fmt: skip
        before, largest = largest, tl.maximum(largest, tl.max(s, 1))
        shift = tl.where(largest == float("-inf"), 0.0, largest)
        shrink = tl.exp2(before - shift)
        p = tl.exp2(s - shift[:, None])
        if ENTROPY:
            # Counted from the largest, whatever that is now, so that large scores lose no digits.
            rise = tl.where(before == float("-inf"), 0.0, before - shift)
            score_sum = (score_sum + total * rise) * shrink
            score_sum += tl.sum(p * tl.where(s == float("-inf"), 0.0, s - shift[:, None]), 1)
        total = total * shrink + tl.sum(p, 1)
        if DISTANCE:
            apart = tl.abs(rows[:, None] + offset - keys[None, :]).to(tl.float32)
            distance_sum = distance_sum * shrink + tl.sum(p * apart, 1)
        at = v + b.to(tl.int64) * v_b + (h // G).to(tl.int64) * v_h + keys.to(tl.int64)[:, None] * v_j + e[None] * v_e
        y = tl.load(at, mask=(keys[:, None] < S) & (e[None] < E), other=0.0)
        o = o * shrink[:, None] + tl.dot(p.to(y.dtype), y, input_precision=PRECISION)
    sees = total > 0
    total = tl.where(sees, total, 1.0)
    at = output + b.to(tl.int64) * o_b + h.to(tl.int64) * o_h + rows.to(tl.int64)[:, None] * o_i + e[None] * o_e
    o = o / total[:, None]
    tl.store(at, o.to(output.dtype.element_ty), mask=(rows[:, None] < L) & (e[None] < E))
    at = tl.program_id(1).to(tl.int64) * L + rows
    normaliser = tl.where(sees, largest + tl.log2(total), float("-inf"))
    tl.store(lse + at, normaliser, mask=rows < L)
    if ENTROPY:  # of base 2, to nats
        bits = tl.where(sees, tl.log2(total) - score_sum / total, 0.0)
        tl.store(entropy + at, bits * 0.6931471805599453, mask=rows < L)
    if DISTANCE:
        tl.store(distance + at, distance_sum / total, mask=rows < L)


@triton.jit
def receive(
    q, q_b, q_h, q_i, q_d, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i,
    bias_j, lse, received, rate, H, G, L, S, offset, D, WIDTH_D: tl.constexpr, KEEP: tl.constexpr, BIAS: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """One block of keys over all queries: no two programs add to one number."""
    b, h = tl.program_id(1) // H, tl.program_id(1) % H
    keys = tl.program_id(0) * N + tl.arange(0, N)
    sum_ = tl.zeros([N], tl.float32)
    first = 0
    if CAUSAL:
        first = tl.maximum(0, tl.program_id(0) * N - offset) // M * M
    for start in range(first, L, M):
        rows = start + tl.arange(0, M)
        x = _load_q(q, q_b, q_h, q_i, q_d, b, h, rows, L, D, WIDTH_D)
        s = _score(
            x, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i, bias_j, b,
            h, rows, keys, rate, G, L, S, offset, D, WIDTH_D, KEEP, BIAS, CAUSAL, PRECISION,
        )  # fmt: skip
        at = tl.program_id(1).to(tl.int64) * L + rows
        p = _weigh(s, tl.load(lse + at, mask=rows < L, other=float("-inf")))
        sum_ += tl.sum(p, 0)
    tl.store(received + tl.program_id(1).to(tl.int64) * S + keys, sum_, mask=keys < S)


@triton.jit
def average(
    q, q_b, q_h, q_i, q_d, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i,
    bias_j, lse, mean, rate, H, G, L, S, offset, D, WIDTH_D: tl.constexpr, KEEP: tl.constexpr, BIAS: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The mean over the heads of one block of the map."""
    b = tl.program_id(2)
    rows, keys = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N)
    sum_ = tl.zeros([M, N], tl.float32)
    for head in range(0, H):
        h = b * 0 + head  # a tensor, also in the interpreter, whose loops count in Python's numbers
        x = _load_q(q, q_b, q_h, q_i, q_d, b, h, rows, L, D, WIDTH_D)
        s = _score(
            x, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i, bias_j, b,
            h, rows, keys, rate, G, L, S, offset, D, WIDTH_D, KEEP, BIAS, CAUSAL, PRECISION,
        )  # fmt: skip
        at = (b * H + h).to(tl.int64) * L + rows
        sum_ += _weigh(s, tl.load(lse + at, mask=rows < L, other=float("-inf")))
    at = mean + (b.to(tl.int64) * L + rows.to(tl.int64))[:, None] * S + keys[None, :]
    tl.store(at, (sum_ / H).to(mean.dtype.element_ty), mask=(rows[:, None] < L) & (keys[None, :] < S))


@triton.jit
def pool(
    q, q_b, q_h, q_i, q_d, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i,
    bias_j, lse, pooled, rate, H, G, L, S, offset, D, WIDTH_D: tl.constexpr, KEEP: tl.constexpr, BIAS: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, ROWS, KEYS, HEADS,
):  # fmt: skip
    """One tile of ROWS x KEYS, of HEADS heads' mean, in blocks of M x N."""
    first_head = tl.program_id(2) * HEADS
    row, key = tl.program_id(0) * ROWS, tl.program_id(1) * KEYS
    sum_ = tl.zeros([M, N], tl.float32)
    for n in range(0, HEADS):
        b, h = (first_head + n) // H, (first_head + n) % H
        for start in range(row, tl.minimum(row + ROWS, L), M):
            rows = start + tl.arange(0, M)
            x = _load_q(q, q_b, q_h, q_i, q_d, b, h, rows, L, D, WIDTH_D)
            at = (first_head + n).to(tl.int64) * L + rows
            normaliser = tl.load(lse + at, mask=rows < L, other=float("-inf"))
            for begin in range(key, tl.minimum(key + KEYS, S), N):
                keys = begin + tl.arange(0, N)
                s = _score(
                    x, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i,
                    bias_j, b, h, rows, keys, rate, G, L, S, offset, D, WIDTH_D, KEEP, BIAS, CAUSAL, PRECISION,
                )  # fmt: skip
                inside = (rows < row + ROWS)[:, None] & (keys < key + KEYS)[None, :]
                sum_ += tl.where(inside, _weigh(s, normaliser), 0.0)
    at = (tl.program_id(2).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * tl.num_programs(1)
    tl.store(pooled + at + tl.program_id(1), tl.sum(tl.sum(sum_, 1), 0) / HEADS)


@triton.jit
def rank(
    q, q_b, q_h, q_i, q_d, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i,
    bias_j, lse, top, top_keys, rate, H, G, L, S, offset, D, WIDTH_D: tl.constexpr, KEEP: tl.constexpr,
    BIAS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """The K largest weights of each query, unsorted: a larger one takes the place of the smallest kept."""
    b, h = tl.program_id(1) // H, tl.program_id(1) % H
    rows = tl.program_id(0) * M + tl.arange(0, M)
    slots = tl.arange(0, SLOTS)
    x = _load_q(q, q_b, q_h, q_i, q_d, b, h, rows, L, D, WIDTH_D)
    at = tl.program_id(1).to(tl.int64) * L + rows
    normaliser = tl.load(lse + at, mask=rows < L, other=float("-inf"))
    # Slots beyond K hold infinity, so that nothing takes their place.
    best = tl.zeros([M, SLOTS], tl.float32) + tl.where(slots < K, float("-inf"), float("inf"))[None, :]
    found = tl.zeros([M, SLOTS], tl.int32)
    stop = S
    if CAUSAL:
        stop = tl.minimum(S, (tl.program_id(0) + 1) * M + offset)
    for start in range(0, stop, N):
        columns = tl.arange(0, N)
        s = _score(
            x, k, k_b, k_h, k_j, k_d, keep, keep_b, keep_h, keep_i, keep_j, bias, bias_b, bias_h, bias_i, bias_j, b,
            h, rows, start + columns, rate, G, L, S, offset, D, WIDTH_D, KEEP, BIAS, CAUSAL, PRECISION,
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
    weights = _weigh(best, normaliser)
    at = at[:, None] * K + slots[None, :]
    inside = (rows[:, None] < L) & (slots[None, :] < K)
    tl.store(top + at, weights, mask=inside)
    tl.store(top_keys + at, found.to(tl.int64), mask=inside)
