"""The page of a run: its hypotheses, a given target, and what long lines show."""

import re
from dataclasses import replace

import pytest
from torch.testing import assert_close

from glassformer import ModelConfig, Translator, Want, cli, page
from glassformer.errors import ArgumentError, ConfigError
from glassformer.page import inspection
from glassformer.page.inspection import inspect


def test_inspect_compares_the_hypotheses_of_the_beam(run, hypotheses_of):
    line = "a b c"
    found = Translator.load(run, precision="float32").translate_n_best([line], attention=Want(weights=True))
    best, _ = hypotheses_of(inspect(run, line, hypotheses=2))
    assert best["label"].startswith(found[0][0].text)
    attention = found[0][0].attention
    assert best["axes"]["source"] == attention.source_tokens
    assert best["axes"]["next"] == attention.target_out
    for view in best["views"]:
        stack = {"encoder": attention.encoder, "decoder": attention.decoder, "source": attention.source}[view["group"]]
        assert_close(view["facts"]["weights"], stack[view["layer"]].weights[0], rtol=1 / 4096, atol=1e-7)


@pytest.mark.filterwarnings("ignore:the model never saw this text")  # the run's own best translation has a ⁇
def test_inspect_reads_a_given_target(run, hypotheses_of):
    translator = Translator.load(run, precision="float32")
    (best,) = translator.translations(["a b c"], attention=Want(weights=True))
    again = translator.read("a b c", best.text, attention=Want(weights=True))
    assert again.tokens == best.tokens
    assert again.token_log_probs[: len(best.tokens)] == pytest.approx(
        best.token_log_probs[: len(best.tokens)], rel=1e-5
    )
    assert again.log_prob == pytest.approx(translator.score(["a b c"], [best.text])[0], rel=1e-5)
    (hypothesis,) = hypotheses_of(inspect(run, "a b c", best.text))
    assert hypothesis["axes"]["next"] == again.attention.target_out
    with pytest.raises(ConfigError, match="source is empty"):
        inspect(run, "  ")
    with pytest.raises(ConfigError, match="hypotheses must be at least 1"):
        inspect(run, "a", hypotheses=0)
    for text in ("a \udcff", "a \ud800"):
        with pytest.raises(ConfigError, match=re.escape(f"target must be valid UTF-8, got {text!a}")):
            inspect(run, "a", text)
    with pytest.raises(ArgumentError, match="translations know their own"):
        page(again, ["a", "b", "c"])


def test_inspect_takes_all_weights_where_a_page_holds_them(run, hypotheses_of, monkeypatch):
    def kinds() -> set[str]:
        (hypothesis,) = hypotheses_of(inspect(run, "a b c d e f g a b c", "b a"))
        return {name for view in hypothesis["views"] for name in view["facts"]}

    assert "tiles" not in kinds()
    monkeypatch.setattr(inspection, "LONG_INPUT_WANT", Want(pooled_heads=4, top=2))
    monkeypatch.setattr(inspection, "MOST_WEIGHTS", 1000)
    assert "tiles" in kinds()
    monkeypatch.setattr(inspection, "MOST_WEIGHTS", 10)
    with pytest.raises(ConfigError, match=r"source is too long for a page: .* 10: give a shorter line$"):
        kinds()


def test_what_fits_on_a_page_is_counted_as_the_model_is(monkeypatch):
    sizes = dict(source_vocab_size=9, target_vocab_size=9, heads=4, d_model=16)
    whole = ModelConfig(**sizes, encoder_layers=3, decoder_layers=2)
    tiles, long = inspection.LONG_INPUT_WANT.pooled_heads, inspection.LONG_INPUT_WANT
    a_page = 4 * (3 * tiles**2 + 2 * 2 * tiles**2)
    monkeypatch.setattr(inspection, "MOST_WEIGHTS", a_page)
    assert inspection.choose_want(whole, 1024, [1024]) == long
    with pytest.raises(ConfigError, match=r"^hypotheses of so long a line must be at most 1, got 2: give fewer$"):
        inspection.choose_want(whole, 1024, [1024, 960])
    short = 4 * (3 * tiles**2 + 2 * (3**2 + 3 * tiles))
    monkeypatch.setattr(inspection, "MOST_WEIGHTS", short)
    assert inspection.choose_want(whole, 1024, [3]) == long
    with pytest.raises(ConfigError, match=r"^source is too long for a page: this model's 28 heads would have 114,688 "):
        inspection.choose_want(whole, 1024, [1024])
    pruned = replace(whole, heads_left=dict.fromkeys(whole.attentions, 1))
    assert inspection.choose_want(pruned, 1024, [1024]) == long
    assert inspection.choose_want(pruned, 9, [2]) == Want(weights=True)


def test_the_command(run, tmp_path, capsys):
    out = tmp_path / "seen.html"
    with pytest.raises(SystemExit) as left:
        cli.main(["inspect", str(run), "--source", "a b c", "--out", str(out)])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"{out}: open it in a browser\n"
    assert "<!doctype html>" in out.read_text(encoding="utf-8")


def test_the_command_says_what_the_model_never_saw_and_that_a_file_is_named(
    run, tmp_path, monkeypatch, run_command, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "жук").write_text("a b c\n")
    assert run_command(f"inspect {run} жук --target ёж --out seen.html") == 0
    unknown = "glassformer: warning: the model never saw this text, and reads it as unknown"
    told = ["жук is a file, and its name is translated: give a line of it", f"{unknown}: жук", f"{unknown}: ёж"]
    assert capsys.readouterr().err.splitlines() == told


def test_of_an_empty_line_there_is_nothing_to_see(run, hypotheses_of):
    translator, want = Translator.load(run, precision="float32"), Want(weights=True)
    shown = page(translator.translations(["", "a b c"], attention=want))
    assert len(hypotheses_of(shown)) == 1
    for nothing in (translator.translations([""], attention=want), translator.translations(["", "a b c"])):
        with pytest.raises(ArgumentError, match=r"of a line that isn't empty: translations\(lines, attention=Want"):
            page(nothing)
