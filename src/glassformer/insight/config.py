"""What a pruning can be told. Loads no torch."""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from glassformer.errors import ConfigError
from glassformer.text.pairs import PairFiles


@dataclass(frozen=True, kw_only=True)
class PruneConfig:
    """Remove the attention heads that matter least, for good, and train a little on after each step.

    Writes a run folder with fewer heads: smaller and faster, for every other command. The unpruned model is trained as
    long, so that the table says what the heads are worth. After a stop the same command goes on.
    """

    run: Positional[Path]
    """The run to prune, which is left as it is."""
    out: Path
    """The run folder to write."""
    data: tuple[Path, ...]
    """Pairs to train on: a file of sources and one of targets, or one TSV file."""
    valid: tuple[Path, ...] = ()
    """Validation pairs, in the same form, by which heads are chosen and models scored. Left out, up to 1,000 pairs are
    held out for the scores, and heads are chosen by any of the data."""
    unpruned: Path | None = None
    """Where to leave the unpruned model that was trained as long, to compare the two on other data."""
    keep: float = 0.5
    """Share of the heads that stay."""
    rounds: int = 2
    """In how many steps the others go, with training after each. Within a step they go one after the other too."""
    updates: int = 1200
    """Updates of training after each step, with Muon; the unpruned model's too."""
    learning_rate: float | None = None
    """Of that training, falling to 0 over the updates. Left out: 1 / (4 * d_model)."""
    weight_decay: float = 0.0
    """Of that training: each update takes this share, times the learning rate, off all matrices and embeddings."""
    dropout: float | None = None
    """Of that training. Left out: the run's. With fewer heads less of it may be better."""
    sentences: int = 500
    """Pairs on which it is measured how much the loss rises without each head."""
    batch_tokens: int = 2048
    """Most source and most target tokens in a batch of that training."""
    metric: str = "bleu"
    """Score of the validations: bleu, chrf, exact, wer, ser."""
    tokenize: str = "auto"
    """sacreBLEU tokenizer for the bleu metric."""
    seed: int = 1
    """Seed of everything random."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda or mps."""
    threads: int | None = None
    """CPU threads; left out, torch's choice."""

    def __post_init__(self) -> None:
        if not 0 <= self.keep < 1:
            raise ConfigError(f"keep must be at least 0 and less than 1, a share of the heads, got {self.keep}")
        for name in ("rounds", "updates", "sentences"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.unpruned is not None:
            unpruned = self.unpruned.resolve()
            for taken in (self.out.resolve(), self.work.resolve()):
                if unpruned == taken or taken in unpruned.parents or unpruned in taken.parents:
                    raise ConfigError(
                        f"unpruned must lie neither in {taken} nor around it, got {unpruned}: give another"
                    )
        _ = self.pairs, self.valid_pairs  # refuses other numbers of files, at once

    @property
    def work(self) -> Path:
        """Where what is done so far is kept until all is done."""
        return self.out.with_name(f".{self.out.name}.pruning")

    @property
    def pairs(self) -> PairFiles:
        return PairFiles.of(self.data, "--data")

    @property
    def valid_pairs(self) -> PairFiles | None:
        return PairFiles.of(self.valid, "--valid") if self.valid else None
