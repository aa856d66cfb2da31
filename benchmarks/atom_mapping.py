"""Which head of the model in the package rxnmapper maps the atoms of a chemical reaction, measured for all 96.

    python benchmarks/atom_mapping.py [--package DIR] [--png docs/img/atom_mapping.png]

The model is an ALBERT that was trained to fill gaps in reactions written as SMILES (Schwaller et al. 2021). Its authors
read the mapping from one head, layer 10 and head 5, both counted from 0. `reactions.tsv` has reactions whose mapping is
certain. `capture` records the weight that each head puts on the true partner of a product atom, and the token at which
the head looks most; `study_alignment` makes a share of each. Two more shares need all weights and some chemistry: the
largest weight among the reactant atoms, and the same for the sum of both directions, which the authors take. The
captured weights are compared with those that the model returns itself.

Prints the heads, best first, and appends to benchmarks/results/atom_mapping.jsonl. Needs the extra `huggingface` and
the package's folder, which `pip install --no-deps rxnmapper` brings; nothing of its code is run.
"""

import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench
import torch
import tyro
from torch import Tensor

from glassformer import Want, capture
from glassformer.capture.record import Captured
from glassformer.insight.alignment import AlignedHead, study_alignment
from glassformer.insight.chart import plot_alignment
from glassformer.pictures import ACCENT, load_matplotlib, save_figure

REACTIONS = Path(__file__).parent / "reactions.tsv"
MODEL = Path("models", "transformers", "albert_heads_8_uspto_all_1310k")
"""Where the package keeps its model."""
AUTHORS = 10, 5
"""The layer and the head whose weights the authors read: RXNMapper's defaults in rxnmapper/core.py, version 0.4.3."""
BATCH = 32
SHOWN = 10
"""Heads that are printed."""

TOKEN = re.compile(r"\[[^\]]*\]|Br|Cl|>>|%\d\d|.")
"""A bracketed atom, one of two letters, the arrow, a ring of two digits, or any letter."""


def is_atom(token: str) -> bool:
    return token[0].isalpha() or token[0] == "["


@dataclass(frozen=True)
class Reaction:
    """A reaction as tokens, with the atoms of both sides by their place, and where product atoms come from."""

    name: str
    tokens: list[str]
    reactants: list[int]
    partners: dict[int, list[int]]
    """Places of the reactant atoms that a product atom may come from, by its place."""

    @classmethod
    def read(cls, line: str) -> "Reaction":
        """Read a line of reactions.tsv."""
        name, smiles, partners = line.split("\t")
        tokens = ["[CLS]", *TOKEN.findall(smiles), "[SEP]"]
        arrow = tokens.index(">>")
        atoms = [place for place in range(1, len(tokens) - 1) if is_atom(tokens[place])]
        reactants, products = ([n for n in atoms if (n < arrow) == before] for before in (True, False))
        found = {
            place: [reactants[int(n)] for n in of.split(",")]
            for place, of in zip(products, partners.split(), strict=True)
            if of != "-"
        }
        return cls(name, tokens, reactants, found)


@dataclass(frozen=True)
class Batch:
    """Reactions as a model reads them: ids, and masks that mark padding, partners and reactant atoms."""

    inputs: dict[str, Tensor]
    alignment: Tensor
    """Of each product atom its partners: (batch, tokens, tokens)."""
    reactants: Tensor
    """(batch, tokens)"""

    @classmethod
    def of(cls, reactions: Sequence[Reaction], vocabulary: dict[str, int]) -> "Batch":
        """Return reactions as a batch."""
        size = len(reactions), max(len(one.tokens) for one in reactions)
        ids, keep = torch.full(size, vocabulary["[PAD]"]), torch.zeros(size, dtype=torch.long)
        alignment, reactants = torch.zeros(*size, size[1], dtype=torch.bool), torch.zeros(size, dtype=torch.bool)
        for row, one in enumerate(reactions):
            length = len(one.tokens)
            ids[row, :length] = torch.tensor([vocabulary.get(token, vocabulary["[UNK]"]) for token in one.tokens])
            keep[row, :length] = 1
            reactants[row, one.reactants] = True
            for place, partners in one.partners.items():
                alignment[row, place, partners] = True
        return cls({"input_ids": ids, "attention_mask": keep}, alignment, reactants)


@dataclass(frozen=True)
class Measured:
    """A head by its layer and number, with its shares of the product atoms."""

    layer: int
    head: int
    found: float
    """The largest weight of all tokens falls on the partner."""
    weight: float
    """Mean weight on the partner."""
    among_atoms: float
    """The largest weight of the reactant atoms falls on the partner."""
    both_directions: float
    """The same for the weights of both directions added."""

    def __str__(self) -> str:
        note = "  the authors'" if (self.layer, self.head) == AUTHORS else ""
        shares = f"{self.found:8.1%}{self.weight:8.1%}{self.among_atoms:22.1%}{self.both_directions:17.1%}"
        return f"{self.layer:5}{self.head:6}{shares}{note}"


def main(package: Path | None = None, reactions: Path = REACTIONS, png: Path | None = None) -> None:
    """Rank the heads.

    Args:
        package: The folder of rxnmapper, where Python doesn't find it.
        reactions: The reactions and their partners.
        png: Also draw the heads into this file (extra `plots`).
    """
    folder = find_model(package)
    vocabulary = {token: n for n, token in enumerate((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())}
    model = load_model(folder)
    rows = [Reaction.read(line) for line in reactions.read_text(encoding="utf-8").splitlines()]
    batches = [Batch.of(rows[first : first + BATCH], vocabulary) for first in range(0, len(rows), BATCH)]
    studied = study_alignment(*(record(model, batch, Want(agreement=batch.alignment, top=1)) for batch in batches))
    apart = difference(model, batches[0])
    atoms, by_position = sum(len(one.partners) for one in rows), studied[0].by_position
    print(bench.machine())
    print(f"{len(rows)} reactions, {atoms} product atoms; captured weights are within {apart:.0e} of the model's own")
    print(f"always looking at the one best relative position finds {by_position:.1%}")
    ranked = sorted(measure(model, batches, studied), key=lambda one: -one.found)
    place = next((n for n, one in enumerate(ranked) if (one.layer, one.head) == AUTHORS), len(ranked))
    print("layer  head   found  weight  among reactant atoms  both directions")
    for n, one in enumerate(ranked):
        if n < SHOWN or n == place:
            print(one)
    other = max(one.found for one in ranked if one.head != AUTHORS[1])
    print(
        f"the authors' head is number {place + 1} of {len(ranked)}; heads with another number find at most {other:.1%}"
    )
    found = {"reactions": len(rows), "atoms": atoms, "by_position": by_position, "authors": place + 1, "others": other}
    bench.keep("atom_mapping", {**found, "apart": apart, "heads": [vars(one) for one in ranked[:SHOWN]]})
    if png is not None:
        draw(studied, png)


def find_model(package: Path | None) -> Path:
    """Return the folder of the model inside the package, or exit with the reason why it can't be found."""
    if package is None:
        found = importlib.util.find_spec("rxnmapper")
        if found is None or not found.submodule_search_locations:
            sys.exit(
                "atom_mapping.py: skipped: rxnmapper isn't there: pip install --no-deps rxnmapper, or --package DIR"
            )
        package = Path(found.submodule_search_locations[0])
    if not (package / MODEL / "config.json").is_file():
        sys.exit(f"atom_mapping.py: error: --package must be the folder rxnmapper, which has {MODEL}, got {package}")
    return package / MODEL


def load_model(folder: Path) -> Any:
    """Return the model without the part that fills the gaps. Its weights are read as tensors and nothing else."""
    from transformers import AlbertConfig, AlbertModel

    model = AlbertModel(AlbertConfig.from_pretrained(folder)).eval()
    weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    part = "albert."
    model.load_state_dict({name.removeprefix(part): x for name, x in weights.items() if name.startswith(part)})
    return model


def record(model: Any, batch: Batch, want: Want) -> Captured:
    """Return what is captured of a batch."""
    with torch.no_grad(), capture(model, want) as captured:
        model(**batch.inputs)
    return captured


def measure(model: Any, batches: Sequence[Batch], studied: Sequence[AlignedHead]) -> Iterator[Measured]:
    """Yield each head with all its shares. All weights of a batch are held at once."""
    layers = list(dict.fromkeys(one.attention for one in studied))
    among, both, atoms = Counter[tuple[str, int]](), Counter[tuple[str, int]](), 0
    for batch in batches:
        atoms += int(batch.alignment.any(-1).sum())
        for name, observation in record(model, batch, Want(weights=True)).items():
            w = observation.weights
            for counts, x in ((among, w), (both, w + w.mT)):
                keys = x.masked_fill(~batch.reactants[:, None, None], -1.0).argmax(-1, keepdim=True)
                hits = batch.alignment[:, None].expand_as(w).gather(-1, keys).sum((0, 2, 3))
                counts.update({(name, n): hit for n, hit in enumerate(hits.tolist())})
    for one in studied:
        key = one.attention, one.head
        shares = (one.found, one.weight, among[key] / atoms, both[key] / atoms)
        yield Measured(layers.index(one.attention), one.head, *shares)


def difference(model: Any, batch: Batch) -> float:
    """Return the largest difference of the captured weights from those that the model returns in its eager form."""
    captured = [observation.weights for observation in record(model, batch, Want(weights=True)).values()]
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        returned = model(**batch.inputs, output_attentions=True).attentions
    model.set_attn_implementation(before)
    real = batch.inputs["attention_mask"][:, None, :, None]
    return max(((one - other) * real).abs().max().item() for one, other in zip(captured, returned, strict=True))


def draw(studied: Sequence[AlignedHead], png: Path) -> None:
    """Draw the heads, with a ring around the authors'."""
    figure = plot_alignment(studied)
    layer, head = AUTHORS
    corner = head - 0.5, layer - 0.5
    figure.axes[0].add_patch(
        load_matplotlib("--png").patches.Rectangle(corner, 1, 1, fill=False, edgecolor=ACCENT, linewidth=2.5)
    )
    save_figure(figure, png)


if __name__ == "__main__":
    tyro.cli(main)
