"""Vocabularies trained side by side, each written to a file."""

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from glassformer.data.processes import map_in_order
from glassformer.data.sample import TextSample
from glassformer.decoding import decode_message
from glassformer.errors import ConfigError, DataError
from glassformer.text.tokenizer import train_tokenizer


@dataclass(frozen=True)
class VocabularySettings:
    """The arguments of `train_tokenizer` for one vocabulary, and where to write it."""

    side: Literal["source", "target"] | None
    """The side that it is for; None: both sides share it."""
    stem: str
    """Path of the file to write, without its ending."""
    kind: str
    vocab_size: int | None
    seed: int
    coverage: float
    decompose: bool = False

    def naming(self, message: str) -> str:
        """Return an error's message with the vocabulary that it is about, and the field that sets its size."""
        if self.side is None:
            return f"the shared vocabulary: {message}"
        return f"the {self.side}'s vocabulary: {re.sub(r'^vocab_size', f'{self.side}_vocab_size', message)}"


@dataclass(frozen=True)
class VocabularyTrainer:
    """Work for `map_in_order`: from the settings and text of a vocabulary, both JSON, to the path of its file."""

    def __call__(self, parts: list[bytes]) -> list[bytes]:
        values, text = map(decode_message, parts)
        settings = VocabularySettings(**values)
        try:
            tokenizer = train_tokenizer(
                Counter(text) if isinstance(text, dict) else text,
                kind=settings.kind,
                vocab_size=settings.vocab_size,
                seed=settings.seed,
                coverage=settings.coverage,
                decompose=settings.decompose,
            )
        except (ConfigError, DataError) as error:
            raise type(error)(settings.naming(str(error))) from None
        return [os.fsencode(tokenizer.save(Path(settings.stem)))]


def train_vocabularies(
    settings: Sequence[VocabularySettings], samples: Sequence[TextSample], workers: int
) -> list[Path]:
    """Train each vocabulary on its sample and return their files.

    With workers each is trained in a process of its own: Ctrl-C ends it at once, and its memory is free afterwards.
    """
    items = [
        [json.dumps(asdict(each)).encode(), json.dumps(text, ensure_ascii=False).encode()]
        for each, text in zip(settings, samples, strict=True)
    ]
    with closing(map_in_order(VocabularyTrainer(), items, min(workers, len(items)), few=0)) as trained:
        return [Path(os.fsdecode(path)) for (path,) in trained]
