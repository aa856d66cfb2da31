"""The encoder-decoder Transformer step by step (Vaswani et al. 2017). Masks are boolean, True = blocked.

The paper's base model has N = 6 layers, d_model 512 and h = 8 heads of d_k = 64. Encoder and decoder return hidden
states; `greedy` shows how a decoder predicts word by word. Each form raises InputError for what it cannot take.
Classes and their parts have the names that the notes give them, so that a checkpoint of the notes' code loads here.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from glassformer.reference.errors import InputError
from glassformer.reference.softmax import masked_softmax


class ScaledDotProductAttention(nn.Module):
    """Attention with one head and no projections: softmax(q kᵀ / sqrt(d_k)) v (section 3.2.1).

    Each step is a method that a subclass can replace. The widths of q and k must be `d_k`.

    >>> attention = ScaledDotProductAttention(d_k=4)
    >>> attention(torch.zeros(2, 3, 4), torch.zeros(2, 5, 4), torch.ones(2, 5, 6)).shape  # batch, length, width
    torch.Size([2, 3, 6])
    """

    def __init__(self, d_k: int) -> None:
        super().__init__()
        self.d_k = d_k

    def get_score(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the scaled dot product of every query with every key, (batch, q_len, k_len)."""
        return q @ k.transpose(1, 2) / math.sqrt(self.d_k)

    def get_weights(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """Return the softmax of the scores over the keys, and zeros where the mask blocks."""
        return masked_softmax(scores, mask, dim=-1)

    def get_sum(self, weights: Tensor, v: Tensor) -> Tensor:
        """Return the values summed with the weights (batch, q_len, k_len): (batch, k_len, d) -> (batch, q_len, d)."""
        return weights @ v

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend: q (batch, q_len, d), k and v (batch, k_len, d) -> (batch, q_len, d).

        `mask` is (batch or 1, q_len or 1, k_len or 1), True = blocked. A query with every key blocked gets zeros.
        """
        _check_axes("q", q, self.d_k)
        _check_axes("k", k, self.d_k)
        _check_axes("v", v)
        scores = self.get_score(q, k)
        if mask is not None:
            _check_mask(mask, scores.shape)
        return self.get_sum(self.get_weights(scores, mask), v)


class MultiHeadAttention(nn.Module):
    """Attention with several heads: Concat(head_1 .. head_h) W_o + b, head_i = attention(q W_q[i], k W_k[i], v W_v[i]).

    Each head has projection matrices of its own, together (h, d_model, d_k), without bias. d_model comes first:
    MultiHeadAttention(512, 8). Raises InputError if d_model is no positive multiple of h. Source: section 3.2.2.

    >>> x = torch.zeros(2, 5, 8)  # batch, length, width
    >>> MultiHeadAttention(d_model=8, h=2)(x, x, x, causal_mask(5)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, d_model: int, h: int) -> None:
        super().__init__()
        if d_model < 1 or h < 1 or d_model % h:
            fits = h > d_model > 0 and h % d_model == 0
            hint = f": d_model comes first, was MultiHeadAttention({h}, {d_model}) meant?" if fits else ""
            raise InputError(f"d_model must be a positive multiple of h, got d_model {d_model}, h {h}{hint}")
        self.d_model = d_model
        self.h = h
        self.d_k = self.d_v = d_model // h
        self.W_q = nn.Parameter(torch.empty(h, d_model, self.d_k))
        self.W_k = nn.Parameter(torch.empty(h, d_model, self.d_k))
        self.W_v = nn.Parameter(torch.empty(h, d_model, self.d_v))
        # Xavier uniform with fan_in d_model and fan_out h d_k. nn.init would take other fans from the 3-D tensor.
        bound = math.sqrt(6 / (d_model + h * self.d_k))
        for weight in (self.W_q, self.W_k, self.W_v):
            nn.init.uniform_(weight, -bound, bound)
        self.scaled_dot_product_attention = ScaledDotProductAttention(self.d_k)
        self.linear = nn.Linear(h * self.d_v, d_model)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask_3d: Tensor | None = None) -> Tensor:
        """Attend: q (batch, q_len, d_model), k and v (batch, k_len, d_model) -> (batch, q_len, d_model).

        `mask_3d`, (batch or 1, q_len or 1, k_len or 1), True = blocked, is the same for all heads.
        """
        for name, x in (("q", q), ("k", k), ("v", v)):
            _check_axes(name, x, self.d_model)
        batch = q.shape[0]
        if k.shape[0] != batch or k.shape[:2] != v.shape[:2]:
            raise InputError(
                "q, k and v must have one batch size, and k and v one length, got "
                f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
            )
        if mask_3d is not None:
            _check_mask(mask_3d, torch.Size((batch, q.shape[1], k.shape[1])))
            mask_3d = mask_3d.expand(batch, -1, -1).repeat(self.h, 1, 1)
        # Heads are folded into the batch, head-major: row i * batch + n is head i of entry n.
        q, k, v = (
            torch.einsum("nld,hdk->hnlk", x, weight).flatten(0, 1)
            for x, weight in ((q, self.W_q), (k, self.W_k), (v, self.W_v))
        )
        heads = self.scaled_dot_product_attention(q, k, v, mask_3d)
        return self.linear(self.concatenate(heads.split(batch)))

    def concatenate(self, heads: Sequence[Tensor]) -> Tensor:
        """Return the heads side by side: h of (batch, q_len, d_v) -> (batch, q_len, h d_v)."""
        return torch.cat(list(heads), dim=-1)


class FFN(nn.Module):
    """The feed-forward network of a layer: max(0, x W_1 + b_1) W_2 + b_2 (section 3.3).

    >>> FFN(d_model=8, d_ff=32)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the network makes of each position: (batch, length, d_model) -> the same shape."""
        return self.linear2(self.linear1(x).relu())


class Embedding(nn.Module):
    """A vector for each token id. That of `pad_idx` is zero and stays zero.

    The vectors are not multiplied by sqrt(d_model), as the paper's are: the factor is part of them. Raises InputError
    if `pad_idx` is no id of the vocabulary.

    >>> embedding = Embedding(vocab_size=10, d_model=4, pad_idx=0)
    >>> embedding(torch.tensor([[3, 0]]))[0, 1].tolist()
    [0.0, 0.0, 0.0, 0.0]
    """

    def __init__(self, vocab_size: int, d_model: int, pad_idx: int) -> None:
        super().__init__()
        if not isinstance(pad_idx, int) or not 0 <= pad_idx < vocab_size:
            raise InputError(f"pad_idx must be one of the {vocab_size} ids, got {pad_idx}")
        self.embedding = nn.Embedding(vocab_size, d_model, padding_idx=pad_idx)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors of ids: (batch, length) -> (batch, length, d_model)."""
        if ids.dim() != 2 or ids.is_floating_point():
            raise InputError(
                f"ids must be whole numbers (batch, length), got {ids.dtype} {tuple(ids.shape)}"
                f"{': for one sequence pass ids[None]' if ids.dim() == 1 else ''}"
            )
        return self.embedding(ids)


class AddPositionalEncoding(nn.Module):
    """Sinusoids added to x: sin(p / 10000^(2i/d_model)) to x[p, 2i], cos of the same to x[p, 2i+1] (section 3.5).

    >>> AddPositionalEncoding(d_model=4, max_len=50)(torch.zeros(1, 3, 4))[0, 0].tolist()  # position 0
    [0.0, 1.0, 0.0, 1.0]
    """

    table: Tensor

    def __init__(self, d_model: int, max_len: int, device: torch.device | str = "cpu") -> None:
        super().__init__()
        angle = torch.arange(max_len)[:, None] / 10000 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
        table = torch.empty(max_len, d_model, dtype=torch.float64)
        table[:, 0::2] = angle.sin()
        table[:, 1::2] = angle.cos()[:, : d_model // 2]
        self.register_buffer("table", table.to(device, torch.get_default_dtype()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add the positions to x (batch, length, d_model); its length is at most max_len."""
        if x.shape[1] > len(self.table):
            raise InputError(f"x must be at most max_len = {len(self.table)} long, got length {x.shape[1]}")
        return x + self.table[: x.shape[1]]


class TransformerEncoderLayer(nn.Module):
    """Self-attention, then feed-forward; each sub-layer gives LayerNorm(x + Dropout(sublayer(x))) (section 3.1).

    >>> layer = TransformerEncoderLayer(d_model=8, d_ff=16, heads_num=2, dropout_rate=0.1, layer_norm_eps=1e-5)
    >>> layer(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, d_model: int, d_ff: int, heads_num: int, dropout_rate: float, layer_norm_eps: float) -> None:
        super().__init__()
        self.multi_head_attention = MultiHeadAttention(d_model, heads_num)
        self.dropout_self_attention = nn.Dropout(dropout_rate)
        self.layer_norm_self_attention = nn.LayerNorm(d_model, eps=layer_norm_eps)
        self.ffn = FFN(d_model, d_ff)
        self.dropout_ffn = nn.Dropout(dropout_rate)
        self.layer_norm_ffn = nn.LayerNorm(d_model, eps=layer_norm_eps)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return new states for x (batch, length, d_model); `mask` is (batch or 1, length or 1, length)."""
        attended = self.multi_head_attention(x, x, x, mask)
        x = self.layer_norm_self_attention(x + self.dropout_self_attention(attended))
        return self.layer_norm_ffn(x + self.dropout_ffn(self.ffn(x)))


class TransformerEncoder(nn.Module):
    """The encoder: embedding, positions, N layers; it has no final norm.

    >>> sizes = dict(d_model=8, N=2, d_ff=16, heads_num=2, dropout_rate=0.1, layer_norm_eps=1e-5)
    >>> encoder = TransformerEncoder(vocab_size=10, max_len=50, pad_idx=0, **sizes)
    >>> source = torch.tensor([[3, 7, 2], [5, 2, 0]])  # the second sentence is shorter: 0 fills it up
    >>> encoder(source, padding_mask(source, pad_idx=0)).shape
    torch.Size([2, 3, 8])
    """

    def __init__(
        self,
        vocab_size: int,
        max_len: int,
        pad_idx: int,
        d_model: int,
        N: int,
        d_ff: int,
        heads_num: int,
        dropout_rate: float,
        layer_norm_eps: float,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.embedding = Embedding(vocab_size, d_model, pad_idx)
        self.positional_encoding = AddPositionalEncoding(d_model, max_len, device)
        self.encoder_layers = nn.ModuleList(
            TransformerEncoderLayer(d_model, d_ff, heads_num, dropout_rate, layer_norm_eps) for _ in range(N)
        )
        self.to(device)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode ids (batch, src_len) into hidden states (batch, src_len, d_model)."""
        x = self.positional_encoding(self.embedding(x))
        for layer in self.encoder_layers:
            x = layer(x, mask)
        return x


class TransformerDecoderLayer(nn.Module):
    """Self-attention, attention to the source, then feed-forward, each as in the encoder's layer (section 3.1).

    >>> layer = TransformerDecoderLayer(d_model=8, d_ff=16, heads_num=2, dropout_rate=0.1, layer_norm_eps=1e-5)
    >>> target, source = torch.zeros(2, 4, 8), torch.zeros(2, 5, 8)
    >>> layer(target, source, mask_src_tgt=None, mask_self=causal_mask(4)).shape
    torch.Size([2, 4, 8])
    """

    def __init__(self, d_model: int, d_ff: int, heads_num: int, dropout_rate: float, layer_norm_eps: float) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, heads_num)
        self.dropout_self_attention = nn.Dropout(dropout_rate)
        self.layer_norm_self_attention = nn.LayerNorm(d_model, eps=layer_norm_eps)
        self.src_tgt_attention = MultiHeadAttention(d_model, heads_num)
        self.dropout_src_tgt_attention = nn.Dropout(dropout_rate)
        self.layer_norm_src_tgt_attention = nn.LayerNorm(d_model, eps=layer_norm_eps)
        self.ffn = FFN(d_model, d_ff)
        self.dropout_ffn = nn.Dropout(dropout_rate)
        self.layer_norm_ffn = nn.LayerNorm(d_model, eps=layer_norm_eps)

    def forward(self, tgt: Tensor, src: Tensor, mask_src_tgt: Tensor | None, mask_self: Tensor | None) -> Tensor:
        """Return new states for tgt (batch, tgt_len, d_model), given src (batch, src_len, d_model).

        `mask_src_tgt` is (batch or 1, tgt_len or 1, src_len), `mask_self` (batch or 1, tgt_len, tgt_len).
        """
        attended = self.self_attention(tgt, tgt, tgt, mask_self)
        tgt = self.layer_norm_self_attention(tgt + self.dropout_self_attention(attended))
        attended = self.src_tgt_attention(tgt, src, src, mask_src_tgt)
        tgt = self.layer_norm_src_tgt_attention(tgt + self.dropout_src_tgt_attention(attended))
        return self.layer_norm_ffn(tgt + self.dropout_ffn(self.ffn(tgt)))


class TransformerDecoder(nn.Module):
    """The decoder: embedding, positions, N layers; it has no final norm.

    `logits` is the output layer. Its weights are those of the embedding (section 3.4).

    >>> sizes = dict(d_model=8, N=2, d_ff=16, heads_num=2, dropout_rate=0.1, layer_norm_eps=1e-5)
    >>> decoder = TransformerDecoder(tgt_vocab_size=12, max_len=50, pad_idx=0, **sizes)
    >>> target, source = torch.tensor([[0, 4, 9], [0, 6, 0]]), torch.zeros(2, 5, 8)  # source: what the encoder returns
    >>> states = decoder(target, source, mask_src_tgt=None, mask_self=decoder_mask(target, pad_idx=0))
    >>> states.shape, decoder.logits(states).shape
    (torch.Size([2, 3, 8]), torch.Size([2, 3, 12]))
    """

    def __init__(
        self,
        tgt_vocab_size: int,
        max_len: int,
        pad_idx: int,
        d_model: int,
        N: int,
        d_ff: int,
        heads_num: int,
        dropout_rate: float,
        layer_norm_eps: float,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.pad_idx = pad_idx
        self.embedding = Embedding(tgt_vocab_size, d_model, pad_idx)
        self.positional_encoding = AddPositionalEncoding(d_model, max_len, device)
        self.decoder_layers = nn.ModuleList(
            TransformerDecoderLayer(d_model, d_ff, heads_num, dropout_rate, layer_norm_eps) for _ in range(N)
        )
        self.to(device)

    def forward(self, tgt: Tensor, src: Tensor, mask_src_tgt: Tensor | None, mask_self: Tensor | None) -> Tensor:
        """Decode ids (batch, tgt_len) into hidden states (batch, tgt_len, d_model), given the encoder's output src."""
        x = self.positional_encoding(self.embedding(tgt))
        for layer in self.decoder_layers:
            x = layer(x, src, mask_src_tgt, mask_self)
        return x

    def logits(self, states: Tensor) -> Tensor:
        """Return the scores of the next token: (batch, tgt_len, d_model) -> (batch, tgt_len, vocabulary).

        The weights are the embeddings divided by sqrt(d_model), because that factor is part of the embeddings here.
        Padding scores -inf: it is never predicted.
        """
        weight = self.embedding.embedding.weight
        logits = states @ weight.T / math.sqrt(weight.shape[1])
        logits[..., self.pad_idx] = -math.inf
        return logits


def padding_mask(ids: Tensor, pad_idx: int) -> Tensor:
    """Return a mask that blocks padding as a key: ids (batch, length) -> (batch, 1, length), True = blocked.

    >>> padding_mask(torch.tensor([[5, 2, 0]]), pad_idx=0).tolist()
    [[[False, False, True]]]
    """
    return (ids == pad_idx)[:, None, :]


def causal_mask(length: int, device: torch.device | str = "cpu") -> Tensor:
    """Return a mask (1, length, length) that blocks every later position, True = blocked.

    >>> causal_mask(2).tolist()
    [[[False, True], [False, False]]]
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)[None]


def decoder_mask(ids: Tensor, pad_idx: int) -> Tensor:
    """Return the decoder's mask: ids (batch, length) -> (batch, length, length), True = blocked.

    It blocks later positions, and padding everywhere but at position 0, where the padding id marks the start.

    >>> decoder_mask(torch.tensor([[0, 4, 0]]), pad_idx=0).int().tolist()
    [[[0, 1, 1], [0, 0, 1], [0, 0, 1]]]
    """
    padding = padding_mask(ids, pad_idx)
    padding[:, :, 0] = False
    return padding | causal_mask(ids.shape[1], ids.device)


@torch.no_grad()
def greedy(
    encoder: TransformerEncoder,
    decoder: TransformerDecoder,
    src: Tensor,
    *,
    src_pad: int,
    end: int,
    max_len: int,
    start: int | None = None,
) -> Tensor:
    """Predict the likeliest next token, again and again, until each sentence has `end` or `max_len` tokens.

    src (batch, src_len) -> ids (batch, at most max_len). The decoder starts from `start`, the padding id if it is None;
    after `end` comes padding. Put both models in eval mode first.

    >>> sizes = dict(max_len=50, pad_idx=0, d_model=8, N=2, d_ff=16, heads_num=2, dropout_rate=0.1, layer_norm_eps=1e-5)
    >>> encoder, decoder = TransformerEncoder(10, **sizes).eval(), TransformerDecoder(12, **sizes).eval()
    >>> greedy(encoder, decoder, torch.tensor([[3, 7, 2]]), src_pad=0, end=2, max_len=4).shape[1] <= 4
    True
    """
    if not isinstance(max_len, int) or max_len < 1:
        raise InputError(f"max_len must be a whole number, at least 1, got {max_len!r}")
    start = decoder.pad_idx if start is None else start
    mask = padding_mask(src, src_pad)
    memory = encoder(src, mask)
    tgt = src.new_full((len(src), 1), start)
    finished = torch.zeros(len(src), dtype=torch.bool, device=src.device)
    while tgt.shape[1] <= max_len and not finished.all():
        states = decoder(tgt, memory, mask, decoder_mask(tgt, decoder.pad_idx))
        token = decoder.logits(states[:, -1]).argmax(-1).masked_fill(finished, decoder.pad_idx)
        tgt = torch.cat([tgt, token[:, None]], dim=1)
        finished |= token == end
    return tgt[:, 1:]


def _check_axes(name: str, x: Tensor, width: int | None = None) -> None:
    """Raise InputError unless x has three axes, and this width if one is given."""
    if x.dim() != 3 or width not in (None, x.shape[2]):
        expected = "d" if width is None else width
        hint = ": for one sequence pass x[None]" if x.dim() == 2 else ""
        raise InputError(f"{name} must be (batch, length, {expected}), got {tuple(x.shape)}{hint}")


def _check_mask(mask: Tensor, scores: torch.Size) -> None:
    """Raise InputError unless the mask is boolean and has the axes of the scores, each equal or 1."""
    if mask.dim() != len(scores):
        raise InputError(
            f"mask must have as many axes as the scores, {len(scores)} {tuple(scores)}, "
            f"got {mask.dim()} {tuple(mask.shape)}"
        )
    if mask.dtype != torch.bool:
        raise InputError(f"mask must be boolean, True = blocked, got {mask.dtype}")
    if any(size not in (1, full) for size, full in zip(mask.shape, scores, strict=True)):
        raise InputError(
            f"mask must broadcast to the scores (batch, q_len, k_len) = {tuple(scores)}, got {tuple(mask.shape)}"
        )
