"""Multi30k, English to German, from raw text with the settings of a small model: BLEU as in recipes/multi30k.py.

    pip install 'glassformer[recipes]'
    python recipes/multi30k_raw.py --data DIR [--out runs/multi30k-raw] [--part val]

DIR is data/task1 of https://github.com/multi30k/dataset with raw/ unpacked, and tok/. Translations are lowercased,
their punctuation normalised and split into tokens as the references in tok/ were (Moses, by sacremoses); how many
references in raw/ come out of that as they stand in tok/ is printed. BLEU then takes plain words between spaces.
Stopped, the same command goes on.
"""

import sys
from pathlib import Path
from typing import Literal

import tyro

from glassformer import (
    GlassformerError,
    PairFiles,
    SearchConfig,
    TrainConfig,
    Translator,
    open_run,
    score,
    train_once,
)

try:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer
except ImportError:
    sys.exit("multi30k_raw.py needs sacremoses: pip install 'glassformer[recipes]'")


def main(
    data: Path,
    out: Path = Path("runs/multi30k-raw"),
    part: Literal["test_2016_flickr", "val"] = "test_2016_flickr",
) -> None:
    """Train, and score.

    Args:
        data: Folder that holds the folders raw and tok.
        out: The run folder to write.
        part: What to score: the test, or val while settings are chosen.
    """
    raw = data / "raw"
    tokenised = PairFiles(data / f"tok/{part}.lc.norm.tok.en", data / f"tok/{part}.lc.norm.tok.de")
    references = [target for _, target in tokenised]
    pairs = list(PairFiles(raw / f"{part}.en", raw / f"{part}.de"))
    result = train_once(
        TrainConfig(
            source=raw / "train.en",
            target=raw / "train.de",
            valid_source=raw / "val.en",
            valid_target=raw / "val.de",
            out=out,
            preset="small",
            tokenizer="unigram",
            vocab_size=8000,
            dropout=0.3,
            batch_tokens=2048,
            warmup=1024,
            validate_every=250,
            metric="bleu",
        )
    )
    if not result.finished:
        sys.exit("interrupted: the same command goes on")
    equal = sum(made == given for made, given in zip(as_tokens([t for _, t in pairs]), references, strict=True))
    translations = Translator.load(out).translate([source for source, _ in pairs], SearchConfig(beam=5))
    bleu = score(as_tokens(translations), references, "bleu", tokenize="none")
    print(f"parameters: {open_run(out).parameters:,}")
    print(f"{equal:,} of {len(references):,} raw references give the tokenised ones")
    print(f"BLEU: {part}, beam 5, lowercased and tokenised, {bleu.signature}")
    print(f"BLEU {bleu.value:.2f}, {result.updates:,} updates, {result.seconds / 60:.1f} min")


def as_tokens(lines: list[str]) -> list[str]:
    """German text as the files in tok/ have it: what scripts/task1-tokenize.sh of the repository does."""
    normalize, tokenize = MosesPunctNormalizer("de").normalize, MosesTokenizer("de").tokenize
    return [tokenize(normalize(line.lower()), return_str=True) for line in lines]


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except GlassformerError as error:
        sys.exit(f"multi30k_raw.py: error: {error}")
