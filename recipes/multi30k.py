"""Multi30k, English to German, text only, in the protocol of Z. Wu et al. 2021: BLEU of test_2016, each seed and mean.

    python recipes/multi30k.py --data DIR [--seeds 1 2 3] [--out runs/multi30k] [--part val]

DIR holds train, val and test_2016_flickr, each .lc.norm.tok.en and .lc.norm.tok.de: data/task1/tok of
https://github.com/multi30k/dataset (Elliott et al. 2016; for research: see its README). The files are checked against
the sums below. The text is lowercased and tokenised, references too, and BLEU takes plain words between spaces;
vocabulary (a joint BPE of 10,000) and size (at most 3 million parameters) follow the protocol. Settings are chosen on
val. Trainings end by updates, so that a busy machine gets the same weights. Stopped, the same command goes on.

First a model is trained the other way round for a while, and its English for the German of train stands beside the
real pairs (back-translation: Sennrich et al. 2016; of one's own pairs: Nguyen et al. 2020). All seeds learn from these.
"""

import hashlib
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import tyro

from glassformer import (
    BacktranslateConfig,
    GlassformerError,
    PairFiles,
    Score,
    SearchConfig,
    TrainConfig,
    TrainResult,
    Translator,
    open_run,
    score,
    train_once,
    write_pairs,
)

PUBLISHED = {
    "Transformer-tiny, text only (Z. Wu et al. 2021)": 41.02,
    "a system that sees the images too (Guo et al. 2023)": 42.50,
}
Pair = tuple[str, str]
SEARCH = SearchConfig(beam=20, consensus=True)
SHA256 = {
    "train.lc.norm.tok.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
    "train.lc.norm.tok.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    "val.lc.norm.tok.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
    "val.lc.norm.tok.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    "test_2016_flickr.lc.norm.tok.en": "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
    "test_2016_flickr.lc.norm.tok.de": "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
}


def settings(data: Path, out: Path, seed: int) -> TrainConfig:
    """Return the settings that all seeds are trained with, on the pairs that `prepare_pairs` has written."""
    return TrainConfig(
        source=out / "train.en",
        target=out / "train.de",
        valid_source=data / "val.lc.norm.tok.en",
        valid_target=data / "val.lc.norm.tok.de",
        out=out / f"seed-{seed}",
        seed=seed,
        tokenizer=str(out / "back/source.spm"),
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
        max_updates=6500,
        patience=0,
        validate_every=500,
        score_pairs=1014,  # all of them
    )


def settings_back(data: Path, out: Path) -> TrainConfig:
    """Return the settings of the model from German to English, which learns the vocabulary too, in fewer updates."""
    return replace(
        settings(data, out, 11),
        source=data / "train.lc.norm.tok.de",
        target=data / "train.lc.norm.tok.en",
        valid_source=data / "val.lc.norm.tok.de",
        valid_target=data / "val.lc.norm.tok.en",
        out=out / "back",
        tokenizer="bpe",
        vocab_size=10_000,
        learning_rate=5e-3,
        warmup=500,
        cooldown=0.75,
        max_updates=2000,
        score_pairs=500,
    )


def main(
    data: Path,
    seeds: tuple[int, ...] = (1,),
    out: Path = Path("runs/multi30k"),
    part: Literal["test_2016_flickr", "val"] = "test_2016_flickr",
) -> None:
    """Train a model for each seed, and score it.

    Args:
        data: Folder of the tokenised text.
        seeds: One model each.
        out: Where to write the run folders.
        part: What to score: the test, or val while settings are chosen.
    """
    check(data)
    pairs = read(data, part)
    prepare_pairs(data, out, settings_back(data, out))
    values = []
    for seed in seeds:
        config = settings(data, out, seed)
        result = trained(config)
        bleu = bleu_of(config.out, pairs)
        values.append(bleu.value)
        if seed == seeds[0]:
            print(f"settings: {named(config)}")
            print(f"parameters: {open_run(config.out).parameters:,}")
            print(f"BLEU: {part}, of a beam of {SEARCH.beam} what it agrees on, {bleu.signature}")
        print(
            f"seed {seed}: BLEU {bleu.value:.2f}, {result.updates:,} updates, {result.seconds / 60:.1f} min", flush=True
        )
    print(f"mean of {len(values)}: {statistics.mean(values):.2f}")
    if part != "val":
        for name, value in PUBLISHED.items():
            print(f"published: {value:.2f}, {name}")


def prepare_pairs(data: Path, out: Path, config: TrainConfig) -> None:
    """Write train.en and train.de: the pairs of train, and each German sentence once more with the English that a model
    writes for it, where that is another. The model is trained with these settings."""
    result = trained(config)
    print(f"settings of German to English: {named(config)}")
    print(f"German to English: {result.updates:,} updates, {result.seconds / 60:.1f} min", flush=True)
    if (out / "train.en").exists() and (out / "train.de").exists():
        return
    pairs = write_pairs(settings_pairs(data, out))
    for name, files in (("train.en", pairs.source), ("train.de", pairs.target)):
        unfinished = out / f".{name}"
        unfinished.write_bytes(b"".join(path.read_bytes() for path in files))
        unfinished.replace(out / name)


def settings_pairs(data: Path, out: Path) -> BacktranslateConfig:
    """Return the settings of the back-translation: nothing is left out but empty sentences and repeated pairs."""
    real = {"source": data / "train.lc.norm.tok.en", "target": data / "train.lc.norm.tok.de"}
    return BacktranslateConfig(
        run=out / "back",
        written=out / "pairs",
        length_factor=1e9,
        keep_copies=True,
        search=SearchConfig(beam=4),
        student=TrainConfig(**real, out=out / "seed-1"),
    )


def trained(config: TrainConfig) -> TrainResult:
    """Return what a training comes to, now or earlier; stopped on the way, the program ends."""
    result = train_once(config)
    if not result.finished:
        sys.exit("interrupted: the same command goes on")
    return result


def bleu_of(run: Path, pairs: list[Pair]) -> Score:
    """Return BLEU by plain words of the translations that a model's beam agrees on."""
    translations = Translator.load(run).translate([source for source, _ in pairs], SEARCH)
    return score(translations, [target for _, target in pairs], "bleu", tokenize="none")


def named(config: TrainConfig) -> str:
    """Return the settings that aren't defaults."""
    return ", ".join(f"{name} {value}" for name, value in config.changes().items())


def read(data: Path, part: str) -> list[Pair]:
    """Return the pairs of a part, English and German."""
    return list(PairFiles(data / f"{part}.lc.norm.tok.en", data / f"{part}.lc.norm.tok.de"))


def check(data: Path) -> None:
    """Raise GlassformerError unless the folder holds exactly the files that the figures were measured on."""
    for name, expected in SHA256.items():
        path = data / name
        if not path.exists():
            raise GlassformerError(f"{path} is missing: give data/task1/tok of https://github.com/multi30k/dataset")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != expected:
            raise GlassformerError(f"{path} is another version of the file: sha256 {digest}, expected {expected}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except GlassformerError as error:
        sys.exit(f"multi30k.py: error: {error}")
