"""Packages of Argos Translate: their content, what translating with them gives, and what can't be packed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from glassformer.errors import ConfigError, RunError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.interop.argos import export_argos
from glassformer.run.folder import Run
from glassformer.text.tokenizer import SymbolTokenizer
from glassformer.text.vocabulary import VocabularyTokenizer

ctranslate2 = pytest.importorskip("ctranslate2", reason="pip install 'glassformer[ctranslate2]'")
ARGOS = SearchConfig(beam=4, length_penalty=0.2, stopping="first", min_length=1, replace_unknown=True, max_length=40)
"""The search of Argos Translate 1.11; max_length apart, which a random model needs."""
PROGRAM = """
import json, sys
from argostranslate import package, settings, translate
package.install_from_path(sys.argv[1])
(installed,) = package.get_installed_packages()
translation = translate.get_translation_from_codes("en", "de")
translation.underlying.sentencizer = type("Whole", (), {"split_sentences": lambda self, text: [text]})()
lines = json.loads(sys.stdin.read())
print(json.dumps([str(installed), installed.get_readme(), [translation.translate(line) for line in lines]]))
"""


@pytest.fixture
def shared(random_run, sides, tmp_path) -> Run:
    return random_run(tmp_path / "run", sides[0], sides[0], shared=True, tied_output=False, seed=28)


@pytest.fixture
def package(shared, tmp_path) -> Path:
    out = tmp_path / "new" / "en-de.argosmodel"
    out.parent.mkdir()
    export_argos(shared, out, ("en", "de"), readme="It is random.\n")
    return out


def test_a_package_has_what_argos_reads(package, tmp_path, shared):
    with ZipFile(package) as archive:
        assert archive.testzip() is None
        archive.extractall(tmp_path / "packages")
    (folder,) = (tmp_path / "packages").iterdir()
    assert folder.name == "translate-en_de-1_0"
    assert {str(path.relative_to(folder)) for path in folder.rglob("*")} == {
        *("metadata.json", "README.md", "sentencepiece.model"),
        *("model", "model/config.json", "model/model.bin", "model/shared_vocabulary.json"),
    }
    metadata = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    names = {"from_code": "en", "from_name": "English", "to_code": "de", "to_name": "German"}
    assert metadata == {"package_version": "1.0", "argos_version": "1.11", **names}
    assert (folder / "README.md").read_text() == "It is random.\n"
    assert (folder / "sentencepiece.model").read_bytes() == shared.source_tokenizer.proto


def test_translating_as_argos_does_gives_our_translations(package, tmp_path, shared, english):
    with ZipFile(package) as archive:
        archive.extractall(tmp_path)
    model = ctranslate2.Translator(str(tmp_path / "translate-en_de-1_0/model"), compute_type="float32")
    tokenizer = shared.source_tokenizer
    pieces = [tokenizer.tokens(ids) for ids in tokenizer.encode(english)]  # without </s>
    settings = dict(beam_size=4, length_penalty=0.2, replace_unknowns=True, max_decoding_length=40)
    found = [one.hypotheses[0] for one in model.translate_batch(pieces, **settings)]
    ours = Translator.load(tmp_path / "run", precision="float32").translations(english, ARGOS)
    assert found == [translation.tokens for translation in ours]
    assert len({token for line in found for token in line}) > 7  # or it would be no test


@pytest.mark.skipif(find_spec("argostranslate") is None, reason="argostranslate is not installed, it needs stanza")
def test_argos_installs_and_translates(package, tmp_path, english):
    ours = Translator.load(tmp_path / "run", precision="float32").translations(english, replace(ARGOS, max_length=256))
    ended = {line: one.text.replace("_", " ") for line, one in zip(english, ours, strict=True) if len(one.tokens) < 50}
    assert len(ended) > 3  # for others our limit is another one
    homes = {name: str(tmp_path / "argos") for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(package)],
        input=json.dumps(list(ended)),
        capture_output=True,
        text=True,
        env={**os.environ, **homes, "ARGOS_COMPUTE_TYPE": "float32"},
    )
    assert done.returncode == 0, done.stderr
    name, readme, found = json.loads(done.stdout)
    assert (name, readme) == ("English → German", "It is random.\n")
    assert found == list(ended.values())  # Argos reads _ as a space


@pytest.mark.parametrize("room", [0, 5000])
def test_on_a_full_disk_nothing_is_left(shared, tmp_path, tree, full_disk, room):
    before = tree(tmp_path)
    with full_disk(room), pytest.raises(OSError, match=r"File too large.*en-de\.argosmodel"):
        export_argos(shared, tmp_path / "en-de.argosmodel", ("en", "de"))
    assert tree(tmp_path) == before


BAD: dict[str, tuple[Callable[[Any], Run], str, type[Exception], str]] = {
    "two vocabularies": (
        lambda make: make(0, 1),
        "x.argosmodel",
        RunError,
        "this run has two sentencepiece models, and an Argos package holds one for both sides: train with a shared",
    ),
    "a name that Argos doesn't take": (
        lambda make: make(0, 0),
        "x.zip",
        ConfigError,
        r"Argos installs files whose names end in \.argosmodel: give --out NAME\.argosmodel",
    ),
    "a name that is taken": (
        lambda make: make(0, 0),
        "taken.argosmodel",
        RunError,
        r"taken\.argosmodel is there already: give a new name, or remove it first",
    ),
    "symbols": (
        lambda make: make(2, 2),
        "x.argosmodel",
        RunError,
        "splits symbols at spaces, and exports hold sentencepiece models only",
    ),
}


def test_a_model_that_reads_the_codes_of_languages_is_refused(random_run, sides, joint, tmp_path):
    tokenizer = VocabularyTokenizer(sides[0].proto, joint(">>deu<<"))
    run = random_run(tmp_path / "run", tokenizer, tokenizer, shared=True)
    with pytest.raises(RunError, match="the code of a language at the beginning of a line, such as >>deu<<, and Argos"):
        export_argos(run, tmp_path / "new.argosmodel", ("en", "de"))


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_packed(name, random_run, sides, tmp_path, tree):
    tokenizers = [*sides, SymbolTokenizer("abc")]

    def make(source: int, target: int) -> Run:
        return random_run(tmp_path / "run", tokenizers[source], tokenizers[target], shared=source == target)

    run_of, out, error, message = BAD[name]
    run = run_of(make)
    (tmp_path / "taken.argosmodel").write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(error, match=message):
        export_argos(run, tmp_path / out, ("en", "de"))
    assert tree(tmp_path) == before
