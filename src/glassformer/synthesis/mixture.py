"""The last stage before training: the pairs that are left, and the real ones beside them, as files of lines."""

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from glassformer.data.held_out import HeldOut, hold_out, is_usable
from glassformer.errors import DataError
from glassformer.files import new_folder
from glassformer.pairs.files import Pair
from glassformer.synthesis.config import SynthesisConfig
from glassformer.synthesis.filters import PairFilter, read_pairs
from glassformer.synthesis.stages import Counts
from glassformer.training.config import TrainConfig

WRITTEN, REAL, VALID = "written", "real", "valid"
"""Names of the files, to which .source or .target is added, and of real pairs from several files -2, -3 before that."""


def write_mixture(config: SynthesisConfig, folder: Path, text: Path, written: Path, returned: Path | None) -> Counts:
    """Write the real pairs and the written ones that stay, none of them twice, into a new folder; return counts.

    Without validation files, some of the real pairs are held out: all with the same text in the language that the run
    is given, which then stands in no written pair either.
    """
    held_out = _held_out(config) if config.holds_out else None
    pairs = PairFilter(config, read_pairs(config, text, written, None), held_out)
    reasons = ("read", "empty", "repeated", *(["held out"] if held_out else []), "left")
    real: dict[str, int | float] = dict.fromkeys(reasons, 0)
    with new_folder(folder) as made:
        with _Sides(made / VALID) if held_out else nullcontext() as valid:
            for (files, _), stem in zip(config.real_parts, _real_stems(config), strict=True):
                with _Sides(made / stem, joins=config.joins) as sides:
                    for pair in files:
                        real["read"] += 1
                        if not is_usable(*pair):
                            reason = "empty"
                        elif not pairs.is_new(pair):
                            reason = "repeated"
                        elif held_out and valid and held_out.includes(config.given_of(pair)):
                            reason = "held out"
                            valid.write(pair)
                        else:
                            reason = "left"
                            sides.write(pair)
                        real[reason] += 1
                        if reason != "left":
                            sides.leave_out()
        with _Sides(made / WRITTEN, joins=config.joins) as sides:
            for one in read_pairs(config, text, written, returned):
                if not config.given_of((one.source, one.target)):  # a gap in the text
                    sides.leave_out()
                elif pairs.keeps(one):
                    sides.write((one.source if config.tag is None else f"{config.tag} {one.source}", one.target))
                    if config.search.n_best > 1:  # the next one is of the same text
                        sides.leave_out()
                else:
                    sides.leave_out()
        counts = dict(pairs.counts)
        if not counts["written pairs"]["left"]:
            raise DataError(
                f"the filters leave none of {counts['written pairs']['read']:,} written pairs: "
                f"{', '.join(f'{n:,} {what}' for what, n in counts['written pairs'].items() if n)}"
            )
        if has_valid_table(config.student) and config.student.valid_pairs is not None:
            with _Sides(made / VALID) as sides:
                for pair in config.student.valid_pairs:
                    sides.write(pair)
    if config.student.source is not None:
        counts["real pairs"] = real
    return counts


def _held_out(config: SynthesisConfig) -> HeldOut:
    """Choose the real pairs that are held out, by the side that the run is given."""
    pairs = (pair for files, _ in config.real_parts for pair in files if is_usable(*pair))
    return hold_out(map(config.given_of, pairs), config.student.seed, config.student.pairs.name)


def student_settings(config: SynthesisConfig, folder: Path) -> TrainConfig:
    """Return the settings of the student's training on the pairs in a folder that `write_mixture` has filled."""
    weights = [weight * config.real_weight for _, weight in config.real_parts]
    stems = [*(folder / stem for stem in _real_stems(config)), folder / WRITTEN]
    settings = replace(
        config.student,
        source=tuple(
            Path(f"{stem}.source" + (f":{weight}" if weight > 1 else ""))
            for stem, weight in zip(stems, [*weights, 1], strict=True)
        ),
        target=tuple(Path(f"{stem}.target") for stem in stems),
        columns=None,
    )
    if config.holds_out or has_valid_table(config.student):
        settings = replace(settings, valid_source=folder / f"{VALID}.source", valid_target=folder / f"{VALID}.target")
    return settings


def has_valid_table(student: TrainConfig) -> bool:
    """Return whether `columns` say which columns of the validation file are the pair."""
    return student.columns is not None and student.valid_source is not None and student.valid_target is None


def _real_stems(config: SynthesisConfig) -> list[str]:
    return [f"{REAL}-{number}" if number > 1 else REAL for number, _ in enumerate(config.real_parts, start=1)]


class _Sides:
    """Two files, of sources and of targets, to which pairs are written.

    Where neighbours will be joined (`joins`), an empty pair stands between two that weren't neighbours.
    """

    def __init__(self, stem: Path, *, joins: bool = False) -> None:
        self._stem, self._joins = stem, joins
        self._has_begun = self._has_gap = False
        self._stack = ExitStack()
        self._files: list[BinaryIO] = []

    def __enter__(self) -> "_Sides":
        self._files = [
            self._stack.enter_context(self._stem.with_name(f"{self._stem.name}.{side}").open("wb"))
            for side in ("source", "target")
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, pair: Pair) -> None:
        """Add a pair."""
        gap = "\n" if self._joins and self._has_begun and self._has_gap else ""
        for file, text in zip(self._files, pair, strict=True):
            file.write(f"{gap}{text}\n".encode())
        self._has_begun, self._has_gap = True, False

    def leave_out(self) -> None:
        """Note that a pair that came here was left out."""
        self._has_gap = True
