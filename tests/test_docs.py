"""Every example in README and docs that is marked as executed is executed, as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.demo.dates import DatePhrase, make_dates

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXECUTED = re.compile(
    r"<!-- executed by tests/test_docs.py -->\n```(sh|python)\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL
)
EXAMPLES = [(page.name, *match) for page in PAGES for match in EXECUTED.findall(page.read_text(encoding="utf-8"))]


def write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with small files under the names that the examples use."""
    splits = make_dates(train=40, valid=5, test=5)

    def pairs(dates: list[DatePhrase]) -> list[str]:
        return [f"{date.phrase}\t{date.iso}" for date in dates]

    write(tmp_path / "pairs.tsv", pairs(splits.train))
    write(tmp_path / "test.tsv", pairs(splits.test))
    write(tmp_path / "new.txt", [date.phrase for date in splits.test])
    for name, part in (("train", splits.train), ("val", splits.valid), ("test", splits.test)):
        write(tmp_path / f"{name}.en", [date.phrase for date in part])
        write(tmp_path / f"{name}.de", [date.iso for date in part])
    write(tmp_path / "words.tsv", [f"{date.phrase}\t{' '.join(date.iso)}" for date in splits.train])
    return tmp_path


@pytest.mark.parametrize(("page", "language", "example", "output"), EXAMPLES)
def test_example_runs_as_it_stands_and_prints_what_follows(
    page: str, language: str, example: str, output: str, folder: Path
) -> None:
    command = ["bash", "-euo", "pipefail", "-c", example] if language == "sh" else [sys.executable, "-c", example]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, f"{page}:\n{example}\n{done.stdout}\n{done.stderr}"
    if output:
        assert done.stdout == output


def test_readme_has_executed_examples() -> None:
    assert sum(page == "README.md" for page, *_ in EXAMPLES) >= 5
