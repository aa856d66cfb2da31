"""Multi30k, English to German, from raw text: train, translate test_2016_flickr, score with sacreBLEU.

    python recipes/multi30k.py --data DIR [--out runs/multi30k]

DIR holds train, val and test_2016_flickr, each .en and .de, as in data/task1/raw (unpacked) of
https://github.com/multi30k/dataset (Elliott et al. 2016; for research: see its README). The files are checked
against the sums below before anything is done.
"""

import hashlib
import sys
from pathlib import Path

import tyro

from glassformer import TrainConfig, Translator, train
from glassformer.errors import DataError, GlassformerError
from glassformer.text.pairs import PairFiles
from glassformer.text.scores import score_all

SHA256 = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
}


def main(
    data: Path, out: Path = Path("runs/multi30k"), minutes: float = 45.0, seed: int = 1, overwrite: bool = False
) -> None:
    """Train on Multi30k and score the test set.

    Args:
        data: Folder of the raw text.
        out: The run folder to write.
        minutes: Time for training.
        seed: Seed of everything random.
        overwrite: Replace the run in the output folder.
    """
    check(data)
    settings = TrainConfig(
        source=data / "train.en",
        target=data / "train.de",
        valid_source=data / "val.en",
        valid_target=data / "val.de",
        out=out,
        overwrite=overwrite,
        warmup=500,
        max_minutes=minutes,
        seed=seed,
    )
    result = train(settings)
    if not result.finished:
        sys.exit(f"interrupted; continue with: glassformer train --resume --out {out}")
    pairs = list(PairFiles(data / "test_2016_flickr.en", data / "test_2016_flickr.de"))
    translator = Translator.load(out)
    found = translator.translate([source for source, _ in pairs])
    print(f"trained for {result.seconds / 60:.1f} minutes, {result.updates:,} updates; test_2016_flickr, beam 5:")
    for figure in score_all(found, [target for _, target in pairs]):
        print(figure)


def check(data: Path) -> None:
    """Raise DataError unless the folder holds exactly the files that the figures were measured on."""
    for name, expected in SHA256.items():
        path = data / name
        if not path.exists():
            raise DataError(f"{path} is missing: unpack data/task1/raw of https://github.com/multi30k/dataset there")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != expected:
            raise DataError(f"{path} is another version of the file: sha256 {found}, expected {expected}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except GlassformerError as error:
        sys.exit(f"multi30k.py: error: {error}")
