"""Lines of two languages, and tokenizers and random runs of them."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.run.folder import Run
from glassformer.text.tokenizer import SubwordTokenizer


@pytest.fixture(scope="session")
def english() -> list[str]:
    return [
        "two dogs run over the green grass",
        "a man sings a song",
        "the dogs sing",
        "a green man runs over two songs",
        "grass",
    ]


@pytest.fixture(scope="session")
def german() -> list[str]:
    return ["zwei Hunde laufen über das Gras", "ein Mann singt ein Lied", "die Hunde", "ein grüner Mann läuft", "Gras"]


@pytest.fixture(scope="session")
def sides(english: list[str], german: list[str]) -> list[SubwordTokenizer]:
    """The tokenizers of source and target: sentencepiece models of two sizes."""
    return [SubwordTokenizer.train(lines * 5, kind="unigram", vocab_size=None, seed=1) for lines in (english, german)]


@pytest.fixture
def run(random_run: Callable[..., Run], sides: list[SubwordTokenizer], tmp_path) -> Run:
    """A random run between the two."""
    return random_run(tmp_path / "run", *sides)


@pytest.fixture(scope="session")
def joint(sides: list[SubwordTokenizer]) -> Callable[..., dict[str, int]]:
    """Makes one vocabulary of both sides' pieces, after codes of languages, as OPUS-MT's models have it."""

    def make(*codes: str) -> dict[str, int]:
        pieces = [piece for side in sides for piece in side.tokens(range(2, side.pad))]
        pieces = list(dict.fromkeys(["</s>", "<unk>", *codes, *pieces, "<pad>"]))
        return {piece: i for i, piece in enumerate(pieces)}

    return make


@pytest.fixture(scope="session")
def transformers_js() -> Callable[..., Any]:
    """Runs a script of this folder with npm's packages of `make web`, gives it a value and returns its answer."""
    node, packages = shutil.which("node"), Path(sys.prefix) / "web" / "node_modules"
    if node is None or not packages.exists():
        pytest.skip("needs node and the packages that make web installs")

    def run(script: str, value: Any) -> Any:
        command = [node, str(Path(__file__).parent / script), str(packages)]
        done = subprocess.run(command, input=json.dumps(value), capture_output=True, text=True, encoding="utf-8")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
