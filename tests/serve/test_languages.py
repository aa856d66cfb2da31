"""Which run translates which languages: from its config, from flags, and never two for one pair."""

import os
import shutil
from pathlib import Path

import pytest

from glassformer.errors import ConfigError, RunError
from glassformer.run.config import TrainingRecord, read_config
from glassformer.run.folder import open_run, write_config
from glassformer.run.languages import name_of
from glassformer.serve.config import ServeConfig
from glassformer.serve.languages import open_runs, read_pair
from glassformer.serve.meters import Meters
from glassformer.serve.schemas import Choosing
from glassformer.serve.service import Service
from glassformer.serve.workers.messages import Refusal
from glassformer.text.tokenizer import train_tokenizer


@pytest.fixture
def copies(run, tmp_path, monkeypatch):
    """Three copies of the run: two with languages of their own and one without."""
    for name, languages in (("ende", ("en", "de")), ("enfr", ("en", "fr")), ("plain", None)):
        shutil.copytree(run, tmp_path / name)
        opened = open_run(run)
        write_config(
            tmp_path / name,
            opened.model_config,
            opened.source_tokenizer,
            opened.target_tokenizer,
            TrainingRecord(languages=languages),
        )
    monkeypatch.chdir(tmp_path)
    return [tmp_path / name for name in ("ende", "enfr", "plain")]


def pairs(folders, languages=()) -> dict:
    return {run.name: (run.source, run.target) for run in open_runs(folders, languages)}


def test_languages_are_those_of_the_config_or_of_the_flag(copies):
    assert pairs(copies) == {"ende": ("en", "de"), "enfr": ("en", "fr"), "plain": ("", "")}
    given = ["plain=pt:pt-BR", f"{copies[0].parent}/./ende/=nl-de"]
    assert pairs(copies, given) == {"ende": ("nl", "de"), "enfr": ("en", "fr"), "plain": ("pt", "pt-BR")}
    assert read_config(copies[0]).training.languages == ("en", "de")
    assert (name_of("de"), name_of("xx")) == ("German", "xx")


@pytest.mark.parametrize(
    "text", ["plain", "=en-de", "plain=en", "plain=en-pt-BR", "plain=e-de", "plain=en-de-fr", "plain=en_US-de"]
)
def test_languages_that_are_none_are_refused(text):
    with pytest.raises(ConfigError, match=r"^languages must be RUN=SOURCE-TARGET, such as runs/news=en-de, got "):
        read_pair(text)


def test_lines_of_words_are_translated_whole_also_where_the_run_goes_on_from_another(random_run, copies, tmp_path):
    letters = train_tokenizer(["cat", "dog"], kind="char", vocab_size=None, seed=1)
    random_run(tmp_path / "words", letters, letters, settings={"from_": "another", "tokenizer": "auto"})
    found = {run.name: run.segment for run in open_runs([copies[0], tmp_path / "words"], ["words=en-fr"])}
    assert found == {"ende": "paragraph", "words": "line"}


def test_what_cannot_be_served_is_said(copies, holding, tmp_path):
    ende, enfr, plain = copies
    with pytest.raises(ConfigError, match=r"^.*ende and .*plain both translate en to de: serve one of them"):
        pairs(copies, ["plain=en-de"])
    with pytest.raises(ConfigError, match="ende is named twice: name each run once"):
        pairs([ende, ende])
    namesake = tmp_path / "beside" / "ende"
    shutil.copytree(ende, namesake)
    with pytest.raises(ConfigError, match="have the same name, ende: rename one"):
        pairs([ende, namesake])
    with pytest.raises(ConfigError, match=r"^languages are given for none, which is not among the runs"):
        pairs(copies, ["none=en-de"])
    with pytest.raises(ConfigError, match=r"^languages are given twice for ende: leave out one"):
        pairs([ende], ["ende=en-de", "ende=fr-it"])
    shutil.copytree(plain, odd := Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")))
    with pytest.raises(RunError, match="the name of a folder must be UTF-8"):
        pairs([odd])
    with pytest.raises(RunError, match="no such run folder"):
        pairs([tmp_path / "ended"])
    (plain / "model.safetensors").unlink()
    with pytest.raises(RunError, match="is missing: copy it again"):
        pairs([plain])
    (enfr / "resume").mkdir()
    with holding(enfr), pytest.raises(RunError, match="is being trained by another process"):
        pairs([enfr])


def test_a_request_chooses_its_run(copies):
    config = ServeConfig(run=tuple(copies))
    service = Service(config, open_runs(copies, []), {}, Meters())

    def chosen(**wanted) -> str:
        return service.chosen(Choosing(**wanted)).name

    assert chosen(run="plain") == "plain"
    assert chosen(source="en", target="fr") == chosen(target="fr") == "enfr"
    assert service.for_target("de").name == "ende"
    for wanted, code in (
        ({}, "unknown_run"),
        ({"source": "en"}, "unknown_run"),
        ({"source": "de", "target": "en"}, "unknown_language"),
    ):
        with pytest.raises(Refusal) as failure:
            chosen(**wanted)
        assert failure.value.code == code
    both = Service(config, open_runs(copies, ["plain=fr-de"]), {}, Meters())
    with pytest.raises(Refusal, match="source can't be auto for this target: it may be en, fr"):
        both.for_target("de")
