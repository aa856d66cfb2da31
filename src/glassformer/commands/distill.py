"""`glassformer distill` and `glassformer backtranslate`: a run writes pairs, and another is trained on them."""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated

from glassformer.cluster.config import ClusterConfig
from glassformer.commands.train import HEADINGS as TRAIN
from glassformer.commands.train import report
from glassformer.generation.config import SearchConfig
from glassformer.run.config import read_config
from glassformer.settings.checks import Flag
from glassformer.synthesis.config import (
    SEARCH_WITHOUT,
    STUDENT_WITHOUT,
    BacktranslateConfig,
    DistillConfig,
    SynthesisConfig,
)
from glassformer.terminal import loading, say

if TYPE_CHECKING:
    from glassformer.synthesis.student import Student
    from glassformer.synthesis.written import Writer

Pool = Annotated[ClusterConfig, Flag(without=("patience", "column"))]
"""A cluster without those settings that are for tables, or have the name of one of the training."""
HEADINGS = {
    "what is written": (
        *("ensemble", "text", "written", "writing_precision", "tag", "real_weight"),
        *("length_factor", "min_score", "keep_copies", "round_trip", "min_agreement"),
    ),
    "the search of what is written": tuple(one.name for one in fields(SearchConfig) if one.name not in SEARCH_WITHOUT),
    "the cluster that writes": ("cluster", "workers", "cores"),
    **{
        f"the student: {heading.removeprefix('the ')}": tuple(name for name in names if name not in STUDENT_WITHOUT)
        for heading, names in TRAIN.items()
    },
}
"""Flags below each heading."""


@dataclass(frozen=True, kw_only=True)
class DistillFlags:
    """Train a student on what a teacher translates: a smaller model comes near to a larger one.

    The teacher, any run or imported model, translates the sources of your pairs, or other text of their language. What
    it writes is more even than what people write, so that a small model can learn it (sequence-level distillation, Kim
    & Rush 2016). Filters leave out what went wrong, real pairs stand beside the written ones, and the student is
    trained on both. With --beam 4 --n-best 4 it sees four translations of each text, with --sample --n-best 4 four
    draws, with --beam 20 --consensus the one that most agree with. Several teachers write better together (--ensemble).

    Every flag of `glassformer train` but --resume, --overwrite and --shard sets the student's training. Each stage
    prints its counts. After a stop the same command goes on where it was.

    With --cluster the teacher, and the run of --round-trip, translate on a Ray cluster, and write the same. The folder
    of --written must be one that all its machines reach. The student is trained here.
    """

    config: DistillConfig
    pool: Pool = field(default_factory=ClusterConfig)


@dataclass(frozen=True, kw_only=True)
class BacktranslateFlags:
    """Make pairs of text in the target language alone, and train on them beside real pairs.

    A run of the other direction, from target to source, translates the text. What it writes is the source of a new
    pair, and the text, which people wrote, is its target (back-translation, Sennrich et al. 2016). Filters leave out
    what went wrong, and a student is trained on these pairs and the real ones. With --sample the sources are drawn
    rather than searched for, which is better where there is much text (Edunov et al. 2018).

    Every flag of `glassformer train` but --resume, --overwrite and --shard sets the student's training; --from RUN goes
    on from a model that is there. Each stage prints its counts. After a stop the same command goes on where it was.

    With --cluster the run, and that of --round-trip, translate on a Ray cluster, and write the same. The folder of
    --written must be one that all its machines reach. The student is trained here.
    """

    config: BacktranslateConfig
    pool: Pool = field(default_factory=ClusterConfig)


def distill_teacher(flags: DistillFlags) -> int:
    """Let a teacher write targets, and train a student on them."""
    _check_runs(flags.config)
    with loading():
        from glassformer.synthesis.student import distill

        writer = _writer(flags.config, flags.pool)
    return _report(distill(flags.config, say, writer=writer))


def train_on_backtranslations(flags: BacktranslateFlags) -> int:
    """Let a run of the other direction write sources, and train a student on them."""
    _check_runs(flags.config)
    with loading():
        from glassformer.synthesis.student import backtranslate

        writer = _writer(flags.config, flags.pool)
    return _report(backtranslate(flags.config, say, writer=writer))


def _check_runs(config: SynthesisConfig) -> None:
    """Raise RunError for a run that can't be read, before torch is loaded."""
    for run in filter(None, (*config.writing_runs, config.round_trip)):
        read_config(run)


def _writer(config: SynthesisConfig, pool: ClusterConfig) -> "Writer | None":
    """Return what translates on the cluster that the flags name, or None where they name none."""
    if not pool.is_wanted:
        return None
    from glassformer.cluster.writer import cluster_writer

    return cluster_writer(config, pool, say)


def _report(student: "Student") -> int:
    """Print what came of it, and return the exit status."""
    if student.training.finished:
        return report(student.training)
    print("what is done is kept: the same command continues")
    return 128 + (student.training.signal or 0)
