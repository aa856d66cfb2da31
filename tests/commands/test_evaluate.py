"""`glassformer evaluate`: scores of a run and of a file; bad input is in test_cli.py."""

from glassformer.generation.config import SearchConfig
from glassformer.text.scores import score_all


def test_evaluate_a_run(here, capfd, translator, run_command):
    assert run_command("evaluate run --source valid.tsv --output found.txt SHORT") == 0
    pairs = [line.split("\t") for line in (here / "valid.tsv").read_text(encoding="utf-8").splitlines()]
    found = translator.translate([source for source, _ in pairs], SearchConfig(beam=2, max_length=7))
    assert (here / "found.txt").read_text(encoding="utf-8").splitlines() == found
    expected = [str(score) for score in score_all(found, [target for _, target in pairs], symbols=True)]
    assert capfd.readouterr().out.splitlines() == expected


def test_evaluate_hypotheses(here, capfd, run_command):
    assert run_command("evaluate --hypotheses source.txt --target source.txt --symbols") == 0
    out, _ = capfd.readouterr()
    assert [line.split("  ")[0] for line in out.splitlines()] == [
        "BLEU 100.00",
        "chrF 100.00",
        "exact match 100.00",
        "word error rate 0.00",
        "symbol error rate 0.00",
    ]
    assert "version:" in out
