"""A question about the dog, and a clause about the cat: the model learns to attend to the dog's clause alone.

    python examples/dog_and_cat.py [--png dog_and_cat.png]

The source is two clauses and a question about one of the animals, the target is the answer, "the dog was brown". The
attention of the answer's last word is captured before and after a quarter of a minute of training: the clause that the
question isn't about loses it.
"""

import argparse
import random
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F

from glassformer import ModelConfig, Transformer, Want, capture

ANIMALS = ("dog", "cat")
COLOURS = ("brown", "black", "white", "grey", "red", "golden")
PLACES = ("house", "tree", "road", "river", "wall", "barn")
WORDS = ("</s>", "<unk>", "the", "sat", "by", ",", "was", "what", "colour", *ANIMALS, *COLOURS, *PLACES)
PAD = len(WORDS)
ASKED, OTHER = "clause that is asked about", "the other clause"
QUESTION = "question"
PARTS = (ASKED, OTHER, QUESTION)


Story = tuple[list[str], list[str], list[str]]
"""The words of the source, the words of the answer, and for each word of the source which of `PARTS` it belongs to."""


def draw_story(draw: random.Random, *, held_out: bool) -> Story:
    """Draw one of the tenth of the stories that is held out from training, or one of the others."""
    while True:
        words, answer, parts = any_story(draw)
        if (zlib.crc32(" ".join(words).encode()) % 10 == 0) == held_out:
            return words, answer, parts


def any_story(draw: random.Random) -> Story:
    """Draw a story, with its clauses in any order."""
    animals, colours, places = (draw.sample(words, 2) for words in (ANIMALS, COLOURS, PLACES))
    asked = draw.randrange(2)
    words, parts = [], []
    for n in range(2):
        clause = f"the {colours[n]} {animals[n]} sat by the {places[n]} ,".split()
        words += clause
        parts += [ASKED if n == asked else OTHER] * len(clause)
    question = f"what colour was the {animals[asked]}".split()
    return words + question, f"the {animals[asked]} was {colours[asked]}".split(), parts + [QUESTION] * len(question)


def batch(stories: list[Story]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids of the sources with their ends, and of the answers; all stories are equally long."""
    ids = {word: n for n, word in enumerate(WORDS)}
    source = torch.tensor([[*(ids[word] for word in words), ids["</s>"]] for words, _, _ in stories])
    return source, torch.tensor([[ids[word] for word in answer] for _, answer, _ in stories])


def score(model: Transformer, source: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
    """Return the logits of each word of the answer, given the source and the words before it."""
    start = torch.full((len(source), 1), model.target_pad)  # decoding starts from padding
    return model(source, torch.cat([start, answer[:, :-1]], 1))


def measure(model: Transformer, stories: list[Story]) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the weights of the answer's last word, (stories, source_len), mean over heads; and each part's share."""
    with torch.no_grad(), capture(model, Want(head_mean=True), layers="decoder.0.source_attention") as record:
        score(model, *batch(stories))
    weights = record["decoder.0.source_attention"].head_mean[:, -1]
    shares = {}
    for part in PARTS:
        belongs = torch.tensor([[own == part for own in parts] + [False] for _, _, parts in stories])
        shares[part] = float((weights * belongs).sum(1).mean())
    return weights, shares


def train(model: Transformer, draw: random.Random, updates: int) -> None:
    """Train on stories that are not held out."""
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=updates)
    model.train()
    for _ in range(updates):
        source, answer = batch([draw_story(draw, held_out=False) for _ in range(64)])
        loss = F.cross_entropy(score(model, source, answer).flatten(0, 1), answer.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()


def main(updates: int, seed: int, png: Path | None) -> None:
    """Train the model with so many updates of 64 stories, print where it attends before and after, and draw it."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    sizes = dict(d_model=64, heads=4, encoder_layers=2, decoder_layers=1, d_ff=128, dropout=0.0)
    model = Transformer(ModelConfig(source_vocab_size=PAD + 1, target_vocab_size=PAD + 1, **sizes)).eval()
    test = [draw_story(draw, held_out=True) for _ in range(500)]
    before, share_before = measure(model, test)
    train(model, draw, updates)
    after, share_after = measure(model, test)
    source, answer = batch(test)
    with torch.no_grad():
        right = (score(model, source, answer).argmax(-1) == answer).all(1).float().mean()
    print(f"right answers to 500 new questions: {right:.1%}")
    print(f"{'the last word attends to':30}before  after training")
    for part in PARTS:
        print(f"{part:30}{share_before[part]:6.1%}{share_after[part]:7.1%}")
    if png is not None:
        plot(test[0], before[0], after[0], png)


def plot(one: Story, before: torch.Tensor, after: torch.Tensor, png: Path) -> None:
    """Draw a bar for each word of a story: its weight for the answer's last word."""
    from matplotlib.figure import Figure

    words, answer, parts = one
    colours = {ASKED: "#2b6fae", OTHER: "#c2410c", QUESTION: "#5d6673"}
    figure = Figure(figsize=(9, 4.6), dpi=110, layout="constrained")
    panels = figure.subplots(2, sharex=True, sharey=True)
    for axes, weights, when in zip(panels, (before, after), ("before training", "after training"), strict=True):
        for part, colour in colours.items():
            places = [place for place, own in enumerate(parts) if own == part]
            axes.bar(places, weights[places], color=colour, label=part)
        axes.set_title(when, loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e4e7ec")
        axes.set_axisbelow(True)
        axes.set_ylabel("weight")
    panels[0].legend(frameon=False)
    panels[1].set_xticks(range(len(words)), words, rotation=45, ha="right")
    figure.suptitle(f"how much attention the last word of “{' '.join(answer)}” gives to each word", fontsize=11)
    figure.savefig(png)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=500, help="updates of 64 stories each")
    parser.add_argument("--seed", type=int, default=1, help="seed of everything random")
    parser.add_argument("--png", type=Path, help="a picture to draw")
    main(**vars(parser.parse_args()))
