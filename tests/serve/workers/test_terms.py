"""Terms and placeholders of the server's flags, for the runs that they are of, and those that a request adds."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from glassformer.errors import ConfigError, DataError
from glassformer.serve.config import ServeConfig
from glassformer.serve.languages import ServedRun
from glassformer.serve.workers import messages
from glassformer.serve.workers.terms import Rules, ServerRules, read_terms
from glassformer.transformer.config import ModelConfig

SETTINGS = messages.Settings("", "cpu", "float32", 1, 1, 0.02, 400, 64, True)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "all.tsv").write_text("cat\tKatze|Kater\nUS\n")
    (tmp_path / "own.tsv").write_text("cat\tchat\n")
    (tmp_path / "keep.txt").write_text("Acme\n")
    (tmp_path / "a=b.tsv").write_text("dog\tHund\n")
    (tmp_path / "bad.tsv").write_text("cat\tKatze\tKater\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUNS = [
    ServedRun(name, Path("runs") / name, "en", code, ModelConfig.tiny(source_vocab_size=9, target_vocab_size=9), "line")
    for name, code in (("de", "de"), ("fr", "fr"))
]


@pytest.mark.usefixtures("folder")
def test_files_are_for_all_runs_or_for_one():
    config = ServeConfig(glossary=("runs/fr=own.tsv", "all.tsv", "a=b.tsv"), keep=Path("keep.txt"))
    common = {"US": [], "dog": ["Hund"], "Acme": []}
    found = {name: dict(terms) for name, terms in read_terms(config, RUNS).items()}
    assert found == {"de": {"cat": ["Katze", "Kater"], **common}, "fr": {"cat": ["chat"], **common}}
    assert read_terms(ServeConfig(glossary=("fr=own.tsv",)), RUNS) == {"de": [], "fr": [("cat", ["chat"])]}
    assert read_terms(ServeConfig(), RUNS) == {"de": [], "fr": []}


@pytest.mark.usefixtures("folder")
def test_a_run_is_named_as_it_is_typed():
    run = replace(RUNS[0], name="lr=0.1", folder=Path("runs/lr=0.1"))
    for given in ("runs/lr=0.1=own.tsv", "./runs/lr=0.1/=own.tsv", "lr=0.1=own.tsv"):
        assert read_terms(ServeConfig(glossary=(given,)), [run]) == {"lr=0.1": [("cat", ["chat"])]}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"glossary": ("none.tsv",)}, DataError, "none.tsv: no such file"),
        ({"glossary": ("es=own.tsv",)}, ConfigError, "glossary must be FILE or RUN=FILE, got es=own.tsv: es is not"),
        ({"glossary": ("bad.tsv",)}, DataError, "bad.tsv, line 1, must be a source, a tab and a target"),
        ({"keep": Path("none.txt")}, DataError, "none.txt: no such file"),
        ({"placeholders": "("}, ConfigError, "placeholders must be a regular expression"),
    ],
)
def test_files_that_can_not_be_used_are_named(settings, error, message):
    with pytest.raises(error, match=message):
        read_terms(ServeConfig(**settings), RUNS)


def test_a_request_adds_to_the_rules_of_the_server():
    served = ServerRules(structs.replace(SETTINGS, terms=[("cat", ["Katze"]), ("dog", [])], placeholders="x+"))
    rules = served.of(["a cat"], [("cat", ["Kater"]), ("mat", [])], None)
    assert {term.source: term.forms for term in rules.glossary.terms} == {"cat": ("Kater",), "mat": ()}
    assert (rules.placeholders, served.of([], [], False).placeholders) == ("x+", None)
    assert [served.of([], [], None).concern(line) for line in ("a cat", "xx", "a mat", "")] == [
        True,
        True,
        False,
        False,
    ]
    bare = ServerRules(SETTINGS)
    assert bare.of(["a"], [], None) == Rules()
    assert bare.of(["a"], [], True).concern("see {name}")
    assert not bare.of(["{name}"], [], None).concern("{name}")
