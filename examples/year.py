"""Which head of the dates model reads the year: chosen on validation, measured on held-out dates, shown on a page.

    python examples/year.py [--run runs/dates] [--out year.html]

RUN is the run of `make demo`, which is trained first if it isn't there (two minutes). While the digits of the year are
written, a head's share is the weight that it puts on the year in the source, the mean over these steps and over dates.
"""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from glassformer import SearchConfig, Translation, Translator, Want, page
from glassformer.demo.dates import DatePhrase, make_dates
from glassformer.demo.demonstration import demonstrate

DATES = 200


def main(run: Path, out: Path) -> None:
    """Choose the head of the dates model `run`, measure it, and write the page of a date to `out`."""
    if not run.exists() and not demonstrate(run, seed=1):
        return
    translator = Translator.load(run, precision="float32")
    splits = make_dates(seed=1)
    names, on_validation = shares(translate(translator, splits.valid))
    held_out = translate(translator, splits.test)
    _, on_test = shares(held_out)
    chosen = int(on_validation.argmax())
    print(f"weight on the year while it is written, {DATES} dates each   validation   held-out")
    for n, name in enumerate(names):
        mark = "   the head that reads the year" if n == chosen else ""
        print(f"  {name:<52}{on_validation[n]:12.1%}{on_test[n]:11.1%}{mark}")
    page(held_out[0][1], title=held_out[0][0].phrase).save(out)
    attention, head = names[chosen].rsplit(" head ", 1)
    print(f"{out}#at={attention}&head={head}&token=1: the page of {held_out[0][0].phrase!r}")


def translate(translator: Translator, dates: Sequence[DatePhrase]) -> list[tuple[DatePhrase, Translation]]:
    """Translate `DATES` of the dates that show all digits of their year."""
    shown = [date for date in dates if date.iso[:4] in date.phrase]
    some = random.Random(1).sample(shown, DATES)
    want = {"source": Want(weights=True)}
    translations = translator.translations([date.phrase for date in some], SearchConfig(beam=1), attention=want)
    return list(zip(some, translations, strict=True))


def shares(dates: Sequence[tuple[DatePhrase, Translation]]) -> tuple[list[str], Tensor]:
    """Return the names of the heads that attend to the source, and each one's share."""
    names: list[str] = []
    by_date = []
    for date, translation in dates:
        attention = translation.attention
        assert attention is not None
        tokens = attention.source_tokens, attention.target_out
        layers = {f"decoder.{n}.source_attention": one.weights[0] for n, one in attention.source.items()}
        names = [f"{name} head {n}" for name, weights in layers.items() for n in range(len(weights))]
        by_date.append(torch.cat([on_year(weights, *tokens, date) for weights in layers.values()]))
    return names, torch.stack(by_date).mean(0)


def on_year(weights: Tensor, source: Sequence[str], target: Sequence[str], date: DatePhrase) -> Tensor:
    """Return each head's share: its weight on the year's characters in the steps that write the year's digits.

    `weights` are (heads, target, source).
    """
    year = date.iso[:4]
    first_in, first_out = ("".join(token[:1] for token in tokens).find(year) for tokens in (source, target))
    if first_out < 0:  # it wrote another year
        return torch.zeros(len(weights))
    return weights[:, first_out : first_out + 4, first_in : first_in + 4].sum(-1).mean(-1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/dates"), help="the dates model")
    parser.add_argument("--out", type=Path, default=Path("year.html"), help="the page to write")
    main(**vars(parser.parse_args()))
