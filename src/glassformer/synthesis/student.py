"""The doors: a run writes pairs, and a student is trained on them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from glassformer.device import pick_device, use_threads
from glassformer.errors import ConfigError, DataError, noting
from glassformer.files import alone, check_new_folder, folders_above, remove_at_once
from glassformer.generation.files import digest_of_files, digest_of_runs
from glassformer.pairs.files import PairFiles
from glassformer.pairs.kinds import LINES, kind_of, peek_lines
from glassformer.pairs.mixture import Pairs, Paths
from glassformer.run.folder import open_run, open_together
from glassformer.scoring.scores import check_bleu_tokenizer
from glassformer.synthesis.config import BacktranslateConfig, DistillConfig, SynthesisConfig
from glassformer.synthesis.mixture import has_valid_table, student_settings, write_mixture
from glassformer.synthesis.stages import Counts, Stage, in_words
from glassformer.synthesis.text import write_text
from glassformer.synthesis.written import BACK, Writer, count_written, write_here, write_hypotheses
from glassformer.text.kinds import AUTO
from glassformer.text.tokenizer import check_kind
from glassformer.tracking.tracker import check_tracker
from glassformer.training.config import TrainConfig
from glassformer.training.prepare import check_origin
from glassformer.training.result import TrainResult
from glassformer.training.train import is_begun, train_once

Say = Callable[[str], object]
LOCK = ".lock"
"""File in the folder of the stages by which one process at a time works there."""


@dataclass(frozen=True)
class WrittenPairs:
    """Pairs that a run has written, and the real ones beside them.

    Example: docs/howto/distill.md.
    """

    source: Paths
    """Files of the sources, as `TrainConfig` takes them: the real ones with their weights, then the written ones."""
    target: Paths
    """Files of the targets."""
    counts: Counts
    """The counts of each stage, as they were printed."""
    valid_source: Paths | None = None
    """Files of the validation sources: of real pairs that are held out, where the student's settings name none."""
    valid_target: Paths | None = None
    """Files of the validation targets."""


@dataclass(frozen=True)
class Student:
    """A student's training, finished or interrupted, and the pairs that it learned from.

    Example: docs/howto/distill.md.
    """

    pairs: WrittenPairs
    training: TrainResult


def distill(config: DistillConfig, say: Say = print, *, writer: Writer | None = None) -> Student:
    """Let a teacher translate text, and train a student on that (sequence-level distillation, Kim & Rush 2016).

    Called again after a stop, it goes on where it was, stage by stage. `say` is told the counts of each. `writer` may
    translate in place of this machine (see `glassformer.synthesis.written`). Raises ConfigError for settings that
    can't work, RunError for folders in the way, DataError for text that can't be used, and what `train_once` raises.

    Example: docs/howto/distill.md.
    """
    return _train_student(config, say, writer)


def backtranslate(config: BacktranslateConfig, say: Say = print, *, writer: Writer | None = None) -> Student:
    """Let a run of the other direction translate text of the target language, and train a student on these pairs.

    The text, which people wrote, is the target (back-translation, Sennrich et al. 2016). All else is as in `distill`.

    Example: docs/howto/distill.md.
    """
    return _train_student(config, say, writer)


def write_pairs(config: SynthesisConfig, say: Say = print, *, writer: Writer | None = None) -> WrittenPairs:
    """Make the pairs that `distill` or `backtranslate` would train on, without the training.

    For several trainings on the same pairs. All else is as in `distill`.

    Example: docs/howto/distill.md.
    """
    return _Work(config, say, writer).pairs()


def _train_student(config: SynthesisConfig, say: Say, writer: Writer | None) -> Student:
    work = _Work(config, say, writer)
    if not is_begun(work.settings):
        check_new_folder(config.student.out)  # before hours of writing
        _check_student(config.student)
    pairs = work.pairs()
    with _keeping(config.folder):
        return Student(pairs, train_once(work.settings))


def _check_student(config: TrainConfig) -> None:
    """Raise ConfigError, or DataError, for settings that the student's training would refuse on this machine."""
    for kind in (config.tokenizer, config.source_tokenizer, config.target_tokenizer):
        if kind not in (None, AUTO):
            check_kind(kind)
    check_origin(config, None if config.from_ is None else open_run(config.from_))
    check_bleu_tokenizer(config.tokenize)
    check_tracker(config.track)
    pick_device(config.device)


@contextmanager
def _keeping(folder: Path) -> Iterator[None]:
    """Note on whatever stops the work inside that finished stages are kept; remove the lock where there is none."""
    try:
        with noting(
            lambda: (
                "" if _has_lock_alone(folder) else f"{folder} has the stages that are done: the same command goes on"
            )
        ):
            yield
    finally:
        if _has_lock_alone(folder):
            (folder / LOCK).unlink()


def _has_lock_alone(folder: Path) -> bool:
    return [path.name for path in folder.iterdir()] == [LOCK]


class _Work:
    """The stages of a distillation or back-translation, by what decides each."""

    def __init__(self, config: SynthesisConfig, say: Say, writer: Writer | None) -> None:
        """Name the stages; that reads every file once. Nothing is written."""
        _check_files(config)
        student, folder = config.student, config.folder
        self._config, self._say = config, say
        self._writer = writer or partial(write_here, device=student.device, precision=config.writing_precision)
        languages = _languages(config)
        real = None if student.source is None else [digest_of_files(student.pairs.paths), student.columns]
        text = digest_of_files(config.text) if config.text else real
        settings = {"text": text, "side": config.given, **({"joined": True} if config.joins else {})}
        self._text = Stage.of(folder, "text", ".txt", settings)
        settings = {
            "of": self._text.path.stem,
            "run": digest_of_runs(config.writing_runs),
            "search": asdict(config.search),
        }
        precision = config.writing_precision
        self._written = Stage.of(folder, "written", ".txt", {**settings, "precision": precision})
        self._returned = None
        if config.round_trip is not None:
            settings = {"of": self._written.path.stem, "run": digest_of_runs([config.round_trip])}
            self._returned = Stage.of(folder, "returned", ".txt", settings)
        names = ("length_factor", "min_score", "keep_copies", "min_agreement", "tag")
        valid = student.valid_pairs if has_valid_table(student) else None
        settings = {
            "of": (self._returned or self._written).path.stem,
            **{name: getattr(config, name) for name in names},
            "real": real,
            "valid": None if valid is None else [digest_of_files(valid.paths), student.columns],
            **({"held out": student.seed} if config.holds_out else {}),
        }
        self._mixed = Stage.of(folder, "mixed", "", settings)
        self.settings = student_settings(config, self._mixed.path)
        if student.languages is None and student.from_ is None and languages is not None:
            self.settings = replace(self.settings, source_language=languages[0], target_language=languages[1])

    def pairs(self) -> WrittenPairs:
        """Do the stages that are left, and return the pairs."""
        for path in self._config.text:
            if any("\t" in line for line in peek_lines(path, 1)):
                self._say(f"{path} has tabs: each line is translated as it stands; pairs go before all flags")
        if self._config.student.source is None:
            self._say("no real pairs are given: the student learns from the written ones alone")
        counts: Counts = {}
        use_threads(self._config.student.threads)
        folder = self._config.folder
        with folders_above(self._text.path), alone(folder / LOCK, "writing of pairs"), _keeping(folder):
            counts |= self._done(self._text, partial(write_text, self._config, self._text.path))
            counts |= self._done(self._written, self._write)
            if self._returned is not None:
                counts |= self._done(self._returned, partial(self._translate_back, self._returned))
            counts |= self._done(self._mixed, self._mix)
        settings = self.settings
        assert settings.source is not None
        assert settings.target is not None
        return WrittenPairs(settings.source, settings.target, counts, settings.valid_source, settings.valid_target)

    def _done(self, stage: Stage, make: Callable[[], Counts]) -> Counts:
        """Return the counts of a stage, made now or earlier, and say them."""
        counts = stage.counts()
        if counts is None:
            counts = stage.complete(make())
        for what, numbers in counts.items():
            self._say(f"{what}: {in_words(numbers)}")
        return counts

    def _write(self) -> Counts:
        config, text = self._config, self._text.path
        writing = " and ".join(map(str, config.writing_runs))
        self._say(f"{writing} {'write' if config.ensemble else 'writes'} {config.writes}s for {text}")
        self._writer(config.writing_runs, text, self._written.path, config.search)
        return {"written": {"translations": count_written(text, self._written.path, config.search.n_best)}}

    def _translate_back(self, stage: Stage) -> Counts:
        config, n_best = self._config, self._config.search.n_best
        assert config.round_trip is not None
        hypotheses = self._written.path.with_name(f"hypotheses-{stage.path.name}")
        if not hypotheses.exists():
            write_hypotheses(self._text.path, self._written.path, n_best, hypotheses)
        self._say(f"{config.round_trip} translates back what was written")
        self._writer([config.round_trip], hypotheses, stage.path, BACK)
        hypotheses.unlink()
        return {"returned": {"translations": count_written(self._text.path, self._written.path, n_best)}}

    def _mix(self) -> Counts:
        if self._mixed.path.exists():  # a kill came before its record
            remove_at_once(self._mixed.path)
        returned = None if self._returned is None else self._returned.path
        return write_mixture(self._config, self._mixed.path, self._text.path, self._written.path, returned)


def _check_files(config: SynthesisConfig) -> None:
    """Raise DataError or ConfigError for files and folders that can't be used."""
    student = config.student
    real: Pairs | None = None if student.source is None else student.pairs
    for files in (real, student.valid_pairs, *map(PairFiles, config.text)):
        if files is not None:
            files.check()
    for path in config.text:
        if (kind := kind_of(path)) not in LINES:
            raise DataError(
                f"{path} is a {kind} file, text was expected, a sentence a line: save the {config.given}s of it so"
            )
    if config.folder.exists() and not config.folder.is_dir():
        raise ConfigError(f"written must be a folder, and {config.folder} is a file: choose another")


def _languages(config: SynthesisConfig) -> tuple[str, str] | None:
    """Return the codes of the student's languages, as its settings or the runs have them; None where none does.

    Raises ConfigError where a run translates in the wrong direction, or runs can't write together, and RunError where
    one can't be read.
    """
    languages = config.student.languages
    forward = config.writes == "target"
    runs = [(folder, run, forward) for folder, run in open_together(config.writing_runs).items()]
    if config.round_trip is not None:
        runs.append((config.round_trip, open_run(config.round_trip), not forward))
    for folder, run, is_forward in runs:
        known = run.training.languages
        if known is None:
            continue
        its = known if is_forward else (known[1], known[0])
        if languages not in (None, its):
            wanted = languages if is_forward else languages[::-1]
            raise ConfigError(
                f"{folder} translates from {known[0]} to {known[1]}, "
                f"and a run from {wanted[0]} to {wanted[1]} is needed"
            )
        languages = its
    return languages
