"""The command line: one function per command, flags from the dataclasses. torch loads when a command runs."""

import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import tyro
from tyro.conf import FlagCreatePairsOff

from glassformer.commands import (
    DemoCommand,
    EvaluateCommand,
    ExportCommand,
    HeadsCommand,
    ImportCommand,
    InspectCommand,
    RunsCommand,
    TranslateCommand,
)
from glassformer.errors import FULL, ConfigError, GlassformerError
from glassformer.insight.config import PruneConfig
from glassformer.training.config import TrainConfig

if TYPE_CHECKING:
    from glassformer.generation.translator import Translation, Translator
    from glassformer.training.loop import TrainResult

LINES_AT_ONCE = 2048


def train(config: TrainConfig) -> int:
    from glassformer.training.loop import train as run_training

    return _report(run_training(config))


def resume(folder: Path, arguments: Sequence[str]) -> int:
    """`train --resume`: of the settings those that were given count, also where they are the defaults."""
    from glassformer.training.loop import resume as resume_training
    from glassformer.training.loop import settings_of

    started = settings_of(folder)
    asked = tyro.cli(TrainConfig, args=arguments[1:], default=started, config=(FlagCreatePairsOff,))
    names = {setting.name for setting in fields(TrainConfig)} - {"out", "resume", "overwrite"}
    changes = {name: getattr(asked, name) for name in names if getattr(asked, name) != getattr(started, name)}
    return _report(resume_training(folder, **changes))


def _report(result: "TrainResult") -> int:
    """Say what a training came to; returns the exit code."""
    status = 0 if result.signal is None else 128 + result.signal  # as shells say it: 130 Ctrl-C, 143 SIGTERM
    if os.environ.get("RANK", "0") != "0":  # of the processes that torchrun started the first speaks
        return status
    if not result.finished:
        print(f"saved at update {result.updates:,}; continue with:")
        print(f"  glassformer train --resume --out {quote(str(result.folder))}")
        return status
    minutes = result.seconds / 60
    score = "" if result.score is None else f", {result.metric} {result.score:.2f}"
    print(f"{result.folder}: {result.updates:,} updates in {minutes:.1f} min{score}")
    print(f"translate with:\n  glassformer translate {quote(str(result.folder))} < FILE")
    return 0


def list_runs(command: RunsCommand) -> int:
    from glassformer.run.listing import advice, as_lines, as_table, find_runs

    found = find_runs(command.folder)
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        console.print(as_table(found, console.width))
    for line in advice(found) if sys.stdout.isatty() else as_lines(found):
        print(line)
    return 0


def translate(command: TranslateCommand) -> int:
    from glassformer.device import tame_memory
    from glassformer.files import check_writable, replacing
    from glassformer.generation.stream import chunks_of_file, chunks_of_stream, count_lines, counting, with_prefixes
    from glassformer.generation.translator import Translator

    tame_memory()
    if command.input is not None and command.output is not None:
        return _translate_file(command, command.input, command.output)
    if command.resume:
        raise ConfigError("--resume needs --input and --output: a stream can't be read from its beginning again")
    if command.output is not None:
        check_writable(command.output)
    translator = Translator.load(command.run, command.device, command.precision)
    chunks = (
        chunks_of_stream(sys.stdin.buffer, LINES_AT_ONCE)
        if command.input is None
        else chunks_of_file(command.input, LINES_AT_ONCE)
    )
    total = count_lines(command.input) if command.input else None
    if command.output is not None or not sys.stdout.isatty():
        chunks = counting(chunks, _progress_of(translator), "lines", total)
    with nullcontext(sys.stdout.buffer) if command.output is None else replacing(command.output) as file:
        for first, lines, prefixes in with_prefixes(chunks, command.prefixes, total):
            file.write(_translated(translator, lines, prefixes, first, command))
            file.flush()
    return 0


def _translate_file(command: TranslateCommand, source: Path, output: Path) -> int:
    """From file to file, keeping what is done at a stop. Chunks begin at the same lines, stopped or not."""
    from glassformer.generation.files import partial_output
    from glassformer.generation.stream import count_lines, counting, in_chunks, with_prefixes
    from glassformer.generation.translator import Translator
    from glassformer.text.pairs import PairFiles, read_lines

    if command.prefixes is not None:
        PairFiles(command.prefixes).check()
    translator = Translator.load(command.run, command.device, command.precision)
    settings = {
        "run folder (digest)": _digest_of_run(command.run),
        "device": translator.device.type,
        "precision": str(translator.precision),
        "scores": command.scores,
        "prefixes (digest)": None if command.prefixes is None else _digest([command.prefixes]),
        **asdict(command.search),
    }
    with partial_output(output, settings, resume=command.resume) as partial:
        lines = read_lines(source)
        partial.skip(lines, source)
        total = count_lines(source)
        chunks = in_chunks(lines, LINES_AT_ONCE, first=partial.lines + 1)
        chunks = counting(chunks, _progress_of(translator), "lines", total)
        try:
            for first, chunk, prefixes in with_prefixes(chunks, command.prefixes, total, done=partial.lines):
                partial.append(chunk, _translated(translator, chunk, prefixes, first, command))
        except BaseException:
            if partial.lines:
                kept = f"{partial.path} has the translations of {partial.lines:,} lines"
                print(f"{kept}: the same command with --resume goes on", file=sys.stderr)
            raise
    return 0


def _digest_of_run(folder: Path) -> str:
    """Of the files of a run folder that translations depend on."""
    from glassformer.run.folder import read_config
    from glassformer.run.names import CONFIG, WEIGHTS
    from glassformer.text.vocabulary import VOCABULARY

    config = read_config(folder)
    names = [CONFIG, WEIGHTS, config["source_tokenizer"], config["target_tokenizer"]]
    names += [str(Path(name).with_suffix(VOCABULARY)) for name in names[2:]]
    return _digest(folder / name for name in names)


def _digest(paths: Iterable[Path]) -> str:
    """Of what is in these files, if they are there."""
    digest = hashlib.blake2b(digest_size=6)
    for path in paths:
        if path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


def _translated(
    translator: "Translator", lines: list[str], prefixes: list[str] | None, first: int, command: TranslateCommand
) -> bytes:
    """The output for a chunk that begins with line number `first`; draws differ from chunk to chunk."""
    search = replace(command.search, seed=(command.search.seed + first - 1) % (1 << 32))
    return _format(translator.translate_n_best(lines, search, prefixes=prefixes), first, command)


def _progress_of(translator: "Translator") -> str:
    """What the progress line says is done."""
    return f"translating in {translator.precision}"


def _format(translations: Sequence[Sequence["Translation"]], first: int, command: TranslateCommand) -> bytes:
    """The lines of output for sources number `first` onwards."""
    lines = []
    for number, best in enumerate(translations, start=first):
        for translation in best:
            columns = [str(number)] if command.search.n_best > 1 else []
            columns += [f"{translation.score:.4f}"] if command.scores else []
            lines.append("\t".join([*columns, translation.text]) + "\n")
    return "".join(lines).encode()


def evaluate(command: EvaluateCommand) -> int:
    from glassformer.device import tame_memory
    from glassformer.files import check_writable, replacing
    from glassformer.generation.stream import counting, in_chunks
    from glassformer.generation.translator import Translator
    from glassformer.text.pairs import PairFiles, read_lines
    from glassformer.text.scores import bleu_scorer, score_all
    from glassformer.text.tokenizer import SymbolTokenizer

    symbols = command.symbols
    if command.tokenize != "auto":
        bleu_scorer(command.tokenize)
    if command.hypotheses is not None:
        if command.run is not None or command.source is not None or command.target is None:
            raise ConfigError("--hypotheses are scored against --target, without a run folder and --source")
        hypotheses, references = list(read_lines(command.hypotheses)), list(read_lines(command.target))
    else:
        if command.run is None or command.source is None:
            raise ConfigError("give a run folder and --source (and --target), or --hypotheses and --target")
        if command.output is not None:
            check_writable(command.output)
        tame_memory()
        pairs = list(PairFiles(command.source, command.target))
        translator = Translator.load(command.run, command.device, command.precision)
        symbols = symbols or isinstance(translator.target_tokenizer, SymbolTokenizer)
        sources = in_chunks((source for source, _ in pairs), LINES_AT_ONCE)
        chunks = counting(sources, _progress_of(translator), "lines", len(pairs))
        hypotheses = [text for _, lines in chunks for text in translator.translate(lines, command.search)]
        references = [reference for _, reference in pairs]
        if command.output is not None:
            with replacing(command.output) as file:
                file.writelines(f"{line}\n".encode() for line in hypotheses)
    for figure in score_all(hypotheses, references, tokenize=command.tokenize, symbols=symbols):
        print(figure)
    return 0


def import_model(command: ImportCommand) -> int:
    from glassformer.interop.huggingface import import_marian

    _check_new_folder(command.out)
    run = import_marian(command.from_, command.out)
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    print(f"{command.out}: {parameters / 1e6:.1f} million parameters")
    print(f"translate with:\n  glassformer translate {quote(str(command.out))} < FILE")
    return 0


def export_model(command: ExportCommand) -> int:
    from glassformer.interop.ctranslate2 import export_ctranslate2
    from glassformer.interop.huggingface import export_marian
    from glassformer.run.folder import load_run

    _check_new_folder(command.out)
    if command.to == "huggingface":
        if command.quantization is not None:
            raise ConfigError("--quantization is for --to ctranslate2: leave it out with --to huggingface")
        run = load_run(command.run)
        export_marian(run, command.out)
        if run.model.config.heads_left:
            print("heads that were pruned are zeros in it: the Marian layout can't leave them out, so it is no smaller")
        print(f"{command.out}: load it with transformers.MarianMTModel.from_pretrained({str(command.out)!r})")
    else:
        export_ctranslate2(load_run(command.run), command.out, command.quantization)
        source, target = (str(command.out / f"{side}.spm") for side in ("source", "target"))
        print(f"{command.out}: translate a line with:")
        print(f"  pieces = sentencepiece.SentencePieceProcessor({source!r}).encode(line, out_type=str)")
        print(f"  translator = ctranslate2.Translator({str(command.out)!r})")
        print('  best = translator.translate_batch([[*pieces, "</s>"]], beam_size=5)[0].hypotheses[0]')
        print(f"  print(sentencepiece.SentencePieceProcessor({target!r}).decode(best))")
    return 0


def study(command: HeadsCommand) -> int:
    from glassformer.device import pick_device, tame_memory
    from glassformer.files import write_json
    from glassformer.insight.chart import draw_heads
    from glassformer.insight.heads import Sentences, as_table, study_heads
    from glassformer.insight.syntax import Treebank
    from glassformer.pictures import can_draw
    from glassformer.run.folder import load_run
    from glassformer.run.names import HEADS, HEADS_PICTURE
    from glassformer.text.pairs import PairFiles

    pairs = PairFiles.of(command.data, "--data")
    if command.sentences < 1:
        raise ConfigError(f"--sentences must be at least 1, got {command.sentences}")
    tame_memory()
    run = load_run(command.run, pick_device(command.device))
    trees = None if command.trees is None else Treebank(command.trees)
    heads = study_heads(run, Sentences.of(run, pairs, command.sentences, trees))
    for line in as_table(heads):
        print(line)
    write_json(command.run / HEADS, {"heads": [asdict(head) for head in heads]})
    if can_draw():
        draw_heads(heads, command.run / HEADS_PICTURE)
        print(f"{command.run / HEADS_PICTURE}: their picture")
    return 0


def prune_heads(config: PruneConfig) -> int:
    from glassformer.device import tame_memory
    from glassformer.insight.chart import draw_pruning
    from glassformer.insight.prune import as_lines, prune
    from glassformer.pictures import can_draw
    from glassformer.run.names import PRUNED_PICTURE

    tame_memory()
    found = prune(config, lambda line: print(line, file=sys.stderr))
    if found is None:
        print("what is done is kept: the same command goes on")
        return 130
    for line in as_lines(found):
        print(line)
    if can_draw():
        draw_pruning(found, config.out / PRUNED_PICTURE)
        print(f"{config.out / PRUNED_PICTURE}: the scores")
    return 0


def inspect_run(command: InspectCommand) -> int:
    from glassformer.device import tame_memory
    from glassformer.files import check_writable
    from glassformer.page.inspection import inspect

    check_writable(command.out)
    tame_memory()
    page = inspect(command.run, command.source, command.target, hypotheses=command.hypotheses, device=command.device)
    page.save(command.out)
    print(f"{command.out}: open it in a browser")
    return 0


def _check_new_folder(path: Path) -> None:
    """Raise unless `path` is a folder that may be written: none yet, or an empty one."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"--out {path} is already there: give a new name, or remove it first")


def demo(command: DemoCommand) -> int:
    from glassformer.demo.demonstration import demonstrate

    return 0 if demonstrate(command.out, command.seed) else 130


COMMANDS: dict[str, tuple[type, Callable[[Any], int]]] = {
    "train": (TrainConfig, train),
    "runs": (RunsCommand, list_runs),
    "translate": (TranslateCommand, translate),
    "evaluate": (EvaluateCommand, evaluate),
    "import": (ImportCommand, import_model),
    "export": (ExportCommand, export_model),
    "heads": (HeadsCommand, study),
    "inspect": (InspectCommand, inspect_run),
    "prune": (PruneConfig, prune_heads),
    "demo": (DemoCommand, demo),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with 0, 2 after an error that the user can mend, 130 after Ctrl-C, 143 after
    SIGTERM."""
    # Threads that wait for one another spin, by default so long that on busy cores hardly anything else is done: beside
    # one other busy process training got less than a tenth as far. torch's OpenMP reads this when it is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    warnings.showwarning = lambda message, *_: print(f"glassformer: warning: {message}", file=sys.stderr)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"glassformer {version('glassformer')}")
        sys.exit(0)
    try:
        chosen = tyro.extras.subcommand_cli_from_dict(
            {name: kind for name, (kind, _) in COMMANDS.items()},
            prog="glassformer",
            description="From pairs of text to a trained Transformer and its translations, one command each. "
            "--version says which version this is.",
            args=given,
            config=(FlagCreatePairsOff,),
        )
        if isinstance(chosen, TrainConfig) and chosen.resume:
            status = resume(chosen.out, given)
        else:
            run = next(function for kind, function in COMMANDS.values() if type(chosen) is kind)
            status = run(chosen)
        sys.stdout.flush()
        sys.exit(status)
    except GlassformerError as error:
        _fail(str(error))
    except ImportError as error:  # a missing extra; the message says which
        _fail(str(error))
    except BrokenPipeError:  # whoever read our output has left
        _drop_output()
        sys.exit(0)
    except OSError as error:
        _drop_output()
        _fail(f"{error}: free some space, or write elsewhere" if error.errno in FULL else str(error))
    except KeyboardInterrupt:
        _fail("interrupted", code=130)


def _drop_output() -> None:
    """Let go of what standard output can't take, so that the interpreter doesn't try once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int = 2) -> None:
    print(f"glassformer: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
