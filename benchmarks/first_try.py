"""The first training on nine samples of data: the settings that glassformer chooses against five set by hand.

    python benchmarks/first_try.py --data DIR [--minutes 2] [--samples ...] [--sides ...] [--runs runs/first_try]

DIR has multi30k/raw (data/task1/raw of https://github.com/multi30k/dataset), 3am_en_zh (train.en, train.zh and val, of
https://github.com/MaxyLee/3AM) and sigmorphon2020_g2p (of https://github.com/sigmorphon/2020, task 1). The samples: the
first 1,000, 3,000, 10,000 and 29,000 pairs of Multi30k (English to German), 3,000 and 10,000 of 3AM (English to
Chinese), 3,600 French words and how they are pronounced, 3,000 numbers in German words, and 10,000 dates.

Every side is `glassformer train --source FILE --out RUN --max-minutes N` with its own flags, and nothing else; `auto`
has none. Each is scored on the same lines, which no training saw: BLEU for sentences, exact match for numbers and
dates, word error rate for words. Prints how far auto is behind the best of the others last, and appends everything to
benchmarks/results/first_try.jsonl.
"""

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import bench
import tyro

from glassformer import Translator
from glassformer.demo.dates import make_dates
from glassformer.pairs.files import PairFiles
from glassformer.scoring.scores import LOWER_IS_BETTER, score

SIDES = {
    "auto": "",
    "tiny characters": "--preset tiny --tokenizer char --warmup 60",
    "tiny subwords": "--preset tiny --tokenizer bpe --vocab-size {pieces} --warmup 200",
    "small subwords": "--preset small --tokenizer unigram --warmup 200",
    "small characters": "--preset small --tokenizer char --warmup 200 --dropout 0.1",
    "tiny, each side its own": "--preset tiny --source-tokenizer {source} --target-tokenizer {target} --warmup 100 "
    "--dropout 0.2 --batch-tokens 1024",
}
"""Flags of each side, as someone who has trained such models before would set them."""


@dataclass(frozen=True)
class Sample:
    """Pairs to train on, others to test on, and the metric that compares."""

    train: Sequence[tuple[str, str]]
    test: Sequence[tuple[str, str]]
    metric: str
    own: tuple[str, str] = ("unigram", "unigram")
    """Kinds of tokenizer for the side that has one for source and target each."""


def all_samples(data: Path) -> Iterable[tuple[str, Sample]]:
    """Yield the nine samples by name."""
    multi30k = list(PairFiles(data / "multi30k/raw/train.en", data / "multi30k/raw/train.de"))
    test = list(PairFiles(data / "multi30k/raw/test_2016_flickr.en", data / "multi30k/raw/test_2016_flickr.de"))
    for count in (1_000, 3_000, 10_000, 29_000):
        yield f"multi30k-{count}", Sample(multi30k[:count], test, "bleu")
    chinese = list(PairFiles(data / "3am_en_zh/train.en", data / "3am_en_zh/train.zh"))
    test = list(PairFiles(data / "3am_en_zh/val.en", data / "3am_en_zh/val.zh"))
    for count in (3_000, 10_000):
        yield f"3am-{count}", Sample(chinese[:count], test, "bleu", own=("unigram", "char"))
    words, unseen = (list(PairFiles(data / f"sigmorphon2020_g2p/{part}/fre_{part}.tsv")) for part in ("train", "test"))
    yield "words", Sample(words, unseen, "wer", own=("char", "symbols"))
    drawn = random.Random(1).sample(range(100_000), 3_300)
    numbers = [(str(number), in_german(number)) for number in drawn]
    yield "numbers", Sample(numbers[:3_000], numbers[3_000:], "exact", own=("char", "char"))
    dates = make_dates(seed=1, train=10_000, valid=1, test=1_000)
    trained, unseen = ([(date.phrase, date.iso) for date in part] for part in (dates.train, dates.test))
    yield "dates", Sample(trained, unseen, "exact", own=("char", "char"))


UNITS = ["null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"]
TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]


def in_german(number: int, last: bool = True) -> str:
    """Return a number below a million in German words; `last` if no noun follows, so that one is eins."""
    if number >= 1000:
        rest = in_german(number % 1000, last) if number % 1000 else ""
        return f"{in_german(number // 1000, last=False)}tausend{rest}"
    if number >= 100:
        rest = in_german(number % 100, last) if number % 100 else ""
        return f"{UNITS[number // 100]}hundert{rest}"
    if number >= 20:
        unit = f"{UNITS[number % 10]}und" if number % 10 else ""
        return f"{unit}{TENS[number // 10 - 2]}"
    if number > 12:
        return {16: "sechzehn", 17: "siebzehn"}.get(number, f"{UNITS[number - 10]}zehn")
    return "eins" if number == 1 and last else UNITS[number]


def train(folder: Path, flags: str, minutes: float) -> None:
    """Run the command on the folder's pairs.tsv; raise where it fails."""
    command = [sys.executable, "-m", "glassformer", "train", "--source", str(folder.parent / "pairs.tsv")]
    command += ["--out", str(folder), "--max-minutes", f"{minutes:g}", *flags.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    folder.mkdir(exist_ok=True)
    (folder / "train.log").write_text(done.stderr + done.stdout, encoding="utf-8")
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")


def tested(folder: Path, sample: Sample) -> float:
    """Return the score on the test pairs, searched as `glassformer translate` does."""
    sources, references = zip(*sample.test, strict=True)
    translations = Translator.load(folder).translate(sources)
    return score(translations, references, sample.metric, symbols="symbols" in sample.own).value


def main(
    data: Path,
    minutes: float = 2.0,
    samples: tuple[str, ...] = (),
    sides: tuple[str, ...] = tuple(SIDES),
    flags: str | None = None,
    runs: Path = Path("runs/first_try"),
) -> None:
    """Train and score.

    Args:
        data: The folder of the corpora.
        minutes: Limit of each training.
        samples: The samples, all if none is named.
        sides: The sides.
        flags: One side more, with these flags.
        runs: Where the runs are kept.
    """
    print(bench.machine())
    asked = {side: SIDES[side] for side in sides} | ({} if flags is None else {flags: flags})
    for name, sample in all_samples(data):
        if samples and name not in samples:
            continue
        folder = runs / name
        folder.mkdir(parents=True, exist_ok=True)
        lines = (f"{source}\t{target}\n" for source, target in sample.train)
        (folder / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
        characters = sum(len(target) for _, target in islice(sample.train, 10_000))
        alphabet = {character for pair in sample.train for text in pair for character in text}
        pieces = len(alphabet) + max(500, min(4_000, characters // 60))
        sizes = {"pieces": pieces, "source": sample.own[0], "target": sample.own[1]}
        measured: dict[str, float] = {}
        for number, (side, words) in enumerate(asked.items()):
            run = folder / str(number)
            shutil.rmtree(run, ignore_errors=True)
            began = time.monotonic()
            train(run, words.format(**sizes), minutes)
            measured[side] = tested(run, sample)
            took = f"{time.monotonic() - began:.0f} s"
            print(f"{name:16} {side:40} {sample.metric} {measured[side]:6.2f}   {took}", flush=True)
        behind = None
        if len(measured) > 1 and "auto" in measured:
            others = [value for side, value in measured.items() if side != "auto"]
            lower = sample.metric in LOWER_IS_BETTER
            best = (min if lower else max)(others)
            behind = 100 * (measured["auto"] / best - 1) if lower else best - measured["auto"]
            print(f"{name:16} auto is behind the best by {behind:.2f}{' %' if lower else ''}", flush=True)
        facts = {"sample": name, "metric": sample.metric, "minutes": minutes, "behind": behind}
        bench.keep("first_try", facts | measured)


if __name__ == "__main__":
    tyro.cli(main)
