"""Draws docs/img/masks.png: what a wrong mask looks like.

pip install -e '.[plots]' && python docs/make/masks.py
"""

from pathlib import Path

import torch

from glassformer.attention.masks import causal, keep_from_lengths
from glassformer.pictures import ACCENT, INK, LABEL, color_map, new_figure, save_figure, style_map

LENGTH = 12
right = {
    "causal": causal(LENGTH, LENGTH)[0, 0],
    "padding": keep_from_lengths(torch.tensor([8]), LENGTH)[0, 0].expand(LENGTH, LENGTH),
}
figure = new_figure("masks", figsize=(8.4, 5.9), dpi=110)
for row, (name, keep) in zip(figure.subplots(2, 3), right.items(), strict=True):
    for axes, (kind, mask) in zip(row, {"right": keep, "flipped": ~keep, "transposed": keep.T}.items(), strict=True):
        axes.imshow(mask, cmap=color_map(), vmin=-0.15, vmax=1.2)
        axes.hlines([n - 0.5 for n in range(LENGTH)], -0.5, LENGTH - 0.5, color="white", linewidth=0.8)
        axes.vlines([n - 0.5 for n in range(LENGTH)], -0.5, LENGTH - 0.5, color="white", linewidth=0.8)
        axes.set(xticks=[0, LENGTH - 1], yticks=[0, LENGTH - 1])
        style_map(axes, title=f"{name}, {kind}", x="key", y="query")
        if kind != "right":
            axes.set_title(axes.get_title(loc="left"), loc="left", color=ACCENT)
figure.suptitle("dark: the query may look at the key", fontsize=LABEL, color=INK)
save_figure(figure, Path(__file__).parents[1] / "img" / "masks.png")
