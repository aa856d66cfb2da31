"""Text in letters, and a writer that needs no model."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from glassformer.generation.config import SearchConfig
from glassformer.run.folder import write_weights
from glassformer.run.names import WEIGHTS
from glassformer.synthesis.written import Writer
from glassformer.tensors import read_tensors
from glassformer.text.tokenizer import UNK, SymbolTokenizer

LETTERS = "abcdefghijklmnop"


@pytest.fixture(scope="session")
def run(random_run, tmp_path_factory) -> Path:
    """A random run from letters to letters, from English to German as it says, that writes no unknown token."""
    folder = tmp_path_factory.mktemp("random") / "run"
    symbols = SymbolTokenizer(LETTERS)
    random_run(folder, symbols, symbols, output_bias=True)
    weights = read_tensors(folder / WEIGHTS)
    weights["output_bias"][UNK] = -100.0
    write_weights(folder, weights)
    return folder


@pytest.fixture(scope="session")
def back(run, tmp_path_factory) -> Path:
    """The same run, from German to English as it says."""
    folder = tmp_path_factory.mktemp("random") / "back"
    shutil.copytree(run, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["training"]["languages"].reverse()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def spelled_backwards(line: str) -> str:
    return line[::-1].upper()


@pytest.fixture
def writer() -> Callable[..., Writer]:
    """Make a writer that spells each line backwards in capitals, or does what `says` says, with these scores."""

    def make(says: Callable[[str], str] = spelled_backwards, score: Callable[[str], float] = lambda _: -0.5) -> Writer:
        def write(runs: Sequence[Path], text: Path, output: Path, search: SearchConfig) -> None:
            rows = []
            for number, line in enumerate(text.read_text(encoding="utf-8").splitlines(), start=1):
                for n in range(search.n_best):
                    begins = f"{number}\t" if search.n_best > 1 else ""
                    rows.append(f"{begins}{score(line):.4f}\t{says(line)}{'!' * n}\n")
            output.write_text("".join(rows), encoding="utf-8")

        return write

    return make
