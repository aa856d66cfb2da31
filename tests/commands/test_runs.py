"""`glassformer runs --compare`: two runs in tables and as a picture. The list of runs is in test_listing.py."""

import shutil

import pytest


def test_two_runs_are_compared(here, capfd, run_command):
    pytest.importorskip("matplotlib", reason="pip install 'glassformer[plots]'")
    shutil.copytree(here / "run", here / "other")
    for run in ("run", "other"):
        assert run_command(f"evaluate {run} --source valid.tsv SHORT --precision float32 --save") == 0
    bleu = capfd.readouterr().out.split()[1]
    assert run_command("runs --compare run other --picture compared.png") == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["settings", "that", "differ", "run", "other"]
    assert lines[1] == "none"
    assert [line.split()[0] for line in lines[4:10]] == [
        "state",
        "updates",
        "score",
        "validation",
        "parameters",
        "time",
    ]
    assert lines[11] == "valid.tsv: 11 lines, beam 2, max_length 7, float32"
    (score,) = [line.split() for line in lines if line.startswith("BLEU ")]
    (signature,) = [line for line in lines if line.startswith("BLEU: ")]
    assert "|tok:13a|" in signature
    assert (score[1], score[4]) == (bleu, bleu)
    assert score[-2:] == ["+0.00", "1.0000"]
    assert lines[-1] == "compared.png: their losses and scores"
    assert (here / "compared.png").stat().st_size > 10_000
