"""A page of what a run looks at while it translates a line."""

from collections.abc import Sequence
from pathlib import Path

from glassformer.attention.want import Want
from glassformer.errors import ConfigError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.insight.heads import read_heads
from glassformer.page.report import COARSE, MOST, Page, page
from glassformer.run.names import HEADS
from glassformer.transformer.config import ModelConfig


def inspect(run: Path, source: str, target: str | None = None, *, hypotheses: int = 3, device: str = "auto") -> Page:
    """The attention of a run's best translations of a line, or of a given target, as a page.

    Weights are computed in float32. Roles and importance are there if `glassformer heads` has studied the run. For long
    lines tiles and the largest weights of each token stand in for all of them.

    Raises ConfigError for a source that is empty or no UTF-8, and RunError for what is no run.
    """
    for name, text in (("source", source), ("target", target or "")):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{name} holds bytes that are no UTF-8: {text!a}") from None
    if not source.strip():
        raise ConfigError("source is empty: give the text to look at")
    if hypotheses < 1:
        raise ConfigError(f"hypotheses must be at least 1, got {hypotheses}")
    translator = Translator.load(run, device, "float32")
    search = SearchConfig(beam=max(5, hypotheses), n_best=hypotheses)
    (ids,) = translator.source_tokenizer.encode([source])
    if target is None:
        (plain,) = translator.translate_n_best([source], search)
        lengths = [len(one.tokens) + 1 for one in plain]
    else:
        lengths = [len(translator.target_tokenizer.encode([target])[0]) + 1]
    want = _wanted(translator.engine.config, len(ids) + 1, lengths)
    if target is None:
        (found,) = translator.translate_n_best([source], search, attention=want)
    else:
        found = [translator.read(source, target, attention=want)]
    heads = read_heads(run / HEADS) if (run / HEADS).exists() else []
    return page(found, title=f"{run.resolve().name}: {source if len(source) <= 60 else source[:59] + '…'}", heads=heads)


def _wanted(config: ModelConfig, source: int, targets: Sequence[int]) -> Want:
    """All weights of a source and targets of these lengths, in tokens, or if these are too many what a page of long
    inputs shows; ConfigError if that is too much too."""

    def count(source: int, target: int) -> int:
        return config.heads * (config.encoder_layers * source**2 + config.decoder_layers * target * (target + source))

    if sum(count(source, target) for target in targets) <= MOST // 2:
        return Want(weights=True)
    tiles = COARSE.pooled_heads
    if (most := MOST // count(tiles, tiles)) < len(targets):
        raise ConfigError(f"hypotheses of so long a line must be at most {most}, got {len(targets)}: give fewer")
    return COARSE
