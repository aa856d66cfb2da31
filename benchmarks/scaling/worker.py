"""A process of those that are measured: it joins the others, answers questions in turn, and the first writes answers.

    torchrun --nproc-per-node 2 -m scaling.worker FOLDER

FOLDER has questions.json, a list of [name, settings], and the pairs; answers.json appears there. `ask` starts it.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from glassformer.data.corpus import Corpus
from glassformer.device import pick_precision, tame_memory
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.text.tokenizer import SymbolTokenizer
from glassformer.training.distributed import ALONE, Processes, join_processes, local_rows
from glassformer.training.loader import BatchLoader
from glassformer.training.step import Step
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer
from scaling.cases import BURDEN, Case, plan_of
from scaling.translation import TOKENS

BENCHMARKS = Path(__file__).parents[1]
SETTINGS: dict[str, Any] = dict(label_smoothing=0.1, clip_norm=1.0, weight_decay=0.3, seed=1)
"""Settings of every step that is measured."""
WARM_UP = 2
"""Updates before those that are timed."""
LINES = 32
"""Lines of a batch that is translated."""
SIZES = (1 << 12, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
"""Bytes of the tensors that the processes tell each other."""
YARDSTICK = 11e-3
"""Seconds of the product of `measure_yardstick` on a core whose seconds all answers are in."""
PRODUCT = 1024, 512, 2048
"""Rows, inner size and columns of the products that are timed."""


def ask(folder: Path, processes: int, questions: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Return the answers of so many new processes of one thread each."""
    (folder / "questions.json").write_text(json.dumps(questions), encoding="utf-8")
    paths = os.pathsep.join(
        filter(None, (str(BENCHMARKS), str(BENCHMARKS.parent / "src"), os.environ.get("PYTHONPATH")))
    )
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] * (processes > 1)
    command = [sys.executable, "-W", "ignore", *launcher, "-m", "scaling.worker", str(folder)]
    subprocess.run(
        command, check=True, env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    )
    return json.loads((folder / "answers.json").read_text(encoding="utf-8"))


def main(folder: Path) -> None:
    """Answer the questions in a folder."""
    tame_memory()
    torch.set_num_threads(1)
    questions = json.loads((folder / "questions.json").read_text(encoding="utf-8"))
    corpus = Corpus(folder / "pairs")
    with join_processes("cpu") as (processes, _):
        known: dict[str, Callable[..., Any]] = {
            "updates": lambda **settings: time_updates(processes, corpus, **settings),
            "collectives": lambda: time_collectives(processes),
            "burdens": lambda: time_burdens(processes, corpus),
            "translations": lambda **settings: time_translations(processes, **settings),
        }
        answers, before = list[Any](), measure_yardstick(processes)
        for name, settings in questions:
            answer, after = known[name](**settings), measure_yardstick(processes)
            answers.append(scaled(answer, (before + after) / 2))
            before = after
        if processes.first:
            (folder / "answers.json").write_text(json.dumps(answers), encoding="utf-8")


def measure_yardstick(processes: Processes) -> float:
    """Return the seconds of a product in one process while the others wait.

    What others do on the host changes the speed of a shared machine's cores by a third within minutes. So each answer
    is held against the product right before and after it.
    """
    processes.agree(0)
    return processes.agree(_median(_product(), 25) if processes.first else 0.0)[0]


def scaled(answer: Any, yardstick: float) -> Any:
    """Return an answer from a core of this yardstick with its seconds, the floats at any depth, as of `YARDSTICK`."""
    if isinstance(answer, dict):
        return {name: scaled(one, yardstick) for name, one in answer.items()}
    if isinstance(answer, list):
        return [scaled(one, yardstick) for one in answer]
    return answer * YARDSTICK / yardstick if isinstance(answer, float) else answer


def time_updates(
    processes: Processes,
    corpus: Corpus,
    *,
    case: dict[str, int],
    shard: bool,
    updates: int,
    wrapped: bool = False,
    counted: bool = False,
) -> dict[str, Any]:
    """Return the seconds of each update of a case, as `glassformer train` makes them, and what was needed besides.

    `counted` makes one more, in which messages and memory are counted, which takes time. `wrapped` puts a lone process
    into a group of its own and wraps its model as among several, which shows what that costs without any others.
    """
    of = Case(**case)
    torch.manual_seed(1)
    device = torch.device("cpu")
    joined = processes
    if wrapped:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        joined = Processes(0, 2)  # of two, or it would not be wrapped
    model = Transformer(of.config)
    dtype = pick_precision("auto", device)
    step = Step(model, dtype=dtype, optimizer="muon", processes=joined, shard=shard, device=device, **SETTINGS)
    in_optimizer = _timed(step.optimizer)
    plan = plan_of(of, corpus)
    loader = BatchLoader(corpus, of.config, device, ALONE if wrapped else processes)
    numbers = [plan[i : i + 1] for i in range(WARM_UP + updates + counted)]
    seconds, busy, optimizer = list[float](), list[float](), list[float]()
    counter = _Counter()
    began, used = time.perf_counter(), time.process_time()
    for number, (pairs, batches) in enumerate(loader.load((each, None) for each in numbers), start=1):
        with counter if number > WARM_UP + updates else nullcontext():
            step.update(batches, rate=1e-4, number=number, tokens=loader.count_tokens(pairs, batches))
        processes.agree(began, 0, False)
        now, used_now = time.perf_counter(), time.process_time()
        seconds.append(now - began)
        busy.append(used_now - used)
        optimizer.append(sum(in_optimizer))
        in_optimizer.clear()
        began, used = now, used_now
    kept = [*model.parameters(), *(t for p in model.parameters() for t in step.optimizer.state(p).values())]
    kept_bytes = sum(local_rows(tensor).nbytes for tensor in kept)
    if joined.size > 1 and not shard:  # DDP's buckets stay, and the gradients lie in them
        kept_bytes += sum(parameter.nbytes for parameter in model.parameters())
    if wrapped:
        dist.destroy_process_group()
    timed = slice(WARM_UP, WARM_UP + updates)
    return {
        "seconds": seconds[timed],
        "busy": busy[timed],
        "optimizer": optimizer[timed],
        "peak": kept_bytes + counter.peak,
        "traffic": counter.found,
        "pairs": [each[0] for each in numbers[timed]],
        "counted_pairs": numbers[-1][0],
        "bytes": 2 if dtype == torch.bfloat16 else 4,
    }


def time_translations(processes: Processes, *, preset: str, vocab: int, batches: int) -> dict[str, float]:
    """Return the seconds and processor seconds of a line, where each process translates so many batches of its own."""
    torch.manual_seed(1 + processes.rank)
    symbols = SymbolTokenizer([f"s{number}" for number in range(vocab - 3)])
    config = ModelConfig.preset(preset, source_vocab_size=vocab, target_vocab_size=vocab)
    translator = Translator.of(Transformer(config), symbols, symbols)
    ids = torch.randint(2, vocab - 1, (1 + batches, LINES, TOKENS)).tolist()
    texts = [symbols.decode(batch) for batch in ids]
    search = SearchConfig(beam=4, min_length=TOKENS, max_length=TOKENS, batch_lines=LINES)
    translator.translate(texts[0], search)
    processes.agree(0)
    began, used = time.perf_counter(), time.process_time()
    for lines in texts[1:]:
        translator.translate(lines, search)
    busy = time.process_time() - used
    processes.agree(0)
    lines = batches * LINES
    return {"seconds": (time.perf_counter() - began) / lines, "busy": busy / lines}


def _timed(optimizer: Any) -> list[float]:
    """Let an optimizer note the processor seconds of each of its steps in the list that is returned."""
    taken, step = list[float](), optimizer.step

    def timed(*arguments: Any) -> None:
        start = time.process_time()
        step(*arguments)
        taken.append(time.process_time() - start)

    optimizer.step = timed
    return taken


PLAIN = (torch.Tensor, torch.nn.Parameter)


class _Counter(TorchDispatchMode):
    """Counts what a process tells others, and the bytes of the tensors that are made and not freed yet."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[int]] = {}
        """How often each kind of message was sent, and the bytes of the results."""
        self.peak = 0
        self._held = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in PLAIN for kind in types):
            return NotImplemented  # a sharded or an awaited tensor: it comes again as what it is made of
        before = {tensor.untyped_storage().data_ptr() for tensor in _tensors([args, list((kwargs or {}).values())])}
        result = func(*args, **(kwargs or {}))
        for storage in {one.data_ptr(): one for one in map(torch.Tensor.untyped_storage, _tensors(result))}.values():
            if storage.data_ptr() not in before:
                self._held += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        self.peak = max(self.peak, self._held)
        name = str(func)
        if "c10d" in name and (kinds := [kind for kind in ("gather", "scatter", "reduce") if kind in name]):
            found = self.found.setdefault(kinds[0], [0, 0])
            found[0] += 1
            found[1] += max(tensor.nbytes for tensor in _tensors([args, result]))
        return result

    def _free(self, size: int) -> None:
        self._held -= size


def _tensors(found: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists that hold their own numbers."""
    if isinstance(found, torch.Tensor):
        return [found] if type(found) in PLAIN else []
    return [tensor for one in found for tensor in _tensors(one)] if isinstance(found, list | tuple) else []


def time_collectives(processes: Processes) -> dict[str, list[list[float]]]:
    """Return for each kind of message its bytes in each process and the seconds it took, medians of several."""
    size = processes.size
    found: dict[str, list[list[float]]] = {"reduce": [], "gather": [], "scatter": []}
    for total in SIZES:
        whole = torch.zeros(total // 4)
        part = torch.zeros(total // 4 // size)
        kinds: dict[str, Callable[[], Any]] = {
            "reduce": lambda whole=whole: dist.all_reduce(whole),
            "gather": lambda whole=whole, part=part: dist.all_gather_into_tensor(whole, part),
            "scatter": lambda whole=whole, part=part: dist.reduce_scatter_tensor(part, whole),
        }
        for kind, tell in kinds.items():
            found[kind].append([total, _median(tell, 15 if total < 1 << 22 else 7)])
    return found


def time_burdens(processes: Processes, corpus: Corpus) -> dict[str, float]:
    """Return the processor seconds of an operation of products and of an update, all processes doing the same."""
    multiply = _product()
    processes.agree(0)
    products = _median(lambda: [multiply() for _ in range(8)], 25, time.process_time) / (8 * 2 * math.prod(PRODUCT))
    processes.agree(0)
    found = time_updates(ALONE, corpus, case=BURDEN.to_json(), shard=False, updates=4)
    return {"products": products, "update": statistics.median(found["busy"])}


def _product() -> Callable[[], torch.Tensor]:
    """Return a function that multiplies two matrices."""
    rows, inner, columns = PRODUCT
    a, b = torch.randn(rows, inner).bfloat16(), torch.randn(inner, columns).bfloat16()
    return lambda: torch.mm(a, b)


def _median(work: Callable[[], Any], times: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the median of the seconds that work takes by a clock, after two that don't count."""
    taken = []
    for _ in range(times + 2):
        start = clock()
        work()
        taken.append(clock() - start)
    return statistics.median(taken[2:])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
