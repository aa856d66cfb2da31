"""Passes of a step of generation, compiled by numba: each reads its rows once, torch's operators read them five times.

B sources, W queries of each, H heads of width D, S keys, R rows, V classes. Every row's result is the same to the last
bit whatever else is in the batch: sums run in one order over the keys that may be looked at, and padding isn't read.
Nothing here takes more than one thread, and the interpreter's lock is released: batches are worked on side by side.
"""

from pathlib import Path

from glassformer.attention.kernels.compiled.jit import FOLDER, SUMS, F, KeptByTypes, inner, np, version_of
from glassformer.attention.kernels.compiled.rows import LEAST, exp, largest_of

VERSION = version_of(FOLDER, Path(__file__).parent)
"""Tell the code that functions of this folder are made of from any other."""
FILL = 16  # numbers that are worked on side by side; scratch rows are filled up to a multiple
AT_ONCE = 512  # classes that are searched at a time


@inner()
def _exp(x):
    """Return exp(x); 0 below -87, and exp(87) above 87. NaN stays."""
    bounded = F(87.0) if x > F(87.0) else x
    return F(0.0) if x < LEAST else exp(LEAST if bounded < LEAST else bounded)


@inner(SUMS)
def _dot(a, b):
    total = np.float32(0.0)
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@inner()
def _normalise(scores, n):
    """Set the first n scores to their softmax, and the others to 0."""
    scores[n:] = -np.inf
    most = largest_of(scores)
    total = np.float32(0.0)
    for i in range(scores.shape[0]):
        scores[i] = _exp(scores[i] - most)
    for i in range(n):
        total += scores[i]
    for i in range(scores.shape[0]):
        scores[i] /= total


@inner({"reassoc"})
def _sum_of_exp(x, shift):
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        total += _exp(x[i] - shift)
    return total


@inner()
def take_classes(logits, first, forbidden, sums, best, classes):
    """Take the logits of a row's next classes, which begin at `first`, into its k best, the highest first.

    sums (3) are the largest logit so far, the sum of exp(logit - largest), and how many of the k are there.
    """
    k, largest = best.shape[0], largest_of(logits)
    if largest > sums[0]:
        sums[1] *= _exp(sums[0] - largest)
        sums[0] = largest
    sums[1] += _sum_of_exp(logits, sums[0] if sums[0] > -np.inf else np.float32(0.0))
    found = int(sums[2])
    if found == k and not largest > best[k - 1]:
        return
    for i in range(logits.shape[0]):
        value = np.float32(-np.inf) if first + i == forbidden else logits[i]
        if found == k and not value > best[k - 1]:
            continue
        at = min(found, k - 1)
        while at > 0 and best[at - 1] < value:
            best[at], classes[at] = best[at - 1], classes[at - 1]
            at -= 1
        best[at], classes[at] = value, first + i
        found = min(found + 1, k)
    sums[2] = found


@inner()
def to_log_probabilities(best, sums):
    """Turn a row's best logits into log-probabilities."""
    shift = sums[0] + np.float32(np.log(sums[1]))
    for i in range(best.shape[0]):
        best[i] -= shift


@inner()
def round_row(row, codes):
    """Set the codes of a row to round(127 x / m) + 128, and return its scale m / 127, for m its largest |x|."""
    bits = row.view(np.int32)
    most = np.int32(0)
    for i in range(row.shape[0]):  # as whole numbers, of which those of inf and NaN are the largest
        most = max(most, np.int32(bits[i] & np.int32(0x7FFFFFFF)))
    largest = np.int32(most).view(np.float32)
    step = np.float32(127.0) / largest if largest > 0 else np.float32(0.0)
    for i in range(row.shape[0]):
        shifted = np.float32(row[i] * step + np.float32(12583040.0))  # its low byte: the code
        codes[i] = np.uint8(shifted.view(np.int32) & np.int32(255))
    return largest * np.float32(1 / 127)


@inner()
def relu(x):
    """Return max(x, 0)."""
    return max(x, np.float32(0.0))


@inner()
def swish(x):
    """Return x sigmoid(x)."""
    return x / (np.float32(1.0) + _exp(-x))


@inner()
def gelu(x):
    """Return x Φ(x). The error function is within 2e-7 (Abramowitz & Stegun, 7.1.26)."""
    z = abs(x) * np.float32(0.7071067811865476)
    t = np.float32(1.0) / (np.float32(1.0) + np.float32(0.3275911) * z)
    series = np.float32(1.061405429) * t - np.float32(1.453152027)
    series = (series * t + np.float32(1.421413741)) * t - np.float32(0.284496736)
    tail = (series * t + np.float32(0.254829592)) * t * _exp(-z * z)  # 1 - erf(z)
    return x * np.float32(0.5) * (np.float32(2.0) - tail if x > 0 else tail)


def _compile(version: int) -> tuple[KeptByTypes, ...]:
    """Return the passes. `version` is in the closure of each, so that they follow the functions that they call."""

    @KeptByTypes
    def quantize(x, codes, scales):
        """Set codes (R, D) = round(127 x / m) + 128 and scales (R) = m / 127, for m the largest |x| of a row."""
        assert version
        for r in range(x.shape[0]):
            scales[r] = round_row(x[r], codes[r])

    @KeptByTypes
    def rescale(product, scales, bias):
        """Set product (R, D) = product * scales + bias."""
        assert version
        for r in range(product.shape[0]):
            scale = scales[r]
            for i in range(product.shape[1]):
                product[r, i] = product[r, i] * scale + bias[i]

    @KeptByTypes
    def rescale_add(product, scales, bias, to):
        """Set product (R, D) = product * scales + bias + to."""
        assert version
        for r in range(product.shape[0]):
            scale = scales[r]
            for i in range(product.shape[1]):
                product[r, i] = (product[r, i] * scale + bias[i]) + to[r, i]

    @KeptByTypes
    def rescale_relu(product, scales, bias):
        """Set product (R, D) = relu(product * scales + bias)."""
        assert version
        for r in range(product.shape[0]):
            scale = scales[r]
            for i in range(product.shape[1]):
                product[r, i] = relu(product[r, i] * scale + bias[i])

    @KeptByTypes
    def rescale_swish(product, scales, bias):
        """Set product (R, D) = swish(product * scales + bias)."""
        assert version
        for r in range(product.shape[0]):
            scale = scales[r]
            for i in range(product.shape[1]):
                product[r, i] = swish(product[r, i] * scale + bias[i])

    @KeptByTypes
    def rescale_gelu(product, scales, bias):
        """Set product (R, D) = gelu(product * scales + bias)."""
        assert version
        for r in range(product.shape[0]):
            scale = scales[r]
            for i in range(product.shape[1]):
                product[r, i] = gelu(product[r, i] * scale + bias[i])

    @KeptByTypes
    def attend(q, keys, values, bias, used, out):
        """Set out = softmax(q kᵀ / sqrt(D)) v, over the first `used` keys whose bias (B, W or 1, used) is 0.

        q and out (B, W, H, D), keys and values (B, S, H, D); a bias without numbers blocks nothing.
        """
        assert version
        sources, queries, heads, width = q.shape  # bias has as many sources
        scale = np.float32(1.0 / np.sqrt(width))
        visible = np.empty(used, np.int64)
        weights = np.empty((heads, (used + FILL - 1) // FILL * FILL), np.float32)
        for b in range(sources):
            n = 0
            for w in range(queries):
                if w < max(bias.shape[1], 1):
                    n = 0
                    for s in range(used):
                        if bias.size == 0 or bias[b, w, s] == 0:
                            visible[n] = s
                            n += 1
                for i in range(n):
                    slot = keys[b, visible[i]]
                    for h in range(heads):
                        weights[h, i] = _dot(q[b, w, h], slot[h]) * scale
                filled = (n + FILL - 1) // FILL * FILL
                for h in range(heads):
                    _normalise(weights[h, :filled], n)
                out[b, w] = 0
                for i in range(n):
                    slot = values[b, visible[i]]
                    for h in range(heads):
                        weight = weights[h, i]
                        for d in range(width):
                            out[b, w, h, d] += weight * slot[h, d]

    @KeptByTypes
    def best(logits, forbidden, log_probs, classes):
        """Set log_probs and classes (R, k) to the k largest of log_softmax(logits), and among equals the first classes.

        The class `forbidden`, unless it is -1, isn't chosen, though it has its probability.
        """
        assert version
        for r in range(logits.shape[0]):
            sums = np.zeros(3, np.float32)
            sums[0] = -np.inf
            for first in range(0, logits.shape[1], AT_ONCE):
                row = logits[r, first : first + AT_ONCE]
                take_classes(row, first, forbidden, sums, log_probs[r], classes[r])
            to_log_probabilities(log_probs[r], sums)

    return quantize, rescale, rescale_add, rescale_relu, rescale_swish, rescale_gelu, attend, best


quantize, rescale, rescale_add, rescale_relu, rescale_swish, rescale_gelu, attend, best = _compile(VERSION)
