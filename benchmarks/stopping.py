"""What the rules of stopping a beam search cost and bring, on translations of a trained run.

    python benchmarks/stopping.py RUN --source FILE --target FILE [--tokenize none] [--rounds 5]

Each rule translates SOURCE with a beam of 5 in turn, on two threads: seconds (the rules' ratios to `heuristic`, the
default, of neighbouring runs), steps of the decoder, BLEU. Appends to benchmarks/results/stopping.jsonl.
"""

import statistics
import time
from pathlib import Path
from typing import Any

import bench
import tyro

from glassformer import SearchConfig, Translator
from glassformer.generation.config import STOPPING
from glassformer.generation.engines.engine import Engine
from glassformer.pairs.files import PairFiles
from glassformer.scoring.scores import score


def main(run: tyro.conf.Positional[Path], source: Path, target: Path, tokenize: str = "auto", rounds: int = 5) -> None:
    """Measure the rules.

    Args:
        run: The run folder.
        source: Sources, one a line.
        target: References, one a line.
        tokenize: sacreBLEU tokenizer.
        rounds: Times that each rule has its turn.
    """
    print(bench.machine())
    pairs = list(PairFiles(source, target))
    lines, references = [line for line, _ in pairs], [reference for _, reference in pairs]
    translator = Translator.load(run, "cpu")
    step, steps = Engine.step, 0

    def counted(engine: Engine, *given: Any) -> Any:
        nonlocal steps
        steps += 1
        return step(engine, *given)

    Engine.step = counted
    seconds: dict[str, list[float]] = {rule: [] for rule in STOPPING}
    measured: dict[str, Any] = {"run": run.name, "lines": len(lines)}
    for turn in range(rounds + 1):
        for rule in STOPPING:
            steps, began = 0, time.perf_counter()
            found = translator.translate(lines, SearchConfig(stopping=rule))
            if turn:  # the first is for warming up
                seconds[rule].append(time.perf_counter() - began)
            else:
                bleu = score(found, references, "bleu", tokenize=tokenize)
                measured[rule] = {"steps": steps, "BLEU": bleu.value}
    for rule, taken in seconds.items():
        ratios = sorted(a / b for a, b in zip(taken, seconds["heuristic"], strict=True))
        measured[rule] |= {"seconds": taken, "ratio": statistics.median(ratios)}
        print(
            f"{rule:9} {statistics.median(taken):6.2f} s ({min(taken):.2f} to {max(taken):.2f}), "
            f"{measured[rule]['steps']:,} steps, BLEU {measured[rule]['BLEU']:.2f}, "
            f"{statistics.median(ratios):.2f} of heuristic's time"
        )
    bench.keep("stopping", measured)


if __name__ == "__main__":
    tyro.cli(main)
