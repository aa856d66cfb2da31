"""Two runs beside each other: settings that differ, how their trainings went, and scores on the same test sets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.data.held_out import is_usable
from glassformer.errors import ConfigError, DataError, OutOfMemoryError, abridged, counted, printable
from glassformer.meter import format_duration
from glassformer.pairs.files import Pair, PairFiles
from glassformer.run.config import RunConfig, read_config
from glassformer.run.listing import summarize
from glassformer.run.scores import KeptTranslations, read_translations
from glassformer.scoring.bootstrap import PairedScore, paired_bootstrap

NOT_COMPARED = ("out", "overwrite", "resume", "track")
"""Settings that say nothing about the model."""
WIDEST = 40
"""Most characters of a value in a table."""
NONE = "-"
"""Stands for what a run hasn't."""


@dataclass(frozen=True, kw_only=True)
class TestSet:
    """The scores of two runs on the same lines.

    Example: docs/howto/track.md.
    """

    __test__ = False  # no class of tests, as pytest would take its name

    name: str
    lines: int
    searches: tuple[str, str]
    """How each run translated, in words."""
    scores: list[PairedScore]
    problem: str = ""
    """Say why the runs have no scores on it; empty where they have."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs beside each other.

    Example: docs/howto/track.md.
    """

    runs: tuple[Path, Path]
    settings: dict[str, tuple[Any, Any]]
    """The settings and sizes that differ, by name; None where a run has none."""
    results: dict[str, tuple[str, str]]
    """How the trainings went, in words."""
    tests: list[TestSet]
    """The test sets that both have been scored on."""

    def lines(self) -> Iterator[str]:
        """Yield the tables for people."""
        names = [str(run) for run in self.runs]
        settings = [(name, *map(_shown, pair)) for name, pair in self.settings.items()]
        yield from _table(["settings that differ", *names], settings or [("none", "", "")])
        yield ""
        yield from _table(["training", *names], [(name, *pair) for name, pair in self.results.items()])
        for test in self.tests:
            yield ""
            first, second = test.searches
            search = first if first == second else f"{first}; {second}"
            yield printable(f"{test.name}: {counted(test.lines, 'line')}, {search}")
            if test.problem:
                yield f"not compared: {printable(test.problem)}"
                continue
            rows = [
                (
                    one.name,
                    f"{one.first:.2f} ± {one.first_margin:.2f}",
                    f"{one.second:.2f} ± {one.second_margin:.2f}",
                    f"{one.difference:+.2f}",
                    f"{one.p_value:.4f}",
                )
                for one in test.scores
            ]
            yield from _table(["score", *names, "difference", "p"], rows)
            yield from (f"{one.name}: {one.signature}" for one in test.scores)
        if self.tests:
            yield "± and p: sacreBLEU's paired bootstrap resampling; a difference of p < 0.05 is hardly luck"
        else:
            yield ""
            yield (
                "no test set that both were scored on: glassformer evaluate RUN --source FILE --save for both, with "
                "one FILE, or give --pairs FILE"
            )


def compare_runs(
    first: Path | str, second: Path | str, pairs: PairFiles | None = None, *, device: str = "auto"
) -> Comparison:
    """Compare two run folders; the scores are those of the test sets whose translations both have kept.

    `glassformer evaluate --save` keeps them. With `pairs` both translate these instead, those that have text on both
    sides. Raises RunError for a folder that can't be read, and DataError where there is no such pair.

    Example: docs/howto/track.md.
    """
    runs = Path(first), Path(second)
    settings = [_settings(read_config(run)) for run in runs]
    names = dict.fromkeys(name for one in settings for name in one)
    different = {name: (settings[0].get(name), settings[1].get(name)) for name in names}
    if pairs is None:
        kept = [read_translations(run) for run in runs]
    else:
        usable = [pair for pair in pairs if is_usable(*pair)]
        if not usable:
            raise DataError(f"{pairs.name}: no pair has text on both sides, so nothing can be scored")
        kept = [_translated(run, pairs, usable, device) for run in runs]
    return Comparison(
        runs=runs,
        settings={name: pair for name, pair in different.items() if pair[0] != pair[1]},
        results=_results(runs),
        tests=list(_tests(*kept)),
    )


def _settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings of a run, those that the data decided, the sizes of its model and the counts of its pairs."""
    training = config.training
    settings = {**(training.settings or {}), **(training.chosen or {}), **config.model}
    counts = {
        f"{part} pairs, {name}": count
        for part, found in (training.pairs or {}).items()
        for name, count in found.items()
    }
    others = {"imported": training.imported, "languages": training.languages, "removed heads": training.removed}
    found = {**settings, **counts, **others}
    return {name.strip("_"): value for name, value in found.items() if name not in NOT_COMPARED}


def _results(runs: tuple[Path, Path]) -> dict[str, tuple[str, str]]:
    """Return how far each training came, by what it is called."""
    found = [summarize(run) for run in runs]
    rows = {
        "state": [one.state for one in found],
        "updates": [NONE if one.updates is None else f"{one.updates:,}" for one in found],
        "score": [NONE if one.score is None else f"{one.metric} {one.score:.2f}" for one in found],
        "validation loss": [NONE if one.valid_loss is None else f"{one.valid_loss:.4f}" for one in found],
        "parameters": [NONE if one.parameters is None else f"{one.parameters:,}" for one in found],
        "time": [NONE if one.seconds is None else format_duration(one.seconds) for one in found],
    }
    return {name: (first, second) for name, (first, second) in rows.items()}


def _translated(run: Path, pairs: PairFiles, usable: Sequence[Pair], device: str) -> list[KeptTranslations]:
    """Return a run's translations of the usable ones of these pairs."""
    from glassformer.generation.config import SearchConfig
    from glassformer.generation.translator import Translator

    search = SearchConfig()
    translator = Translator.load(run, device)
    translations = translator.translate([source for source, _ in usable], search)
    return [
        KeptTranslations(
            weights="",
            source=pairs.source.name,
            target=None if pairs.target is None else pairs.target.name,
            search=search.in_words(translator.precision),
            lines=[(one, reference) for one, (_, reference) in zip(translations, usable, strict=True)],
        )
    ]


def _tests(first: Sequence[KeptTranslations], second: Sequence[KeptTranslations]) -> Iterator[TestSet]:
    """Yield the test sets of the same name and the same references, with the latest scores of both."""
    ours, theirs = ({_test_set(one): one for one in kept} for kept in (first, second))
    for test, one in ours.items():
        *_, references = test
        if not references or test not in theirs:
            continue
        other = theirs[test]
        lines, others = ([line for line, _ in kept.lines] for kept in (one, other))
        tokenize = one.tokenize if one.tokenize == other.tokenize else "auto"
        scores, problem = list[PairedScore](), ""
        try:
            scores = paired_bootstrap(lines, others, references, tokenize=tokenize)
        except (ConfigError, OutOfMemoryError) as error:  # other test sets may still be compared
            problem = str(error)
        yield TestSet(
            name=one.source,
            lines=len(references),
            searches=(one.search, other.search),
            scores=scores,
            problem=problem,
        )


def _test_set(kept: KeptTranslations) -> tuple[str, str | None, tuple[str, str] | None, tuple[str, ...]]:
    """Return the names of files and columns, and the references, which tell a test set wherever its files are."""
    return kept.source, kept.target, kept.columns, tuple(reference for _, reference in kept.lines)


def _shown(value: Any) -> str:
    if value is None:
        return NONE
    return abridged(" ".join(map(str, value)) if isinstance(value, list | tuple) else str(value), WIDEST)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, its columns as wide as what is in them."""
    cells = [[printable(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
