"""`glassformer distill` and `glassformer backtranslate`: a run writes pairs, and another is trained on them."""

from dataclasses import fields
from typing import TYPE_CHECKING

from glassformer.commands.train import HEADINGS as TRAIN
from glassformer.commands.train import report
from glassformer.generation.config import SearchConfig
from glassformer.synthesis.config import SEARCH_WITHOUT, STUDENT_WITHOUT, BacktranslateConfig, DistillConfig
from glassformer.terminal import loading, say

if TYPE_CHECKING:
    from glassformer.synthesis.student import Student

HEADINGS = {
    "what is written": (
        *("text", "written", "writing_precision", "tag", "real_weight"),
        *("length_factor", "min_score", "keep_copies", "round_trip", "min_agreement"),
    ),
    "the search of what is written": tuple(one.name for one in fields(SearchConfig) if one.name not in SEARCH_WITHOUT),
    **{
        f"the student: {heading.removeprefix('the ')}": tuple(name for name in names if name not in STUDENT_WITHOUT)
        for heading, names in TRAIN.items()
    },
}
"""Flags below each heading."""


def distill_teacher(config: DistillConfig) -> int:
    """Let a teacher write targets, and train a student on them."""
    with loading():
        from glassformer.synthesis.student import distill

    return _report(distill(config, say))


def train_on_backtranslations(config: BacktranslateConfig) -> int:
    """Let a run of the other direction write sources, and train a student on them."""
    with loading():
        from glassformer.synthesis.student import backtranslate

    return _report(backtranslate(config, say))


def _report(student: "Student") -> int:
    """Print what came of it, and return the exit status."""
    if student.training.finished:
        return report(student.training)
    print("what is done is kept: the same command continues")
    return 128 + (student.training.signal or 0)
