"""The heads of a run that align best, as the run folder keeps them."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from glassformer.decoding import Natural
from glassformer.errors import RunError, counted
from glassformer.run.fitted import Fitted, read_fitted, write_fitted
from glassformer.run.names import ALIGNING
from glassformer.transformer.config import ModelConfig

Share = Annotated[float, Meta(ge=0, le=1)]


class AligningHeads(Fitted, frozen=True, kw_only=True):
    """The heads whose attention to the source aligns a run's translations best, and how well.

    Example: docs/howto/align.md.
    """

    layer: Natural
    """Layer of the decoder, counted from 0."""
    heads: Annotated[tuple[Natural, ...], Meta(min_length=1, max_length=1024)]
    """Heads of its attention to the source, the best first; their mean is taken."""
    shift: Annotated[int, Meta(ge=0, le=1)]
    """0: a token is aligned by the state that writes it; 1: by the state that reads it (Chen et al. 2020)."""
    agreement: Share
    """F1 of its links with those that an `Aligner` learned from the same pairs: 1 - AER."""
    chance: Share
    """The same for words linked at random."""
    pairs: Natural
    """Number of pairs that it was measured on."""

    @property
    def attention(self) -> str:
        """The path of the attention in the model."""
        return f"decoder.{self.layer}.source_attention"

    def __str__(self) -> str:
        heads = "head " + str(self.heads[0]) if len(self.heads) == 1 else "heads " + ", ".join(map(str, self.heads))
        state = "that reads a token" if self.shift else "that writes a token"
        return (
            f"{self.attention} {heads}, the state {state}: agreement {self.agreement:.3f} on "
            f"{counted(self.pairs, 'pair')} (by chance {self.chance:.3f})"
        )


def write_heads(folder: str | Path, heads: AligningHeads) -> None:
    """Keep the choice in a run folder, for the weights that it has now. Example: docs/howto/align.md."""
    write_fitted(Path(folder) / ALIGNING, heads)


def source_heads(model: ModelConfig) -> dict[int, tuple[int, ...]]:
    """Return the heads that each layer has left in its attention to the source; RunError where none has any."""
    heads = {layer: tuple(range(count)) for layer, count in model.source_heads.items()}
    if not heads:
        raise RunError("this run has no heads left in its attention to the source: nothing can align")
    return heads


def read_aligning_heads(folder: Path, model: ModelConfig) -> AligningHeads | None:
    """Return the choice that a run folder keeps; None where there is none for its weights, as after more training.

    Raises RunError if it is not of this model.
    """
    path = folder / ALIGNING
    heads = read_fitted(path, AligningHeads)
    if heads is None:
        return None
    known = model.heads_of(heads.attention) if heads.layer < model.decoder_layers else 0
    if max(heads.heads) >= known:
        raise RunError(
            f"{path} names head {max(heads.heads)} of {heads.attention}, which this model lacks: remove it, and the "
            "heads are chosen again"
        )
    return heads
