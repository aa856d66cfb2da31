"""Every example in README and docs that is marked as executed is executed, as it stands."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from glassformer.demo.dates import DatePhrase, DateSplits, make_dates
from glassformer.interop.huggingface import export_marian
from glassformer.run.folder import load_run
from glassformer.training.config import TrainConfig
from glassformer.training.train import train

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "docs" / "_build"
PAGES = [
    *sorted(ROOT.glob("README*.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if BUILT not in path.parents),
]
MARK = "<!-- executed by tests/test_docs.py -->"
EXECUTED = re.compile(rf"{MARK}\n```(sh|python)\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
NOT_EXECUTED = re.compile(r"<!-- not executed: \S.* -->")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NOTEBOOKS = [page for page in PAGES if page.parent.name == "tutorials"]
"""Pages whose cells are executed when the site is built."""
OTHERS = [ROOT / f"{name}.md" for name in ("CHANGELOG", "CODE_OF_CONDUCT", "CONTRIBUTING", "SECURITY")]
EXAMPLES = [(page.name, *match) for page in PAGES for match in EXECUTED.findall(page.read_text(encoding="utf-8"))]


def begins_another(example: tuple[str, ...], others: list[tuple[str, ...]]) -> bool:
    """Return whether another example begins with all lines of this one, of which no page shows what they print."""
    _, language, code, output = example
    return not output and any(
        other[1] == language and other[2] != code and other[2].startswith(code) for other in others
    )


ONCE = [
    example
    for example in {example[1:]: example for example in EXAMPLES}.values()
    if not begins_another(example, EXAMPLES)
]
"""The same without what several pages show, or begin with, as README.md with the commands of README.zh.md."""


def relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module")
def dates() -> DateSplits:
    return make_dates(train=40, valid=5, test=5)


@pytest.fixture
def folder(dates: DateSplits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with small files under the names that the examples use."""

    def pairs(dates: list[DatePhrase]) -> list[str]:
        return [f"{date.phrase}\t{date.iso}" for date in dates]

    def segment(language: str, text: str) -> str:
        return f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>'

    write(tmp_path / "pairs.tsv", pairs(dates.train))
    write(tmp_path / "test.tsv", pairs(dates.test))
    write(tmp_path / "new.txt", [date.phrase for date in dates.test])
    for name, part in (("train", dates.train), ("val", dates.valid), ("test", dates.test)):
        write(tmp_path / f"{name}.en", [date.phrase for date in part])
        write(tmp_path / f"{name}.de", [date.iso for date in part])
    for name, part in (("memory", dates.train), ("held-out", dates.test)):
        units = [f"<tu>{segment('en', date.phrase)}{segment('de', date.iso)}</tu>" for date in part]
        write(tmp_path / f"{name}.tmx", ['<tmx version="1.4"><header/><body>', *units, "</body></tmx>"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained(dates: DateSplits, tiny: Callable[..., TrainConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a short training, for the examples that begin with a trained run."""
    folder = tmp_path_factory.mktemp("trained")
    write(folder / "pairs.tsv", [f"{date.phrase}\t{date.iso}" for date in dates.train])
    files = dict(source=folder / "pairs.tsv", valid_source=folder / "pairs.tsv")
    return train(tiny(folder / "run", **files, tokenizer="char", max_updates=5)).folder


@pytest.fixture(scope="module")
def marian(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in a folder as transformers writes it, for the examples that begin with one of OPUS-MT."""
    transformers = pytest.importorskip("transformers", reason="pip install 'glassformer[huggingface]'")
    exported, saved = (tmp_path_factory.mktemp(name) for name in ("exported", "saved"))
    export_marian(load_run(trained), exported)
    with warnings.catch_warnings(action="ignore"):
        for part in (transformers.MarianMTModel, transformers.MarianTokenizer):
            part.from_pretrained(exported).save_pretrained(saved)
    return saved


@pytest.fixture(scope="module")
def graphs(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as ONNX graphs, for the examples that begin with them."""
    exported = pytest.importorskip("glassformer.interop.onnx.export", exc_type=ImportError)
    folder = tmp_path_factory.mktemp("graphs") / "dates-onnx"
    exported.export_onnx(load_run(trained), folder)
    return folder


@pytest.fixture(scope="module")
def commands(
    tmp_path_factory: pytest.TempPathFactory, serving_forks: Callable[[Path], AbstractContextManager[list[str]]]
) -> Iterator[Path]:
    """A folder with a `glassformer` whose new trainings make three updates of two layers: the defaults take long.

    It runs in a fork of a process that has loaded torch; test_wheel.py runs the installed one.
    """
    command = tmp_path_factory.mktemp("bin") / "glassformer"
    is_training = r'case "$1 $2" in "train --source" | train\ *.tsv | train\ *.tmx) set -- "$@" --max-updates 3'
    is_new = 'case "$*" in *--from*) ;; *) set -- "$@" --encoder-layers 1 --decoder-layers 1 ;; esac'
    with serving_forks(Path(__file__).with_name("forked.py")) as begun:
        write(command, ["#!/bin/sh", f"{is_training}; {is_new} ;; esac", f'exec {shlex.join(begun)} "$@"'])
        command.chmod(0o755)
        yield command.parent


@pytest.mark.parametrize(("page", "language", "example", "output"), ONCE)
@pytest.mark.usefixtures("folder")
def test_example_runs_as_it_stands_and_prints_what_follows(
    page, language, example, output, commands, request, monkeypatch, capsys
):
    # The examples that learn something, or start several commands (2 seconds each to load torch), take more than 3 s.
    if re.search(r'runs/dates["\s]', example) and not re.search(r"\btrain\b", example):
        shutil.copytree(request.getfixturevalue("trained"), "runs/dates")
    if "opus-mt-en-de" in example:
        shutil.copytree(request.getfixturevalue("marian"), "opus-mt-en-de")
    if 'Path("dates-onnx")' in example:
        shutil.copytree(request.getfixturevalue("graphs"), "dates-onnx")
    if language == "python":  # in this process, which has loaded torch
        if re.search("train|optim|except", example):  # an example of an error shows what users see
            request.getfixturevalue("unchecked")
        with warnings.catch_warnings(action="ignore"):
            exec(compile(example, page, "exec"), {"__name__": "__main__"})
        printed = capsys.readouterr().out
    else:
        monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", example], capture_output=True, text=True)
        assert done.returncode == 0, f"{page}:\n{example}\n{done.stdout}\n{done.stderr}"
        printed = done.stdout
    if output:
        assert printed == output


def test_readme_has_executed_examples() -> None:
    assert sum(page == "README.md" for page, *_ in EXAMPLES) >= 5


@pytest.mark.parametrize("page", [page for page in PAGES if page not in NOTEBOOKS], ids=relative)
def test_every_example_is_executed_or_says_why_not(page):
    text = page.read_text(encoding="utf-8")
    above = re.findall(r"^(.*)\n```(?:sh|bash|shell|console|py|python)\n", text, re.MULTILINE)
    unmarked = [line for line in above if line != MARK and not NOT_EXECUTED.fullmatch(line)]
    assert unmarked == [], f"the line above a block of code is {MARK}, or <!-- not executed: REASON -->"


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    titles = re.findall(r"^#{1,6} +(.+?) *$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=relative)
def test_every_link_and_picture_leads_somewhere(page):
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    broken = []
    for target in re.findall(r"\]\(<?([^)\s>]+)>?\)|(?:src|href)=\"([^\"]+)\"", text):
        path, _, anchor = "".join(target).partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        file = (page.parent / path) if path else page
        if not file.exists() or (anchor and (file.suffix != ".md" or anchor not in headings(file))):
            broken.append("".join(target))
    assert broken == []


def test_the_map_is_that_of_the_source():
    made = runpy.run_path(str(ROOT / "docs" / "make" / "map.py"))["make_map"]()
    assert made == (ROOT / "docs" / "map.md").read_text(encoding="utf-8"), "run python docs/make/map.py"
