"""The commands that are tortured: what each starts from and comes to, and what a user does after it was stopped."""

import json
import random
import shutil
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from children import Child, FaultError, run

from glassformer.errors import DataError, RunError
from glassformer.files import is_temporary
from glassformer.run.config import read_config
from glassformer.serve.keys import KeyFile, hash_of

TINY = (
    "--tokenizer char --preset tiny --d-model 16 --heads 2 --d-ff 16 --encoder-layers 1 --decoder-layers 1 --average 2 "
    "--batch-tokens 512 --score-pairs 5 --metric ser --learning-rate 0.003 --warmup 5 --precision float32 --device cpu"
)
OFTEN = "--validate-every 6 --checkpoint-seconds 0.001"
PAIRS = "--source pairs.tsv --valid-source valid.tsv"
OLD_KEY = "gf_" + "0" * 32
"""The key that is in the file before another is added."""
CLOCK = {"seconds", "tokens_per_second"}
"""Fields of metrics.jsonl in which two trainings always differ."""
MEASURED = {"speed", "memory"}
"""Fields of prune.json in which two prunings always differ."""

Tree = Mapping[str, bytes | None]
"""What is under a folder: the content of each file by its name; None for a folder or a link."""


def tree(folder: Path) -> Tree:
    """Read everything under a folder, but what a clock or chance decides and the prepared texts, which are a cache."""
    found: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if ".prepared" not in name.parts or is_temporary(path.name):
            found[name.as_posix()] = _content(path) if stat.S_ISREG(path.lstat().st_mode) else None
    return found


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if path.name == "metrics.jsonl":
        lines = [json.loads(line) for line in content.splitlines() if line.endswith(b"}")]
        content = json.dumps([{k: v for k, v in line.items() if k not in CLOCK} for line in lines]).encode()
    if path.name == "prune.json":
        content = json.dumps({k: v for k, v in json.loads(content).items() if k not in MEASURED}).encode()
    if path.name == "keys.json" and content:
        keys = {key["name"]: key["sha256"] for key in json.loads(content)["keys"]}
        content = json.dumps({name: known if name == "old" else "random" for name, known in keys.items()}).encode()
    return content


def differences(one: Tree, other: Tree) -> list[str]:
    """Return the names of what differs."""
    return sorted(name for name in {*one, *other} if one.get(name, b"-") != other.get(name, b"-"))


def below(found: Tree, name: str) -> Tree:
    """Return the part of a tree that begins at this name."""
    return {one: content for one, content in found.items() if one == name or one.startswith(f"{name}/")}


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run."""
    try:
        read_config(folder)
    except RunError:
        return False
    return True


def has_old_key(path: Path) -> bool:
    """Return whether the key that was in the file before is valid."""
    try:
        return KeyFile(path).name_of(OLD_KEY) == "old"
    except DataError:
        return False


@dataclass
class Command:
    """A command, the folder that it starts from, and what that is in the end when nothing disturbs it."""

    name: str
    argv: list[str]
    needs: list[str]
    """Files and folders of the lab that it reads."""
    out: str
    """What it writes."""
    again: Callable[["Command", Path], list[str] | None]
    """What a user gives next, by what is in the folder; None where the work is complete."""
    inputs: list[str]
    """Files that it reads, each of which may be damaged or lost."""
    kept: str = "/"
    """Unfinished work that a stop may leave beside `out`: the beginning of its name."""
    share: float = 1.0
    """Share of its time, from its beginning, in which it does what it is here for."""
    is_usable: Callable[[Path], bool] = is_run
    """Tells whether what stands in the place of `out`, and isn't what was there, can be used."""
    lab: Path = Path()
    start: Tree = field(default_factory=dict)
    end: Tree = field(default_factory=dict)
    seconds: float = 0.0

    def lay_out(self, folder: Path) -> None:
        """Make the folder that it starts from."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.needs:
            source = self.lab / name
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, folder / name) if source.is_dir() else shutil.copyfile(source, folder / name)

    def check_stopped(self, folder: Path, *, tidy: bool = False) -> None:
        """Raise FaultError unless `out` is absent, as before or usable, and all else as it was.

        Of a process that could clean up (`tidy`) nothing half made is left, but work to go on with.
        """
        now = tree(folder)
        lost = [name for name, content in self.start.items() if now.get(name, b"-") != content]
        if mine := sorted(set(lost) - set(below(self.start, self.out))):
            raise FaultError(f"what it only reads was changed: {', '.join(mine[:5])}")
        if lost and not self.is_usable(folder / self.out):
            raise FaultError(f"what was there is lost: {', '.join(lost[:5])}")
        above = {parent.as_posix() for parent in Path(self.out).parents}
        for name in now:
            half_made = any(map(is_temporary, Path(name).parts))
            if half_made and tidy and not name.startswith(self.kept):
                raise FaultError(f"left half made: {name}")
            known = name in self.start or name in above or name.startswith((self.out, self.kept, ".prepared"))
            if not known and not half_made and ".prepared" not in Path(name).parts:
                raise FaultError(f"left: {name}")

    def go_on(self, folder: Path) -> None:
        """Do what a user does until the work is complete; raise FaultError unless that is as if undisturbed."""
        for _ in range(3):
            if (argv := self.again(self, folder)) is None:
                break
            last = run(argv, folder).check(0, 2)
        else:
            raise FaultError(f"it can't be completed: {last.err.strip()[-800:]}")
        now = tree(folder)
        if differ := differences(now, self.end):
            first = f"{now.get(differ[0], b'none')!r:.800} and not {self.end.get(differ[0], b'none')!r:.800}"
            raise FaultError(f"completed, it isn't as if undisturbed: {', '.join(differ[:6])}; {first}")

    def is_complete(self, folder: Path) -> bool:
        """Return whether what it writes is as if undisturbed."""
        return below(tree(folder), self.out) == below(self.end, self.out)


def _again_train(command: Command, folder: Path) -> list[str] | None:
    out, before = folder / command.out, below(command.start, command.out)
    if not out.exists():
        if before:
            raise FaultError("the run that was to be replaced is gone")
        return command.argv
    if not is_run(out):
        raise FaultError("half a run")
    if before and below(tree(folder), command.out) == before:
        return command.argv
    ending = any(is_temporary(path.name) for path in (*out.iterdir(), *out.parent.iterdir()))
    return ["train", "--resume", "--out", command.out] if ending or (out / "resume").exists() else None


def _again_translate(command: Command, folder: Path) -> list[str] | None:
    complete = command.is_complete(folder)
    if not complete and (folder / command.out).exists():
        raise FaultError("half an output")
    beside = [path for path in folder.iterdir() if path.name.startswith((f".{command.out}", f"{command.out}."))]
    return [*command.argv, "--resume"] if beside or not complete else None


def _again_folder(command: Command, folder: Path) -> list[str] | None:
    out, complete = folder / command.out, command.is_complete(folder)
    if not complete and out.exists() and any(out.iterdir()):
        raise FaultError("half a folder")
    hidden = any(path.name.startswith(f".{out.name}.") for path in out.parent.glob("*"))
    return command.argv if hidden or not complete else None


def _again_distill(command: Command, folder: Path) -> list[str] | None:
    out = folder / command.out
    if out.exists() and not is_run(out):
        raise FaultError("half a run")
    return command.argv if differences(tree(folder), command.end) else None


def _again_key(command: Command, folder: Path) -> list[str] | None:
    if not has_old_key(folder / command.out):
        raise FaultError("the old key is not valid any more")
    hidden = any(is_temporary(path.name) for path in folder.iterdir())
    return command.argv if hidden or not command.is_complete(folder) else None


def _commands() -> list[Command]:
    train = f"train {PAIRS} {TINY} --out runs/new".split()
    few = f"{OFTEN} --max-updates 16 --threads 1".split()
    translate = "translate run --input source.txt --output out.txt --beam 2 --max-length 12 --device cpu"
    prune = "prune run --out pruned --data pairs.tsv --valid valid.tsv --rounds 2 --updates 4 --sentences 20"
    prune += " --batch-tokens 512 --metric ser --keep 0.5 --device cpu --threads 1"
    distill = f"distill run {PAIRS} --text source.txt --sample --max-length 12 --keep-copies {TINY}"
    distill += f" --length-factor 99 --writing-precision float32 --out student {OFTEN} --max-updates 8 --threads 1"
    export = "export run --out new/exported --to"
    pairs, new = ["pairs.tsv", "valid.tsv"], ["runs/new/config.json"]
    run_files = ["run/config.json", "run/model.safetensors", "run/source.spm"]
    marian = ["marian/config.json", "marian/model.safetensors", "marian/vocab.json", "marian/source.spm"]
    trains, makes = ("runs/new", _again_train), ("new/exported", _again_folder)
    return [
        Command("train", [*train, *few], pairs, *trains, pairs),
        Command("prepare", [*train, "--max-updates", "1", "--threads", "2"], pairs, *trains, pairs, share=0.6),
        Command("overwrite", [*train, *few, "--overwrite"], [*pairs, "runs/new"], *trains, [*pairs, *new]),
        Command(
            "translate",
            f"{translate} --precision float32".split(),
            ["run", "source.txt"],
            "out.txt",
            _again_translate,
            ["source.txt", *run_files],
            ".out.txt",
        ),
        Command("import", ["import", "--from", "marian", "--out", "new/exported"], ["marian"], *makes, marian),
        Command("export", f"{export} huggingface".split(), ["run"], *makes, run_files),
        Command("ctranslate2", f"{export} ctranslate2".split(), ["run"], *makes, run_files),
        Command(
            "prune",
            prune.split(),
            ["run", *pairs],
            "pruned",
            _again_folder,
            [*pairs, *run_files],
            ".pruned.pruning",
        ),
        Command(
            "distill",
            distill.split(),
            ["run", "source.txt", *pairs],
            "student",
            _again_distill,
            ["source.txt", *pairs, *run_files],
            "student.pairs",
        ),
        Command(
            "new-key",
            ["serve", "--keys", "keys.json", "--new-key", "new"],
            ["keys.json"],
            "keys.json",
            _again_key,
            ["keys.json"],
            is_usable=has_old_key,
        ),
    ]


COMMANDS = {command.name: command for command in _commands()}


def make(lab: Path, names: Collection[str]) -> dict[str, Command]:
    """Make the lab, and run each of these commands undisturbed."""
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 4))) for _ in range(60)]
    lines: dict[str, str] = {}
    while len(lines) < 400:
        line = draw.choices(words, k=draw.randint(2, 4))
        lines[" ".join(line)] = " ".join(reversed(line))
    pairs = [f"{source}\t{target}\n" for source, target in lines.items()]
    (lab / "pairs.tsv").write_text("".join(pairs))
    (lab / "valid.tsv").write_text("".join(pairs[:6]))
    old = {"name": "old", "sha256": hash_of(OLD_KEY)}
    (lab / "keys.json").write_text(json.dumps({"keys": [old]}))
    (lab / "source.txt").write_text("".join(f"{source}\n" for source in list(lines)[:60]))
    for argv in (
        f"train {PAIRS} {TINY} --max-updates 3 --threads 1 --out run",
        "export run --to huggingface --out marian",
        "import --from marian --out runs/new",
    ):
        run(argv.split(), lab).check(0)
    commands = {name: command for name, command in COMMANDS.items() if name in names}
    for command in commands.values():
        _run_undisturbed(command, lab)
    return commands


def _run_undisturbed(command: Command, lab: Path) -> None:
    command.lab, folder = lab, lab / f"whole-{command.name}"
    command.lay_out(folder)
    command.start = tree(folder)
    child = Child(command.argv, folder)
    child.wait().check(0)
    command.seconds, command.end = child.seconds, tree(folder)
    if command.again(command, folder) is not None:
        raise FaultError(f"undisturbed, {command.name} isn't complete")
