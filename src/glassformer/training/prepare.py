"""From the user's files to a run folder that training can start in: checks, tokenizers, token arrays."""

import hashlib
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import sentencepiece

from glassformer.data.corpus import Corpus
from glassformer.data.encode import Counts, Encoded, Encoder
from glassformer.data.held_out import Split, hold_out
from glassformer.data.kept import FORMAT, PREPARED, PreparedCorpora, link, read_facts, seal
from glassformer.data.processes import count_workers, in_order
from glassformer.data.sample import LINES, NOTHING, SYMBOLS, Sample, sample
from glassformer.data.scan import Scan, scan
from glassformer.data.vocabularies import Lesson, learn
from glassformer.errors import DataError, RunError
from glassformer.files import write_json
from glassformer.meter import Meter
from glassformer.run.folder import OpenRun, is_run_folder, open_run, write_config
from glassformer.run.lock import check_free
from glassformer.run.names import FILES, INITIAL, RESUME
from glassformer.tensors import write_tensors
from glassformer.text.kinds import SUBWORD_ENDINGS
from glassformer.text.loading import files_of, load_tokenizer
from glassformer.text.pairs import Pair, PairFiles
from glassformer.text.scores import bleu_scorer
from glassformer.text.tokenizer import ENDINGS, check_kind
from glassformer.training.config import TrainConfig

MOST_HELD_OUT = 1000
LEARNED_FROM = 1 << 24
"""Characters, about, that vocabularies are learned from at the most: sentencepiece takes 24 bytes and more for each."""
LEARNED_HERE = 1 << 21
"""Characters up to which vocabularies are learned in this process: it takes seconds, in which Ctrl-C has to wait."""
WORTH_KEEPING = 1000
"""Pairs from which on what was prepared is kept for the next run: fewer are prepared in an instant."""

MOST_UNKNOWN, NOTABLE_UNKNOWN = 0.25, 0.002
"""Shares of tokens that the vocabulary doesn't know: from which on there is no use in training, and that are said."""

Say = Callable[[str], None]


def prepare_run(config: TrainConfig, say: Say) -> None:
    """Make the run folder `config.out` with tokenizers, config.json and, in resume/, the token arrays.

    Everything is made in a hidden folder near it and moved there when complete, so a failure leaves what was there.
    Tokenizers and arrays are also kept in `.prepared` beside the run, for further runs with the same text and settings.
    """
    if config.out.exists() and not config.overwrite:
        unfinished = (config.out / RESUME).is_dir()
        advice = (
            "continue it with --resume, or replace it with --overwrite" if unfinished else "--overwrite replaces it"
        )
        raise RunError(f"{config.out} exists: {advice}, or choose another --out")
    if config.out.exists() and not is_run_folder(config.out):
        raise RunError(f"{config.out} is not a run folder: --overwrite replaces only those, choose another --out")
    _check_nothing_is_lost(config)
    out = config.out.resolve()
    if out in (Path.cwd(), *Path.cwd().parents):
        raise RunError(f"{config.out} is the current folder: go out of it to replace it, or choose another --out")
    origin = None if config.from_ is None else open_run(config.from_)
    for kind in _kinds(config):
        check_kind(kind)
    if config.tokenize != "auto":
        bleu_scorer(config.tokenize)

    preparation = Preparation.of(config, origin, say)
    prepared = PreparedCorpora(out.parent / PREPARED)
    there = next(folder for folder in out.parents if folder.exists())
    building = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".preparing", dir=there))
    try:
        made, worth_keeping = building / "prepared", False
        if entry := prepared.find(preparation.digest):
            facts = read_facts(entry)
            kept = " and ".join(f"{Counts(**counts).kept:,} {name}" for name, counts in facts["pairs"].items())
            say(f"the same text was prepared before, and that is used again: {kept} pairs")
        else:
            facts = preparation.make(made)
            if worth_keeping := preparation.worth_keeping():
                seal(made, facts)
        _check_known(facts, say)
        _make_run(config, origin, facts, entry or made, building / "run")
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists():  # another training may have come meanwhile
            if not config.overwrite:
                raise RunError(f"{config.out} was made by another process meanwhile: choose another --out")
            check_free(out)
            out.rename(building / "replaced")
        (building / "run").replace(out)
        if worth_keeping:
            try:
                prepared.keep(made, preparation.digest)
            except OSError as error:
                say(f"what was prepared can't be kept for further runs: {error}")
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _check_nothing_is_lost(config: TrainConfig) -> None:
    """Raise RunError where replacing the run would remove files that training did not write."""
    if not config.out.exists():
        return
    ours = {*FILES, RESUME}
    ours |= {f"{side}{end}" for side in ("source", "target") for end in ENDINGS}
    left = (".tmp", *(f".{name}." for name in ours))  # under temporary names, by a process that was killed
    names = [path.name for path in config.out.iterdir() if not path.name.startswith(left)]
    if foreign := sorted(set(names) - ours):
        raise RunError(f"{config.out} also holds {', '.join(foreign[:3])}: move that away, or choose another --out")


def read_valid_pairs(folder: Path) -> list[Pair]:
    """The validation pairs, as text, that `prepare_run` set aside for the score."""
    pairs = json.loads((folder / RESUME / "valid.json").read_text(encoding="utf-8"))["pairs"]
    return [(source, target) for source, target in pairs]


def _make_run(config: TrainConfig, origin: OpenRun | None, facts: Mapping[str, Any], prepared: Path, run: Path) -> None:
    """The run folder of what is prepared. The arrays, which nothing changes, are links; the rest are copies."""
    source, target = (load_tokenizer(prepared / facts[side]) for side in ("source", "target"))
    for part in ("train", "valid"):
        for file in (prepared / part).iterdir():
            link(file, run / RESUME / part / file.name)
    shutil.copyfile(prepared / "valid.json", run / RESUME / "valid.json")
    if origin is None:
        model = config.model_config(source.vocab_size, target.vocab_size)
    else:
        model = config.inherited(origin.model)
        write_tensors(run / RESUME / INITIAL, dict(origin.weights))
    config.peak(model.d_model)  # refuses what can't be
    write_config(run, model, source, target, {"settings": config.to_json(), "pairs": facts["pairs"]})


@dataclass(frozen=True)
class Preparation:
    """Making tokenizers and token arrays of pairs that have been read once."""

    config: TrainConfig
    origin: OpenRun | None
    """The run that the training goes on from."""
    say: Say
    workers: int
    training: Scan
    valid: Scan | None
    """None where validation pairs are held out."""
    stamps: list[tuple[int, int]]
    """Size and time of each file before it was read."""

    @classmethod
    def of(cls, config: TrainConfig, origin: OpenRun | None, say: Say) -> "Preparation":
        """Read the files; DataError says what keeps them from being used."""
        workers = count_workers(config.threads)

        def read(files: PairFiles, most: int) -> Scan:
            with Meter("reading", "pairs", transient=True, say=say) as meter:
                return scan(files, seed=config.seed, most=most, workers=workers, progress=meter.show)

        stamps = _stamps(config)
        training = read(config.pairs, MOST_HELD_OUT if config.valid_pairs is None else 0)
        valid = None if config.valid_pairs is None else read(config.valid_pairs, 0)
        return cls(config, origin, say, workers, training, valid, stamps)

    @property
    def digest(self) -> str:
        """The same for the same content and the same settings that matter here."""
        config = self.config
        if self.origin is None:
            kinds = _kinds(config)
            models = [Path(kind).read_bytes() if kind.endswith(SUBWORD_ENDINGS) else kind.encode() for kind in kinds]
        else:
            models = [file.read_bytes() for path in self.origin.tokenizer_files for file in files_of(path)]
        values = {
            "format": [FORMAT, sentencepiece.__version__, sys.byteorder],
            "text": [self.training.digest, self.valid and self.valid.digest, config.target is None],
            "tokenizers": [[hashlib.blake2b(model).hexdigest() for model in models], _vocab_sizes(config)],
            "vocabularies": [config.shares_vocab, config.character_coverage, config.decompose],
            "pairs": [config.max_tokens, config.max_ratio, config.score_pairs, config.seed],
        }
        return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()

    def worth_keeping(self) -> bool:
        """Whether it took long, and the files are still those that the digest is of."""
        return self.training.pairs >= WORTH_KEEPING and self.stamps == _stamps(self.config)

    def make(self, folder: Path) -> dict[str, Any]:
        """Fill the folder: tokenizers, train/, valid/ and valid.json. Returns the tokenizers' names and the counts."""
        folder.mkdir()
        config, split = self.config, self._split()
        source, target = self._learn(folder, split) if self.origin is None else self._inherit(folder, self.origin)
        limits = config.max_tokens, config.max_ratio
        encoder = Encoder(str(source), str(target), *limits, split.seed, split.chosen)
        held_out: list[Pair] = []
        train = self._write(folder / "train", self._encode(encoder, config.pairs, self.training.pairs, held_out))
        unlimited = Encoder(str(source), str(target))
        if config.valid_pairs is None or self.valid is None:
            valid_pairs: Iterable[Pair] = held_out
            encoded = (unlimited.encode(*sides) for sides in [_sides(held_out)])
        else:
            valid_pairs = config.valid_pairs
            encoded = self._encode(unlimited, config.valid_pairs, self.valid.pairs, [])
        valid = self._write(folder / "valid", encoded)
        scored = list(islice((pair for pair in valid_pairs if all(pair)), config.score_pairs))
        write_json(folder / "valid.json", {"pairs": scored})
        pairs = {"train": train.to_json(), "valid": valid.to_json()}
        return {"source": source.name, "target": target.name, "pairs": pairs}

    def _split(self) -> Split:
        """Nothing is held out where the user gives validation files."""
        if self.valid is not None:
            return Split()
        training, config = self.training, self.config
        count = min(MOST_HELD_OUT, max(1, training.pairs // 20))
        return hold_out(training.lowest, training.pairs, count, config.seed, config.pairs.source)

    def _learn(self, folder: Path, split: Split) -> tuple[Path, Path]:
        """The files of the source's and the target's tokenizer."""
        config, kinds = self.config, _kinds(self.config)
        wants = [
            NOTHING if kind.endswith(SUBWORD_ENDINGS) else SYMBOLS if kind == "symbols" else LINES for kind in kinds
        ]
        share = min(1.0, LEARNED_FROM / max(1, self.training.characters))
        samples: tuple[Sample, Sample] = [], []
        if wants != [NOTHING, NOTHING]:
            with Meter("drawing text", "pairs", total=self.training.pairs, transient=True, say=self.say) as meter:
                samples = sample(
                    config.pairs, wants=wants, share=share, split=split, workers=self.workers, progress=meter.show
                )
        drawn = max((len(text) for text in samples if isinstance(text, list)), default=0)
        some = f" from {drawn:,} pairs drawn at random" if share < 1 and drawn else ""
        self.say(f"learning the vocabulary{some}")
        stems = [folder / "source", folder / "target"]
        lessons = [
            Lesson(str(stem), kind, size, config.seed, config.character_coverage, decompose)
            for stem, kind, size, decompose in zip(
                stems, kinds, _vocab_sizes(config), (config.decompose, False), strict=True
            )
        ]
        long = LINES in wants and share * self.training.characters > LEARNED_HERE
        workers = max(1, self.workers) if long else 0
        if config.shares_vocab:
            [source] = learn(lessons[:1], [_together(*samples)], workers)
            target = load_tokenizer(source).save(stems[1])
        else:
            source, target = learn(lessons, samples, workers)
        sizes = [load_tokenizer(path).vocab_size for path in (source, target)]
        config.model_config(*sizes)  # refuses what can't be, before the long work
        self.say(
            f"vocabulary: {sizes[0]:,} ids, shared"
            if config.shares_vocab
            else "vocabulary: {:,} + {:,} ids".format(*sizes)
        )
        return source, target

    def _inherit(self, folder: Path, origin: OpenRun) -> tuple[Path, Path]:
        """The tokenizers of the run that the training goes on from."""
        source = origin.source_tokenizer.save(folder / "source")
        target = origin.target_tokenizer.save(folder / "target")
        self.say(f"vocabulary and model of {self.config.from_}")
        return source, target

    def _encode(
        self, encoder: Encoder, files: PairFiles, total: int, held_out: list[Pair]
    ) -> Generator[Encoded, None, None]:
        """The pairs of the files, of which there are so many; those that are held out are put into the list."""
        blocks = (block.to_parts() for block in files.blocks())
        done = 0
        with (
            Meter("tokenising", "pairs", total=total, transient=True, say=self.say) as meter,
            closing(in_order(encoder, blocks, self.workers)) as answers,
        ):
            for answer in answers:
                encoded = Encoded(*answer)
                held_out += encoded.held_out
                yield encoded
                done += encoded.counts.read
                meter.show(done + len(held_out))

    def _write(self, folder: Path, encoded: Generator[Encoded, None, None]) -> Counts:
        try:
            with closing(encoded):
                counts = Corpus.prepare(encoded, folder)
        except DataError as error:
            raise DataError(f"{folder.name}: {error}") from None
        self.say(f"{folder.name}: {counts}")
        return counts


def _check_known(facts: Mapping[str, Any], say: Say) -> None:
    """Say how much of the text the vocabulary doesn't know; DataError where that is too much to learn from."""
    counts = Counts(**facts["pairs"]["train"])
    for side, unknown, tokens in (
        ("source", counts.source_unknown, counts.source_tokens),
        ("target", counts.target_unknown, counts.target_tokens),
    ):
        share = unknown / tokens
        if share > MOST_UNKNOWN:
            raise DataError(
                f"{share:.0%} of the {side} tokens are unknown to the vocabulary: the text is in another language, "
                "script or form than what that was learned from (are source and target swapped?); give other text, or "
                "learn a vocabulary from this one: without --from, a sentencepiece model, or a low --character-coverage"
            )
        if share > NOTABLE_UNKNOWN:
            say(f"{share:.1%} of the {side} tokens are unknown to the vocabulary, and will be read and written as ⁇")


def _sides(pairs: list[Pair]) -> tuple[list[str], list[str]]:
    return [source for source, _ in pairs], [target for _, target in pairs]


def _together(sources: Sample, targets: Sample) -> Sample:
    """The text of both sides for one vocabulary."""
    if isinstance(sources, Counter) and isinstance(targets, Counter):
        return sources + targets
    return list(chain.from_iterable(zip(sources, targets, strict=True)))


def _kinds(config: TrainConfig) -> tuple[str, str]:
    """Of the source's and the target's tokenizer."""
    return config.source_tokenizer or config.tokenizer, config.target_tokenizer or config.tokenizer


def _vocab_sizes(config: TrainConfig) -> tuple[int | None, int | None]:
    return config.source_vocab_size or config.vocab_size, config.target_vocab_size or config.vocab_size


def _stamps(config: TrainConfig) -> list[tuple[int, int]]:
    """Size and time of the files, of those that exist."""
    named = (config.source, config.target, config.valid_source, config.valid_target)
    stats = [path.stat() for path in named if path is not None and path.exists()]
    return [(stat.st_size, stat.st_mtime_ns) for stat in stats]
