"""A page of what a run looks at while it translates a line."""

from pathlib import Path

from glassformer.attention.want import Want
from glassformer.errors import ConfigError
from glassformer.folder import HEADS
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.insight.heads import read_heads
from glassformer.insight.report import COARSE, MOST, Page, page


def inspect(run: Path, source: str, target: str | None = None, *, hypotheses: int = 3, device: str = "auto") -> Page:
    """The attention of a run's best translations of a line, or of a given target, as a page.

    Weights are computed in float32. Roles and importance are there if `glassformer heads` has studied the run. For long
    lines tiles and the largest weights of each token stand in for all of them.

    Raises ConfigError for an empty source, and RunError for what is no run.
    """
    if not source.strip():
        raise ConfigError("source is empty: give the text to look at")
    if hypotheses < 1:
        raise ConfigError(f"hypotheses must be at least 1, got {hypotheses}")
    translator = Translator.load(run, device, "float32")
    sizes = translator.engine.config
    (ids,), (given,) = translator.source_tokenizer.encode([source]), translator.target_tokenizer.encode([target or ""])
    layers = hypotheses * (sizes.encoder_layers + 2 * sizes.decoder_layers)
    about = layers * sizes.heads * max(len(ids), len(given)) ** 2
    want = Want(weights=True) if about <= MOST // 4 else COARSE  # translations may come out longer than the source
    if target is None:
        search = SearchConfig(beam=max(5, hypotheses), n_best=hypotheses)
        (found,) = translator.translate_n_best([source], search, attention=want)
    else:
        found = [translator.read(source, target, attention=want)]
    heads = read_heads(run / HEADS) if (run / HEADS).exists() else []
    return page(found, title=f"{run.resolve().name}: {source if len(source) <= 60 else source[:59] + '…'}", heads=heads)
