"""Text in, text out: batches by length, searches, restores the order."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.attention.want import Want
from glassformer.device import pick_device
from glassformer.errors import ConfigError
from glassformer.generation.attention import Attention, align, check_attention, see_attention
from glassformer.generation.batches import MOST_LOGITS, batches_by_length, longest_target, search_all
from glassformer.generation.config import SearchConfig
from glassformer.generation.consensus import by_agreement
from glassformer.generation.engine import Engine, Stack
from glassformer.generation.precision import Precision, pick_generation_precision
from glassformer.generation.search import Hypothesis, stream
from glassformer.run.folder import open_run
from glassformer.text.batching import pad_source
from glassformer.text.tokenizer import EOS, UNK, UNKNOWN, Tokenizer
from glassformer.transformer.model import Transformer


@dataclass(frozen=True)
class Translation:
    """One translation of a line, and how likely the model finds it."""

    text: str
    score: float
    """Log-probability divided by the length penalty; higher is better."""
    log_prob: float
    """Sum of the tokens' log-probabilities, in nats."""
    tokens: list[str]
    """The target tokens, without `</s>`."""
    token_log_probs: list[float]
    """Each token's log-probability, in nats; the last one is that of `</s>`, if it came before the limit."""
    attention: Attention | None = None
    """What was seen of the attention, if asked for."""


class Translator:
    """A trained model with its tokenizers.

    >>> translator = Translator.load("runs/en-de")            # doctest: +SKIP
    >>> translator.translate(["Two dogs run.", "A man sings."])  # doctest: +SKIP
    ['Zwei Hunde rennen.', 'Ein Mann singt.']
    """

    def __init__(
        self, model: Transformer, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, precision: str = "auto"
    ) -> None:
        weight = model.target_embedding.weight
        picked = pick_generation_precision(precision, weight.device, weight.dtype)
        engine = Engine.of(model, picked.dtype, int8=picked.int8)
        self._set(engine, source_tokenizer, target_tokenizer)

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto", precision: str = "auto") -> "Translator":
        """The translator of a run folder.

        `precision` is that of weights and products: float32, bfloat16, float16, or auto, for which see
        `generation.precision`; `.precision` says what it picked. The weights are held once, as the computation wants
        them.
        """
        run = open_run(Path(folder))
        where = pick_device(device)
        picked = pick_generation_precision(precision, where, torch.float32)
        engine = Engine(run.model, run.weights, picked.dtype, where, int8=picked.int8)
        translator = cls.__new__(cls)
        translator._set(engine, run.source_tokenizer, run.target_tokenizer)
        return translator

    def _set(self, engine: Engine, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer) -> None:
        self.engine = engine
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer

    @property
    def precision(self) -> Precision:
        """The precision of weights and products."""
        return Precision(self.engine.dtype, self.engine.int8)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.engine.device

    @overload
    def translate(
        self,
        lines: Sequence[str],
        config: SearchConfig | None = None,
        progress: Callable[[int], None] = ...,
        *,
        prefixes: Sequence[str] | None = None,
        attention: None = None,
        layers: Sequence[int] | None = None,
    ) -> list[str]: ...

    @overload
    def translate(
        self,
        lines: Sequence[str],
        config: SearchConfig | None = None,
        progress: Callable[[int], None] = ...,
        *,
        prefixes: Sequence[str] | None = None,
        attention: Want | Mapping[Stack, Want],
        layers: Sequence[int] | None = None,
    ) -> list[Translation]: ...

    def translate(
        self,
        lines: Sequence[str],
        config: SearchConfig | None = None,
        progress: Callable[[int], None] = lambda lines: None,
        *,
        prefixes: Sequence[str] | None = None,
        attention: Want | Mapping[Stack, Want] | None = None,
        layers: Sequence[int] | None = None,
    ) -> list[str] | list[Translation]:
        """The best translation of each line, in order. An empty line stays empty.

        `prefixes`, one for each line, are what the translations must begin with ("" leaves a line free). `progress` is
        told after each batch how many lines that were.

        With `attention`, what to see of the attention weights (one `Want` for the encoder's, the decoder's and the
        decoder's attention to the source, or a mapping from "encoder", "decoder", "source"), whole `Translation`s
        come back, whose `.attention` has seen the chosen hypothesis from its first token to its last, along the path
        that the beam took; `layers` are the layers to look at, counted from 0, by default all. Of a translation that is
        too short for it, `top` is as many as there are keys, and `rows` are those of the queries that there are: the
        observation's own `want` says which.
        """
        if attention is None:
            return [found[0].text for found in self.translate_n_best(lines, config, progress, prefixes=prefixes)]
        config = config or SearchConfig()
        wants = check_attention(self.engine, attention, layers)
        translations = []
        for line, source, found in self._found(lines, config, progress, prefixes):
            seen = self._see(source, found[0], wants) if source else None
            translations.append(self._translation(line, source, found[0], config, seen))
        return translations

    def translate_n_best(
        self,
        lines: Sequence[str],
        config: SearchConfig | None = None,
        progress: Callable[[int], None] = lambda lines: None,
        *,
        prefixes: Sequence[str] | None = None,
        attention: Want | Mapping[Stack, Want] | None = None,
        layers: Sequence[int] | None = None,
    ) -> list[list[Translation]]:
        """Up to `config.n_best` translations of each line with their scores, best first, and with `attention` what each
        of them looked at (see `translate`)."""
        config = config or SearchConfig()
        wants = None if attention is None else check_attention(self.engine, attention, layers)
        return [
            [
                self._translation(
                    line, source, one, config, self._see(source, one, wants) if wants is not None and source else None
                )
                for one in hypotheses
            ]
            for line, source, hypotheses in self._found(lines, config, progress, prefixes)
        ]

    def read(
        self,
        source: str,
        target: str,
        config: SearchConfig | None = None,
        *,
        attention: Want | Mapping[Stack, Want],
        layers: Sequence[int] | None = None,
    ) -> Translation:
        """A given pair as if the target had been found: its score, and what it looks at (see `translate`).

        Both are cut, with a warning, to `config.max_source_tokens`; ConfigError if the source is empty.
        """
        config = config or SearchConfig()
        wants = check_attention(self.engine, attention, layers)
        sides = ((self.source_tokenizer, source, "source"), (self.target_tokenizer, target, "target"))
        source_ids, target_ids = (
            _ended(tokenizer.encode([line]), [line], config.max_source_tokens, side)[0]
            for tokenizer, line, side in sides
        )
        if not source_ids:
            raise ConfigError("source is empty: there is nothing to look at")
        target_ids = target_ids or [EOS]
        log_probs = self._log_probs([source_ids], [target_ids])[0].tolist()
        total = sum(log_probs)
        hypothesis = Hypothesis(target_ids[:-1], log_probs, total, total / config.normaliser(len(target_ids)))
        return self._translation(source, source_ids, hypothesis, config, self._see(source_ids, hypothesis, wants))

    def stream(self, line: str, config: SearchConfig | None = None) -> Iterator[str]:
        """The translation of a line piece by piece, as it is written: greedily, or with `config.sample` drawn.

        Joined, the pieces are the text that `translate` gives with a beam of 1 (or the draw of the same seed).
        """
        if not isinstance(line, str):
            raise TypeError(f"line must be a str, got {type(line).__name__}: stream takes one line at a time")
        config = config or SearchConfig(beam=1)
        if config.beam > 1 and not config.sample:
            raise ConfigError(f"stream needs beam 1 or sample: a beam of {config.beam} decides only at the end")
        if config.consensus:
            raise ConfigError("stream can't choose by consensus: it writes one translation, as it goes on")
        if config.replace_unknown:
            raise ConfigError("stream can't replace_unknown: what a token looked at most is known only at the end")
        return self._stream(line, config)

    def _stream(self, line: str, config: SearchConfig) -> Iterator[str]:
        (source,) = _ended(self.source_tokenizer.encode([line]), [line], config.max_source_tokens, "source")
        if not source:
            return
        generator = torch.Generator(self.device).manual_seed(config.seed)
        ids: list[int] = []
        text = written = ""
        for token in stream(self.engine, self._tensor([source]), longest_target(source, config), config, generator):
            ids.append(token)
            (text,) = self.target_tokenizer.decode([ids])
            if text.startswith(written) and len(text) > len(written) and not text.endswith("\ufffd"):
                yield text[len(written) :]
                written = text
        if len(text) > len(written):  # a character whose bytes never became complete
            yield text[len(written) :]

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        config: SearchConfig | None = None,
        progress: Callable[[int], None] = lambda pairs_done: None,
    ) -> list[float]:
        """log p(target | source) of each pair, in nats: the sum over the target's tokens and `</s>`.

        Both are cut, with a warning, to `config.max_source_tokens`. Pairs go through the model in batches of
        `config.batch_tokens`; an empty target is worth the probability of ending at once.
        """
        if isinstance(sources, str) or isinstance(targets, str):
            raise TypeError("sources and targets must be sequences of lines, got one str: pass [line]")
        if len(sources) != len(targets):
            raise ConfigError(
                f"score needs a target for each source, got {len(sources)} sources, {len(targets)} targets"
            )
        config = config or SearchConfig()
        source_ids, target_ids = (
            [ids or [EOS] for ids in _ended(tokenizer.encode(lines), lines, config.max_source_tokens, side)]
            for tokenizer, lines, side in (
                (self.source_tokenizer, sources, "source"),
                (self.target_tokenizer, targets, "target"),
            )
        )
        found = [0.0] * len(sources)
        longest = [max(pair, key=len) for pair in zip(source_ids, target_ids, strict=True)]
        most_logits = max(1, MOST_LOGITS // self.engine.config.target_vocab_size)
        for batch in batches_by_length(longest, min(config.batch_tokens, most_logits), len(sources)):
            scores = self._log_probs([source_ids[i] for i in batch], [target_ids[i] for i in batch]).sum(1).tolist()
            for i, score in zip(batch, scores, strict=True):
                found[i] = score
            progress(len(batch))
        return found

    @torch.inference_mode()
    def _log_probs(self, sources: list[list[int]], targets: list[list[int]]) -> Float[Tensor, "pairs tokens"]:
        """Of each target's tokens; 0 behind its end."""
        source, keep = pad_source([torch.tensor(ids) for ids in sources], self.engine.source_pad)
        target, inside = pad_source([torch.tensor(ids) for ids in targets], self.engine.target_pad)
        target, inside = target.to(self.device), inside[:, 0, 0].to(self.device)
        logits = self.engine.decode(self._shifted(target), source.to(self.device), keep.to(self.device))
        log_probs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        picked = log_probs.gather(2, target.masked_fill(~inside, EOS)[:, :, None]).squeeze(2)
        return picked.masked_fill(~inside, 0.0).double()

    def _shifted(self, target: Tensor) -> Tensor:
        """What the decoder is given to predict `target`: its start, then all but the last token."""
        start = target.new_full((len(target), 1), self.engine.target_pad)
        return torch.cat([start, target[:, :-1]], dim=1)

    def _tensor(self, rows: list[list[int]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.long, device=self.device)

    def _found(
        self,
        lines: Sequence[str],
        config: SearchConfig,
        progress: Callable[[int], None],
        prefixes: Sequence[str] | None,
    ) -> list[tuple[str, list[int], list[Hypothesis]]]:
        """Each line, its ids and the hypotheses for it."""
        if isinstance(lines, str):
            raise TypeError("lines must be a sequence of lines, got one str: pass [line]")
        model = self.engine.config
        if config.coverage_penalty and not model.heads_of(f"decoder.{model.decoder_layers - 1}.source_attention"):
            raise ConfigError(
                "coverage_penalty reads the last layer's attention to the source, which has no heads left in this run: "
                "leave it out"
            )
        sources = _ended(self.source_tokenizer.encode(lines), lines, config.max_source_tokens, "source")
        forced = self._forced(prefixes, lines)
        whole = replace(config, n_best=config.beam) if config.consensus and not config.sample else config
        found = search_all(self.engine, sources, whole, prefixes=forced, progress=progress)
        if config.consensus:
            found = [self._by_agreement(hypotheses, config) for hypotheses in found]
        nothing = [Hypothesis([], [], 0.0, 0.0)]
        return [(line, source, best or nothing) for line, source, best in zip(lines, sources, found, strict=True)]

    def _by_agreement(self, hypotheses: list[Hypothesis], config: SearchConfig) -> list[Hypothesis]:
        texts = self.target_tokenizer.decode([hypothesis.ids for hypothesis in hypotheses])
        log_probs = None if config.sample else [hypothesis.log_prob for hypothesis in hypotheses]
        return [hypotheses[place] for place in by_agreement(texts, log_probs)[: config.n_best]]

    def _forced(self, prefixes: Sequence[str] | None, lines: Sequence[str]) -> list[list[int]] | None:
        if prefixes is None:
            return None
        if isinstance(prefixes, str):
            raise TypeError("prefixes must be a sequence, one for each line, got one str: pass [prefix]")
        if len(prefixes) != len(lines):
            raise ConfigError(f"prefixes must be one for each line, got {len(prefixes)} for {len(lines)} lines")
        return self.target_tokenizer.encode(prefixes)

    def _translation(
        self,
        line: str,
        source: list[int],
        hypothesis: Hypothesis,
        config: SearchConfig,
        attention: Attention | None = None,
    ) -> Translation:
        (text,) = self.target_tokenizer.decode([hypothesis.ids])
        if config.replace_unknown and UNK in hypothesis.ids:
            text = self._with_source_tokens(line, source, hypothesis, text)
        tokens = self.target_tokenizer.tokens(hypothesis.ids)
        return Translation(text, hypothesis.score, hypothesis.log_prob, tokens, hypothesis.token_log_probs, attention)

    def _with_source_tokens(self, line: str, source: list[int], hypothesis: Hypothesis, text: str) -> str:
        """`text` with each unknown token replaced by the source token it looked at most."""
        surfaces = self.source_tokenizer.surfaces(line)[: len(source) - 1]
        among = [place for place, surface in enumerate(surfaces) if surface]
        if not among:
            return text
        places = align(self.engine, self._tensor([source]), self._read(hypothesis), among)
        parts = text.split(UNKNOWN)
        chosen = [surfaces[places[i]] for i, token in enumerate(hypothesis.ids) if token == UNK]
        if len(parts) != len(chosen) + 1:  # the text has the mark of its own accord
            return text
        return "".join(part + new for part, new in zip(parts, [*chosen, ""], strict=True))

    def _read(self, hypothesis: Hypothesis) -> Tensor:
        """What the decoder has read when it chose the hypothesis's tokens: its start, then all but the last."""
        steps = len(hypothesis.token_log_probs)
        return self._tensor([[self.engine.target_pad, *hypothesis.ids][:steps]])

    def _see(self, source: list[int], hypothesis: Hypothesis, wants: Mapping[Stack, Mapping[int, Want]]) -> Attention:
        target_in = self._read(hypothesis)
        seen = see_attention(self.engine, self._tensor([source]), target_in, wants)
        steps = target_in.shape[1]
        return Attention(
            **seen,
            source_tokens=self.source_tokenizer.tokens(source),
            target_in=self.target_tokenizer.tokens(target_in[0].tolist()),
            target_out=self.target_tokenizer.tokens([*hypothesis.ids, EOS][:steps]),
        )


def _ended(encoded: list[list[int]], lines: Sequence[str], most: int, side: str) -> list[list[int]]:
    """The ids of each line with `</s>`, cut with a warning to `most`; an empty line has none."""
    for ids, line in zip(encoded, lines, strict=True):
        if len(ids) >= most:
            cut = f"a {side} of {len(ids):,} tokens is cut to its first {most - 1:,}: {line[:40]!r}…"
            warnings.warn(cut, stacklevel=3)
    return [[*ids[: most - 1], EOS] if ids else [] for ids in encoded]
