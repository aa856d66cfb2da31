"""Text in, text out: the Translator."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.attention.want import Want
from glassformer.device import pick_device
from glassformer.errors import ArgumentError, ConfigError
from glassformer.generation.attention import (
    NextToken,
    Translation,
    TranslationAttention,
    additions,
    align,
    check_attention,
    observe_translation,
    replace_unknown,
)
from glassformer.generation.batches import (
    ended,
    likeliest_after,
    log_probs_of_targets,
    longest_target,
    score_all,
    search_all,
)
from glassformer.generation.config import SOURCE_TOKENS, SearchConfig, as_config, check_token_by_token
from glassformer.generation.consensus import most_agreed
from glassformer.generation.constraints import Prefixes, ids_for_lines, ids_of_prefixes
from glassformer.generation.engines.engine import Engine, Stack
from glassformer.generation.engines.ensemble import load_engine
from glassformer.generation.engines.precision import Precision, pick_generation_precision
from glassformer.generation.lexical.demands import Demands, Vocabulary
from glassformer.generation.lexical.lines import Glossaries, LexicalLine, LexicalRules
from glassformer.generation.lexical.stand_in import StandIn, find_stand_in
from glassformer.generation.search import NOTHING, Hypothesis, stream
from glassformer.run.folder import open_together
from glassformer.settings.checks import Whole
from glassformer.text.columns import texts_of, with_texts
from glassformer.text.tokenizer import EOS, UNK, Tokenizer, check_lines
from glassformer.transformer.model import Transformer


class Translator:
    """A trained model with its tokenizers: text in, text out.

    `load` takes a run folder, `load_ensemble` several, `of` a model in memory.

    >>> import torch
    >>> from glassformer import ModelConfig, SearchConfig, Transformer, Translator
    >>> from glassformer.text.tokenizer import SymbolTokenizer
    >>> letters = SymbolTokenizer("abc")
    >>> sizes = ModelConfig.tiny(source_vocab_size=letters.vocab_size, target_vocab_size=letters.vocab_size)
    >>> _ = torch.manual_seed(1)
    >>> translator = Translator.of(Transformer(sizes), letters, letters)  # it has learned nothing yet
    >>> texts = translator.translate(["a b", "", "c"], SearchConfig(beam=4, max_length=5))
    >>> len(texts), texts[1]
    (3, '')
    >>> [best] = translator.translations(["a b"], SearchConfig(beam=4, max_length=5))
    >>> abs(best.log_prob - sum(best.token_log_probs)) < 1e-4
    True
    """

    def __init__(
        self,
        engine: Engine,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        folders: Sequence[Path] = (),
        sentences: int | None = None,
    ) -> None:
        """Join an engine and its tokenizers; `folders` are the run folders that they are from.

        `sentences` is how many of them the model was trained to read at once, if that is known.
        """
        self.engine = engine
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.folders = folders
        self.sentences = sentences

    @classmethod
    def of(
        cls, model: Transformer, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, precision: str = "auto"
    ) -> "Translator":
        """Make the translator of a model, where the model's weights are; they are copied.

        `precision` is as in `load`. The example of the class makes one. See also docs/generation.md.
        """
        weight = model.target_embedding.weight
        picked = pick_generation_precision(precision, weight.device, weight.dtype)
        return cls(Engine.of(model, picked.dtype, int8=picked.int8), source_tokenizer, target_tokenizer)

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device = "auto", precision: str = "auto") -> "Translator":
        """Load the translator of a run folder.

        `precision` is that of weights and products: float32, bfloat16, float16, int8, or auto, see
        `generation.engines.precision`; `.precision` says what it picked. The weights are held once, as the computation
        wants them. Raises RunError if the folder is no run, or damaged.

        Example: docs/generation.md.
        """
        return cls.load_ensemble([folder], device, precision)

    @classmethod
    def load_ensemble(
        cls, folders: Sequence[str | Path], device: str | torch.device = "auto", precision: str = "auto"
    ) -> "Translator":
        """Load the translator of several run folders, whose models choose each token together.

        The probability of a token is the mean of theirs. Attention, and the number of sentences that are read at once,
        are those of the first. All else is as in `load`. Raises ConfigError where the runs have different tokenizers or
        languages, and where one is named twice.

        Example: docs/generation.md.
        """
        runs = open_together(folders)
        first = next(iter(runs.values()))
        sides = first.source_tokenizer, first.target_tokenizer
        engine = load_engine(runs, pick_device(device), precision)
        return cls(engine, *sides, folders=[*runs], sentences=first.training.join_lines)

    @property
    def folder(self) -> Path | None:
        """The run folder whose model's attention the translator has; None where it is from none."""
        return self.folders[0] if self.folders else None

    @property
    def precision(self) -> Precision:
        """The precision of weights and products."""
        return Precision(self.engine.dtype, self.engine.int8)

    @property
    def device(self) -> torch.device:
        """The device that computes."""
        return self.engine.device

    def translate(
        self,
        lines: Sequence[str],
        config: SearchConfig | None = None,
        progress: Callable[[int], None] = lambda lines: None,
        *,
        prefixes: Prefixes | None = None,
        glossary: Glossaries = None,
        placeholders: str | None = None,
    ) -> list[str]:
        """Return the best translation of each line, in order; an empty line stays empty.

        `prefixes`, one for each line, are what the translations must begin with ("" leaves a line free): text, or a
        sequence of tokens. `progress` is told after each batch how many lines that were. `glossary` has terms that the
        translations must contain where the lines have their sources: one `Glossary`, or one (or None) for each line.
        `placeholders` is the pattern of what is copied as it is, or "default", see `docs/howto/terms.md`.

        Example: docs/generation.md.
        """
        best = self.translations(
            lines, config, progress, prefixes=prefixes, glossary=glossary, placeholders=placeholders
        )
        return [one.text for one in best]

    def translations(
        self,
        lines: Sequence[str],
        config: SearchConfig | None = None,
        progress: Callable[[int], None] = lambda lines: None,
        *,
        prefixes: Prefixes | None = None,
        glossary: Glossaries = None,
        placeholders: str | None = None,
        attention: Want | Mapping[Stack, Want] | None = None,
        layers: Sequence[int] | None = None,
    ) -> list[Translation]:
        """Return the best translation of each line with its score, its tokens, and if asked for its attention.

        `attention` says which facts of the weights are wanted: one `Want` for the encoder's attention, the decoder's
        and the decoder's to the source, or a mapping from "encoder", "decoder" and "source". Each translation's
        `.attention` then observes the chosen hypothesis from its first token to its last, along the path that the
        beam took. `layers` are counted from 0; by default all are observed. In a translation that is too short, `top`
        is as many as there are keys, and `rows` are those of the queries that there are: the observation's own `want`
        says which. An empty line has no attention. `glossary` and `placeholders` are as in `translate`; `.lexical`
        counts what they did.

        Example: docs/generation.md.
        """
        rules = rules_of(self, glossary, placeholders)
        best = self._translated(lines, config, progress, prefixes, rules, attention, layers, best_only=True)
        return [translations[0] for translations in best]

    def translate_n_best(
        self,
        lines: Sequence[str],
        config: SearchConfig | None = None,
        progress: Callable[[int], None] = lambda lines: None,
        *,
        prefixes: Prefixes | None = None,
        glossary: Glossaries = None,
        placeholders: str | None = None,
        attention: Want | Mapping[Stack, Want] | None = None,
        layers: Sequence[int] | None = None,
    ) -> list[list[Translation]]:
        """Return up to `config.n_best` translations of each line, best first, each as `translations` describes it.

        Example: docs/generation.md.
        """
        rules = rules_of(self, glossary, placeholders)
        return self._translated(lines, config, progress, prefixes, rules, attention, layers)

    def map_batches(
        self, batch: Any, config: SearchConfig | None = None, *, column: str = "text", into: str = "translation"
    ) -> Any:
        """Return a batch of rows with one more column, `into`, the best translation of each text in `column`.

        `batch` is an Arrow table, a pandas frame or a mapping of arrays or lists, and so is what comes back: Ray Data's
        `map_batches`, Spark's `mapInPandas` and the `map` of Hugging Face's datasets hand over such. An empty text, or
        none, has an empty translation. Raises DataError where the column is missing or `into` is there already.

        Example: docs/howto/cluster.md.
        """
        return with_texts(batch, into, self.translate(texts_of(batch, column), config))

    def read(
        self,
        source: str,
        target: str,
        config: SearchConfig | None = None,
        *,
        attention: Want | Mapping[Stack, Want],
        layers: Sequence[int] | None = None,
    ) -> Translation:
        """Return a given target as if the search had found it: its score, and its attention (see `translations`).

        Source and target are cut, with a warning, to `config.max_source_tokens`; ConfigError if the source is empty.

        Example: docs/generation.md.
        """
        config = as_config(config)
        wants = check_attention(self.engine, attention, layers)
        check_lines("source", [source])
        check_lines("target", [target])
        sides = ((self.source_tokenizer, source, "source"), (self.target_tokenizer, target, "target"))
        source_ids, target_ids = (
            ended(tokenizer.encode([line]), [line], config.max_source_tokens, side)[0]
            for tokenizer, line, side in sides
        )
        if not source_ids:
            raise ConfigError("source is empty: it has no attention to observe")
        target_ids = target_ids or [EOS]
        log_probs = log_probs_of_targets(self.engine, [source_ids], [target_ids])[0].tolist()
        total = sum(log_probs)
        hypothesis = Hypothesis(target_ids[:-1], log_probs, total, total / config.normaliser(len(target_ids)))
        return translation_of(self, source, source_ids, hypothesis, config, wants)

    def stream(self, line: str, config: SearchConfig | None = None) -> Iterator[str]:
        """Yield the translation of a line piece by piece, as it is written: greedily, or with `config.sample` drawn.

        Joined, the pieces are the text that `translate` gives with a beam of 1 (or the draw of the same seed). Raises
        ConfigError for settings that decide only at the end, such as a beam.

        Example: docs/generation.md.
        """
        return additions(self.write(line, config))

    def write(self, line: str, config: SearchConfig | None = None) -> Iterator[NextToken]:
        """Yield the tokens of a line's translation as `stream` chooses them; the last one is `</s>`, or at the limit.

        Raises ConfigError for the settings that `stream` refuses. Example: docs/generation.md.
        """
        if not isinstance(line, str):
            raise ArgumentError(f"line must be a str, got {type(line).__name__}: stream takes one line at a time")
        check_lines("line", [line])
        config = as_config(config, SearchConfig(beam=1))
        check_token_by_token(config)
        return self._write(line, config)

    def _write(self, line: str, config: SearchConfig) -> Iterator[NextToken]:
        (source,) = ended(self.source_tokenizer.encode([line]), [line], config.max_source_tokens, "source")
        if not source:
            return
        generator, limit = torch.Generator(self.device).manual_seed(config.seed), longest_target(source, config)
        ids: list[int] = []
        written = ""
        for token, log_prob in stream(self.engine, self._tensor([source]), limit, config, generator):
            ids.append(token)
            (text,) = self.target_tokenizer.decode([ids])
            is_last = token == EOS or len(ids) == limit  # the bytes of a character may never become complete
            if is_last or (text.startswith(written) and not text.endswith("\ufffd")):
                written = text
            (name,) = self.target_tokenizer.tokens([token])
            yield NextToken(token, name, log_prob, written)

    def alternatives(
        self,
        line: str,
        prefix: Sequence[str] = (),
        count: int = 10,
        *,
        max_source_tokens: int = SearchConfig.max_source_tokens,
    ) -> list[NextToken]:
        """Return the likeliest tokens after the first ones of a line's translation, likeliest first.

        `prefix` are these first ones, as the vocabulary has them. Raises ConfigError for an empty line, and for a token
        that the vocabulary lacks; cuts a longer line, with a warning. Example: docs/generation.md.
        """
        check_lines("line", [line])
        Whole(at_least=1).check("count", count)
        SOURCE_TOKENS.check("max_source_tokens", max_source_tokens)
        (source,) = ended(self.source_tokenizer.encode([line]), [line], max_source_tokens, "source")
        if not source:
            raise ConfigError("line is empty: its translation is empty too")
        (ids,) = ids_of_prefixes(self.target_tokenizer, [prefix])
        found, log_probs = likeliest_after(self.engine, source, ids, count)
        texts = self.target_tokenizer.decode([[*ids, token] for token in found])
        tokens = self.target_tokenizer.tokens(found)
        return [NextToken(*one) for one in zip(found, tokens, log_probs, texts, strict=True)]

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        config: SearchConfig | None = None,
        progress: Callable[[int], None] = lambda pairs_done: None,
    ) -> list[float]:
        """Return log p(target | source) of each pair, in nats: the sum over the target's tokens and `</s>`.

        Sources and targets are cut, with a warning, to `config.max_source_tokens`. Pairs go through the model in
        batches of `config.batch_tokens`; an empty target is worth the probability of ending at once. Raises ConfigError
        if there are not as many targets as sources.

        Example: docs/generation.md.
        """
        check_lines("sources", sources)
        check_lines("targets", targets)
        if len(sources) != len(targets):
            raise ConfigError(f"score needs a target for each source, got {len(sources)} and {len(targets)}")
        config = as_config(config)
        sides = (self.source_tokenizer, sources, "source"), (self.target_tokenizer, targets, "target")
        source_ids, target_ids = (
            [ids or [EOS] for ids in ended(tokenizer.encode(lines), lines, config.max_source_tokens, side)]
            for tokenizer, lines, side in sides
        )
        return score_all(self.engine, source_ids, target_ids, config.batch_tokens, progress)

    def _tensor(self, rows: list[list[int]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.long, device=self.device)

    def _translated(
        self,
        lines: Sequence[str],
        config: SearchConfig | None,
        progress: Callable[[int], None],
        prefixes: Prefixes | None,
        rules: LexicalRules | None,
        attention: Want | Mapping[Stack, Want] | None,
        layers: Sequence[int] | None,
        *,
        best_only: bool = False,
    ) -> list[list[Translation]]:
        """Return the translations of each line, best first, at least one."""
        config = as_config(config)
        wants = None if attention is None else check_attention(self.engine, attention, layers)
        read = [] if rules is None else rules.read(lines)
        sources, hypotheses = self._search(lines, config, progress, prefixes, rules, read)
        most = 1 if best_only else None
        return [
            [translation_of(self, line, source, one, config, wants, beside) for one in found[:most]]
            for line, source, found, beside in zip(lines, sources, hypotheses, read or [None] * len(lines), strict=True)
        ]

    def _search(
        self,
        lines: Sequence[str],
        config: SearchConfig,
        progress: Callable[[int], None],
        prefixes: Prefixes | None,
        rules: LexicalRules | None,
        read: Sequence[LexicalLine],
        is_over: Callable[[], bool] = lambda: False,
    ) -> tuple[list[list[int]], list[list[Hypothesis]]]:
        """Return the ids of each line and the hypotheses for it; for an empty line the empty one."""
        check_lines("lines", lines)
        model = self.engine.config
        if config.coverage_penalty and not model.heads_of(f"decoder.{model.decoder_layers - 1}.source_attention"):
            raise ConfigError(
                "coverage_penalty reads the last layer's attention to the source, which has no heads left in this run: "
                "leave it out"
            )
        prefix_ids = None if prefixes is None else ids_for_lines(self.target_tokenizer, prefixes, len(lines))
        begun = zip(read, prefix_ids or [[]] * len(read), strict=True)
        encoded = [one.source(prefix) for one, prefix in begun] if read else self.source_tokenizer.encode(lines)
        sources = ended(encoded, lines, config.max_source_tokens, "source")
        whole = replace(config, n_best=config.beam) if config.consensus and not config.sample else config

        def search(
            chosen: Sequence[int], demands: Sequence[Demands] | None, progress: Callable[[int], None]
        ) -> list[list[Hypothesis]]:
            beginnings = None if prefix_ids is None else [prefix_ids[i] for i in chosen]
            rows = [sources[i] for i in chosen]
            found = search_all(
                *(self.engine, rows, whole), prefixes=beginnings, demands=demands, progress=progress, is_over=is_over
            )
            return [most_agreed(self.target_tokenizer, one, config) for one in found] if config.consensus else found

        if rules is None:
            found = search(range(len(lines)), None, progress)
        else:
            found = rules.search(search, read, sources, prefix_ids, config, progress)
        return sources, [hypotheses or [NOTHING] for hypotheses in found]

    @cached_property
    def _lexicon(self) -> tuple[StandIn, Vocabulary]:
        found = find_stand_in(self.engine, self.source_tokenizer, self.target_tokenizer)
        return found, Vocabulary(self.target_tokenizer, found.target)

    def _decoder_input(self, hypothesis: Hypothesis) -> Tensor:
        """Return what the decoder read as it chose the hypothesis's tokens: its start, then all but the last."""
        steps = len(hypothesis.token_log_probs)
        return self._tensor([[self.engine.target_pad, *hypothesis.ids][:steps]])

    def _observed(
        self, source: list[int], hypothesis: Hypothesis, wants: Mapping[Stack, Mapping[int, Want]]
    ) -> TranslationAttention:
        target_in = self._decoder_input(hypothesis)
        steps = target_in.shape[1]
        return TranslationAttention(
            **observe_translation(self.engine, self._tensor([source]), target_in, wants),
            source_tokens=self.source_tokenizer.tokens(source),
            target_in=self.target_tokenizer.tokens(target_in[0].tolist()),
            target_out=self.target_tokenizer.tokens([*hypothesis.ids, EOS][:steps]),
        )


def translation_of(
    translator: Translator,
    line: str,
    source: list[int],
    found: Hypothesis,
    config: SearchConfig,
    wants: Mapping[Stack, Mapping[int, Want]] | None = None,
    lexical: LexicalLine | None = None,
) -> Translation:
    """Return what a search over the ids of a line has found as a Translation.

    It has the attention that is wanted, of which `wants` is what `check_attention` returns. `lexical` is the line as
    the rules read it that the search heeded.
    """
    observed = translator._observed(source, found, wants) if wants is not None and source else None
    tokens = translator.target_tokenizer.tokens(found.ids)
    facts = found.score, found.log_prob, tokens, found.token_log_probs, observed
    cut = 0 < len(found.token_log_probs) == len(found.ids)

    def attended(among: Sequence[int]) -> list[int]:
        return align(translator.engine, translator._tensor([source]), translator._decoder_input(found), among)

    def spelled(text: str, places: Sequence[int], surfaces: Sequence[str]) -> str:
        if config.replace_unknown and UNK in (found.ids[place] for place in places):
            return replace_unknown(text, found.ids, places, surfaces[: len(source) - 1], attended)
        return text

    if lexical is not None:
        for place, n in found.put_in:
            tokens[place] = lexical.wanted[n].forms[0]
        text = lexical.text(translator.target_tokenizer, found, spelled)
        return Translation(text, *facts, lexical.use(text, found), cut)
    (text,) = translator.target_tokenizer.decode([found.ids])
    surfaces = translator.source_tokenizer.surfaces(line) if config.replace_unknown else []
    return Translation(spelled(text, range(len(found.ids)), surfaces), *facts, cut=cut)


def search_lexically(
    translator: Translator,
    lines: Sequence[str],
    config: SearchConfig,
    prefixes: Prefixes | None,
    rules: LexicalRules,
    is_over: Callable[[], bool],
) -> list[tuple[LexicalLine, list[int], list[Hypothesis]]]:
    """Return each line as the rules read it, its ids with `</s>`, and what a search that heeds the rules has found."""
    read = rules.read(lines)
    found = translator._search(lines, config, lambda lines: None, prefixes, rules, read, is_over)
    return list(zip(read, *found, strict=True))


def rules_of(translator: Translator, glossary: Glossaries, placeholders: str | None) -> LexicalRules | None:
    """Return the rules that `Translator.translate` makes of these; None without any."""
    if glossary is None and placeholders is None:
        return None
    stand_in, vocabulary = translator._lexicon
    return LexicalRules(glossary, placeholders, translator.source_tokenizer, vocabulary, stand_in.source)
