"""`glassformer evaluate`: score translations against references."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassformer.errors import ConfigError, DataError, RunError
from glassformer.generation.config import SearchConfig
from glassformer.settings.checks import Flag
from glassformer.terminal import loading, say
from glassformer.tracking.tracker import NONE, Track

if TYPE_CHECKING:
    from glassformer.confidence.calibration import Calibration
    from glassformer.generation.translator import Translation, Translator
    from glassformer.scoring.scores import Score


@dataclass(frozen=True, kw_only=True)
class EvaluateFlags:
    """Score a run's translations, or a file of them, against references.

    Prints sacreBLEU's BLEU and chrF with their signatures, exact match, word and symbol error rate; the metric that the
    run was trained by comes first.
    """

    run: Annotated[Path | None, Flag(positional=True)] = None
    """The run folder whose model translates --source. Left out: --hypotheses are scored as they are."""
    ensemble: Annotated[tuple[Path, ...], Flag("RUN")] = ()
    """More runs, which choose each token together with the first, as `glassformer translate --ensemble`."""
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
    """Keep the scores in the run folder (scores.json), where `glassformer export` finds them for the model card, and
    the translations with their references (translations.jsonl), which `glassformer runs --compare` takes."""
    track: Track = NONE
    """Show the scores in a tracker, too: tensorboard or trackio, as `glassformer train --track`."""
    tokenize: str = "auto"
    """sacreBLEU tokenizer for BLEU: auto (by the script of the references), 13a, zh, ja-mecab, char, ..."""
    symbols: bool = False
    """Lines are symbols split at spaces (phones): error rates as in the SIGMORPHON tasks. A run knows this itself."""
    fit_calibration: bool = False
    """Learn from these held-out pairs how likely a word is right, and keep it in the run folder: the confidence that
    `translate --confidence` and the server show."""
    calibration: bool = False
    """Print how far that confidence is off on these pairs: its expected calibration error (ECE). Take other pairs than
    those it was fitted on."""
    diagram: Path | None = None
    """With --calibration: picture to draw, the share of right words over their confidence (PNG, extra `plots`)."""
    device: Annotated[str, Flag("DEVICE")] = "auto"
    """Where to compute: auto, cpu, cuda or mps."""
    precision: Annotated[str, Flag("TYPE")] = "auto"
    """float32, bfloat16, float16, int8, or auto: what is fastest here (int8 on recent CPUs)."""
    search: SearchConfig = field(default_factory=SearchConfig)


def evaluate(flags: EvaluateFlags) -> int:
    """Print the scores of translations."""
    from glassformer.scoring.scores import check_bleu_tokenizer

    check_bleu_tokenizer(flags.tokenize)
    _check_calibration(flags)
    if flags.ensemble and (flags.save or flags.track != NONE or flags.fit_calibration or flags.calibration):
        raise ConfigError(
            "--save, --track, --fit-calibration and --calibration are for one run: leave them out, or --ensemble"
        )
    _check_files(flags)
    made = _figures_of_run(flags) if flags.hypotheses is None else _scores_of_file(flags, flags.hypotheses)
    figures: list[object] = []
    try:
        figures.extend(made)
    finally:  # the scores are printed where what comes after them fails, and after it, which a closed pipe would end
        for figure in figures:
            print(figure)
    return 0


def _check_calibration(flags: EvaluateFlags) -> None:
    """Raise ConfigError for flags of a calibration that don't go together, before anything is computed."""
    from glassformer.pictures import check_picture, load_matplotlib

    if flags.fit_calibration and flags.calibration:
        raise ConfigError(
            "--fit-calibration and --calibration exclude each other: a calibration is measured on other pairs than "
            "those it was fitted on"
        )
    if flags.diagram is not None:
        if not flags.calibration:
            raise ConfigError("--diagram draws what --calibration measures: give both")
        check_picture(flags.diagram)
        load_matplotlib("a reliability diagram")
    if not (flags.fit_calibration or flags.calibration):
        return
    if flags.hypotheses is not None:
        raise ConfigError("--fit-calibration and --calibration need a run folder in place of --hypotheses")
    if flags.search.replace_unknown:
        raise ConfigError("--replace-unknown writes words that no confidence is known of: leave it out")
    if flags.search.max_source_tokens != SearchConfig.max_source_tokens:
        raise ConfigError("--max-source-tokens cuts sources, and a calibration is of whole ones: leave it out")


def _check_files(flags: EvaluateFlags) -> None:
    """Raise ConfigError where a file to write is one that is read."""
    from glassformer.files import check_apart
    from glassformer.run.config import own_files

    given = {"--source": flags.source, "--target": flags.target, "--hypotheses": flags.hypotheses}
    written = {"--output": flags.output, "--diagram": flags.diagram}
    check_apart(written, given)
    for run in filter(None, (flags.run, *flags.ensemble)):
        check_apart(written, own_files(run))


def _scores_of_file(flags: EvaluateFlags, hypotheses: Path) -> "list[Score]":
    """Return the scores of translations that stand in a file."""
    from glassformer.pairs.lines import read_lines
    from glassformer.scoring.scores import score_all

    if flags.target is None:
        raise ConfigError("--hypotheses needs --target, the file of references")
    default = EvaluateFlags()
    for name in ("run", "ensemble", "source", "columns", "output", "save", "track", "device", "precision", "search"):
        if getattr(flags, name) != getattr(default, name):
            flag = {"run": "RUN", "search": "a flag of the search"}.get(name, f"--{name}")
            raise ConfigError(
                f"--hypotheses are scored as they stand, and {flag} is for translations of a run: give one of the two"
            )
    found, wanted = (list(read_lines(path)) for path in (hypotheses, flags.target))
    if len(found) != len(wanted):
        raise DataError(
            f"--hypotheses and --target must have the same number of lines: {hypotheses} has {len(found):,}, "
            f"{flags.target} {len(wanted):,}"
        )
    scored = [bool(reference.strip()) for reference in wanted]
    _check_scored(scored, flags.target, "lines have an empty reference")
    found, wanted = list(compress(found, scored)), list(compress(wanted, scored))
    return score_all(found, wanted, tokenize=flags.tokenize, symbols=flags.symbols)


def _check_scored(scored: list[bool], file: Path, fault: str) -> None:
    """Say how many lines of a file aren't scored, for this fault; DataError where none is."""
    if not any(scored):
        raise DataError(f"{file}: all {fault}, so nothing can be scored")
    if not all(scored):
        say(f"{scored.count(False):,} of {len(scored):,} {fault}, and aren't scored")


def _figures_of_run(flags: EvaluateFlags) -> Iterator[object]:
    """Yield what to print of a run: its scores, the metric of its training first, and what is asked of its confidence.

    The translations are written if wanted.
    """
    with loading():
        from glassformer.confidence.diagram import draw_reliability
        from glassformer.confidence.estimate import measure_calibration
        from glassformer.data.held_out import is_usable
        from glassformer.device import tame_memory
        from glassformer.files import check_writable, replacing
        from glassformer.generation.files import LineDemands, chunks_to_translate, translations_of_chunk
        from glassformer.generation.translator import Translator
        from glassformer.pairs.files import PairFiles
        from glassformer.run.fitted import digest_of_weights
        from glassformer.run.names import CALIBRATION, EVALUATIONS, TRANSLATIONS, WEIGHTS
        from glassformer.run.scores import read_evaluations, save_evaluation
        from glassformer.scoring.scores import score_all, seem_swapped
        from glassformer.text.tokenizer import SymbolTokenizer
        from glassformer.tracking.results import track_scores
        from glassformer.tracking.tracker import check_tracker

    if flags.run is None or flags.source is None:
        raise ConfigError("give a run folder and --source (and --target), or --hypotheses and --target")
    if flags.output is not None:
        check_writable(flags.output)
    check_tracker(flags.track)
    tame_memory()
    blocks = PairFiles(flags.source, flags.target, flags.columns).blocks(say)
    pairs = [pair for block in blocks for pair in zip(*block.pairs(), strict=True)]
    usable = [is_usable(*pair) for pair in pairs]
    _check_scored(usable, flags.source, "pairs have an empty side")
    keeps = flags.save or flags.fit_calibration or flags.track != NONE
    weights = digest_of_weights(flags.run) if keeps and (flags.run / WEIGHTS).exists() else ""
    translator = Translator.load_ensemble([flags.run, *flags.ensemble], flags.device, flags.precision)
    calibration = _calibration_of(translator) if flags.calibration else None
    # What is wrong there is said before a long translation, not in place of its scores.
    if flags.save:
        read_evaluations(flags.run)
        check_writable(flags.run / EVALUATIONS)
        check_writable(flags.run / TRANSLATIONS)
    if flags.fit_calibration:
        check_writable(flags.run / CALIBRATION)
    chunks = chunks_to_translate(translator, [source for source, _ in pairs], 0, len(pairs), LineDemands())
    translations = [
        best[0] for first, lines in chunks for best in translations_of_chunk(translator, lines, first, flags.search)
    ]
    if flags.output is not None:
        with replacing(flags.output) as file:
            file.writelines(f"{one.text}\n".encode() for one in translations)
    pairs, translations = list(compress(pairs, usable)), list(compress(translations, usable))
    sources, references = [source for source, _ in pairs], [reference for _, reference in pairs]
    hypotheses = [one.text for one in translations]
    symbols = flags.symbols or isinstance(translator.target_tokenizer, SymbolTokenizer)
    scores = score_all(hypotheses, references, first=_metric_of(flags.run), tokenize=flags.tokenize, symbols=symbols)
    yield from scores
    chrf = next(one.value for one in scores if one.name == "chrF")
    if seem_swapped(hypotheses, sources, chrf):
        say("the translations are more like the sources than like the references: are the two sides swapped?")
    if keeps and digest_of_weights(flags.run) != weights:
        raise RunError(
            f"{flags.run} has other weights than those that were loaded: it was trained meanwhile, and nothing is kept "
            "of these scores: evaluate again"
        )
    search = flags.search.in_words(translator.precision)
    if flags.save:
        save_evaluation(
            flags.run,
            source=flags.source,
            target=flags.target,
            columns=flags.columns,
            lines=len(sources),
            search=search,
            tokenize=flags.tokenize,
            scores=scores,
            translations=list(zip(hypotheses, references, strict=True)),
        )
    settings = {"lines": len(sources), "search": search}
    if place := track_scores(flags.run, flags.source.name, scores, track=flags.track, settings=settings):
        say(f"tracked in {place}")
    if flags.fit_calibration:
        yield _fitted(translator, flags.run, sources, translations, references)
    if calibration is not None:
        measured = measure_calibration(translator, calibration, sources, translations, references)
        yield measured
        if flags.diagram is not None:
            draw_reliability(measured, flags.diagram)


def _calibration_of(translator: "Translator") -> "Calibration":
    """Return the calibration of a translator's run folder; ConfigError where it has none."""
    from glassformer.confidence.estimate import ConfidenceEstimator

    return ConfidenceEstimator(translator).calibration


def _fitted(
    translator: "Translator",
    run: Path,
    sources: list[str],
    translations: "list[Translation]",
    references: list[str],
) -> str:
    """Fit a calibration, keep it in the run folder, and return a line about it."""
    from glassformer.confidence.calibration import write_calibration
    from glassformer.confidence.estimate import fit_calibration

    calibration = fit_calibration(translator, sources, translations, references)
    write_calibration(run, calibration)
    return (
        f"calibration kept in {run}, fitted on {calibration.words:,} words of {calibration.lines:,} lines "
        f"({calibration.right:.1%} right)\n"
        f"of source words whose counterpart was taken out {calibration.omissions_found:.1%} are named as left out, of "
        f"others {calibration.false_alarms:.1%}"
    )


def _metric_of(run: Path) -> str:
    """Return the metric that a run was trained by; the first of all where it was not trained here."""
    from glassformer.run.folder import training_metric
    from glassformer.scoring.scores import METRICS

    metric = training_metric(run)
    return metric if metric in METRICS else METRICS[0]
