"""From the user's files to a run folder that training can start in: checks, tokenizers, token arrays."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from glassformer.errors import DataError, RunError
from glassformer.files import write_json
from glassformer.run import CONFIG, METRICS, RESUME, WEIGHTS, is_run_folder, write_config
from glassformer.text.corpus import Corpus, Counts
from glassformer.text.pairs import Pair, PairFiles, hold_out
from glassformer.text.scores import bleu_scorer
from glassformer.text.tokenizer import ENDINGS, Tokenizer, check_kind, train_tokenizer
from glassformer.training.config import TrainConfig

MOST_HELD_OUT = 1000

Say = Callable[[str], None]


def prepare_run(config: TrainConfig, say: Say) -> None:
    """Make the run folder `config.out` with tokenizers, config.json and, in resume/, the token arrays.

    Everything is made in a hidden folder near it and moved there when complete, so a failure leaves what was there.
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
    for kind in (config.tokenizer, config.source_tokenizer, config.target_tokenizer):
        if kind is not None:
            check_kind(kind)
    if config.tokenize != "auto":
        bleu_scorer(config.tokenize)
    total = _count(config.pairs)
    if config.valid_pairs is not None:
        _count(config.valid_pairs)

    there = next(folder for folder in out.parents if folder.exists())
    building = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".preparing", dir=there))
    try:
        building.chmod(0o755)
        _fill(config, building, total, say)
        if out.exists():
            shutil.rmtree(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        building.replace(out)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _check_nothing_is_lost(config: TrainConfig) -> None:
    """Raise RunError where replacing the run would remove files that training did not write."""
    if not config.out.exists():
        return
    ours = {CONFIG, WEIGHTS, METRICS, RESUME} | {f"{side}{end}" for side in ("source", "target") for end in ENDINGS}
    if foreign := sorted(path.name for path in config.out.iterdir() if path.name not in ours):
        raise RunError(f"{config.out} also holds {', '.join(foreign[:3])}: move that away, or choose another --out")


def read_valid_pairs(folder: Path) -> list[Pair]:
    """The validation pairs, as text, that `prepare_run` set aside for the score."""
    pairs = json.loads((folder / RESUME / "valid.json").read_text(encoding="utf-8"))["pairs"]
    return [(source, target) for source, target in pairs]


def _fill(config: TrainConfig, folder: Path, total: int, say: Say) -> None:
    training, valid = _split(config, total)
    say("learning the vocabulary")
    source_tokenizer, target_tokenizer = _tokenizers(config, training)
    sizes = (source_tokenizer.vocab_size, target_tokenizer.vocab_size)
    model = config.model_config(*sizes)
    say(
        f"vocabulary: {sizes[0]:,} ids, shared"
        if model.shared_vocab
        else f"vocabulary: {sizes[0]:,} + {sizes[1]:,} ids"
    )

    def prepare(name: str, pairs: Iterable[Pair], max_tokens: int, max_ratio: float) -> Counts:
        limits = {"max_tokens": max_tokens, "max_ratio": max_ratio}
        part, read = folder / RESUME / name, 0

        def progress(more: int) -> None:
            nonlocal read
            read += more
            if read // 500_000 > (read - more) // 500_000:
                say(f"{name}: {read:,} pairs read")

        try:
            _, counts = Corpus.prepare(pairs, part, source_tokenizer, target_tokenizer, **limits, progress=progress)
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
        say(f"{name}: {counts}")
        return counts

    counts = {
        "train": prepare("train", training, config.max_tokens, config.max_ratio).to_json(),
        "valid": prepare("valid", valid, 1 << 30, float("inf")).to_json(),
    }
    scored = [pair for pair, _ in zip((p for p in valid if all(p)), range(config.score_pairs), strict=False)]
    write_json(folder / RESUME / "valid.json", {"pairs": scored})
    write_config(folder, model, source_tokenizer, target_tokenizer, {"settings": config.to_json(), "pairs": counts})


def _split(config: TrainConfig, total: int) -> tuple[Iterable[Pair], Iterable[Pair]]:
    """Training and validation pairs: the user's validation files, or some of the training pairs held out."""
    if config.valid_pairs is not None:
        return config.pairs, config.valid_pairs
    return hold_out(config.pairs, min(MOST_HELD_OUT, max(1, total // 20)), config.seed)


def _tokenizers(config: TrainConfig, pairs: Iterable[Pair]) -> tuple[Tokenizer, Tokenizer]:
    def learn(lines: Iterator[str], kind: str | None, vocab_size: int | None) -> Tokenizer:
        return train_tokenizer(
            lines,
            kind=kind or config.tokenizer,
            vocab_size=vocab_size or config.vocab_size,
            seed=config.seed,
            coverage=config.character_coverage,
        )

    if config.shares_vocab:
        both = learn((side for pair in pairs for side in pair), None, None)
        return both, both
    return (
        learn((source for source, _ in pairs), config.source_tokenizer, config.source_vocab_size),
        learn((target for _, target in pairs), config.target_tokenizer, config.target_vocab_size),
    )


def _count(files: PairFiles) -> int:
    """How many pairs the files hold; raises DataError if they can't be used."""
    files.check()
    total = sum(1 for _ in files)
    if not total:
        raise DataError(f"{files.source} is empty: at least one pair is needed")
    return total
