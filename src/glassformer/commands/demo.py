"""`glassformer demo`: train a model that reads dates, without a download."""

from dataclasses import dataclass
from pathlib import Path

from glassformer.settings.checks import Seed
from glassformer.terminal import loading


@dataclass(frozen=True, kw_only=True)
class DemoFlags:
    """Train a model, in about two minutes, that reads dates in 16 languages."""

    out: Path = Path("runs/dates")
    """The run folder to write; one of an earlier demo is replaced."""
    seed: Seed = 1
    """Seed of the data and the training."""


def demo(flags: DemoFlags) -> int:
    """Run the demonstration."""
    with loading():
        from glassformer.demo.demonstration import demonstrate

    signal = demonstrate(flags.out, flags.seed)
    return 128 + signal if signal else 0
