"""The page of a run: its attention while it translates a line."""

from collections.abc import Sequence
from pathlib import Path

from glassformer.attention.want import Want, tile_count
from glassformer.errors import ConfigError
from glassformer.generation.attention import count_weights
from glassformer.generation.config import HYPOTHESES, SearchConfig
from glassformer.generation.engines.engine import Stack
from glassformer.generation.stream import warn_of_unknown
from glassformer.generation.translator import Translator
from glassformer.insight.heads import read_heads
from glassformer.page.report import MOST_WEIGHTS, Page, page
from glassformer.page.views import LONG_INPUT_WANT
from glassformer.transformer.config import ModelConfig


def inspect(run: Path, source: str, target: str | None = None, *, hypotheses: int = 3, device: str = "auto") -> Page:
    """Return a page of the attention of a run's best translations of a line, or of a given target.

    Weights are computed in float32. The page has roles and importance of the heads if `glassformer heads` has studied
    the run. For long lines it has tiles and the largest weights of each token in place of all weights. Warns of text
    that the run's vocabularies lack.

    Raises ConfigError for a source that is empty or not valid UTF-8, and RunError if `run` is not a run folder.
    """
    for name, text in (("source", source), ("target", target or "")):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{name} must be valid UTF-8, got {text!a}: convert it first") from None
    if not source.strip():
        raise ConfigError("source is empty: give the text to translate")
    HYPOTHESES.check("hypotheses", hypotheses)
    translator = Translator.load(run, device, "float32")
    for tokenizer, text in ((translator.source_tokenizer, source), (translator.target_tokenizer, target or "")):
        warn_of_unknown(tokenizer, [text], set())
    search = SearchConfig(beam=max(5, hypotheses), n_best=hypotheses)
    (ids,) = translator.source_tokenizer.encode([source])
    if target is None:
        (plain,) = translator.translate_n_best([source], search)
        lengths = [len(one.tokens) + 1 for one in plain]
    else:
        lengths = [len(translator.target_tokenizer.encode([target])[0]) + 1]
    want = choose_want(translator.engine.config, len(ids) + 1, lengths)
    if target is None:
        (translations,) = translator.translate_n_best([source], search, attention=want)
    else:
        translations = [translator.read(source, target, attention=want)]
    heads = read_heads(run)
    short = source if len(source) <= 60 else source[:59] + "…"
    return page(translations, title=f"{run.resolve().name}: {short}", heads=heads)


def choose_want(config: ModelConfig, source: int, targets: Sequence[int]) -> Want:
    """Return what to observe for a source and targets of these lengths, in tokens.

    That is all weights, or LONG_INPUT_WANT if they are too many for a page. Raises ConfigError if that is too much too.
    """
    decoder = range(config.decoder_layers)
    layers: dict[Stack, range] = {"encoder": range(config.encoder_layers), "decoder": decoder, "source": decoder}
    if count_weights(config, layers, source, targets) <= MOST_WEIGHTS // 2:
        return Want(weights=True)
    source, *tiled = (tile_count(length, LONG_INPUT_WANT.pooled_heads) for length in (source, *targets))
    counts = [count_weights(config, layers, source, tiled[:n]) for n in range(1, len(targets) + 1)]
    fitting = sum(count <= MOST_WEIGHTS for count in counts)
    if not fitting:
        raise ConfigError(
            f"source is too long for a page: this model's {config.all_heads:,} heads would have {counts[0]:,} tiles, "
            f"and a page holds {MOST_WEIGHTS:,}: give a shorter line"
        )
    if fitting < len(targets):
        raise ConfigError(f"hypotheses of so long a line must be at most {fitting}, got {len(targets)}: give fewer")
    return LONG_INPUT_WANT
