"""`glassformer evaluate`: score translations against references."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from glassformer.checks import Flag
from glassformer.errors import ConfigError
from glassformer.generation.config import SearchConfig


@dataclass(frozen=True, kw_only=True)
class EvaluateFlags:
    """Score a run's translations, or a file of them, against references.

    Prints sacreBLEU's BLEU and chrF with their signatures, exact match, word and symbol error rate.
    """

    run: Annotated[Path | None, Flag(positional=True)] = None
    """The run folder whose model translates --source. Left out: --hypotheses are scored as they are."""
    source: Path | None = None
    """Sources, one a line; without --target a file of both sides, as `glassformer train` reads them."""
    target: Path | None = None
    """References, one a line."""
    columns: tuple[str, str] | None = None
    """The source's and the reference's column of a table, by name or number; of a TMX file the two languages."""
    hypotheses: Path | None = None
    """Translations to score instead of a run's own."""
    output: Path | None = None
    """Where to write the run's translations."""
    tokenize: str = "auto"
    """sacreBLEU tokenizer for BLEU: auto (by the script of the references), 13a, zh, ja-mecab, char, ..."""
    symbols: bool = False
    """Lines are symbols split at spaces (phones): error rates as in the SIGMORPHON tasks. A run knows this itself."""
    device: Annotated[str, Flag("DEVICE")] = "auto"
    """Where to compute: auto, cpu, cuda or mps."""
    precision: Annotated[str, Flag("TYPE")] = "auto"
    """float32, bfloat16, float16, or auto: what this processor is fastest in (bfloat16 and int8 on recent CPUs)."""
    search: SearchConfig = field(default_factory=SearchConfig)


def evaluate(flags: EvaluateFlags) -> int:
    """Print the scores of translations."""
    from glassformer.device import tame_memory
    from glassformer.files import check_writable, replacing
    from glassformer.generation.files import progress_words
    from glassformer.generation.stream import LINES_AT_ONCE, counting, in_chunks
    from glassformer.generation.translator import Translator
    from glassformer.pairs.files import PairFiles
    from glassformer.pairs.lines import read_lines
    from glassformer.text.scores import bleu_scorer, score_all
    from glassformer.text.tokenizer import SymbolTokenizer

    symbols = flags.symbols
    if flags.tokenize != "auto":
        bleu_scorer(flags.tokenize)
    if flags.hypotheses is not None:
        if flags.run is not None or flags.source is not None or flags.target is None:
            raise ConfigError("--hypotheses are scored against --target, without a run folder and --source")
        hypotheses, references = list(read_lines(flags.hypotheses)), list(read_lines(flags.target))
    else:
        if flags.run is None or flags.source is None:
            raise ConfigError("give a run folder and --source (and --target), or --hypotheses and --target")
        if flags.output is not None:
            check_writable(flags.output)
        tame_memory()
        files = PairFiles(flags.source, flags.target, flags.columns)
        blocks = files.blocks(say=lambda said: print(said, file=sys.stderr))
        pairs = [pair for block in blocks for pair in zip(*block.pairs(), strict=True)]
        translator = Translator.load(flags.run, flags.device, flags.precision)
        symbols = symbols or isinstance(translator.target_tokenizer, SymbolTokenizer)
        sources = in_chunks((source for source, _ in pairs), LINES_AT_ONCE)
        chunks = counting(sources, progress_words(translator), "lines", len(pairs))
        hypotheses = [text for _, lines in chunks for text in translator.translate(lines, flags.search)]
        references = [reference for _, reference in pairs]
        if flags.output is not None:
            with replacing(flags.output) as file:
                file.writelines(f"{line}\n".encode() for line in hypotheses)
    for figure in score_all(hypotheses, references, tokenize=flags.tokenize, symbols=symbols):
        print(figure)
    return 0
