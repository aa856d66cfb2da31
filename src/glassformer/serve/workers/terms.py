"""Terms and placeholders: those of the server's flags, for all requests, and a request's own. Loads no torch."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from glassformer.errors import ConfigError
from glassformer.generation.lexical.glossary import Glossary
from glassformer.generation.lexical.placeholders import DEFAULT, compiled
from glassformer.serve.config import ServeConfig
from glassformer.serve.languages import ServedRun
from glassformer.serve.workers.messages import Settings, Terms

LEXICAL_AT_ONCE = 8
"""Lines with terms or placeholders that are searched in one step."""


def read_terms(config: ServeConfig, runs: Sequence[ServedRun]) -> dict[str, Terms]:
    """Return the terms for each run, by its name, from the files that the flags name.

    A run's own file comes after those for all runs, and what is kept last; a later entry counts. Raises DataError for a
    file that can't be read, ConfigError for one of a run that isn't served and for a pattern of placeholders that is
    none.
    """
    if config.placeholders is not None:
        compiled(config.placeholders)
    found: dict[str, dict[str, Sequence[str]]] = {run.name: {} for run in runs}
    entries = [_entry(text, runs) for text in config.glossary]
    for run, path in sorted(entries, key=lambda entry: entry[0] is not None):
        for name in found if run is None else [run.name]:
            found[name] |= _forms(Glossary.read(path))
    if config.keep is not None:
        kept = _forms(Glossary.read(keep=config.keep))
        for terms in found.values():
            terms |= kept
    return {name: [(source, list(forms)) for source, forms in terms.items()] for name, terms in found.items()}


def _forms(glossary: Glossary) -> dict[str, Sequence[str]]:
    return {term.source: term.forms for term in glossary.terms}


def _entry(text: str, runs: Sequence[ServedRun]) -> tuple[ServedRun | None, Path]:
    """Return the run and the file that a text such as runs/news=terms.tsv names; the run is None for a file alone."""
    if "=" not in text or Path(text).exists():
        return None, Path(text)
    for equals in re.finditer("=", text):  # the name of a run may have some, too
        for run in runs:
            if run.is_named(text[: equals.start()]):
                return run, Path(text[equals.end() :])
    name = text.partition("=")[0]
    raise ConfigError(f"glossary must be FILE or RUN=FILE, got {text}: {name} is not among the runs")


class Rules(NamedTuple):
    """Holds what is demanded of the translations of a request."""

    glossary: Glossary | None = None
    placeholders: str | None = None

    def concern(self, line: str) -> bool:
        """Return whether a line has a term or a placeholder."""
        if self.placeholders is not None and compiled(self.placeholders).search(line):
            return True
        return self.glossary is not None and bool(self.glossary.find(line))


class ServerRules:
    """Holds the terms and placeholders of a worker's settings, to which requests add."""

    def __init__(self, settings: Settings) -> None:
        self._glossary = Glossary(dict(settings.terms)) if settings.terms else None
        self._placeholders = settings.placeholders

    def of(self, lines: Sequence[str], terms: Terms, placeholders: bool | None) -> Rules:
        """Return the rules for the lines of a request with these terms of its own."""
        pattern = {None: self._placeholders, True: self._placeholders or DEFAULT, False: None}[placeholders]
        return Rules(self._with(lines, terms), pattern)

    def _with(self, lines: Sequence[str], terms: Terms) -> Glossary | None:
        """Return the glossary of all terms that may stand in the lines."""
        if not terms:
            return self._glossary
        own: Mapping[str, Sequence[str]] = {" ".join(source.split()): forms for source, forms in terms}
        return Glossary({**(self._glossary.beginning_in(lines) if self._glossary else {}), **own})
