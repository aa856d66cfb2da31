import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from glassformer import SearchConfig, Translator
from glassformer.generation import stream

SEARCH = SearchConfig(beam=2, max_length=7)


@pytest.fixture
def folder(here: Path) -> Path:
    """Three runs that have the same tokenizers, and other weights."""
    weights = load_file(here / "run/model.safetensors")
    for name, scale in (("second", 1.4), ("third", 0.6)):
        shutil.copytree(here / "run", here / name)
        save_file({key: scale * weight for key, weight in weights.items()}, here / name / "model.safetensors")
    return here


def translations(*runs: str) -> list[str]:
    lines = Path("source.txt").read_text(encoding="utf-8").splitlines()
    return Translator.load_ensemble(runs, "cpu").translate(lines, SEARCH)


def test_translate_and_evaluate(folder, run_command, capfd):
    assert run_command("translate run --ensemble second third --input source.txt --output out.txt SHORT") == 0
    written = (folder / "out.txt").read_text(encoding="utf-8").splitlines()
    assert written == translations("run", "second", "third")
    assert written not in (translations("run"), translations("second"), translations("third"))
    both = "--source source.txt --target target.txt"
    capfd.readouterr()
    assert run_command(f"evaluate run --ensemble second third {both} --output scored.txt SHORT") == 0
    of_run = capfd.readouterr().out
    assert (folder / "scored.txt").read_text(encoding="utf-8").splitlines() == written
    assert run_command("evaluate --hypotheses out.txt --target target.txt --symbols") == 0
    assert capfd.readouterr().out.splitlines()[-1] in of_run


def test_another_ensemble_does_not_go_on_with_a_translation(folder, run_command, capfd, monkeypatch, stopping):
    monkeypatch.setattr(stream, "LINES_AT_ONCE", 7)
    command = "translate run --input source.txt --output out.txt SHORT --ensemble"
    with stopping():
        assert run_command(f"{command} second") == 130
    capfd.readouterr()
    for others in ("third", "second third"):
        assert run_command(f"{command} {others} --resume") == 2
        assert "out.txt.partial was started with run folder (digest) " in run_command.complaint(capfd.readouterr().err)
    assert run_command(f"{command} second --resume") == 0
    assert (folder / "out.txt").read_text(encoding="utf-8").splitlines() == translations("run", "second")


def test_distill(folder, run_command, capfd):
    student = "--text source.txt --out new --written written TINY --max-updates 1 --keep-copies --length-factor 99"
    assert run_command(f"distill run --ensemble second third {student} SHORT") == 0
    assert "run and second and third write targets for" in capfd.readouterr().err
    [written] = (folder / "written").glob("written-*.txt")
    rows = [row.split("\t") for row in written.read_text(encoding="utf-8").splitlines()]
    text = dict(
        zip(
            (folder / "source.txt").read_text(encoding="utf-8").splitlines(),
            translations("run", "second", "third"),
            strict=True,
        )
    )
    assert [translation for _, translation in rows] == list(text.values())
    assert run_command(f"distill run {student.replace('new', 'newer')} SHORT") == 0
    assert len(list((folder / "written").glob("written-*.txt"))) == 2, "one run writes anew"
