"""Checks every shape annotation while the tests run, keeps them off the network, and on one thread each.

The models here are tiny: a second thread gains nothing, and two of them on busy cores wait for each other.
"""

import gc
import gzip
import inspect
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import warnings

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "ORT_DISABLE_TELEMETRY": "1",
    "OMP_NUM_THREADS": "1",
}
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:  # as in a script's background, or under nohup; processes inherit it
        signal.signal(number, usual)
os.environ["GLASSFORMER_CALIBRATION"] = "off"  # no test may depend on what a busy machine measures

from importlib import import_module

import jaxtyping
import torch

if torch.cuda.is_available():  # before the hook: Triton compiles the source of its functions, which must be as it is
    import_module("glassformer.attention.kernels.triton")

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from itertools import islice
from pathlib import Path
from types import FunctionType
from typing import Any, get_args

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

# beartype checks one item of a list, and draws which. Drawn by a generator of its own, no check, not even in another
# thread, changes what a test draws, and Hypothesis finds `random` as it left it.
_getrandbits, random.getrandbits = random.getrandbits, random.Random(0).getrandbits
from beartype import BeartypeConf, beartype

random.getrandbits = _getrandbits

with_shapes = jaxtyping.jaxtyped
CHECKED_TIMES = 3
"""Number of times that a function within another is made with its types checked."""
FIRST_CALLS, EACH_CALL = 20, 20
"""Number of calls of a function in a test that are checked, and which of the later ones are: each twentieth."""
_made, _called = Counter[str](), Counter[str]()


def mentions_a_shape(annotation: Any) -> bool:
    """Return whether jaxtyping's part of a type is to be checked; of a string nobody knows."""
    if isinstance(annotation, str):
        return True
    is_array = isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray)
    parts = annotation if isinstance(annotation, (list, tuple)) else get_args(annotation)
    return is_array or any(map(mentions_a_shape, parts))


def checking_types(*, typechecker: Callable) -> Callable:
    """Return the decorator that the import hook gives to all functions and classes.

    jaxtyping adds 20 microseconds to a call. Where no annotation has a shape beartype alone finds the same errors. So
    of the calls of a function in a test the first ones are checked, and then one in so many. Their own decorators take
    milliseconds, so they come with the first call, and with a function within another, which is made at every call of
    that, only the first times.
    """
    shapes = with_shapes(typechecker=typechecker)
    alone = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))

    def decorate(function: Callable) -> Callable:
        name = f"{function.__module__}.{function.__qualname__}"
        _made[name] += 1
        if "<locals>" in name and _made[name] > CHECKED_TIMES:
            return function
        # beartype makes a generator another one around it: a warning would be that frame's.
        if isinstance(function, type) or inspect.isgeneratorfunction(function):
            return shapes(function)
        checked = None

        def called(*args: Any, **kwargs: Any) -> Any:
            nonlocal checked
            if jaxtyping.config.jaxtyping_disable:
                return function(*args, **kwargs)
            _called[name] += 1
            if _called[name] > FIRST_CALLS and _called[name] % EACH_CALL:
                return function(*args, **kwargs)
            if checked is None:
                has_shapes = any(map(mentions_a_shape, function.__annotations__.values()))
                checked = (shapes if has_shapes else alone)(function)
            return checked(*args, **kwargs)

        # Its frame is to be passed over, as those of jaxtyping are, by warnings that name the caller's line.
        named = FunctionType(called.__code__, globals() | {"__name__": "jaxtyping"}, None, None, called.__closure__)
        return update_wrapper(named, function)

    return decorate


jaxtyping.jaxtyped = checking_types
jaxtyping.install_import_hook("glassformer", "beartype.beartype")

from glassformer import cli
from glassformer.alignment.links import Link
from glassformer.data.corpus import Corpus, write_corpus
from glassformer.data.encode import EncodedPairs, PairCounts, PairEncoder
from glassformer.data.processes import count_cores
from glassformer.pairs.files import Pair, PairFiles
from glassformer.run.config import TrainingRecord
from glassformer.run.folder import Run, load_run, write_config, write_weights
from glassformer.text.tokenizer import Tokenizer
from glassformer.training import loop, progress
from glassformer.training.config import TrainConfig
from glassformer.training.train import train
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

SLOWEST = (
    *("tests/test_docs.py", "tests/torture/test_torture.py", "tests/cluster/test_on_ray.py"),
    *("tests/training/test_distributed.py", "tests/training/test_loop.py", "tests/test_cli.py"),
    *("tests/attention/kernels/test_gpu.py", "tests/page/test_year.py", "tests/fuzz/test_fuzz.py"),
    *("tests/test_no_network.py", "tests/training/test_train.py", "tests/training/test_from.py"),
    *("tests/test_examples.py", "tests/serve/test_faults.py", "tests/training/test_elastic.py"),
    *("tests/training/test_survival.py", "tests/test_wheel.py"),
)
"""Files that take longest. They come first, so that no process is left with one when the others have ended."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


def pytest_collection_finish() -> None:
    gc.freeze()  # what is loaded by now stays, and looking through it takes each full collection 0.2 seconds


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return one process more than there are cores, since many tests wait: for programs that start, for signals.

    Where the environment has xdist's own PYTEST_XDIST_AUTO_NUM_WORKERS it is left to xdist.
    """
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else count_cores() + 1


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    _called.clear()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; the files that use it skip where there is none."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        frugal = ["--disable-gpu", "--num-raster-threads=1", "--renderer-process-limit=1"]  # a quarter less CPU time
        started = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-background-networking", *frugal]
        )
        yield started
        started.close()


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the test suite's checks of shapes and types.

    The library's own checks say what is wrong; and a training takes half the time.
    """
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def write_random_run(
    folder: Path,
    source: Tokenizer,
    target: Tokenizer,
    *,
    shared: bool = False,
    seed: int = 4,
    settings: dict[str, Any] | None = None,
    **changes: Any,
) -> Run:
    """A run as training leaves it, its model random, with translations that aren't one token again and again."""
    torch.manual_seed(seed)
    sizes = dict(d_model=24, heads=3, encoder_layers=1, decoder_layers=2, d_ff=40)
    vocabularies = dict(source_vocab_size=source.vocab_size, target_vocab_size=target.vocab_size, shared_vocab=shared)
    config = ModelConfig(**{**sizes, **vocabularies, **changes})
    model = Transformer(config)
    with torch.no_grad():
        for layer in model.decoder:
            layer.feed_forward_norm.weight.normal_(std=1.5)
        if model.output_bias is not None:
            model.output_bias.normal_(std=0.5)
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder, model.state_dict())
    record = TrainingRecord(settings={"note": "Grüße"} | (settings or {}), languages=("en", "de"))
    write_config(folder, config, source, target, record)
    return load_run(folder)


@pytest.fixture(scope="session")
def random_run() -> Callable[..., Run]:
    return write_random_run


def encode(
    pairs: Iterable[Pair], folder: Path, source: Tokenizer, target: Tokenizer, *, at_once: int = 1000, **limits: float
) -> Iterable[EncodedPairs]:
    """The pairs, so many at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = PairEncoder(str(source.save(folder / "left")), str(target.save(folder / "right")), **limits)
    iterator = iter(pairs)
    while chunk := list(islice(iterator, at_once)):
        yield encoder.encode([source for source, _ in chunk], [target for _, target in chunk])


@pytest.fixture(scope="session")
def prepare_corpus() -> Callable[..., tuple[Corpus, PairCounts]]:
    """Tokenises pairs with two tokenizers into a folder."""

    def prepare(pairs: Iterable[Pair], folder: Path, *args, **kwargs) -> tuple[Corpus, PairCounts]:
        counts = write_corpus(encode(pairs, folder, *args, **kwargs), folder)
        return Corpus(folder), counts

    return prepare


TINY = dict(
    tokenizer="symbols",
    preset="small",
    metric="bleu",
    d_model=16,
    heads=2,
    encoder_layers=1,
    decoder_layers=1,
    d_ff=23,
    batch_tokens=64,
    learning_rate=3e-3,
    warmup=10,
    cooldown=0.0,
    validate_every=10,
    score_pairs=5,
    average=2,
    precision="float32",
    device="cpu",
)


def reversals(count: int, seed: int, symbols: str = "abcdefg", shortest: int = 2, longest: int = 6) -> list[str]:
    """TSV lines of symbols and the same symbols in reverse."""
    draw = random.Random(seed)
    sources = [draw.choices(symbols, k=draw.randint(shortest, longest)) for _ in range(count)]
    return [f"{' '.join(source)}\t{' '.join(reversed(source))}" for source in sources]


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.tsv (200 pairs) and valid.tsv (20)."""
    folder = tmp_path_factory.mktemp("pairs")
    for name, count, seed in (("train", 200, 1), ("valid", 20, 2)):
        (folder / f"{name}.tsv").write_text("\n".join(reversals(count, seed)) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny(pairs: Path) -> Callable[..., TrainConfig]:
    """Settings of a tiny run, with changes."""

    def make(out: Path, **changes: Any) -> TrainConfig:
        return TrainConfig(
            **{**TINY, "source": pairs / "train.tsv", "valid_source": pairs / "valid.tsv", "out": out, **changes}
        )

    return make


@pytest.fixture
def settings(tiny: Callable[..., TrainConfig], tmp_path: Path) -> Callable[..., TrainConfig]:
    """The same, for a run folder in the test's own folder."""
    return lambda out="run", **changes: tiny(tmp_path / out, **changes)


@contextmanager
def _after_update(update: int, act: Callable[[], Any]) -> Iterator[None]:
    updates = 0

    def count(*_: object) -> None:
        nonlocal updates
        updates += 1
        if updates == update:
            act()

    handle = register_optimizer_step_post_hook(count)
    try:
        yield
    finally:
        handle.remove()


@pytest.fixture(scope="session")
def interrupting() -> Callable[..., AbstractContextManager[None]]:
    """`with interrupting(7):` a Ctrl-C, or another signal, comes during the seventh update."""
    return lambda update, number=signal.SIGINT: _after_update(update, lambda: signal.raise_signal(number))


@pytest.fixture
def crashing() -> Callable[[int], AbstractContextManager[None]]:
    """`with crashing(7):` the process is lost during the seventh update: nothing more is saved."""

    def crash() -> None:
        raise SystemError("lost")

    return lambda update: _after_update(update, crash)


HOLDER = (
    "import sys; from pathlib import Path; from glassformer.run.lock import held\n"
    "with held(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
)


@pytest.fixture(scope="session")
def holding() -> Callable[[Path], AbstractContextManager[subprocess.Popen]]:
    """`with holding(folder) as process:` another process trains in the run folder."""

    @contextmanager
    def hold(folder: Path) -> Iterator[subprocess.Popen]:
        command = [sys.executable, "-c", HOLDER, str(folder)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"\n"
            try:
                yield process
            finally:
                process.kill()

    return hold


@pytest.fixture(scope="session")
def reversed_symbols() -> Callable[..., list[str]]:
    return reversals


# The command line

TINY_FLAGS = " ".join(f"--{name.replace('_', '-')} {TINY[name]}" for name in TINY if name != "cooldown")
WORDS = {
    "TINY": TINY_FLAGS,
    "TRAIN": f"train {TINY_FLAGS} --max-updates 2 --out new",
    "AGAIN": f"train {TINY_FLAGS} --max-updates 2",
    "PAIRS": "--source pairs.tsv --valid-source valid.tsv",
    "SHORT": "--device cpu --beam 2 --max-length 7",
}
"""Words of the tests' command lines, and what they stand for."""


class CommandLine:
    """The command line, run in this process, which saves the two seconds that importing torch takes."""

    SUSPICIONS = ("empty side (left out): ", "repeated: ", "target copies the source: ")
    PROGRESS = (
        *(*SUSPICIONS, "learning the vocabulary", "vocabulary: ", "train: ", "valid: ", "model: "),
        *("only 60 pairs: ", "only 3 pairs: ", "only 1 pair: ", "latin1.tsv has tabs"),
        *("writing the graphs, then", "writing the model", "glassformer: compiling the fast functions"),
    )
    """Beginnings of lines that may come before an error."""

    def arguments(self, command: str) -> list[str]:
        """The arguments, with WORDS replaced."""
        words = shlex.split(command)
        return [part for word in words for part in (WORDS[word].split() if word in WORDS else [word])]

    def __call__(self, command: str) -> int:
        """Run a command; returns its exit status."""
        with warnings.catch_warnings():
            warnings.simplefilter("always")  # as in a process of its own: shown, not raised
            with pytest.raises(SystemExit) as exit_:
                cli.main(self.arguments(command))
        assert isinstance(exit_.value.code, int)
        return exit_.value.code

    def complaint(self, stderr: str) -> str:
        """The one line that says what is wrong."""
        assert "Traceback" not in stderr
        lines = [line for line in stderr.splitlines() if line and not line.startswith(self.PROGRESS)]
        assert len(lines) == 1, stderr
        assert lines[0].startswith("glassformer: error: "), stderr
        return lines[0]


@pytest.fixture(scope="session")
def run_command() -> CommandLine:
    return CommandLine()


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory, run_command: CommandLine, interrupting: Callable) -> Path:
    """Files and run folders, good and bad, that the tests copy."""
    folder = tmp_path_factory.mktemp("samples")
    pairs = [line.split("\t") for line in reversals(60, 1)]

    def write(name: str, lines: list[str]) -> None:
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    write("pairs.tsv", ["\t".join(pair) for pair in pairs])
    write("valid.tsv", ["\t".join(pair) for pair in pairs[:11]])
    write("source.txt", [source for source, _ in pairs])
    write("target.txt", [target for _, target in pairs])
    write("short.txt", [target for _, target in pairs[:-3]])
    write("seven.txt", [source for source, _ in pairs[:7]])
    write("prefixes.txt", [" ".join(target.split()[: n % 3]) for n, (_, target) in enumerate(pairs)])
    write("prefixes-of-seven.txt", ["g f", "", "e", "a", "", "b a c", "d"])
    write("no-tab.tsv", ["a b\tb a", "a b b a"])
    write("untrainable.tsv", ["\t", "a b\t", "\ta b"])
    (folder / "empty.tsv").touch()
    (folder / "latin1.tsv").write_bytes(b"a b\tb a\nc d\td c\ncaf\xe9\teuro\n")
    (folder / "broken.gz").write_bytes(gzip.compress(b"a b\tb a\n" * 99)[:-9])
    for name in ("thesis", "thesis-to-resume/resume"):
        (folder / name).mkdir(parents=True)
        (folder / name / "chapter1.txt").write_text("ten years of work", encoding="utf-8")
    train = f"train TINY --source {folder}/pairs.tsv --valid-source {folder}/valid.tsv"
    assert run_command(f"{train} --out {folder}/run --max-updates 20") == 0
    with interrupting(7):
        assert run_command(f"{train} --out {folder}/unfinished --max-updates 20") == 130
    for name, spoil in SPOILT.items():
        shutil.copytree(folder / ("unfinished" if "unfinished" in name else "run"), folder / name)
        spoil(folder / name)
    return folder


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def swap(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


SPOILT: dict[str, Callable[[Path], object]] = {
    "no-weights": lambda run: (run / "model.safetensors").unlink(),
    "cut-weights": lambda run: truncate(run / "model.safetensors"),
    "unfinished-cut-state": lambda run: [truncate(path) for path in run.glob("resume/checkpoint-*/*")],
    "unfinished-unknown-bleu": lambda run: swap(run / "config.json", '"tokenize": "auto"', '"tokenize": "14a"'),
    "unfinished-lost-pairs": lambda run: shutil.rmtree(run / "resume" / "train"),
}


@pytest.fixture
def here(samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a copy of the samples."""
    shutil.copytree(samples, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stdin(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[bytes], None]]:
    """Sets the standard input of the commands that follow."""
    path = tmp_path_factory.mktemp("stdin") / "stdin"
    path.touch()
    with path.open(encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdin", file)
        yield path.write_bytes


@pytest.fixture(scope="session")
def tree() -> Callable[[Path], dict[str, bytes | None]]:
    """Reads everything under a folder, hidden or not, with its content."""
    return lambda folder: {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="session")
def syllables() -> Callable[..., list[Pair]]:
    """Makes pairs of words that are made of few syllables, no source twice."""

    def pairs(count: int = 1200, seed: int = 5) -> list[Pair]:
        draw = random.Random(seed)
        words = ["".join(draw.choices(["ka", "to", "mi", "ré", "nu"], k=draw.randint(1, 3))) for _ in range(80)]
        lines: dict[str, str] = {}
        while len(lines) < count:
            line = draw.choices(words, k=draw.randint(3, 7))
            lines[" ".join(line)] = " ".join(word.upper() for word in reversed(line))
        return list(lines.items())

    return pairs


@dataclass(frozen=True)
class Taught:
    """A run folder and pairs of its kind, with their links; the file pairs.tsv beside the folder has them too."""

    folder: Path
    sources: list[str]
    targets: list[str]
    links: list[list[Link]]


@pytest.fixture(scope="session")
def taught(tiny: Callable[..., TrainConfig], tmp_path_factory: pytest.TempPathFactory) -> Taught:
    """A run that reverses different letters and writes them in capitals, its first head guided."""
    folder = tmp_path_factory.mktemp("taught")
    draw, sources, targets, links = random.Random(1), list[str](), list[str](), list[list[Link]]()
    for _ in range(400):
        letters = draw.sample("abcdefghijklmnop", draw.randint(2, 7))
        sources.append(" ".join(letters))
        targets.append(" ".join(letters[::-1]).upper())
        links.append([Link(len(letters) - 1 - n, n) for n in range(len(letters))])
    lines = "".join(f"{source}\t{target}\n" for source, target in zip(sources, targets, strict=True))
    (folder / "pairs.tsv").write_text(lines, encoding="utf-8")
    changes = dict(max_updates=160, learning_rate=1e-2, cooldown=0.3, d_model=32, guide=1.0, batch_tokens=192)
    changes |= dict(validate_every=160, average=1, score_pairs=1, dropout=0.0, tokenizer="word")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # it takes half the time
        train(tiny(folder / "run", source=folder / "pairs.tsv", valid_source=folder / "pairs.tsv", **changes))
    return Taught(folder / "run", sources, targets, links)


@pytest.fixture(scope="session")
def write_pairs() -> Callable[..., PairFiles]:
    """Writes pairs into the files source and target of a folder, packed if their ending is .gz."""

    def write(folder: Path, pairs: Iterable[Pair], ending: str = "") -> PairFiles:
        folder.mkdir(parents=True, exist_ok=True)
        sides = zip(*pairs, strict=True) if pairs else ((), ())
        paths = [folder / f"{side}{ending}" for side in ("source", "target")]
        for path, lines in zip(paths, sides, strict=True):
            content = "".join(f"{line}\n" for line in lines).encode()
            path.write_bytes(gzip.compress(content) if ending == ".gz" else content)
        return PairFiles(*paths)

    return write


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """Return a context in which no file may become larger than some bytes: writing fails as on a full disk."""

    @contextmanager
    def full(room: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return full


@pytest.fixture(scope="module")
def undrawn() -> Iterator[None]:
    """Let trainings draw no curves, which saves half a second each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "can_draw", lambda: False)
        yield


@pytest.fixture(scope="module")
def every_update() -> Iterator[None]:
    """Let trainings write a line in metrics.jsonl for each update, as every_update.py does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "REPORT_EVERY", 1)
        yield


@pytest.fixture(scope="session")
def print_alone() -> Callable[..., list[str]]:
    """Runs a Python program, which must succeed, in a process of its own, and returns the lines that it prints.

    It may fork, which this process, with its threads, must not.
    """

    def run(program: Path, *arguments: str) -> list[str]:
        command, environment = [sys.executable, program, *arguments], {**os.environ, "PYTHONWARNINGS": ""}
        done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run


@pytest.fixture(scope="session")
def serving_forks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], AbstractContextManager[list[str]]]:
    """`with serving_forks(program) as begun:` the program, which uses forked.py, runs in forks of one process.

    `begun` is the beginning of a command line for one of them.
    """

    @contextmanager
    def serving(program: Path) -> Iterator[list[str]]:
        address = str(tmp_path_factory.mktemp("forks") / "socket")
        with subprocess.Popen([sys.executable, program, "serve", address], stdout=subprocess.PIPE) as server:
            assert server.stdout.readline() == b"\n"
            yield [sys.executable, "-I", "-S", str(program), "run", address]
            server.kill()

    return serving
