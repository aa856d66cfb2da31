"""The settings of a pruning. Loads no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from glassformer.errors import ConfigError
from glassformer.files import followed
from glassformer.pairs.files import PairFiles, columns_of_each
from glassformer.run.names import PRUNED
from glassformer.scoring.scores import METRICS
from glassformer.settings.checks import (
    BatchTokens,
    Choice,
    Count,
    Device,
    Flag,
    Number,
    Probability,
    Seed,
    Threads,
    check_settings,
)
from glassformer.settings.docstrings import with_fields
from glassformer.tracking.tracker import NONE, Track


@with_fields
@dataclass(frozen=True, kw_only=True)
class PruneConfig:
    """Remove the attention heads that matter least, and train on.

    Writes a run folder with fewer heads, which is smaller and faster; every other command takes it. The unpruned model
    is trained as long, so the table shows what the heads are worth. After a stop the same command continues.

    Example: docs/howto/prune.md.
    """

    run: Annotated[Path, Flag(positional=True)]
    """The run to prune. It stays as it is."""
    out: Path
    """The run folder to write."""
    data: tuple[Path, ...]
    """Pairs to train on: a file of sources and one of targets, or one file of both sides."""
    valid: tuple[Path, ...] = ()
    """Validation pairs in the same form; they choose the heads and score the models. Left out, up to 1,000 pairs of the
    data are held out for the scores, and any of the data choose the heads."""
    columns: Annotated[tuple[str, str], Flag("NAME")] | None = None
    """The source's and the target's column of tables, by name or number; of a TMX file the two languages."""
    unpruned: Path | None = None
    """Folder for the unpruned model after the same training, to compare the two on other data. Left out: not kept."""
    keep: Annotated[float, Number(at_least=0, less_than=1, note="a share of the heads")] = 0.5
    """Share of the heads to keep."""
    rounds: Count = 2
    """Number of rounds in which the others are removed, with training after each."""
    updates: Count = 1200
    """Updates of training after each round, with Muon; the unpruned model gets them too."""
    learning_rate: Annotated[float, Number(above=0, limit=1e38)] | None = None
    """Peak learning rate of that training; it falls to 0 over the updates. Left out: 1 / (4 * d_model)."""
    weight_decay: Annotated[float, Number(at_least=0, limit=1e9)] = 0.0
    """Weight decay of that training: an update takes this share, times the rate, off matrices and embeddings."""
    dropout: Probability | None = None
    """Dropout of that training. Left out: the run's. With fewer heads less may be better."""
    sentences: Count = 500
    """Number of pairs on which the rise of the loss without each head is measured."""
    batch_tokens: BatchTokens = 2048
    """Most source and most target tokens in a batch of that training."""
    metric: Annotated[str, Choice(*METRICS)] | None = None
    """Score of the validations: bleu, chrf, exact, wer, ser. Left out: that of the run's training."""
    tokenize: str = "auto"
    """sacreBLEU tokenizer for the bleu metric."""
    track: Track = NONE
    """Show each round in a tracker, too, when all are done: tensorboard or trackio, as `glassformer train --track`."""
    seed: Seed = 1
    """Seed of all random choices."""
    device: Device = "auto"
    """Where to compute: auto, cpu, cuda or mps."""
    threads: Threads | None = None
    """CPU threads; left out, torch's choice."""

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.out.name:
            raise ConfigError(f"out must be a new folder, got {self.out}: give it a name")
        out, work = followed(self.out), followed(self.work)
        if self.unpruned is not None:
            unpruned = followed(self.unpruned)
            for taken in (out, work):
                if unpruned == taken or taken in unpruned.parents or unpruned in taken.parents:
                    raise ConfigError(
                        f"unpruned must be neither inside {taken} nor above it, got {unpruned}: choose another folder"
                    )
        _ = self.pairs, self.valid_pairs  # raises ConfigError for a wrong number of files, before any work

    @property
    def work(self) -> Path:
        """Return the hidden folder beside `out` that holds the finished rounds until the pruning is complete."""
        return self.out.with_name(f".{self.out.name}.pruning")

    @property
    def last(self) -> Path:
        """Return the folder of the pruned model after the last round, before it is moved to `out`."""
        return self.work / f"{self.rounds}-trained"

    @property
    def is_reported(self) -> bool:
        """Return whether all is done and measured, and only the folders still have to be moved into place."""
        return (self.last / PRUNED).exists()

    @property
    def pairs(self) -> PairFiles:
        """Return the files of `data`."""
        return PairFiles.of(self.data, "--data", self._columns[0])

    @property
    def valid_pairs(self) -> PairFiles | None:
        """Return the files of `valid`, or None if there are none."""
        return PairFiles.of(self.valid, "--valid", self._columns[1]) if self.valid else None

    @property
    def _columns(self) -> list[tuple[str, str] | None]:
        """Return the columns of `data` and of `valid`."""
        return columns_of_each(self.columns, len(self.data) == 1, len(self.valid) == 1)
