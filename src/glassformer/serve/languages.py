"""The runs that are served, and which languages each translates. Loads neither FastAPI nor torch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from glassformer.errors import ConfigError, RunError, shown
from glassformer.files import check_name
from glassformer.generation.config import Segmentation
from glassformer.generation.segments.sentences import segmentation_of
from glassformer.run.config import LANGUAGE_CODE, check_weights, read_config
from glassformer.run.lock import check_free
from glassformer.run.names import CONFIG
from glassformer.text.loading import load_tokenizer
from glassformer.transformer.config import ModelConfig


@dataclass(frozen=True)
class ServedRun:
    """A run to serve."""

    name: str
    folder: Path
    source: str
    """Code of the source language; empty where nothing says it."""
    target: str
    model: ModelConfig
    segment: Segmentation
    """How the page and LibreTranslate's routes translate a line: whole, or sentence by sentence."""

    def is_named(self, text: str) -> bool:
        """Return whether a flag means this run: by its name, or by its folder."""
        return text == self.name or (text != "" and Path(text) == self.folder)


def open_runs(folders: Sequence[Path], languages: Sequence[str]) -> list[ServedRun]:
    """Return the runs of these folders; `languages` are RUN=SOURCE-TARGET.

    Raises RunError for a folder that is no run, is being trained, or has a name that isn't UTF-8; ConfigError where two
    runs have the same name or the same pair of languages, and for languages of no run, or given twice for one.
    """
    named = list(map(read_pair, languages))
    given = dict(named)
    if len(given) < len(named):
        twice = next(run for n, (run, _) in enumerate(named) if run in dict(named[:n]))
        raise ConfigError(f"languages are given twice for {twice}: leave out one of them")
    runs: dict[str, ServedRun] = {}
    pairs: dict[tuple[str, str], ServedRun] = {}
    for folder in folders:
        run = _open(folder)
        for key in filter(run.is_named, list(given)):
            source, target = given.pop(key)
            run = replace(run, source=source, target=target)
        if run.name in runs and runs[run.name].folder.resolve() == folder.resolve():
            raise ConfigError(f"{folder} is named twice: name each run once")
        if run.name in runs:
            raise ConfigError(f"{folder} and {runs[run.name].folder} have the same name, {run.name}: rename one")
        runs[run.name] = run
        if run.source and (other := pairs.setdefault((run.source, run.target), run)) is not run:
            raise ConfigError(
                f"{other.folder} and {folder} both translate {run.source} to {run.target}: serve one of them, or give "
                f"one other languages with --languages {folder}=SOURCE-TARGET"
            )
    if given:
        raise ConfigError(f"languages are given for {next(iter(given))}, which is not among the runs: name it as a RUN")
    return list(runs.values())


def read_pair(text: str) -> tuple[str, tuple[str, str]]:
    """Return run and codes of a text such as runs/news=en-de."""
    run, _, codes = text.rpartition("=")
    pair = codes.split(":") if ":" in codes else codes.split("-")
    if not run or len(pair) != 2 or not all(re.fullmatch(LANGUAGE_CODE, code) for code in pair):
        raise ConfigError(f"languages must be RUN=SOURCE-TARGET, such as runs/news=en-de, got {shown(text)}")
    return run, (pair[0], pair[1])


def _open(folder: Path) -> ServedRun:
    config = read_config(folder)
    check_name(folder.resolve())
    check_free(folder)
    check_weights(folder)
    source, target = config.training.languages or ("", "")
    try:
        model = ModelConfig.from_json(config.model)
    except ConfigError as error:
        raise RunError(f"{folder / CONFIG} is damaged: {error}") from None
    segment = segmentation_of(load_tokenizer(folder / config.source_tokenizer))
    return ServedRun(folder.resolve().name, folder, source, target, model, segment)
