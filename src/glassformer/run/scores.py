"""scores.json and translations.jsonl of a run folder: what `glassformer evaluate --save` found out. Loads no torch."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct, to_builtins
from msgspec.structs import asdict

from glassformer.decoding import Natural, decode_json, read_bounded_lines, read_json
from glassformer.files import followed, in_turn, path_as_text, replacing, write_json
from glassformer.run.fitted import digest_of_weights
from glassformer.run.names import EVALUATIONS, TRANSLATIONS
from glassformer.scoring.scores import Score

LONGEST = 1 << 28
"""Most bytes of the translations of a test set."""


class SavedScore(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One score of a test set."""

    name: str
    value: float
    """The score in percent."""
    signature: str
    """The signature that tells how the score was computed, sacreBLEU's or one in words."""


class OnTestSet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model, the test set and the search that something was found out with."""

    weights: str
    """SHA-256 of the model's weights: other weights have other scores."""
    source: str
    """The name of the file with the sources; a `file:` URI of it where it isn't UTF-8."""
    target: str | None = None
    """The name of the file with the references, as that of the sources; None where they are in the same file."""
    columns: tuple[str, str] | None = None
    """The columns of the source and of the reference, where they were named."""
    place: str = ""
    """The paths of these files; empty where an older version scored them."""
    search: str
    """The search, in words."""
    tokenize: str = "auto"
    """How BLEU took words apart: auto, or the name of a tokenizer of sacreBLEU's."""

    def replaces(self, older: "OnTestSet") -> bool:
        """Return whether an older one was on the same files."""
        names = [(one.source, one.target, one.columns) for one in (self, older)]
        return names[0] == names[1] and older.place in ("", self.place)


class Evaluation(OnTestSet, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scores of a model on a test set."""

    lines: Natural
    scores: list[SavedScore]


class KeptTranslations(OnTestSet, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model's translations of a test set."""

    lines: list[tuple[str, str]]
    """Each translation and its reference."""


class _Saved(Struct, frozen=True, forbid_unknown_fields=True):
    evaluations: list[Evaluation]


def save_evaluation(
    folder: Path,
    *,
    source: Path,
    target: Path | None,
    columns: tuple[str, str] | None = None,
    lines: int,
    search: str,
    tokenize: str = "auto",
    scores: Sequence[Score],
    translations: Sequence[tuple[str, str]] = (),
) -> None:
    """Put the scores of a run's model on a test set into its folder, in place of older ones on the same files.

    `translations` are the lines that were scored, each with its reference.
    """
    on = OnTestSet(
        weights=digest_of_weights(folder),
        source=_name(source),
        target=None if target is None else _name(target),
        columns=columns,
        place=" ".join(path_as_text(followed(path)) for path in (source, target) if path),
        search=search,
        tokenize=tokenize,
    )
    saved = [SavedScore(name=one.name, value=one.value, signature=one.signature) for one in scores]
    with in_turn(folder):  # or two at once would each lose what the other adds
        if translations:
            kept = KeptTranslations(**asdict(on), lines=list(translations))
            older = [one for one in _read_kept(folder) if not on.replaces(one)]
            with replacing(folder / TRANSLATIONS) as file:
                for one in (*older, kept):
                    file.write(json.dumps(to_builtins(one)).encode() + b"\n")
        others = [one for one in read_evaluations(folder) if not on.replaces(one)]
        found = Evaluation(**asdict(on), lines=lines, scores=saved)
        write_json(folder / EVALUATIONS, to_builtins(_Saved([*others, found])))


def _name(path: Path) -> str:
    return path_as_text(Path(path.name))


def read_evaluations(folder: Path) -> list[Evaluation]:
    """Return the scores of a run's model as it is now, test set by test set; raise RunError for a damaged file."""
    path = folder / EVALUATIONS
    if not path.exists():
        return []
    now = digest_of_weights(folder)
    return [one for one in read_json(path, _Saved).evaluations if one.weights == now]


def read_translations(folder: Path) -> list[KeptTranslations]:
    """Return the translations by a run's model as it is now, test set by test set; damaged lines are left out."""
    if not (folder / TRANSLATIONS).exists():
        return []
    now = digest_of_weights(folder)
    return [one for one in _read_kept(folder) if one.weights == now]


def _read_kept(folder: Path) -> Iterator[KeptTranslations]:
    """Yield what translations.jsonl holds, of whatever weights."""
    for line in read_bounded_lines(folder / TRANSLATIONS, LONGEST):
        try:
            yield decode_json(line, KeptTranslations)
        except ValueError:
            continue
