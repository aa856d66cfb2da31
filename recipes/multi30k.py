"""Multi30k, English to German, text only, in the protocol of Wu et al. 2021: BLEU of test_2016 by seed, and the mean.

    python recipes/multi30k.py --data DIR [--seeds 1 2 3] [--out runs/multi30k] [--part val]

DIR holds train, val and test_2016_flickr, each .lc.norm.tok.en and .lc.norm.tok.de: data/task1/tok of
https://github.com/multi30k/dataset (Elliott et al. 2016; for research: see its README). The files are checked against
the sums below. The text is lowercased and tokenised, references too, and BLEU takes plain words between spaces;
vocabulary (a joint BPE of 10,000) and size (at most 3 million parameters) follow the protocol. Settings are chosen on
val. Stopped, the same command goes on.
"""

import hashlib
import statistics
import sys
from pathlib import Path
from typing import Literal

import tyro

from glassformer import SearchConfig, TrainConfig, Translator
from glassformer.errors import DataError, GlassformerError
from glassformer.run import open_run
from glassformer.text.pairs import PairFiles
from glassformer.text.scores import score
from glassformer.training.loop import train_once
from glassformer.transformer.model import count_parameters

PUBLISHED = {
    "Transformer-tiny, text only (Wu et al. 2021)": 41.02,
    "the best that sees the images too (EMNLP 2023, main 173)": 42.50,
}
SHA256 = {
    "train.lc.norm.tok.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
    "train.lc.norm.tok.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    "val.lc.norm.tok.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
    "val.lc.norm.tok.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    "test_2016_flickr.lc.norm.tok.en": "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
    "test_2016_flickr.lc.norm.tok.de": "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
}


def settings(data: Path, out: Path, seed: int, minutes: float) -> TrainConfig:
    """What all seeds are trained with."""
    return TrainConfig(
        source=data / "train.lc.norm.tok.en",
        target=data / "train.lc.norm.tok.de",
        valid_source=data / "val.lc.norm.tok.en",
        valid_target=data / "val.lc.norm.tok.de",
        out=out / f"seed-{seed}",
        seed=seed,
        tokenizer="bpe",
        vocab_size=10_000,
        tokenize="none",
        d_model=160,
        heads=4,
        encoder_layers=3,
        decoder_layers=2,
        d_ff=400,
        dropout=0.3,
        batch_tokens=4096,
        learning_rate=3e-3,
        warmup=1000,
        cooldown=0.3,
        guide=0.2,
        max_updates=5000,
        max_minutes=minutes,
        patience=0,
        validate_every=500,
        score_pairs=1014,  # all of them
    )


def main(
    data: Path,
    seeds: tuple[int, ...] = (1,),
    out: Path = Path("runs/multi30k"),
    minutes: float = 57.0,
    part: Literal["test_2016_flickr", "val"] = "test_2016_flickr",
) -> None:
    """Train a model for each seed, and score it.

    Args:
        data: Folder of the tokenised text.
        seeds: One model each.
        out: Where to write the run folders.
        minutes: Most time for each training, validations included.
        part: What to score: the test, or val while settings are chosen.
    """
    check(data)
    pairs = list(PairFiles(data / f"{part}.lc.norm.tok.en", data / f"{part}.lc.norm.tok.de"))
    values = []
    for seed in seeds:
        config = settings(data, out, seed, minutes)
        result = train_once(config)
        if not result.finished:
            sys.exit("interrupted: the same command goes on")
        found = Translator.load(config.out).translate([source for source, _ in pairs], SearchConfig(beam=5))
        bleu = score(found, [target for _, target in pairs], "bleu", tokenize="none")
        values.append(bleu.value)
        if seed == seeds[0]:
            print("settings: " + ", ".join(f"{name} {value}" for name, value in config.changes().items()))
            print(f"parameters: {count_parameters(open_run(config.out).model):,}")
            print(f"BLEU: {part}, beam 5, {bleu.signature}")
        print(
            f"seed {seed}: BLEU {bleu.value:.2f}, {result.updates:,} updates, {result.seconds / 60:.1f} min", flush=True
        )
    print(f"mean of {len(values)}: {statistics.mean(values):.2f}")
    if part != "val":
        for name, value in PUBLISHED.items():
            print(f"published: {value:.2f}, {name}")


def check(data: Path) -> None:
    """Raise DataError unless the folder holds exactly the files that the figures were measured on."""
    for name, expected in SHA256.items():
        path = data / name
        if not path.exists():
            raise DataError(f"{path} is missing: give data/task1/tok of https://github.com/multi30k/dataset")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != expected:
            raise DataError(f"{path} is another version of the file: sha256 {found}, expected {expected}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except GlassformerError as error:
        sys.exit(f"multi30k.py: error: {error}")
