"""The table of what is damaged: each file that glassformer reads, and a command that reads it."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st
from lab import TINY
from mutations import ODD_FILES, damaged

TRAIN = ("train", "--out", "new", *TINY, "--tokenizer", "char", "--max-updates", "1", "--source")
RESUME = ("train", "--resume", "--out", "stopped", "--max-updates", "1")


@dataclass(frozen=True)
class Target:
    """A file, the command that reads it, and what else the command needs."""

    file: str
    """Its path in the lab, perhaps with wildcards."""
    argv: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """Names in the lab, beside the first part of the file's path."""

    @property
    def name(self) -> str:
        """The name in the table of counts."""
        return f"{self.argv[0]} {self.file}"

    def inputs(self, lab: Path) -> st.SearchStrategy["Input"]:
        """Return a strategy that draws damaged inputs."""
        path = sorted(lab.glob(self.file))[0]
        names = {path.relative_to(lab).parts[0], *self.needs}
        return damaged(path.read_bytes(), path.name, may_be_pipe=path.parent != lab).map(
            lambda content: Input(self.name, self.argv, tuple(sorted(names)), str(path.relative_to(lab)), content)
        )


@dataclass(frozen=True)
class Input:
    """A command and the damaged file that it is given."""

    target: str
    argv: tuple[str, ...]
    needs: tuple[str, ...]
    file: str = ""
    content: bytes | str = b""
    """The damaged content, or one of `ODD_FILES`."""

    def lay_out(self, lab: Path, folder: Path) -> None:
        """Copy what the command needs into an empty folder, and put the damage in place."""
        for name in self.needs:
            if (lab / name).is_dir():
                shutil.copytree(lab / name, folder / name)
            elif (lab / name).exists():
                shutil.copy(lab / name, folder / name)
        if self.file:
            place(folder / self.file, self.content)

    def __repr__(self) -> str:
        shown = self.content if isinstance(self.content, str) else f"{len(self.content):,} bytes"
        argv = " ".join(word if len(word) < 99 else f"{word[:99]}..." for word in self.argv)
        return f"glassformer {ascii(argv)[1:-1]}" + (f", {self.file}: {shown}" if self.file else "")


def place(path: Path, content: bytes | str) -> None:
    """Write a content, or put one of `ODD_FILES` in place of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
        return
    assert content in ODD_FILES
    if content == "pipe":
        os.mkfifo(path)
    elif content == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "ring": path.name, "nowhere": "nowhere"}[content])


def _targets() -> Iterator[Target]:
    translate = ("translate", "run", "abc def", "--threads", "1")
    for file in ("config.json", "model.safetensors", "source.spm", "target.spm"):
        yield Target(f"run/{file}", translate)
        yield Target(f"run/{file}", ("runs", "."))
    for file in ("config.json", "source.symbols", "target.symbols"):
        yield Target(f"phones/{file}", ("translate", "phones", "abc def"))
    yield Target("run/metrics.jsonl", ("runs", "."))
    yield Target("run/config.json", ("evaluate", "run", "--source", "p.csv", "--beam", "1"), ("p.csv",))
    yield Target("run/config.json", ("export", "run", "--to", "huggingface", "--out", "new"))
    yield Target(
        "run/config.json",
        ("train", "--from", "run", "--source", "p.tsv", "--out", "new", "--max-updates", "1"),
        ("p.tsv",),
    )
    yield Target("run/heads.json", ("inspect", "run", "abc def", "--out", "page.html"))
    for file in ("config.json", "model.safetensors", "vocab.json", "source.spm", "target.spm"):
        yield Target(f"marian/{file}", ("import", "--from", "marian", "--out", "new"))
    for file in ("config.json", "metrics.jsonl", "source.spm", "resume/valid.json"):
        yield Target(f"stopped/{file}", RESUME)
    for file in ("checkpoint-*/*.safetensors", "train/source.ids", "train/target.offsets", "valid/source.ids"):
        yield Target(f"stopped/resume/{file}", RESUME)
    yield Target("stopped/resume/checkpoint-*/*.safetensors", ("runs", "."))
    for ending in (
        "tsv",
        "csv",
        "jsonl",
        "json",
        "tmx",
        "xliff",
        "po",
        "tsv.gz",
        "tsv.bz2",
        "tsv.xz",
        "tsv.zst",
        "xlsx",
        "parquet",
    ):
        yield Target(f"p.{ending}", ("check", f"p.{ending}"))
        yield Target(f"p.{ending}", (*TRAIN, f"p.{ending}"))
    yield Target("p16.tsv", ("check", "p16.tsv"))
    yield Target("p.tsv", ("evaluate", "run", "--source", "p.tsv", "--beam", "1"), ("run",))
    yield Target("lines.txt", ("translate", "run", "--input", "lines.txt", "--output", "out.txt"), ("run",))
    yield Target(
        "prefixes.txt", ("translate", "run", "--input", "lines.txt", "--prefixes", "prefixes.txt"), ("run", "lines.txt")
    )
    yield Target(
        "trees.conllu",
        ("heads", "run", "--data", "p.csv", "--sentences", "3", "--trees", "trees.conllu"),
        ("run", "p.csv"),
    )
    yield Target(
        "run/source.spm", (*TRAIN[:-1], "--source-tokenizer", "run/source.spm", "--source", "p.tsv"), ("p.tsv",)
    )


TARGETS = list(_targets())
