"""`glassformer export`: each target has a model card, and what can't be exported is said in one line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece

from glassformer.commands.export import TARGETS
from glassformer.run.folder import open_run
from glassformer.text.tokenizer import SubwordTokenizer
from glassformer.text.vocabulary import VocabularyTokenizer

LINES = ["two dogs run over the grass", "a man sings a song", "grass and dogs"] * 4


@pytest.fixture
def folder(random_run, tmp_path, monkeypatch) -> Path:
    """The current folder, with the run folders one (a shared vocabulary) and two."""
    left, right = (SubwordTokenizer.train(LINES[:n], kind="char", vocab_size=None, seed=1) for n in (3, 1))
    random_run(tmp_path / "one", left, left, shared=True)
    random_run(tmp_path / "two", left, right)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("target", ["huggingface", "ctranslate2", "onnx"])
def test_every_folder_has_a_model_card(folder, target, run_command):
    if target != "huggingface":
        pytest.importorskip(target)
    assert run_command(f"export one --to {target} --out new --license apache-2.0 --name dogs") == 0
    head, title = (folder / "new/README.md").read_text(encoding="utf-8").split("\n---\n")
    assert "license: apache-2.0" in head
    assert title.startswith("\n# dogs\n")
    assert "translates English (en) to German (de)" in title


def test_the_folder_in_the_lines_that_load_it_may_have_braces(folder, run_command, capfd):
    pytest.importorskip("ctranslate2")
    assert run_command("export one --to ctranslate2 --out ct{v1} --source-language en --target-language de") == 0
    lines = capfd.readouterr().out
    assert "SentencePieceProcessor('ct{v1}/source.spm')" in lines
    assert "SentencePieceProcessor('ct{v1}/target.spm').decode" in lines
    assert 'FOLDER + "/target.spm"' in (folder / "ct{v1}/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("has_codes", [False, True])
def test_the_printed_lines_give_ctranslate2_what_the_run_reads(folder, run_command, capfd, random_run, has_codes):
    ctranslate2 = pytest.importorskip("ctranslate2")
    line = ">>nld<< a </s> man" if has_codes else "a </s> man"
    run = open_run(Path("one"))
    if has_codes:
        pieces = run.source_tokenizer.tokens(range(2, run.source_tokenizer.pad))
        ids = {piece: i for i, piece in enumerate(["</s>", "<unk>", *pieces, ">>nld<<", ">>deu<<", "<pad>"])}
        tokenizer = VocabularyTokenizer(run.source_tokenizer.proto, ids)
        run = random_run(folder / "coded", tokenizer, tokenizer, shared=True)
    name = "coded" if has_codes else "one"
    assert run_command(f"export {name} --to ctranslate2 --out new") == 0
    *lines, _, _ = [text.strip() for text in capfd.readouterr().out.splitlines() if text.startswith("  ")]
    known = {"line": line.removeprefix(">>nld<<"), "sentencepiece": sentencepiece, "ctranslate2": ctranslate2}
    exec("\n".join(lines), known)
    words = json.loads(next(Path("new").glob("s*_vocabulary.json")).read_text(encoding="utf-8"))
    assert known["pieces"] == [words[i] for i in run.source_tokenizer.encode([line])[0]]


def test_an_argos_package_says_how_it_is_installed(folder, run_command, capfd):
    pytest.importorskip("ctranslate2")
    assert run_command("export one --to argos --out new.argosmodel --source-language fr --target-language pt-BR") == 0
    assert capfd.readouterr().out == "new.argosmodel: install it with argospm install new.argosmodel\n"


BAD = {
    "export one --to tensorflow --out new": "--to: expected one of huggingface, ctranslate2, onnx, web, argos, got",
    "export two --to argos --out new.argosmodel": "this run has two sentencepiece models, and an Argos",
    "export one --to argos --out new": "new: Argos installs files whose names end in .argosmodel",
    "export nameless --to argos --out new.argosmodel": "this run doesn't know its own: give their codes",
    "export one --to onnx --out new --target-language de": "give both --source-language and --target-language",
    "export one --to huggingface --out new --license mine!": "license must be a licence as the Hugging Face",
    "export one --to huggingface --out new --quantization int8": "for --to ctranslate2, onnx, web or argos: leave",
    "export one --to ctranslate2 --out new --runtime x": "runtime is for --to web: leave it out with --to ctranslate2",
    "export one --to huggingface --out one/sub/x": "--out must not be in the run folder itself, got one/sub/x: choose",
    "export one --to huggingface --out two/config.json/x": "config.json: no folder to write x to (Not a directory)",
    "export one --to huggingface --out two": "two is there already: give a new name",
}


@pytest.mark.parametrize("command", BAD)
def test_what_cannot_be_exported_is_said_in_one_line(folder, run_command, tree, capfd, command):
    nameless = json.loads((folder / "one/config.json").read_text(encoding="utf-8"))
    del nameless["training"]["languages"]
    (folder / "nameless").mkdir()
    for path in (folder / "one").iterdir():
        (folder / "nameless" / path.name).write_bytes(path.read_bytes())
    (folder / "nameless/config.json").write_text(json.dumps(nameless), encoding="utf-8")
    before = tree(folder)
    assert run_command(command) == 2
    assert BAD[command] in run_command.complaint(capfd.readouterr().err)
    assert tree(folder) == before


def test_a_run_that_is_training_is_refused(folder, run_command, holding: Callable, capfd):
    (folder / "one/resume").mkdir()
    with holding(folder / "one"):
        assert run_command("export one --to huggingface --out new") == 2
    assert "one is being trained by another process" in run_command.complaint(capfd.readouterr().err)
    assert not (folder / "new").exists()


@pytest.mark.parametrize("room", [2000, 9000])
def test_on_a_full_disk_nothing_is_left(folder, run_command, tree, full_disk, room, capfd):
    before = tree(folder)
    with full_disk(room):
        assert run_command("export one --to huggingface --out new") == 2
    assert "new" in run_command.complaint(capfd.readouterr().err)
    assert tree(folder) == before


def test_the_documentation_has_a_column_for_each_target():
    page = Path(__file__).parents[2] / "docs/howto/export.md"
    heads = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| |")]
    assert [name.strip("` ") for name in heads[0].split("|")[2:-1]] == list(TARGETS)
