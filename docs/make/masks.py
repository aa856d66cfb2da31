"""Draws docs/img/masks.png: what a wrong mask looks like.

pip install -e '.[plots]' && python docs/make/masks.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

from glassformer.attention.masks import causal, keep_from_lengths

LENGTH = 12
right = {
    "causal": causal(LENGTH, LENGTH)[0, 0],
    "padding": keep_from_lengths(torch.tensor([8]), LENGTH)[0, 0].expand(LENGTH, LENGTH),
}
figure, axes = plt.subplots(2, 3, figsize=(8.4, 5.9), layout="constrained")
for row, (name, keep) in zip(axes, right.items(), strict=True):
    for axis, (kind, mask) in zip(row, {"right": keep, "flipped": ~keep, "transposed": keep.T}.items(), strict=True):
        axis.imshow(mask, cmap="Blues", vmin=0, vmax=1.3)
        axis.set_title(f"{name}, {kind}", color="black" if kind == "right" else "firebrick")
        axis.set_xticks(range(-1, LENGTH), minor=True)
        axis.hlines([n - 0.5 for n in range(LENGTH)], -0.5, LENGTH - 0.5, color="white", linewidth=0.8)
        axis.vlines([n - 0.5 for n in range(LENGTH)], -0.5, LENGTH - 0.5, color="white", linewidth=0.8)
        axis.set(xlabel="key", ylabel="query", xticks=[0, LENGTH - 1], yticks=[0, LENGTH - 1])
        axis.tick_params(which="both", length=0)
figure.savefig(Path(__file__).parents[1] / "img" / "masks.png", dpi=110)
