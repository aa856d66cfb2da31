"""`glassformer evaluate`: score translations against references."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassformer.checks import Flag
from glassformer.commands.common import say
from glassformer.errors import ConfigError
from glassformer.generation.config import SearchConfig

if TYPE_CHECKING:
    from glassformer.text.scores import Score


@dataclass(frozen=True, kw_only=True)
class EvaluateFlags:
    """Score a run's translations, or a file of them, against references.

    Prints sacreBLEU's BLEU and chrF with their signatures, exact match, word and symbol error rate; the metric that the
    run was trained by comes first.
    """

    run: Annotated[Path | None, Flag(positional=True)] = None
    """The run folder whose model translates --source. Left out: --hypotheses are scored as they are."""
    source: Path | None = None
    """Sources, one a line; without --target a file of both sides, as `glassformer train` reads them."""
    target: Path | None = None
    """References, one a line."""
    columns: Annotated[tuple[str, str], Flag("NAME")] | None = None
    """The source's and the reference's column of a table, by name or number; of a TMX file the two languages."""
    hypotheses: Path | None = None
    """Translations to score instead of a run's own."""
    output: Path | None = None
    """Where to write the run's translations."""
    save: bool = False
    """Keep the scores in the run folder (scores.json), where `glassformer export` finds them for the model card."""
    tokenize: str = "auto"
    """sacreBLEU tokenizer for BLEU: auto (by the script of the references), 13a, zh, ja-mecab, char, ..."""
    symbols: bool = False
    """Lines are symbols split at spaces (phones): error rates as in the SIGMORPHON tasks. A run knows this itself."""
    device: Annotated[str, Flag("DEVICE")] = "auto"
    """Where to compute: auto, cpu, cuda or mps."""
    precision: Annotated[str, Flag("TYPE")] = "auto"
    """float32, bfloat16, float16, int8, or auto: what is fastest here (int8 on recent CPUs)."""
    search: SearchConfig = field(default_factory=SearchConfig)


def evaluate(flags: EvaluateFlags) -> int:
    """Print the scores of translations."""
    from glassformer.text.scores import check_bleu_tokenizer

    check_bleu_tokenizer(flags.tokenize)
    for figure in _scores_of_run(flags) if flags.hypotheses is None else _scores_of_file(flags, flags.hypotheses):
        print(figure)
    return 0


def _scores_of_file(flags: EvaluateFlags, hypotheses: Path) -> "list[Score]":
    """Return the scores of translations that stand in a file."""
    from glassformer.pairs.lines import read_lines
    from glassformer.text.scores import score_all

    if flags.run is not None or flags.source is not None or flags.target is None or flags.save:
        raise ConfigError("--hypotheses are scored against --target, without a run folder, --source and --save")
    lines = (list(read_lines(path)) for path in (hypotheses, flags.target))
    return score_all(*lines, tokenize=flags.tokenize, symbols=flags.symbols)


def _scores_of_run(flags: EvaluateFlags) -> "list[Score]":
    """Return the scores of a run's translations, the metric of its training first; write the translations if wanted."""
    from glassformer.device import tame_memory
    from glassformer.files import check_writable, replacing
    from glassformer.generation.files import progress_words
    from glassformer.generation.stream import LINES_AT_ONCE, counting, in_chunks
    from glassformer.generation.translator import Translator
    from glassformer.pairs.files import PairFiles
    from glassformer.run.names import EVALUATIONS
    from glassformer.run.scores import read_evaluations, save_evaluation
    from glassformer.text.scores import score_all, seem_swapped
    from glassformer.text.tokenizer import SymbolTokenizer

    if flags.run is None or flags.source is None:
        raise ConfigError("give a run folder and --source (and --target), or --hypotheses and --target")
    if flags.output is not None:
        check_writable(flags.output)
    tame_memory()
    blocks = PairFiles(flags.source, flags.target, flags.columns).blocks(say)
    pairs = [pair for block in blocks for pair in zip(*block.pairs(), strict=True)]
    sources, references = [source for source, _ in pairs], [reference for _, reference in pairs]
    translator = Translator.load(flags.run, flags.device, flags.precision)
    if flags.save:  # what is wrong there is said before a long translation, not in place of its scores
        read_evaluations(flags.run)
        check_writable(flags.run / EVALUATIONS)
    chunks = counting(in_chunks(sources, LINES_AT_ONCE), progress_words(translator), "lines", len(sources))
    hypotheses = [text for _, lines in chunks for text in translator.translate(lines, flags.search)]
    if flags.output is not None:
        with replacing(flags.output) as file:
            file.writelines(f"{line}\n".encode() for line in hypotheses)
    symbols = flags.symbols or isinstance(translator.target_tokenizer, SymbolTokenizer)
    scores = score_all(hypotheses, references, first=_metric_of(flags.run), tokenize=flags.tokenize, symbols=symbols)
    if flags.save:
        save_evaluation(
            flags.run,
            source=flags.source.name,
            target=None if flags.target is None else flags.target.name,
            lines=len(sources),
            search=_in_words(flags.search),
            scores=scores,
        )
    chrf = next(one.value for one in scores if one.name == "chrF")
    if seem_swapped(hypotheses, sources, chrf):
        say("the translations are more like the sources than like the references: are the two sides swapped?")
    return scores


def _in_words(search: SearchConfig) -> str:
    """Return the beam, and the settings that aren't as they come."""
    default = SearchConfig()
    changed = {name: value for name, value in vars(search).items() if value != getattr(default, name)}
    return ", ".join(f"{name} {value}" for name, value in ({"beam": search.beam} | changed).items())


def _metric_of(run: Path) -> str:
    """Return the metric that a run was trained by; the first of all where it was not trained here."""
    from glassformer.run.folder import training_metric
    from glassformer.text.scores import METRICS

    metric = training_metric(run)
    return metric if metric in METRICS else METRICS[0]
