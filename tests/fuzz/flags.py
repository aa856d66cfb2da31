"""The flags of every command, made from the commands' dataclasses: a new flag is tried without anybody's doing."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import Case
from children import Limits
from hypothesis import strategies as st
from mutations import Draw
from samples import FLAGS

from glassformer.cli import COMMANDS

OUTPUTS = ("out", "output", "unpruned", "written", "alignments", "confidence", "diagram", "picture")
"""Flags that name what is written."""
STOP_AFTER = 3.0


@dataclass(frozen=True)
class Base:
    """A command line that works, to which flags are added."""

    line: str
    writes: tuple[str, ...] = ()
    """Patterns of the paths that it may change where it succeeds, beside the values of `OUTPUTS`."""
    works: bool = True
    """It needs no other flag."""
    costly: bool = False
    """It takes seconds."""
    stops: bool = False
    """It may rightly take hours, so it is stopped after `STOP_AFTER` seconds."""


_STUDENT = Base(
    f"distill run pairs.tsv --text seven.txt {FLAGS} --out new --max-updates 1 --keep-copies --length-factor 99",
    (".prepared",),
    costly=True,
    stops=True,
)
BASES: Mapping[str, tuple[Base, ...]] = {
    "train": (
        Base(f"train {FLAGS} --max-updates 1", (".prepared", "runs", "trackio"), works=False, stops=True),
        Base(
            f"train {FLAGS} pairs.tsv --out new --max-updates 1 --tokenizer symbols",
            (".prepared", "trackio"),
            stops=True,
        ),
        Base("train --resume --out unfinished", ("unfinished", "trackio"), stops=True),
    ),
    "check": (Base("check pairs.tsv"), Base("check source.txt --target target.txt")),
    "runs": (Base("runs", works=False), Base("runs run"), Base("runs --compare run subwords --device cpu")),
    "translate": (
        Base("translate run --input seven.txt --device cpu"),
        Base("translate subwords 'a b' --device cpu"),
        Base("translate run --input seven.txt --output new --device cpu"),
    ),
    "evaluate": (
        Base(
            "evaluate run --source valid.tsv --device cpu",
            ("run/scores.json", "run/translations.jsonl", "run/calibration.json", "run/tensorboard", "trackio"),
        ),
        Base("evaluate --hypotheses source.txt --target target.txt"),
    ),
    "align": (
        Base("align --source pairs.tsv"),
        Base("align run --source pairs.tsv --device cpu", ("run/aligning.json",), works=False),
    ),
    "inspect": (Base("inspect run 'a b' --out new"), Base("inspect subwords", ("attention.html",), works=False)),
    "heads": (Base("heads run --data valid.tsv --sentences 3", ("run/heads.json", "run/heads.png")),),
    "prune": (
        Base(
            "prune run --data pairs.tsv --out new --updates 1 --rounds 1 --device cpu",
            (".*.pruning", "trackio"),
            costly=True,
            stops=True,
        ),
    ),
    "distill": (_STUDENT, Base("distill run --text seven.txt", works=False, stops=True)),
    "backtranslate": (
        Base(_STUDENT.line.replace("distill", "backtranslate"), (".prepared",), costly=True, stops=True),
    ),
    "import": (Base("import --from marian --out new"), Base("import", works=False)),
    "export": (Base("export subwords --to huggingface --out new"), Base("export subwords --to ctranslate2 --out new")),
    "serve": (Base("serve --keys new --new-key alice", ("new",)),),  # what ends by itself
    "demo": (Base("demo --out new", ("runs", ".prepared"), costly=True, stops=True),),
}
"""Command lines of every command."""

WHOLE = (
    *("0", "1", "2", "3", "7", "-1", "-0", "1000000000", "1000000000000000000", "1" + "0" * 400, "1" + "0" * 5000),
    *("nan", "inf", "1.5", "", " 7", "7 ", "0x10", "1_0", "７", "\u0663", "9" * 1_000_000),
)
REAL = (
    *("0", "1", "0.5", "-1", "-0.0", "1e-400", "1e-30", "1e9", "1e18", "1e308", "1e400", "1" + "0" * 400),
    *("nan", "-nan", "inf", "-inf", "", "1,5", "0.5x", "1e", "9" * 1_000_000),
)
TEXTS = (
    *("", " ", "a", "a b", "\x1b[31mred", "\x01", "\n", "a\nb", "\t", "\x85\u2028", "\u202e", "é", "\U0001f600"),
    *("\udcff", "a\udcffb", "x" * 1_000_000, "a " * 3000, "{}", "%s", "../x", "-", "--", "--x", "auto", "char", "zh"),
    *("13a", "flores200", "spBLEU-1K", "ja-mecab", "ko-mecab", "none", "intl", "cuda", "cuda:9", "mps", "meta", "int8"),
)
PATHS = (
    *("run", "subwords", "imported", "marian", "unfinished", "pairs.tsv", "valid.tsv", "seven.txt", "pairs.xlsx"),
    *("pairs.parquet", "pairs.tmx", "pairs.tsv.gz", "trees.conllu", "subwords/source.spm", "run/model.safetensors"),
    *(
        "new",
        "no/such/folder",
        "missing.tsv",
        "pipe",
        "endless",
        "loop",
        "dangling",
        ".",
        "..",
        "",
        " ",
        "run/..",
        "run/config.json/x",
    ),
    *(
        "x" * 300,
        "x/" * 2500,
        "x" * 1_000_000,
        "new\udcff",
        "\x1b[31mnew",
        "a\nb",
        "-",
        "--",
        "~",
        "$HOME",
        "pairs.tsv:3",
    ),
    *("pairs.tsv:0", "pairs.tsv:" + "9" * 400, "*", "new/", "resume"),
)
MAY_BE_PIPES = {"translate": ("input", "prefixes"), "evaluate": ("source", "target", "hypotheses")}
"""Flags whose files are read once, so that a pipe may stand for them: to wait for whoever writes is right."""
LEFT_OUT = dict.fromkeys(("translate", "distill", "backtranslate"), ("cluster",))
"""Flags that are not tried: --cluster starts a cluster of several processes, or connects to one."""


def flag_targets() -> dict[str, st.SearchStrategy[Case]]:
    """Return a strategy of cases for every command."""
    if missing := COMMANDS.keys() - BASES.keys():
        raise LookupError(f"BASES has no command line for {', '.join(missing)}")
    return {name: _cases(name) for name in COMMANDS}


def good_lines(name: str) -> list[Case]:
    """Return the command lines of a command that need nothing more."""
    return [_with_outputs(name, shlex.split(base.line), base) for base in BASES[name] if base.works]


def limits_of(case: Case) -> Limits:
    """Return what a case may take: it gets a Ctrl-C where its command may rightly take hours."""
    is_long = case.target.startswith("flags ") and any(base.stops for base in BASES[case.command[0]])
    return Limits(stop_after=STOP_AFTER if is_long else None)


@st.composite
def _cases(draw: Draw, name: str) -> Case:
    """Return a case of a command with one to three flags more, or arguments without a flag."""
    base = draw(st.sampled_from(BASES[name]))
    words = shlex.split(base.line)
    arguments = [one for one in COMMANDS[name].arguments.values() if one.name not in LEFT_OUT.get(name, ())]
    count = draw(st.sampled_from((1, 1, 1, 2, 3)))
    for argument in draw(st.lists(st.sampled_from(arguments), min_size=count, max_size=count)):
        values = _values(draw, name, argument)
        if argument.kind is bool:
            words.append(argument.flag)
        elif argument.mark.positional or (argument.mark.bare and draw(st.booleans())):
            words[1:1] = values
        elif draw(st.booleans()) and len(values) == 1:
            words.append(f"{argument.flag}={values[0]}")
        else:
            words = [*_without(words, argument.flag), argument.flag, *values]
    return _with_outputs(name, words, base)


def _with_outputs(name: str, words: list[str], base: Base) -> Case:
    """Return the case of a command line, which may write what its flags name."""
    outputs = [f"--{one}" for one in OUTPUTS]
    written = [words[n + 1] for n, word in enumerate(words[:-1]) if word in outputs]
    written += [word.partition("=")[2] for word in words if word.partition("=")[0] in outputs]
    patterns = [part for path in written for part in _beside(path)]
    return Case(f"flags {name}", tuple(words), needs=_paths_in(words), writes=(*base.writes, *patterns))


def _values(draw: Draw, command: str, argument: Any) -> list[str]:
    """Return values for an argument of a command, right or wrong."""
    pool = {int: WHOLE, float: REAL, Path: PATHS}.get(argument.kind, TEXTS)
    if argument.name in MAY_BE_PIPES.get(command, ()):
        pool = tuple(path for path in pool if path != "pipe")
    one = st.sampled_from((*argument.choices, *TEXTS[:6])) if argument.choices else st.sampled_from(pool)
    count = argument.count
    if count is None:
        return [draw(one)]
    if count == "+":
        return draw(st.lists(one, min_size=0, max_size=3))
    return draw(st.lists(one, min_size=count - 1, max_size=count + 1))


def _without(words: list[str], flag: str) -> list[str]:
    """Return the words without a flag and its one value, where it is there: given twice, it would be refused."""
    if flag not in words:
        return words
    at = words.index(flag)
    return words[:at] + words[at + 2 :]


def _beside(path: str) -> list[str]:
    """Return the patterns of what a command may write for this output path."""
    plain = str(Path(path))
    led_to = ["nowhere"] if plain == "dangling" else []
    databases = str(Path(plain).parent / "trackio")
    suffixes = (".partial", ".partial.json", "-data", ".pairs")
    return [plain, *(f"{plain}{suffix}" for suffix in suffixes), databases, *led_to]


def _paths_in(words: list[str]) -> tuple[str, ...]:
    """Return the first parts of the paths that stand in flags with an equals sign."""
    values = [word.partition("=")[2] for word in words if word.startswith("--") and "=" in word]
    return tuple(Path(value).parts[0] for value in values if 0 < len(value) < 200 and Path(value).parts)
