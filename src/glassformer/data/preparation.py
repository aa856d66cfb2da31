"""The preparation of pairs for training: read them once, hold some out, train vocabularies, encode, write arrays."""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import sentencepiece

from glassformer.data.corpus import write_corpus
from glassformer.data.encode import EncodedPairs, PairCounts, PairEncoder
from glassformer.data.held_out import MOST_HELD_OUT, HeldOut, choose_held_out, count_held_out
from glassformer.data.kept import FORMAT
from glassformer.data.processes import count_workers, map_in_order
from glassformer.data.sample import LINES, NOTHING, SYMBOLS, TextSample, sample_text
from glassformer.data.scan import ScanResult, scan_pairs
from glassformer.data.vocabularies import VocabularySettings, train_vocabularies
from glassformer.errors import DataError
from glassformer.files import write_json
from glassformer.meter import Meter
from glassformer.pairs.files import Pair
from glassformer.pairs.mixture import Pairs
from glassformer.text.kinds import AUTO, SUBWORD_ENDINGS
from glassformer.text.loading import load_tokenizer, tokenizer_files
from glassformer.text.tokenizer import check_kind, read_model

TRAIN, VALID, VALID_TEXT = "train", "valid", "valid.json"
"""Names in a prepared folder, beside the tokenizers: two folders of token arrays, and validation pairs as text."""
TRAINED_ON = 1 << 24
"""Characters, about, that vocabularies are trained on at the most: sentencepiece needs 24 bytes and more for each."""
TRAINED_HERE = 1 << 21
"""Characters up to which vocabularies are trained in this process: it takes seconds, in which Ctrl-C has to wait."""
WORTH_KEEPING = 1000
"""Number of pairs from which on the result is kept for the next run: fewer are prepared in an instant."""
MOST_UNKNOWN, NOTABLE_UNKNOWN = 0.25, 0.002
"""Shares of tokens that the vocabulary doesn't know: above the first training is refused, above the second it is said.
"""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The settings that the preparation of pairs depends on."""

    pairs: Pairs
    valid_pairs: Pairs | None
    """Left out (None), training pairs are held out for validation."""
    kinds: tuple[str, str]
    """Kind of the source's and of the target's tokenizer (see `check_kind`); AUTO until the text has been read."""
    vocab_sizes: tuple[int | None, int | None]
    """Number of ids of each side; None leaves it to the text."""
    shares_vocab: bool
    """True gives both sides one vocabulary, of the first kind and size."""
    character_coverage: float
    decompose: bool
    """True reads source characters as their parts (see `decomposition_rules`)."""
    max_tokens: int
    max_ratio: float
    score_pairs: int
    """Validation pairs that are kept as text."""
    seed: int
    join_lines: int = 1
    """Neighbouring lines that are joined at the most, beside each line alone; 1 joins none."""
    threads: int | None = None
    """Processes that share the work; None takes one for each core. The result doesn't depend on it."""
    tokenizers: tuple[Path, Path] | None = None
    """Files of tokenizers that are used as they are, in place of vocabularies trained on this text."""


@dataclass(frozen=True)
class Preparation:
    """Tokenizers and token arrays of pairs that have been read once, ready to be made.

    Where the same text may have been prepared before, `digest` names the result before it is made.
    """

    settings: DataSettings
    say: Say
    workers: int
    training: ScanResult
    valid: ScanResult | None
    """None where validation pairs are held out."""
    stamps: list[tuple[int, int]]
    """Size and time of each file before it was read."""

    @classmethod
    def from_files(cls, settings: DataSettings, say: Say) -> "Preparation":
        """Read the files once. `say` is told how far that has come.

        Raises DataError where a file can't be used, and ConfigError where there is no such kind of tokenizer.
        """
        for kind in settings.kinds:
            if kind != AUTO:
                check_kind(kind)
        workers = count_workers(settings.threads)

        def read(files: Pairs, most: int) -> ScanResult:
            with Meter("reading", "pairs", transient=True, say=say) as meter:
                return scan_pairs(files, seed=settings.seed, most=most, workers=workers, progress=meter.show, say=say)

        stamps = _stamps(settings)
        training = read(settings.pairs, MOST_HELD_OUT if settings.valid_pairs is None else 0)
        valid = None if settings.valid_pairs is None else read(settings.valid_pairs, 0)
        return cls(settings, say, workers, training, valid, stamps)

    @property
    def digest(self) -> str:
        """Name of the result: 32 hexadecimal digits, the same for the same text and the same settings that matter."""
        settings = self.settings
        if settings.tokenizers is None:
            models = [
                read_model(Path(kind)) if kind.endswith(SUBWORD_ENDINGS) else kind.encode() for kind in settings.kinds
            ]
        else:
            models = [file.read_bytes() for path in settings.tokenizers for file in tokenizer_files(path)]
        values = {
            "format": [FORMAT, sentencepiece.__version__, sys.byteorder],
            "text": [self.training.digest, self.valid and self.valid.digest],
            "tokenizers": [[hashlib.blake2b(model).hexdigest() for model in models], settings.vocab_sizes],
            "vocabularies": [settings.shares_vocab, settings.character_coverage, settings.decompose],
            "pairs": [settings.max_tokens, settings.max_ratio, settings.score_pairs, settings.seed],
        }
        if settings.join_lines > 1:
            values["joined"] = [settings.join_lines]
        return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()

    def is_worth_keeping(self) -> bool:
        """Return whether preparing took long, and the files still are those that were read."""
        return self.training.pairs >= WORTH_KEEPING and self.stamps == _stamps(self.settings)

    def make(self, folder: Path, check_vocab_sizes: Callable[[int, int], object]) -> dict[str, Any]:
        """Make the folder: tokenizers, train/, valid/ and valid.json; return the tokenizers' names and the counts.

        `check_vocab_sizes` is called with both numbers of ids before the long work, so that it can refuse them.
        """
        folder.mkdir()
        settings, held_out = self.settings, self._choose_held_out()
        if settings.tokenizers is None:
            source, target = self._train_vocabularies(folder, held_out, check_vocab_sizes)
        else:
            source, target = (
                load_tokenizer(path).save(folder / side)
                for side, path in zip(("source", "target"), settings.tokenizers, strict=True)
            )
        limits = settings.max_tokens, settings.max_ratio
        encoder = PairEncoder(
            str(source), str(target), *limits, settings.seed, held_out.ranks, join_lines=settings.join_lines
        )
        set_aside: list[Pair] = []
        train = self._write(folder / TRAIN, self._encode(encoder, settings.pairs, self.training.pairs, set_aside))
        unlimited = PairEncoder(str(source), str(target))
        if settings.valid_pairs is None or self.valid is None:
            valid_pairs: Iterable[Pair] = set_aside
            encoded = (unlimited.encode(*sides) for sides in [_sides(set_aside)])
        else:
            valid_pairs = settings.valid_pairs
            encoded = self._encode(unlimited, settings.valid_pairs, self.valid.pairs, [])
        left_out: set[int] = set()
        valid = self._write(folder / VALID, _noting_left_out(encoded, left_out))
        kept = (pair for number, pair in enumerate(valid_pairs) if number not in left_out)
        scored = list(spread(kept, valid.kept, settings.score_pairs))
        write_json(folder / VALID_TEXT, {"pairs": scored})
        pairs = {TRAIN: train.to_json(), VALID: valid.to_json()}
        return {"source": source.name, "target": target.name, "pairs": pairs}

    def _choose_held_out(self) -> HeldOut:
        """Choose the pairs that are held out; none where validation files are given or no pair can be used."""
        training, settings = self.training, self.settings
        if self.valid is not None or not training.usable:
            return HeldOut()
        count = count_held_out(training.usable)
        return choose_held_out(training.lowest, training.usable, count, settings.seed, settings.pairs.name)

    def _train_vocabularies(
        self, folder: Path, held_out: HeldOut, check_vocab_sizes: Callable[[int, int], object]
    ) -> tuple[Path, Path]:
        """Train the source's and the target's tokenizer; return their files."""
        settings = self.settings
        wants = [
            NOTHING if kind.endswith(SUBWORD_ENDINGS) else SYMBOLS if kind == "symbols" else LINES
            for kind in settings.kinds
        ]
        share = min(1.0, TRAINED_ON / max(1, self.training.characters))
        samples: tuple[TextSample, TextSample] = [], []
        if wants != [NOTHING, NOTHING]:
            with Meter("drawing text", "pairs", total=self.training.pairs, transient=True, say=self.say) as meter:
                samples = sample_text(
                    settings.pairs,
                    wants=wants,
                    share=share,
                    held_out=held_out,
                    workers=self.workers,
                    progress=meter.show,
                )
        drawn = max((len(text) for text in samples if isinstance(text, list)), default=0)
        some = f" from {drawn:,} pairs drawn at random" if share < 1 and drawn else ""
        self.say(f"learning the vocabulary{some}")
        stems = [folder / "source", folder / "target"]
        sides = (None, None) if settings.shares_vocab else ("source", "target")
        vocabularies = [
            VocabularySettings(side, str(stem), kind, size, settings.seed, settings.character_coverage, decompose)
            for side, stem, kind, size, decompose in zip(
                sides, stems, settings.kinds, settings.vocab_sizes, (settings.decompose, False), strict=True
            )
        ]
        long = LINES in wants and share * self.training.characters > TRAINED_HERE
        workers = max(1, self.workers) if long else 0
        if settings.shares_vocab:
            [source] = train_vocabularies(vocabularies[:1], [_together(*samples)], workers)
            target = load_tokenizer(source).save(stems[1])
        else:
            source, target = train_vocabularies(vocabularies, samples, workers)
        sizes = load_tokenizer(source).vocab_size, load_tokenizer(target).vocab_size
        check_vocab_sizes(*sizes)
        self.say(
            f"vocabulary: {sizes[0]:,} ids, shared"
            if settings.shares_vocab
            else "vocabulary: {:,} + {:,} ids".format(*sizes)
        )
        return source, target

    def _encode(
        self, encoder: PairEncoder, files: Pairs, total: int, set_aside: list[Pair]
    ) -> Generator[EncodedPairs, None, None]:
        """Encode the `total` pairs of the files; those that are held out are added to `set_aside`."""
        blocks = (block.to_parts() for block in files.blocks())
        done = 0
        with (
            Meter("tokenising", "pairs", total=total, transient=True, say=self.say) as meter,
            closing(map_in_order(encoder, blocks, self.workers)) as answers,
        ):
            for answer in answers:
                encoded = EncodedPairs(*answer)
                set_aside += encoded.held_out
                yield encoded
                done += encoded.counts.read
                meter.show(done + len(set_aside))

    def _write(self, folder: Path, encoded: Generator[EncodedPairs, None, None]) -> PairCounts:
        try:
            with closing(encoded):
                counts = write_corpus(encoded, folder)
        except DataError as error:
            raise DataError(f"{folder.name}: {error}") from None
        self.say(f"{folder.name}: {counts}")
        return counts


def _noting_left_out(
    encoded: Generator[EncodedPairs, None, None], left_out: set[int]
) -> Generator[EncodedPairs, None, None]:
    """Yield the same, and add the numbers of the pairs that were left out, counted from 0."""
    read = 0
    with closing(encoded):
        for one in encoded:
            left_out.update(read + place for place in one.left_out)
            read += one.counts.read
            yield one


def check_known(counts: PairCounts, say: Say) -> None:
    """Say how much of the training text the vocabulary doesn't know; raise DataError where that is too much."""
    for side, unknown, tokens in (
        ("source", counts.source_unknown, counts.source_tokens),
        ("target", counts.target_unknown, counts.target_tokens),
    ):
        share = unknown / tokens
        if share > MOST_UNKNOWN:
            raise DataError(
                f"{share:.0%} of the {side} tokens are unknown to the vocabulary, which was trained on text in another "
                "language, script or form: are source and target swapped? If not, give other text, or train a new "
                "vocabulary on this text: leave out --from and sentencepiece models, or raise --character-coverage"
            )
        if share > NOTABLE_UNKNOWN:
            say(f"{share:.1%} of the {side} tokens are unknown to the vocabulary, and will be read and written as ⁇")


def spread(pairs: Iterable[Pair], count: int, most: int) -> Iterator[Pair]:
    """Return at most so many of `count` pairs, in equal distances, so that each file has its share.

    >>> list(spread([("a", ""), ("b", ""), ("c", ""), ("d", ""), ("e", "")], count=5, most=3))
    [('a', ''), ('b', ''), ('d', '')]
    """
    kept = min(most, count)
    chosen = {number * count // kept for number in range(kept)}
    return (pair for number, pair in enumerate(pairs) if number in chosen)


def _sides(pairs: list[Pair]) -> tuple[list[str], list[str]]:
    return [source for source, _ in pairs], [target for _, target in pairs]


def _together(sources: TextSample, targets: TextSample) -> TextSample:
    """Return the text of both sides for one vocabulary."""
    if isinstance(sources, Counter) and isinstance(targets, Counter):
        return sources + targets
    return list(chain.from_iterable(zip(sources, targets, strict=True)))


def _stamps(settings: DataSettings) -> list[tuple[int, int]]:
    """Return size and time of each file that exists."""
    pairs = (settings.pairs, settings.valid_pairs)
    named = [path for files in pairs if files is not None for path in files.paths]
    stats = [path.stat() for path in named if path.exists()]
    return [(stat.st_size, stat.st_mtime_ns) for stat in stats]
