"""The settings that a training takes from its data and its task: tokenizers, size, dropout, batch, metric, length."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from glassformer.data.facts import PairFacts, SideFacts
from glassformer.errors import counted
from glassformer.text.kinds import AUTO
from glassformer.training.config import BATCH_TOKENS, INHERITED, TrainConfig, interval_of_task

SHORT_LINE = 20
"""Most characters of a line that is short, a name or a number rather than a sentence, however many its words are."""
SHORT_WORDS, SHORT_WORDS_LINE = 3, 60
"""Most words, and most characters, of a longer line that is short too: one of few but long words."""
CHARACTERS_AS_TOKENS = 30
"""Most characters of a short line whose characters make good tokens."""
SYMBOL_KINDS, SYMBOL_LENGTH = 300, 2.5
"""Most different symbols of a text of symbols, and their most characters on average."""
FEW_SYMBOLS = 30
"""Most symbols of a line that counts as a short one."""
UNSPACED = ("Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan")
"""Scripts that put no spaces between words; a word is taken to have two characters."""
FEW_PAIRS, MANY_PAIRS = 10_000, 1_000_000
"""Pairs of sentences up to which the tiny model is enough, and from which the base model is worth its time."""
TOO_FEW_PAIRS = 200
"""Number of pairs below which a model hardly learns more than these."""
HASTY_MINUTES = 15
"""Minutes up to which a training sees its pairs too seldom for a larger model, or for much dropout."""
CHARACTERS = dict(
    preset="tiny",
    encoder_layers=3,
    decoder_layers=3,
    dropout=0.25,
    batch_tokens=512,
)
"""Settings of the task characters, measured by recipes/characters.py. Small batches and few layers make more updates in
the same time."""
WIDE_PAIRS, WIDE = 15_000, dict(d_model=192, d_ff=768)
"""Number of pairs from which the model of the task characters is wider, and its sizes. By the same recipe, one seed on
dev beside two of width 128: F1 98.73 beside 98.56 and 98.53 with 15,171 Mongolian words, 92.98 beside 92.27 and 92.21
with 30,694 Czech ones."""
UPDATES_A_PAIR, FEWEST_UPDATES, MOST_UPDATES = 1.5, 5_000, 30_000
"""Updates of the task characters for each pair, and the fewest and most of them."""


@dataclass(frozen=True)
class Decision:
    """A setting that the data decided, and why."""

    name: str
    value: Any
    reason: str

    def __str__(self) -> str:
        flag = "--" + self.name.replace("_", "-")
        return f"{f'{flag} {self.value}':28}  {self.reason}"


def choose_settings(config: TrainConfig, pairs: int, facts: PairFacts) -> list[Decision]:
    """Return a decision for each setting that `config` leaves to the data.

    `pairs` is their number, `facts` are about some of them.
    """
    return [decision for decision in _decisions(config, pairs, facts) if getattr(config, decision.name) in (AUTO, None)]


def settle(config: TrainConfig, pairs: int, facts: PairFacts, say: Callable[[str], object]) -> TrainConfig:
    """Return the settings with those that `choose_settings` decides, each of which is said."""
    if config.from_ is None and 0 < pairs < TOO_FEW_PAIRS:
        say(f"only {counted(pairs, 'pair')}: a model learns them by heart, and needs thousands for other text")
    decisions = choose_settings(config, pairs, facts)
    if decisions:
        say("chosen from the pairs (a flag changes each):")
    for decision in decisions:
        say(f"  {decision}")
    return config.settled({decision.name: decision.value for decision in decisions})


def _decisions(config: TrainConfig, pairs: int, facts: PairFacts) -> Iterator[Decision]:
    source, target = facts.source, facts.target
    if config.task == "characters":
        yield from _characters(config, pairs, source, target)
        return
    if config.from_ is None:
        yield from _tokenizers(config, pairs, source, target)
        yield from _model(config, pairs, source, target)
    yield _batch(config, pairs, source, target)
    yield _metric(target)


def _characters(config: TrainConfig, pairs: int, source: SideFacts, target: SideFacts) -> Iterator[Decision]:
    """Choose what the task characters has in common for all pairs, and the length of the training by their number."""
    if config.from_ is None and config.tokenizer == AUTO:
        kinds = ["symbols" if is_symbols(side) else "features" for side in (source, target)]
        whys = [_why(kind, side) for kind, side in zip(kinds, (source, target), strict=True)]
        if kinds[0] == kinds[1] and config.source_tokenizer is config.target_tokenizer is None:
            yield Decision("tokenizer", kinds[0], whys[1])
        else:
            yield Decision("source_tokenizer", kinds[0], whys[0])
            yield Decision("target_tokenizer", kinds[1], whys[1])
    for name, value in CHARACTERS.items():
        if config.from_ is None or name not in INHERITED:
            yield Decision(name, value, "task characters")
    is_free = config.from_ is None and config.preset == AUTO and config.d_model is None
    if is_free and pairs >= WIDE_PAIRS and not _is_hasty(config):
        for name, value in WIDE.items():
            yield Decision(name, value, f"task characters, {counted(pairs, 'pair')}")
    updates = config.max_updates
    if config.max_epochs is config.max_minutes is updates is None:
        updates = max(FEWEST_UPDATES, min(MOST_UPDATES, round(UPDATES_A_PAIR * pairs)))
        yield Decision("max_updates", updates, f"task characters, {counted(pairs, 'pair')}")
    if updates is not None:
        yield Decision("validate_every", interval_of_task(updates), "task characters")
    yield _metric(target)


def _is_hasty(config: TrainConfig) -> bool:
    return config.max_minutes is not None and config.max_minutes < HASTY_MINUTES


def _tokenizers(config: TrainConfig, pairs: int, source: SideFacts, target: SideFacts) -> Iterator[Decision]:
    """Choose the kinds of tokenizer. Both sides share a vocabulary where text is alike and time is plenty.

    With few pairs or little time two vocabularies learn faster: BLEU 19.3 against 18.0 after two minutes on 3,000 pairs
    of Multi30k with 4+4 layers (Zen 4, two threads; compare with
    benchmarks/first_try.py --sides auto --flags "--tokenizer unigram").
    """
    if config.tokenizer != AUTO:
        return
    kinds = _kind(source), _kind(target)
    own = (config.source_tokenizer, config.target_tokenizer) != (None, None) or pairs < FEW_PAIRS or _is_hasty(config)
    if not own and kinds[0] == kinds[1] and (source.script == target.script or "" in (source.script, target.script)):
        yield Decision("tokenizer", kinds[0], _why(kinds[0], target))
        return
    yield Decision("source_tokenizer", kinds[0], _why(kinds[0], source))
    yield Decision("target_tokenizer", kinds[1], _why(kinds[1], target))


def _kind(side: SideFacts) -> str:
    """Return the kind of tokenizer for one side."""
    if is_symbols(side):
        return "symbols"
    return "char" if is_short(side) and side.characters <= CHARACTERS_AS_TOKENS else "unigram"


def is_symbols(side: SideFacts) -> bool:
    """Return whether the lines are symbols with spaces between: short ones, and few kinds of them."""
    mean = (side.characters - side.words + 1) / max(side.words, 1)
    return side.words >= 2 and mean <= SYMBOL_LENGTH and side.distinct_words <= SYMBOL_KINDS


def is_short(side: SideFacts) -> bool:
    """Return whether the lines are words, names or numbers, rather than sentences."""
    if side.script in UNSPACED:
        return side.characters <= 2 * SHORT_WORDS
    return side.characters <= SHORT_LINE or (side.words <= SHORT_WORDS and side.characters <= SHORT_WORDS_LINE)


def is_brief(side: SideFacts) -> bool:
    """Return whether the lines are short, or few symbols: little to learn from each."""
    return is_short(side) or (is_symbols(side) and side.words <= FEW_SYMBOLS)


def _why(kind: str, side: SideFacts) -> str:
    if kind == "symbols":
        return f"{side.distinct_words} different symbols, with spaces between"
    if kind == "features":
        return "characters, and features such as <V> where there are any"
    return f"lines of {side.characters:.0f} characters and {counted(side.words, 'word')} on average"


def _model(config: TrainConfig, pairs: int, source: SideFacts, target: SideFacts) -> Iterator[Decision]:
    """Choose the size of the model, and how much of it dropout leaves out.

    With little time, few layers make more updates: BLEU 34.5 against 29.6 with 4+4 layers after two minutes on 29,000
    pairs of Multi30k, and word error rate 6.7 against 7.8 % on 3,600 French words (Zen 4, two threads; compare with
    benchmarks/first_try.py --sides auto --flags "--encoder-layers 4 --decoder-layers 4").
    """
    short = is_brief(source) and is_brief(target)
    hasty = _is_hasty(config)
    why = f"{counted(pairs, 'pair')} of {'short lines' if short else 'sentences'}" + (
        f", {config.max_minutes:g} minute{'s' * (config.max_minutes != 1)}"
        if hasty and config.max_minutes is not None
        else ""
    )
    if config.preset != AUTO:
        return
    if short or hasty:
        preset, dropout = "tiny", 0.2 if pairs < FEW_PAIRS else 0.1
    else:
        preset = "tiny" if pairs < FEW_PAIRS else "small" if pairs < MANY_PAIRS else "base"
        dropout = 0.3 if pairs < MANY_PAIRS else 0.1
    yield Decision("preset", preset, why)
    if hasty:
        yield Decision("encoder_layers", 2, why)
        yield Decision("decoder_layers", 1, why)
    yield Decision("dropout", dropout, why)


def _batch(config: TrainConfig, pairs: int, source: SideFacts, target: SideFacts) -> Decision:
    """Choose the size of a batch: the smaller, the more updates a short training makes."""
    if is_brief(source) and is_brief(target):
        return Decision("batch_tokens", 1024, "short lines")
    size = BATCH_TOKENS if not _is_hasty(config) else 512 if pairs < FEW_PAIRS else 1024
    return Decision("batch_tokens", size, f"{counted(pairs, 'pair')} of sentences")


def _metric(target: SideFacts) -> Decision:
    if is_symbols(target):
        return Decision("metric", "wer", "word error rate: targets of symbols")
    if is_short(target):
        return Decision("metric", "exact", "exact match: short targets")
    return Decision("metric", "bleu", "targets are sentences")
