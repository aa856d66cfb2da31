"""Multi30k, English to German: half of the heads removed, by seed: the BLEU it costs, the speed, and the size.

    python recipes/multi30k_pruned.py --data DIR [--seeds 1 2 3] [--out runs/multi30k] [--part val]

DIR and the pairs are those of recipes/multi30k.py, and so are the models' sizes. Each seed's model is trained for 1,500
updates, then `glassformer prune` takes 14 of its 28 heads and trains on for 3,000, with less dropout; beside it the
model with all heads is trained on just so. What is lost is the second's BLEU less the first's, both searched as
recipes/multi30k.py does; settings are chosen on val. Stopped, the same command goes on. Speed is measured in turns:
leave the machine alone.
"""

import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import multi30k
import tyro

from glassformer import GlassformerError, PruneConfig, SearchConfig, TrainConfig, compare_speed, open_run, prune


def settings(data: Path, out: Path, seed: int) -> TrainConfig:
    """Return the settings of the model that heads are removed from: the first part of a training."""
    recipe = multi30k.settings(data, out, seed)
    return replace(recipe, out=out / f"pruned/base-{seed}", warmup=500, max_updates=1500)


def settings_pruning(data: Path, out: Path, seed: int) -> PruneConfig:
    """Return those of the pruning: half of the heads at once, and the other part of the training."""
    return PruneConfig(
        run=out / f"pruned/base-{seed}",
        out=out / f"pruned/half-{seed}",
        unpruned=out / f"pruned/whole-{seed}",
        data=(out / "train.en", out / "train.de"),
        valid=(data / "val.lc.norm.tok.en", data / "val.lc.norm.tok.de"),
        keep=0.5,
        rounds=1,
        updates=3000,
        learning_rate=3e-3,
        weight_decay=0.3,
        dropout=0.2,
        batch_tokens=4096,
        tokenize="none",
        seed=seed,
    )


def main(
    data: Path,
    seeds: tuple[int, ...] = (1,),
    out: Path = Path("runs/multi30k"),
    part: Literal["test_2016_flickr", "val"] = "test_2016_flickr",
) -> None:
    """Train, prune and compare a model for each seed.

    Args:
        data: Folder of the tokenised text.
        seeds: One model each.
        out: Where to write the run folders; pairs that recipes/multi30k.py has written there are used.
        part: What to score: the test, or val while settings are chosen.
    """
    multi30k.check(data)
    pairs = multi30k.read(data, part)
    if not all((out / name).exists() for name in ("train.en", "train.de")):
        multi30k.prepare_pairs(data, out, multi30k.settings_back(data, out))
    lost = []
    for seed in seeds:
        multi30k.trained(settings(data, out, seed))
        whole, half = (out / f"pruned/{name}-{seed}" for name in ("whole", "half"))
        if not half.exists() and prune(settings_pruning(data, out, seed)) is None:
            sys.exit("interrupted: the same command goes on")
        bleus = [multi30k.bleu_of(run, pairs).value for run in (whole, half)]
        heads = [open_run(run).model_config.all_heads for run in (whole, half)]
        sizes = [(run / "model.safetensors").stat().st_size / 1e6 for run in (whole, half)]
        speed = compare_speed(whole, half, [source for source, _ in pairs[:200]], "cpu", SearchConfig())
        lost.append(bleus[0] - bleus[1])
        print(
            f"seed {seed}: {heads[0]} heads BLEU {bleus[0]:.2f}, {heads[1]} heads {bleus[1]:.2f}: {lost[-1]:.2f} lost"
        )
        print(f"  {sizes[0]:.1f} -> {sizes[1]:.1f} MB; speed: {speed}", flush=True)
    print(f"BLEU lost on {part}, mean of {len(lost)}: {statistics.mean(lost):.2f}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except GlassformerError as error:
        sys.exit(f"multi30k_pruned.py: error: {error}")
