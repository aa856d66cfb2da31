"""English to Chinese from few pairs: text in Chinese alone, by back-translation, beside `--from` without it.

    python benchmarks/backtranslate.py --data DIR [--seeds 1] [--runs runs/backtranslate]

DIR has 3am_en_zh (train and val, .en and .zh, of https://github.com/MaxyLee/3AM) and tatoeba_en_cmn (train.tsv and
dev.tsv: the first two columns of manythings.org's cmn.txt). Of 3AM's pairs only every tenth is used, as in
docs/quality.md; of the others only the Chinese. The settings are those of that page too, and updates end each training:

- a model from English to Chinese learns from Tatoeba, and `--from` goes on from it with the tenth: for 600 updates, as
  there, and for as many as the next;
- a model from Chinese to English learns in the same way, and writes English for the Chinese of the other nine tenths;
  `glassformer.backtranslate` goes on from the first model with these pairs and the tenth.

Prints a table of BLEU (beam 5, zh tokenizer) and chrF on 3AM's validation file, and appends a line a seed to
benchmarks/results/backtranslate.jsonl. Stopped, the same command goes on.

To see in a minute that it runs: --first 2 --then 2 --more 2 --few 40.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench
import tyro

from glassformer import (
    BacktranslateConfig,
    GlassformerError,
    PairFiles,
    SearchConfig,
    TrainConfig,
    Translator,
    backtranslate,
    score,
    train_once,
)

Pair = tuple[str, str]

MODEL: dict[str, Any] = dict(
    preset="small", tokenizer="unigram", vocab_size=8000, optimizer="adam", weight_decay=0.0, dropout=0.2, warmup=1024
)
STEP = 10
"""Every tenth pair is used."""
Sides = tuple[Path, Path]
"""The file of English lines and the file of Chinese ones; of the other direction the other way round."""


@dataclass(frozen=True)
class Corpus:
    """The files that all trainings read."""

    tatoeba: Sides
    dev: Sides
    tenth: Sides
    valid: Sides
    others: Path
    """Chinese without English."""

    @classmethod
    def write(cls, data: Path, folder: Path, few: int) -> "Corpus":
        """Write the files into a folder, of each the first `few` lines, of Tatoeba 50 times as many, or all of them."""
        folder.mkdir(parents=True, exist_ok=True)

        def sides(name: str, pairs: Sequence[Pair], most: int = few) -> Sides:
            return tuple(written(folder / f"{name}.{n}", [pair[n] for pair in pairs][: most or None]) for n in (0, 1))

        tatoeba = list(PairFiles(data / "tatoeba_en_cmn/train.tsv"))
        train = list(PairFiles(data / "3am_en_zh/train.en", data / "3am_en_zh/train.zh"))
        others = [chinese for number, (_, chinese) in enumerate(train) if number % STEP]
        return cls(
            sides("tatoeba", tatoeba, 50 * few),
            sides("dev", list(PairFiles(data / "tatoeba_en_cmn/dev.tsv"))),
            sides("tenth", train[::STEP]),
            sides("valid", list(PairFiles(data / "3am_en_zh/val.en", data / "3am_en_zh/val.zh"))),
            written(folder / "others", others[: few or None]),
        )


def written(path: Path, lines: Sequence[str]) -> Path:
    """Write lines, and return their file."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return path


def settings(sides: Sides, valid: Sides, out: Path, seed: int, updates: int, **changes: Any) -> TrainConfig:
    """Return the settings of a training on these files, ended by updates."""
    files = dict(zip(("source", "target", "valid_source", "valid_target"), (*sides, *valid), strict=True))
    return TrainConfig(**files, out=out, seed=seed, max_updates=updates, **changes)


def trained(config: TrainConfig) -> Path:
    """Train once, and return the run folder."""
    if not train_once(config).finished:
        sys.exit("interrupted: the same command goes on")
    return config.out


def main(
    data: Path,
    seeds: tuple[int, ...] = (1,),
    runs: Path = Path("runs/backtranslate"),
    first: int = 2000,
    then: int = 600,
    more: int = 2400,
    few: int = 0,
) -> None:
    """Train, back-translate and compare.

    Args:
        data: The folder of the corpora.
        seeds: All trainings once for each.
        runs: Where to write the run folders.
        first: Updates on Tatoeba.
        then: Updates on the tenth, as in docs/quality.md.
        more: Updates with back-translated pairs, and without them for comparison.
        few: Lines of each file that are used, to try it; 0: all.
    """
    corpus = Corpus.write(data, runs / "text", few)
    print(f"{bench.machine()}\n")
    for seed in seeds:
        measured, counts = figures_of_seed(corpus, runs / f"seed-{seed}", seed, (first, then, more), few)
        print(f"\nseed {seed}, {counts['written pairs']['left']:,} written pairs\n")
        print("| | BLEU | chrF |\n|---|---|---|")
        for name, scores in measured.items():
            print(f"| {name} | {scores['BLEU']:.2f} | {scores['chrF']:.2f} |", flush=True)
        bench.keep("backtranslate", {"seed": seed, "counts": counts, "scores": measured})


def figures_of_seed(
    corpus: Corpus, folder: Path, seed: int, updates: tuple[int, int, int], few: int
) -> tuple[dict[str, dict[str, float]], Any]:
    """Do the trainings of a seed; return the scores by what was trained on, and the counts of the written pairs."""
    first, then, more = updates
    model = {**MODEL, "validate_every": 250, **({"vocab_size": None} if few else {})}
    going_on = dict(warmup=1024, validate_every=100)
    tatoeba, dev, tenth, valid = corpus.tatoeba, corpus.dev, corpus.tenth, corpus.valid
    forward = trained(settings(tatoeba, dev, folder / "tatoeba", seed, first, **model))
    backward = trained(settings(tatoeba[::-1], dev[::-1], folder / "tatoeba-back", seed, first, **model))
    back = settings(tenth[::-1], valid[::-1], folder / "back", seed, then, from_=backward, **going_on)
    runs = {
        f"`--from` alone, {count:,} updates": trained(
            settings(tenth, valid, folder / f"alone-{count}", seed, count, from_=forward, **going_on)
        )
        for count in dict.fromkeys((then, more))
    }
    config = BacktranslateConfig(
        run=trained(back),
        text=(corpus.others,),
        real_weight=3,
        search=SearchConfig(beam=5),
        student=settings(tenth, valid, folder / "student", seed, more, from_=forward, **going_on),
    )
    student = backtranslate(config)
    if not student.training.finished:
        sys.exit("interrupted: the same command goes on")
    runs[f"back-translated pairs too, {more:,} updates"] = config.student.out
    pairs = list(PairFiles(*valid))
    return {name: scores_of(run, pairs) for name, run in runs.items()}, student.pairs.counts


def scores_of(run: Path, pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the scores of a run on pairs."""
    sources, references = zip(*pairs, strict=True)
    translations = Translator.load(run).translate(list(sources), SearchConfig(beam=5))
    return {
        one.name: one.value
        for one in (
            score(translations, references, "bleu", tokenize="zh"),
            score(translations, references, "chrf"),
        )
    }


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except GlassformerError as error:
        sys.exit(f"backtranslate.py: error: {error}")
