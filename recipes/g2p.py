"""How words are pronounced, in ten languages: one recipe, a model for each, word error rates of SIGMORPHON 2020.

    python recipes/g2p.py --data DIR [--languages fre kor] [--part dev] [--out runs/g2p]

DIR holds train, dev and test, each with files such as fre_train.tsv: task1/data of https://github.com/sigmorphon/2020
(Gorman et al. 2020; 3,600, 450 and 450 words a language). Settings were chosen on dev. A training takes one core and
ends by updates, so that a busy machine gets the same weights: for two at a time start it twice, each time with half of
the languages. Stopped, the same command goes on; what is trained already is only scored.
"""

import statistics
import sys
from pathlib import Path
from typing import Literal

import tyro

from glassformer import GlassformerError, PairFiles, SearchConfig, TrainConfig, Translator, score, train_once

LANGUAGES = ("arm", "bul", "fre", "geo", "gre", "hin", "hun", "ice", "kor", "lit")
PUBLISHED = {"Transformer": 19.16, "LSTM": 18.53}  # mean word error rates, each tuned per language over 36 settings


def settings(data: Path, language: str, out: Path, seed: int) -> TrainConfig:
    """The one recipe for all languages."""
    return TrainConfig(
        source=data / "train" / f"{language}_train.tsv",
        valid_source=data / "dev" / f"{language}_dev.tsv",
        out=out / language,
        seed=seed,
        source_tokenizer="char",
        decompose=True,  # Korean syllables are made of letters
        target_tokenizer="symbols",
        metric="wer",
        preset="tiny",
        encoder_layers=3,
        decoder_layers=3,
        dropout=0.25,
        batch_tokens=512,
        optimizer="adam",
        weight_decay=0.0,
        warmup=500,
        max_updates=4500,
        patience=0,
        validate_every=250,
        threads=1,
    )


def main(
    data: Path,
    languages: tuple[str, ...] = LANGUAGES,
    part: Literal["test", "dev"] = "test",
    out: Path = Path("runs/g2p"),
    seed: int = 1,
) -> None:
    """Train a model for each language, and score it.

    Args:
        data: Folder with train, dev and test.
        languages: Which of them.
        part: What to score: test, or dev while settings are chosen.
        out: Where to write the run folders.
        seed: Seed of everything random.
    """
    for language in languages:
        for name in ("train", "dev", part):
            path = data / name / f"{language}_{name}.tsv"
            if not path.exists():
                raise GlassformerError(
                    f"{path} is missing: {data} must be task1/data of https://github.com/sigmorphon/2020"
                )
    lines = []
    for language in languages:
        result = train_once(settings(data, language, out, seed))
        if not result.finished:
            sys.exit("interrupted: the same command goes on")
        pairs = list(PairFiles(data / part / f"{language}_{part}.tsv"))
        translations = Translator.load(out / language).translate([word for word, _ in pairs], SearchConfig(beam=5))
        references = [phones for _, phones in pairs]
        words, phones = (score(translations, references, metric, symbols=True).value for metric in ("wer", "ser"))
        lines.append((language, words, phones, result.seconds / 60))
        print_table(lines, part)


def print_table(lines: list[tuple[str, float, float, float]], part: str) -> None:
    """What has been scored so far, and the means."""
    print(f"{part}, beam 5   word error rate   phone error rate   minutes", flush=True)
    for language, words, phones, minutes in lines:
        print(f"{language:<14}{words:>17.2f}{phones:>19.2f}{minutes:>10.1f}")
    words, phones, minutes = map(statistics.mean, list(zip(*lines, strict=True))[1:])
    print(f"{'mean':<14}{words:>17.2f}{phones:>19.2f}{minutes:>10.1f}")
    if len(lines) == len(LANGUAGES) and part == "test":
        for name, value in PUBLISHED.items():
            print(f"published: {name} {value:.2f} (Gorman et al. 2020)")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except GlassformerError as error:
        sys.exit(f"g2p.py: error: {error}")
