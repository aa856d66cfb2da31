"""The settings of distillation and back-translation. Loads no torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from glassformer.errors import ConfigError, shown
from glassformer.files import followed
from glassformer.generation.config import SearchConfig
from glassformer.pairs.files import Pair, PairFiles
from glassformer.pairs.mixture import MOST_TIMES, PairMixture
from glassformer.settings.checks import Choice, Count, Flag, Number, check_settings
from glassformer.settings.docstrings import with_fields
from glassformer.training.config import TrainConfig

Side = Literal["source", "target"]
SEARCH_WITHOUT, STUDENT_WITHOUT = ("seed", "batch_tokens", "batch_lines"), ("resume", "overwrite", "shard")
"""Settings of the search and of the training that are no flags: those of the same name set the training, a stopped
command goes on by itself, and a student is trained in one process."""


@dataclass(frozen=True, kw_only=True)
class SynthesisConfig:
    """The settings that distillation and back-translation share."""

    writes: ClassVar[Side]
    """The side of the student's pairs that the run writes; the other side is the text that it is given."""

    run: Annotated[Path, Flag(positional=True)]
    """The run folder that writes, trained or imported."""
    ensemble: Annotated[tuple[Path, ...], Flag("RUN")] = ()
    """More runs, which write together with the first: a token's probability is the mean of theirs. They must have the
    tokenizers of the first. Pairs stand before this flag."""
    text: tuple[Path, ...] = ()
    """Files of text, a sentence a line, plain or packed."""
    written: Annotated[Path | None, Flag("FOLDER")] = None
    """Folder for what each stage leaves. Students that share it share the pairs too, as far as settings are the same;
    --seed is the student's, and doesn't change what --sample draws.
    Left out: the name of --out and .pairs."""
    length_factor: Annotated[float, Number(at_least=1, limit=1e9)] = 3.0
    """Leave out written pairs whose ratio of lengths differs from the median ratio by more than this factor. Lengths
    are in characters, with 5 added to each side. This finds endless repetitions, and text that was cut short. A large
    number leaves out none."""
    min_score: Annotated[float, Number(at_least=-1e9, at_most=0)] | None = None
    """Leave out what was written with a lower score than this, in nats a token: -1 leaves out what the run finds less
    likely than 0.37 a token. The scores' quartiles are printed. Left out: any score will do."""
    keep_copies: bool = False
    """Keep written pairs whose two sides are the same text; left out, a copy counts as a failure to translate."""
    round_trip: Annotated[Path | None, Flag("RUN")] = None
    """A run of the other direction, which translates back what was written. Pairs in which what comes back is far from
    the text are left out. It takes as long again as the writing. Its search has a beam of 1."""
    min_agreement: Annotated[float, Number(at_least=0, at_most=100)] = 20.0
    """With --round-trip: the lowest chrF, 0 to 100, of what comes back against the text."""
    tag: Annotated[str | None, Flag("TEXT")] = None
    """Put this before each written pair's source, such as <BT> (tagged back-translation, Caswell et al. 2019). The
    student can then tell written pairs from real ones, and translates text without it like the real ones."""
    real_weight: Count = 1
    """Train on each real pair so many times as often as on a written one."""
    writing_precision: Annotated[str, Choice("auto", "float32", "bfloat16", "float16", "int8"), Flag("TYPE")] = "auto"
    """Precision in which the run writes: float32, bfloat16, float16, int8, or auto: what is fastest here."""
    search: Annotated[SearchConfig, Flag(without=SEARCH_WITHOUT)] = field(default_factory=SearchConfig)
    """The search, or the draws, of what the run writes; all of the `n_best` are taken."""
    student: Annotated[TrainConfig, Flag(without=STUDENT_WITHOUT)]
    """The student's training. Its `source` and `target` are real pairs, if there are any."""

    def __post_init__(self) -> None:
        check_settings(self)
        if given := [name for name in STUDENT_WITHOUT if getattr(self.student, name)]:
            raise ConfigError(
                f"student must leave out {given[0]}: a repeated call continues by itself, trains in one process, and "
                "replaces no run"
            )
        if not self.text and self.student.source is None:
            raise ConfigError(
                f"text is missing: give files of text in the {self.given} language with `text`, or real pairs, whose "
                f"{self.given}s are then taken"
            )
        if self.student.source is None and self.real_weight > 1:
            raise ConfigError(
                f"real_weight is for real pairs, of which there are none, got {self.real_weight}: leave it out"
            )
        if self.round_trip is None and self.min_agreement != SynthesisConfig.min_agreement:
            raise ConfigError(
                f"min_agreement is for what round_trip translates back, got {self.min_agreement:g}: give both"
            )
        times = max((weight * self.real_weight for _, weight in self.real_parts), default=1)
        if times > MOST_TIMES:
            raise ConfigError(
                f"real_weight, times the weight of a file, must be at most {MOST_TIMES:,}, got {times:,}: lower it"
            )
        if self.tag is not None and not _is_within_a_line(self.tag):
            raise ConfigError(f"tag must be text within a line, such as <BT>, got {shown(self.tag)}")
        if self.student.out.name in ("", ".."):
            raise ConfigError(f"out must be a new folder, got {self.student.out}: give it a name")
        folder, out, runs = followed(self.folder), followed(self.student.out), [*map(followed, self.writing_runs)]
        if out in runs:
            raise ConfigError(f"out must be another folder than the run that writes, got {self.student.out} for both")
        if folder in (*runs, out) or out in folder.parents:
            raise ConfigError(f"written must be a folder of its own, outside of out, got {self.folder}: choose another")

    @property
    def writing_runs(self) -> tuple[Path, ...]:
        """The run folders that write together."""
        return (self.run, *self.ensemble)

    @property
    def given(self) -> Side:
        """The side of the student's pairs that the text is."""
        return "source" if self.writes == "target" else "target"

    def given_of(self, pair: Pair) -> str:
        """Return the side of a pair that the text is."""
        return pair[self.given == "target"]

    @property
    def joins(self) -> bool:
        """Return whether the student reads neighbouring lines joined."""
        return self.student.join_lines > 1

    @property
    def holds_out(self) -> bool:
        """Return whether real pairs are held out, for want of validation files."""
        return self.student.source is not None and self.student.valid_source is None

    @property
    def real_parts(self) -> tuple[tuple[PairFiles, int], ...]:
        """Return the files of real pairs and their weights."""
        if self.student.source is None:
            return ()
        pairs = self.student.pairs
        return pairs.parts if isinstance(pairs, PairMixture) else ((pairs, 1),)

    @property
    def folder(self) -> Path:
        """The folder for what each stage leaves."""
        out = self.student.out
        return self.written or out.with_name(f"{out.name}.pairs")


@with_fields
@dataclass(frozen=True, kw_only=True)
class DistillConfig(SynthesisConfig):
    """The settings of a distillation: a teacher translates text, and a student is trained on its translations.

    Raises ConfigError for values out of range, and for settings that exclude one another.

    Example: docs/howto/distill.md.
    """

    writes: ClassVar[Side] = "target"

    run: Annotated[Path, Flag(positional=True)]
    """The teacher: a run folder, trained or imported. It stays as it is."""
    text: tuple[Path, ...] = ()
    """Files of text in the source language for the teacher to translate, a sentence a line, plain or packed. Left out:
    the sources of the real pairs."""


@with_fields
@dataclass(frozen=True, kw_only=True)
class BacktranslateConfig(SynthesisConfig):
    """The settings of a back-translation: a run of the other direction writes sources for text of the target language.

    Raises ConfigError for values out of range, and for settings that exclude one another.

    Example: docs/howto/distill.md.
    """

    writes: ClassVar[Side] = "source"

    run: Annotated[Path, Flag(positional=True)]
    """A run folder of the other direction, from the student's target language to its source language."""
    text: tuple[Path, ...] = ()
    """Files of text in the target language, a sentence a line, plain or packed. Left out: the targets of the real
    pairs; each of them then has two sources."""


def _is_within_a_line(text: str) -> bool:
    """Return whether this is text that has no end of line, and that UTF-8 can hold."""
    return bool(text.strip()) and len(text.splitlines()) == 1 and text.encode(errors="replace").decode() == text
