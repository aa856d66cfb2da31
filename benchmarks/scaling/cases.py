"""The models, batches and pairs that are measured: some to learn the constants from, others to check predictions."""

import json
import random
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from glassformer.data.corpus import Corpus, write_corpus
from glassformer.data.encode import EncodedPairs, PairCounts
from glassformer.text.batching import Plan, plan_batches
from glassformer.transformer.config import ModelConfig
from scaling.work import Rows

PAIRS, SHORTEST, LONGEST, SYMBOLS = 20_000, 5, 40, 1_000


@dataclass(frozen=True)
class Case:
    """A model of so many layers on either side, and the tokens of a batch that all processes share."""

    d_model: int
    layers: int
    d_ff: int
    vocab: int
    batch_tokens: int

    @property
    def config(self) -> ModelConfig:
        """The model's sizes; heads are 64 wide, or 32 in narrow models."""
        return ModelConfig(
            source_vocab_size=self.vocab,
            target_vocab_size=self.vocab,
            d_model=self.d_model,
            heads=self.d_model // (64 if self.d_model >= 256 else 32),
            encoder_layers=self.layers,
            decoder_layers=self.layers,
            d_ff=self.d_ff,
        )

    def to_json(self) -> dict[str, int]:
        """Return the case as JSON can hold it."""
        return asdict(self)


CHECKED = {
    "tiny": Case(128, 4, 256, 8_000, 2_048),
    "small": Case(256, 3, 512, 8_000, 2_048),
    "wide": Case(448, 1, 1792, 8_000, 2_048),
}
"""Cases whose time on 1, 2 and 4 processes is predicted, then measured; the width of `wide` was not learned from."""

LEARNED_FROM = (
    Case(64, 2, 128, 2_000, 1_024),
    Case(64, 4, 256, 16_000, 512),
    Case(128, 2, 512, 4_000, 2_048),
    Case(128, 6, 256, 2_000, 1_024),
    Case(192, 3, 384, 6_000, 2_048),
    Case(256, 2, 1024, 4_000, 1_024),
    Case(256, 4, 512, 2_000, 512),
    Case(256, 1, 256, 24_000, 1_024),
    Case(384, 2, 768, 12_000, 512),
    Case(384, 1, 1536, 4_000, 2_048),
    Case(512, 1, 2048, 4_000, 1_024),
    Case(512, 3, 512, 4_000, 512),
)
"""Cases from whose time in one process the constants are learned; none is checked."""

BURDEN = LEARNED_FROM[4]
"""The case of updates that several processes make side by side without a word to one another."""


def write_pairs(folder: Path) -> None:
    """Write a corpus of generated pairs, whose targets are within a fifth as long as their sources."""
    draw = random.Random(1)
    lengths = [draw.randint(SHORTEST, LONGEST) for _ in range(PAIRS)]
    sides: list[bytes] = []
    for spread in (0.0, 0.2):
        own = [max(2, round(length * draw.uniform(1 - spread, 1 + spread))) for length in lengths]
        ids = array("i", (i for length in own for i in (*draw.choices(range(2, SYMBOLS), k=length - 1), 0)))
        sides += [ids.tobytes(), array("i", own).tobytes()]
    figures = json.dumps([PairCounts(read=PAIRS, kept=PAIRS).to_json(), []]).encode()
    write_corpus([EncodedPairs(figures, *sides)], folder)


def plan_of(case: Case, corpus: Corpus) -> Plan:
    """Return the batches of a case's first epoch."""
    lengths = corpus.source.lengths, corpus.target.lengths
    return plan_batches(*lengths, batch_tokens=case.batch_tokens, seed=1, epoch=0)


def rows_of(corpus: Corpus, pairs: Sequence[int], processes: int) -> list[Rows]:
    """Return the sizes of each process's share of a batch, as `Processes.share` deals them out."""
    shares = [list(pairs[rank::processes]) for rank in range(processes)]
    return [Rows.of(corpus.source.lengths[share].tolist(), corpus.target.lengths[share].tolist()) for share in shares]
