"""Model cards: the README.md of an export, with the metadata that the Hugging Face hub reads at its head.

It says what the run folder knows and what the user adds, and nothing else.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassformer.errors import ConfigError, counted, shown
from glassformer.run.config import LANGUAGE_CODE
from glassformer.run.folder import Run
from glassformer.run.languages import name_of
from glassformer.run.metrics import Validation, read_metrics
from glassformer.run.names import METRICS
from glassformer.run.scores import Evaluation, read_evaluations
from glassformer.scoring.scores import METRICS as KINDS

_HUB = re.compile(r"[a-z]{2,3}")
"""The codes of languages that the hub knows: ISO 639."""
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")
_TYPES = {"BLEU": "bleu", "chrF": "chrf", "exact match": "exact_match", "word error rate": "wer"}
"""Scores that the hub has a name for."""
_VALIDATED = {"bleu": "BLEU", "chrf": "chrF", "exact": "exact match", "wer": "word error rate"}


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """Facts that the user adds to a model card."""

    name: str
    """The title."""
    license: str | None = None
    """The licence, as the hub names it: apache-2.0, cc-by-4.0, other, ..."""
    languages: tuple[str, str] | None = None
    """Codes of the source's and the target's language, in place of the run's own."""

    def __post_init__(self) -> None:
        if self.license is not None and not _LICENSE.fullmatch(self.license):
            raise ConfigError(
                f"license must be a licence as the Hugging Face hub names it, such as apache-2.0, cc-by-4.0 or other, "
                f"got {shown(self.license)}"
            )
        if not self.name.strip() or not self.name.isprintable():
            raise ConfigError(f"name must be the model's name, one line of text, got {shown(self.name)}")
        for code in self.languages or ():
            if not re.fullmatch(LANGUAGE_CODE, code):
                raise ConfigError(f"a language must be given by its code, such as en or pt-BR, got {shown(code)}")


@dataclass(frozen=True)
class Layout:
    """The layout that a run was written in, as a card describes it."""

    reader: str | None
    """The library that loads it, as the hub names it."""
    title: str
    """The layout in words."""
    use: str
    """Code that translates with it."""
    language: str = "python"
    """The language of the code."""
    tags: Sequence[str] = field(default=())
    fills_heads: bool = False
    """True where all attentions of a layout have equally many heads: zeros stand in the place of removed ones."""


def languages_for(run: Run, facts: CardFacts) -> tuple[str, str] | None:
    """Return the codes of a run's languages: those that the user gave, else those that it was trained with."""
    return facts.languages or run.training.languages


def model_card(folder: Path, run: Run, layout: Layout, facts: CardFacts) -> str:
    """Return the README.md of an export of the run in `folder`.

    Raises RunError where scores.json of the run folder is damaged.
    """
    languages = languages_for(run, facts)
    evaluations = read_evaluations(folder)
    kept = read_metrics(folder / METRICS).kept if (folder / METRICS).exists() else None
    head = _yaml(_metadata(layout, facts, languages, evaluations))
    body = "\n\n".join(
        part for part in (*_opening(run, layout, facts, languages), *_scores(evaluations, kept), *_data(run)) if part
    )
    return f"---\n{head}---\n\n{body}\n"


def _metadata(
    layout: Layout, facts: CardFacts, languages: tuple[str, str] | None, evaluations: Sequence[Evaluation]
) -> dict[str, Any]:
    """Return the card's metadata under the hub's names; what is unknown is left out."""
    codes = [code.partition("-")[0].lower() for code in languages or ()]  # the hub knows no pt-BR, but pt
    known = [code for code in codes if _HUB.fullmatch(code)]
    task = "translation" if len(known) == 2 else "text2text-generation"
    metadata: dict[str, Any] = {}
    if known:
        metadata["language"] = list(dict.fromkeys(known))
    if facts.license is not None:
        metadata["license"] = facts.license
    if layout.reader is not None:
        metadata["library_name"] = layout.reader
    metadata["pipeline_tag"] = task
    metadata["tags"] = ["glassformer", *layout.tags]
    results = [
        {
            "task": {"type": task},
            "dataset": {"name": _files_of(one), "type": "unknown"},
            "metrics": [
                {
                    "type": _TYPES[score.name],
                    "value": round(score.value, 2),
                    "name": f"{score.name} ({score.signature})",
                }
                for score in one.scores
                if score.name in _TYPES
            ],
        }
        for one in evaluations
    ]
    if results:
        metadata["model-index"] = [{"name": facts.name, "results": results}]
    return metadata


def _opening(run: Run, layout: Layout, facts: CardFacts, languages: tuple[str, str] | None) -> Iterator[str]:
    config = run.model.config
    sizes = sum(parameter.numel() for parameter in run.model.parameters())
    yield f"# {_plain(facts.name)}"
    what = "a Transformer that turns text into text"
    if languages is not None:
        what = f"a Transformer that translates {_called(languages[0])} to {_called(languages[1])}"
    vocabularies = (
        f"one vocabulary of {config.source_vocab_size:,} tokens"
        if run.source_tokenizer.vocab_size == run.target_tokenizer.vocab_size and config.shared_vocab
        else f"vocabularies of {config.source_vocab_size:,} and {config.target_vocab_size:,} tokens"
    )
    pruned = ""
    if config.heads_left:
        where = ": in these files zeros may stand in their place" if layout.fills_heads else ""
        pruned = f" Some attention heads were removed{where}."
    yield (
        f"This is {what}, made with glassformer: {config.encoder_layers} encoder and {config.decoder_layers} decoder "
        f"layers, width {config.d_model:,}, {config.heads} heads, {sizes:,} parameters, {vocabularies}.{pruned}"
    )
    if facts.license is None:
        yield "Its maker has not stated a licence."
    yield f"## Use\n\nThe files are {layout.title}.\n\n```{layout.language}\n{layout.use}\n```"


def _scores(evaluations: Sequence[Evaluation], kept: Validation | None) -> Iterator[str]:
    """Yield the scores on test sets; where there are none, the model's score when it was validated."""
    if not evaluations and kept is None:
        return
    yield "## Scores"
    for one in evaluations:
        rows = "\n".join(f"| {score.name} | {score.value:.2f} | {_code(score.signature)} |" for score in one.scores)
        lines = counted(one.lines, "line")
        yield (
            f"On {_code(_files_of(one))}, {lines}, searched with {_plain(one.search)}, in percent:\n\n"
            f"| score | value | how it was computed |\n|---|---|---|\n{rows}"
        )
    if not evaluations and kept is not None and kept.metric in KINDS:
        name = _VALIDATED.get(kept.metric, "symbol error rate")
        yield (
            f"No test set was scored. On the pairs that validate its training it has {name} {kept.score:.2f}, after "
            f"{kept.update:,} updates."
        )


def _data(run: Run) -> Iterator[str]:
    """Yield how many pairs it was trained with, or its origin."""
    if run.training.imported:
        yield f"It was imported from a model in the layout {_plain(run.training.imported)}."
    if pairs := run.training.pairs:
        rows = "\n".join(
            f"| {_plain(name)} | {counts.get('read', 0):,} | {counts.get('kept', 0):,} | "
            f"{counts.get('source_tokens', 0):,} | {counts.get('target_tokens', 0):,} |"
            for name, counts in pairs.items()
        )
        yield ("## Data\n\n| pairs for | read | kept | source tokens | target tokens |\n|---|---|---|---|---|\n" + rows)


def _files_of(evaluation: Evaluation) -> str:
    files = ", ".join(filter(None, (evaluation.source, evaluation.target)))
    return files if evaluation.columns is None else f"{files} (columns {', '.join(evaluation.columns)})"


def _called(code: str) -> str:
    name = name_of(code)
    return name if name == code else f"{name} ({code})"


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]()<>#!|~&])", r"\\\1", text)


def _code(text: str) -> str:
    """Return text as code, in a table too."""
    return "`" + re.sub(r"[`|\s]+", " ", text).strip() + "`"


def _yaml(value: Mapping[str, Any]) -> str:
    """Return a mapping as YAML in its block style."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Any) -> Iterator[str]:
    """Yield the lines of a value that isn't empty."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, Mapping | list):
                yield f"{key}:"
                yield from (f"  {line}" for line in _lines(item))
            else:
                yield f"{key}: {_scalar(item)}"
    elif isinstance(value, list):
        for item in value:
            first, *others = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)
    else:
        yield _scalar(value)


def _scalar(value: str | float) -> str:
    """Return a number, or text in double quotes unless it is a plain word; what can't be printed is escaped."""
    if not isinstance(value, str):
        return str(value)
    if re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9.]+)*", value) and value not in _NO_TEXT:
        return value
    return "".join(c if c.isprintable() else f"\\U{ord(c):08X}" for c in json.dumps(value, ensure_ascii=False))


_NO_TEXT = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
"""Words that YAML doesn't read as text: "no" is Norwegian."""
