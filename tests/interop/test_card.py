"""Model cards say what is known, and their metadata is YAML that reads back as it was meant."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from glassformer.errors import ConfigError, RunError
from glassformer.interop.card import CardFacts, Layout, model_card
from glassformer.run.config import TrainingRecord
from glassformer.run.folder import load_run, write_config
from glassformer.run.metrics import Validation, append_metrics
from glassformer.run.scores import read_evaluations, save_evaluation
from glassformer.scoring.scores import Score

LAYOUT = Layout("transformers.js", "graphs of ONNX", "translate(LINE);", "js", tags=("onnx",))
BLEU = Score("BLEU", 34.567, "nrefs:1|case:mixed|tok:13a|version:2.6.0")


PAIRS = dict(read=60, kept=59, source_tokens=700, target_tokens=800)


@pytest.fixture
def trained(random_run, sides, tmp_path) -> Path:
    """The folder of a run that says of itself what training writes."""
    run, folder = random_run(tmp_path / "run", *sides), tmp_path / "run"
    write_config(folder, run.model.config, *sides, TrainingRecord(settings={}, pairs={"train": PAIRS}))
    for update, value in ((10, 3.0), (20, 7.25), (30, 5.0)):
        append_metrics(folder / "metrics.jsonl", Validation(update, 2.0, "bleu", value))
    return folder


def card(folder: Path, **facts: Any) -> tuple[dict[str, Any], str]:
    """The metadata and the text of a run's card."""
    text = model_card(folder, load_run(folder), LAYOUT, CardFacts(**{"name": "dates", **facts}))
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


def test_a_card_says_what_the_run_knows(trained):
    metadata, body = card(trained, license="cc-by-4.0", languages=("en", "no"))
    assert metadata == {
        "language": ["en", "no"],
        "license": "cc-by-4.0",
        "library_name": "transformers.js",
        "pipeline_tag": "translation",
        "tags": ["glassformer", "onnx"],
    }
    assert "a Transformer that translates English (en) to Norwegian (no), made with glassformer: 1 encoder" in body
    assert "```js\ntranslate(LINE);\n```" in body
    assert "| train | 60 | 59 | 700 | 800 |" in body
    assert "No test set was scored. On the pairs that validate its training it has BLEU 7.25, after 20 updates." in body


def test_what_is_unknown_is_left_out(random_run, sides, tmp_path):
    random_run(tmp_path / "run", *sides)
    metadata, body = card(tmp_path / "run", languages=("dates", "iso"))
    assert metadata["language"] == ["iso"]
    assert metadata["pipeline_tag"] == "text2text-generation"
    assert "license" not in metadata
    assert "Its maker has not stated a licence." in body
    assert "## Scores" not in body
    assert "## Data" not in body


@pytest.mark.parametrize("fills_heads", [False, True])
def test_where_zeros_stand_for_heads_that_were_removed_it_is_said(random_run, sides, tmp_path, fills_heads):
    run = random_run(tmp_path / "run", *sides, heads_left={"encoder.0.self_attention": 1})
    layout = replace(LAYOUT, fills_heads=fills_heads)
    text = model_card(tmp_path / "run", run, layout, CardFacts(name="dates"))
    zeros = ": in these files zeros may stand in their place" if fills_heads else ""
    assert f" Some attention heads were removed{zeros}.\n" in text


@pytest.mark.parametrize(
    ("languages", "known"), [(("zh-Hant", "pt-BR"), ["zh", "pt"]), (("en-GB", "en-US"), ["en"])], ids=str
)
def test_languages_with_a_region_are_named_as_the_hub_knows_them(random_run, sides, tmp_path, languages, known):
    random_run(tmp_path / "run", *sides)
    metadata, _ = card(tmp_path / "run", languages=languages)
    assert metadata["language"] == known
    assert metadata["pipeline_tag"] == "translation"


def test_scores_of_evaluate_are_in_the_card_until_the_weights_change(trained):
    for value in (12.0, BLEU.value):  # the second takes the place of the first
        scores = [Score("BLEU", value, BLEU.signature), Score("symbol error rate", 9.5, "edits per symbol")]
        save_evaluation(
            trained, source=Path("test.en"), target=Path("test.de"), lines=1000, search="beam 5", scores=scores
        )
    columns = dict(columns=("en", "de"), lines=9, search="beam 1")
    save_evaluation(trained, source=Path("test.csv"), target=None, scores=[BLEU], **columns)
    metadata, body = card(trained)
    (model,) = metadata["model-index"]
    result, of_table = model["results"]
    assert of_table["dataset"]["name"] == "test.csv (columns en, de)"
    assert "On `test.csv (columns en, de)`, 9 lines, searched with beam 1" in body
    assert (model["name"], result["dataset"]) == ("dates", {"name": "test.en, test.de", "type": "unknown"})
    assert result["metrics"] == [{"type": "bleu", "value": 34.57, "name": f"BLEU ({BLEU.signature})"}]
    assert "On `test.en, test.de`, 1,000 lines, searched with beam 5" in body
    assert "| BLEU | 34.57 | `nrefs:1 case:mixed tok:13a version:2.6.0` |" in body
    assert "| symbol error rate | 9.50 | `edits per symbol` |" in body
    with (trained / "model.safetensors").open("ab") as file:
        file.write(b" ")
    assert read_evaluations(trained) == []


def test_damaged_scores_are_an_error(trained):
    (trained / "scores.json").write_text(json.dumps({"evaluations": [{"weights": 1}]}))
    with pytest.raises(RunError, match=r"scores\.json is damaged"):
        card(trained)


NAMES = [
    'a "b" \\ c',
    "no",
    "1.5",
    "- x: #y",
    "日本語 é",
    "'{[&*!|>%@`",
    "a: b # c",
    "true",
    "~",
    "\U0001f600 <b>",
    "0x1",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_reads_back_from_the_metadata(trained, name):
    save_evaluation(
        trained, source=Path(f"{name}\x85\u2028\ufeff"), target=None, lines=1, search="beam 1", scores=[BLEU]
    )
    metadata, body = card(trained, name=name)
    assert metadata["model-index"][0]["name"] == name
    assert metadata["model-index"][0]["results"][0]["dataset"]["name"] == f"{name}\x85\u2028\ufeff"
    assert "<b>" not in body.split("\n\n")[0]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"license": "my own"}, "license must be a licence as the Hugging Face hub names it, such as apache-2.0"),
        ({"name": "a\nb"}, "name must be the model's name, one line of text"),
        ({"name": " "}, "name must be the model's name"),
        (
            {"languages": ("en", "klingon!")},
            "a language must be given by its code, .* got 'klingon!'",
        ),
    ],
)
def test_bad_facts_are_refused(facts, message):
    with pytest.raises(ConfigError, match=message):
        CardFacts(**{"name": "dates", **facts})
