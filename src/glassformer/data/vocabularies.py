"""Vocabularies learned side by side, each into a file."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from glassformer.data.processes import in_order
from glassformer.data.sample import Sample
from glassformer.text.tokenizer import train_tokenizer


@dataclass(frozen=True)
class Lesson:
    """A vocabulary to learn, as `train_tokenizer` does."""

    stem: str
    """Where to write it, without the ending."""
    kind: str
    vocab_size: int | None
    seed: int
    coverage: float
    decompose: bool = False


@dataclass(frozen=True)
class Learner:
    """Learns vocabularies, for `in_order`: from a lesson and its text, both JSON, to the path of the file."""

    def __call__(self, parts: list[bytes]) -> list[bytes]:
        values, text = map(json.loads, parts)
        lesson = Lesson(**values)
        tokenizer = train_tokenizer(
            Counter(text) if isinstance(text, dict) else text,
            kind=lesson.kind,
            vocab_size=lesson.vocab_size,
            seed=lesson.seed,
            coverage=lesson.coverage,
            decompose=lesson.decompose,
        )
        return [os.fsencode(tokenizer.save(Path(lesson.stem)))]


def learn(lessons: Sequence[Lesson], samples: Sequence[Sample], workers: int) -> list[Path]:
    """The files of these vocabularies, each learned from its sample.

    With workers each in a process of its own, which Ctrl-C ends at once, and whose memory is free afterwards.
    """
    items = [
        [json.dumps(asdict(lesson)).encode(), json.dumps(text, ensure_ascii=False).encode()]
        for lesson, text in zip(lessons, samples, strict=True)
    ]
    with closing(in_order(Learner(), items, min(workers, len(items)), few=0)) as learned:
        return [Path(os.fsdecode(path)) for (path,) in learned]
