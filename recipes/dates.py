"""Dates in sixteen languages to ISO 8601: at least 99 % exact match after a minute and a half of training on two cores.

    python recipes/dates.py [--out runs/dates] [--seed 1]

The same as `make demo`: it makes the data (`glassformer.demo.dates`, from CLDR through Babel, nothing is
downloaded), trains with the settings of `glassformer.demo.demonstration.settings`, and prints a table.
"""

import tyro

from glassformer.commands.demo import DemoFlags, demo

if __name__ == "__main__":
    demo(tyro.cli(DemoFlags))
