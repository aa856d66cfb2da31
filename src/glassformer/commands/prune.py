"""`glassformer prune`: remove the attention heads that matter least."""

import sys

from glassformer.insight.config import PruneConfig
from glassformer.run.config import read_config
from glassformer.terminal import loading


def prune_heads(config: PruneConfig) -> int:
    """Prune a run into a new run folder, and print what it cost."""
    if not config.is_reported:  # afterwards the run and the data may be gone
        read_config(config.run)
        for pairs in filter(None, (config.pairs, config.valid_pairs)):
            pairs.check()
    with loading():
        from glassformer.device import tame_memory
        from glassformer.insight.chart import draw_pruning
        from glassformer.insight.prune import CONTINUES, prune, report_lines
        from glassformer.pictures import can_draw
        from glassformer.run.names import PRUNED_PICTURE

    tame_memory()
    pruning = prune(config, lambda line: print(line, file=sys.stderr))
    if isinstance(pruning, int):
        print(CONTINUES)
        return 128 + pruning
    drawn = can_draw()
    if drawn:
        draw_pruning(pruning, config.out / PRUNED_PICTURE)
    for line in report_lines(pruning):  # last: whoever reads it may close the pipe, which ends the command
        print(line)
    if drawn:
        print(f"{config.out / PRUNED_PICTURE}: the scores")
    return 0
