"""scores.json of a run folder: what `glassformer evaluate --save` found out about its model. Loads no torch."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, to_builtins

from glassformer.decoding import Natural, read_json
from glassformer.files import write_json
from glassformer.run.names import EVALUATIONS, WEIGHTS
from glassformer.text.scores import Score


class SavedScore(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One score of a test set."""

    name: str
    value: float
    """The score in percent."""
    signature: str
    """The signature that tells how the score was computed, sacreBLEU's or one in words."""


class Evaluation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scores of a model on a test set."""

    weights: str
    """SHA-256 of the model's weights: other weights have other scores."""
    source: str
    """The name of the file with the sources."""
    target: str | None = None
    """The name of the file with the references; None where they are in the same file."""
    lines: Natural
    search: str
    """The search, in words."""
    scores: list[SavedScore]


class _Saved(Struct, frozen=True, forbid_unknown_fields=True):
    evaluations: list[Evaluation]


def save_evaluation(
    folder: Path, *, source: str, target: str | None, lines: int, search: str, scores: Sequence[Score]
) -> None:
    """Put the scores of a run's model on a test set into its folder, in place of older ones on the same files."""
    evaluation = Evaluation(
        weights=_digest(folder / WEIGHTS),
        source=source,
        target=target,
        lines=lines,
        search=search,
        scores=[SavedScore(name=one.name, value=one.value, signature=one.signature) for one in scores],
    )
    others = [one for one in read_evaluations(folder) if (one.source, one.target) != (source, target)]
    write_json(folder / EVALUATIONS, to_builtins(_Saved([*others, evaluation])))


def read_evaluations(folder: Path) -> list[Evaluation]:
    """Return the scores of a run's model as it is now, test set by test set; raise RunError for a damaged file."""
    path = folder / EVALUATIONS
    if not path.exists():
        return []
    now = _digest(folder / WEIGHTS)
    return [one for one in read_json(path, _Saved).evaluations if one.weights == now]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
