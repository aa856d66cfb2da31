"""The last stage before training: the pairs that are left, and the real ones beside them, as files of lines."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

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
    """Write the real pairs and the written ones that stay, none of them twice, into a new folder; return counts."""
    pairs = PairFilter(config, read_pairs(config, text, written, None))
    read = empty = real = 0
    with new_folder(folder) as made:
        for (files, _), stem in zip(config.real_parts, _real_stems(config), strict=True):
            with _Sides(made / stem) as sides:
                for pair in files:
                    read += 1
                    if not all(side.strip() for side in pair):
                        empty += 1
                    elif pairs.is_new(pair):
                        real += 1
                        sides.write(pair)
        with _Sides(made / WRITTEN) as sides:
            for one in read_pairs(config, text, written, returned):
                if pairs.keeps(one):
                    sides.write((one.source if config.tag is None else f"{config.tag} {one.source}", one.target))
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
        counts["real pairs"] = {"read": read, "empty": empty, "repeated": read - empty - real, "left": real}
    return counts


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
    if has_valid_table(config.student):
        settings = replace(settings, valid_source=folder / f"{VALID}.source", valid_target=folder / f"{VALID}.target")
    return settings


def has_valid_table(student: TrainConfig) -> bool:
    """Return whether `columns` say which columns of the validation file are the pair."""
    return student.columns is not None and student.valid_source is not None and student.valid_target is None


def _real_stems(config: SynthesisConfig) -> list[str]:
    return [f"{REAL}-{number}" if number > 1 else REAL for number, _ in enumerate(config.real_parts, start=1)]


class _Sides:
    """Two files, of sources and of targets, to which pairs are written."""

    def __init__(self, stem: Path) -> None:
        self._stem = stem
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
        for file, text in zip(self._files, pair, strict=True):
            file.write(f"{text}\n".encode())
