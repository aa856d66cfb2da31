"""The recipe of character-level tasks: its readers, scores by hand-made cases, tables. What multi30k hands on."""

import doctest
import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from glassformer.training.result import TrainResult

pytest.importorskip("tyro", reason="pip install 'glassformer[recipes]'")
RECIPES, BENCHMARKS = (Path(__file__).parents[1] / name for name in ("recipes", "benchmarks"))


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return imported("characters")


@pytest.fixture(scope="module")
def tasks() -> ModuleType:
    return imported("character_tasks")


def imported(name: str, folder: Path = RECIPES) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        return importlib.import_module(name)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A few lines of every file of every task."""
    lines = {
        "sigmorphon2020_g2p/{0}/kor_{0}.tsv": "가령\tk a\n가\tk\n",
        "segmentation2022/mon.word.{1}.tsv": "муудах\tмуу  @@дах\t010\nхөөс\tхөөс\t000\n",
        "inflection2023/spa.{2}": "ir\tV;IMP;NOM(2,SG)\tve\nér\tV;PST\ter\n",
        "histnorm/german-ridges.{0}.txt": "vnd\tund\n\nvnd\tund\n\t\nſo\tso\n",
    }
    names = (("train", "train", "trn"), ("dev", "dev", "dev"), ("test", "test.gold", "tst"))
    for pattern, text in lines.items():
        for part in names:
            path = tmp_path / "data" / pattern.format(*part)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return tmp_path / "data"


def test_examples_in_the_docstrings(tasks):
    found = doctest.testmod(tasks)
    assert found.attempted > 3
    assert found.failed == 0


@pytest.mark.parametrize(
    ("hypotheses", "references", "value"),
    [
        (["ab @@solv @@ent"], ["ab @@solv @@ent"], 100),
        (["absolv @@ent"], ["ab @@solv @@ent"], 200 * 1 / 5),
        (["a @@b @@c", "d"], ["a @@c", "e"], 200 * 2 / (4 + 3)),  # two of a @@b @@c in order, none of d
        (["b @@a"], ["a @@b"], 200 * 1 / 4),  # both are there, but not in this order
        (["a @@a"], ["a"], 200 * 1 / 3),  # one of a reference is counted once
        (["x"], ["y"], 0),
        ([""], ["a"], 0),  # nothing is one wrong morpheme
        (["stá @@ti (se)"], ["stá @@ti @@(se)"], 100),  # the task's scorer takes other spaces for borders too
        (["муу @@дах"], ["муу  @@дах"], 200 * 2 / 5),  # and finds an empty morpheme between two
    ],
)
def test_f1_of_morphemes_by_hand(tasks, hypotheses, references, value):
    assert tasks.TASKS["segmentation"].score(hypotheses, references) == pytest.approx(value)


def test_words_are_right_or_wrong_as_a_whole(tasks):
    assert tasks.TASKS["pronunciation"].score(["a b", "c"], ["a b", "c d"]) == 50
    assert tasks.TASKS["inflection"].score(["und", "so", "x"], ["und", "so", "y"]) == pytest.approx(200 / 3)


@pytest.mark.parametrize(
    ("task", "language", "examples", "pairs"),
    [
        ("pronunciation", "kor", [("가령", "k a"), ("가", "k")], [("가령", "k a"), ("가", "k")]),
        (
            "segmentation",
            "mon",
            [("муудах", "муу  @@дах"), ("хөөс", "хөөс")],
            [("<?1><?2><?2><?3><?4><?5>", "<?1><?2><?2><+><?3><?4><?5>"), ("<?1><?2><?2><?3>", "<?1><?2><?2><?3>")],
        ),
        (
            "inflection",
            "spa",
            [("<V><IMP><NOM><NOM.2><NOM.SG>ir", "ve"), ("<V><PST>ér", "er")],
            [("<V><IMP><NOM><NOM.2><NOM.SG><?1><?2>", "ve"), ("<V><PST><?1><?2>", "e<?2>")],
        ),
        (
            "normalisation",
            "german-ridges",
            [("vnd", "und"), ("vnd", "und"), ("ſo", "so")],
            [("<?1><?2><?3>", "u<?2><?3>"), ("<?1><?2>", "s<?2>")],
        ),
    ],
)
def test_files_are_read_and_every_rare_character_has_a_stand_in(recipe, tasks, data, task, language, examples, pairs):
    made = recipe.DataSet(tasks.TASKS[task], language, data)
    for part in ("train", "dev", "test"):
        assert [tuple(one) for one in made.examples(part)] == examples
    assert made.pairs("train") == pairs
    assert made.pairs("dev") == ([] if task == "normalisation" else pairs), "known words are looked up"


def test_a_missing_or_other_file_is_named(recipe, tasks, data):
    (data / "inflection2023" / "spa.trn").write_text("ir\tV\n", encoding="utf-8")
    with pytest.raises(recipe.GlassformerError, match=r"spa.trn must have 3 columns, got the line \['ir', 'V'\]"):
        recipe.DataSet(tasks.TASKS["inflection"], "spa", data)
    with pytest.raises(recipe.GlassformerError, match=r"deu.trn is missing: fetch part1/data of https://github.com"):
        recipe.DataSet(tasks.TASKS["inflection"], "deu", data)
    with pytest.raises(recipe.GlassformerError, match=r"--languages must be of ces, mon, got spa"):
        recipe.main(data=data, task="segmentation", languages=("spa",))
    with pytest.raises(recipe.GlassformerError, match="--data is missing"):
        recipe.main()


def test_trials_are_for_dev_and_name_settings(recipe, tasks, data, tmp_path):
    made = recipe.DataSet(tasks.TASKS["segmentation"], "mon", data, rare=0)
    assert made.pairs("dev") == [("муудах", "муу<+>дах"), ("хөөс", "хөөс")]
    config = recipe.config_of(made, "characters", 1, tmp_path, dict(dropout=0.5, optimizer="muon"))
    assert (config.dropout, config.optimizer, config.score_pairs) == (0.5, "muon", 1000)
    assert [recipe.as_value(text) for text in ("0.3", "7", "true", "muon")] == [0.3, 7, True, "muon"]
    with pytest.raises(recipe.GlassformerError, match="--change must name settings of TrainConfig, got drop"):
        recipe.config_of(made, "characters", 1, tmp_path, dict(drop=0.5))
    for trial in (dict(updates=3), dict(change=("dropout=0.1",)), dict(rare=0)):
        with pytest.raises(recipe.GlassformerError, match="--score-test is for the recipe as it stands"):
            recipe.main(data=data, score_test=True, **trial)


def test_a_trial_has_a_folder_of_its_own(recipe, data, tmp_path, monkeypatch):
    """A model without stand-ins was taken for the recipe's own, and one of few updates kept that from being trained."""
    begun = list[tuple[Path, bool]]()
    monkeypatch.setattr(recipe, "run", lambda data_set, config, *_, trial: begun.append((config.out, trial)))
    asked = dict(data=data, task="segmentation", languages=("mon",), out=tmp_path)
    for trial in ({}, dict(rare=0), dict(updates=3), dict(change=("dropout=0.1", "tokenizer=a/b.model"), rare=0)):
        recipe.main(**asked, **trial)
    own = Path("characters/segmentation/mon/seed-1")
    trials = [
        own,
        *(Path("tried") / one / own for one in ("rare=0", "updates=3", "dropout=0.1 tokenizer=a_b.model rare=0")),
    ]
    assert begun == [(tmp_path / one, one != own) for one in trials]


@pytest.mark.parametrize(
    ("task", "language", "file", "dev", "score"),
    [
        (
            "normalisation",
            "german-ridges",
            "histnorm/german-ridges.dev.txt",
            "vnd\tund\nxq\txq\nyq\tyq\nxr\tXR\n",
            "word accuracy 50.00 (33.33 of the 3 that aren't in the training text; 75.00 by memory alone)",
        ),
        (
            "segmentation",
            "mon",
            "segmentation2022/mon.word.dev.tsv",
            "хөөс\tхөөс\txx\nxq\tXQ\txx\nyq\tyq\txx\n",
            "F1 33.33 (50.00 of the 2 that aren't in the training text; 66.67 with the others looked up there)",
        ),
    ],
)
def test_words_of_the_training_text_are_told_apart(
    recipe, tasks, data, tmp_path, monkeypatch, capsys, task, language, file, dev, score
):
    """Half of the words of the Czech test stand in the training text."""
    made = recipe.DataSet(tasks.TASKS[task], language, data, rare=0)
    (data / file).write_text(dev, encoding="utf-8")
    monkeypatch.setattr(recipe, "train_once", lambda config: TrainResult(config.out, True, 7, 60.0, "exact", 1.0))
    monkeypatch.setattr(recipe.Translator, "load", lambda _: Shouting())
    config = recipe.config_of(made, "characters", 1, tmp_path)
    config.out.mkdir(parents=True)
    recipe.run(made, config, "characters", ["dev"], trial=True)
    name = f"{task}, {tasks.TASKS[task].languages[language]}, characters, seed 1, dev"
    assert capsys.readouterr().out == f"{name}: {score}, 7 updates, 1.0 min\n"


class Shouting:
    """A translator that writes capitals, and a stand-in that it wasn't given."""

    def translate(self, lines: list[str], _: object) -> list[str]:
        return [f"{line.upper()}<?9>" for line in lines]


def test_words_are_translated_once_and_shown_as_they_were(recipe, tasks, data):
    made = recipe.DataSet(tasks.TASKS["normalisation"], "german-ridges", data)
    assert made.translate(Shouting(), ["xq", "vnd", "xq"]) == ["xq", "und", "xq"]  # all are rare; vnd is known


@pytest.mark.parametrize("settings", ["characters", "wu2021"])
def test_settings_are_the_same_for_all_but_for_what_the_text_asks_for(recipe, tasks, data, tmp_path, settings):
    languages = {"pronunciation": "kor", "segmentation": "mon", "inflection": "spa", "normalisation": "german-ridges"}
    changes = []
    for task, language in languages.items():
        config = recipe.config_of(recipe.DataSet(tasks.TASKS[task], language, data), settings, 7, tmp_path)
        assert config.source.exists()
        changes.append({name: value for name, value in config.changes().items() if "source" not in name})
    assert {one.pop("decompose", False) for one in changes} == {True, False}
    sizes = [one.pop("batch_tokens", None) for one in changes]
    assert sizes == ([None] * 4 if settings == "characters" else [1200, 2800, 2800, 1600])
    assert all(one == changes[0] for one in changes)
    assert changes[0]["task"] == "characters"
    assert changes[0].get("optimizer") == (None if settings == "characters" else "adam")


def test_settings_are_compared_where_both_have_written(recipe, data, tmp_path, capsys):
    for settings, lines in (("characters", "ve\ner\n"), ("wu2021", "ve\nir\n")):
        path = tmp_path / settings / "inflection" / "spa" / "seed-2.dev.txt"
        path.parent.mkdir(parents=True)
        path.write_text(lines, encoding="utf-8")
    recipe.main(data=data, languages=("spa",), seeds=(1, 2), out=tmp_path, compare=True, score_test=True)
    said = capsys.readouterr().out
    assert said == "inflection, Spanish, seed 2, dev: accuracy 100.00, wu2021 50.00: +50.00 (+0.00 to +100.00)\n"


def test_the_interval_is_that_of_a_binomial(recipe):
    ours = [(1, 1)] * 100 + [(0, 1)] * 300
    low, high = recipe.interval(ours, [(0, 1)] * 400)  # a mean of 25 with a standard deviation of 2.165
    assert (low, high) == (pytest.approx(25 - 4.24, abs=0.8), pytest.approx(25 + 4.24, abs=0.8))
    assert recipe.interval(ours, ours) == (0, 0)


def test_tables_have_mean_and_spread_of_the_latest_scores(recipe, tmp_path, monkeypatch, capsys):
    about = dict(settings="characters", minutes=4.0, parameters=7)
    records = [dict(task="segmentation", language="ces", seed=1, part="test", score=11.0, **about)]
    records.append(
        dict(task="segmentation", language="ces", seed=3, part="test", score=9.0, **about | {"parameters": 5})
    )
    records += [
        dict(task="segmentation", language="ces", seed=seed, part="test", score=90.0 + seed, **about) for seed in (1, 2)
    ]
    languages = recipe.TASKS["inflection"].languages
    records += [dict(task="inflection", language=one, seed=3, part="dev", score=80.0, **about) for one in languages]
    records.append(dict(task="pronunciation", language="arm", seed=1, part="dev", score=15.0, **about))
    page, results = tmp_path / "quality.md", tmp_path / "characters.jsonl"
    page.write_text(f"before\n{recipe.BEGIN}old\n{recipe.END}after\n", encoding="utf-8")
    results.write_text("".join(f"{json.dumps(one)}\n" for one in records), encoding="utf-8")
    monkeypatch.setattr(recipe, "PAGE", page)
    monkeypatch.setattr(recipe, "RESULTS", results)
    recipe.main(table=True)
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{recipe.BEGIN}\n| task |")
    assert text.endswith(f"\n\n{recipe.END}after\n")
    assert "| segmentation | Czech | F1 | – | 91.50 (91.00 to 92.00) | – | 93.88, DeepSPIN-2" in text
    rules = "the organisers' rules, run here"
    assert f"| inflection | mean of 10 languages | accuracy | 80.00 | – | – | 75.03, {rules} | 4 |" in text
    assert f"| Turkish | 80.00 | – | – | 64.60, {rules} |" in text
    (mean_of_one,) = [line for line in text.splitlines() if line.startswith("| pronunciation | mean")]
    assert mean_of_one.endswith("| – |")
    assert "| Armenian | 15.00 | – | – |\n" in text
    assert capsys.readouterr().out in text
    page.write_text("no lines\n", encoding="utf-8")
    with pytest.raises(recipe.GlassformerError, match=r"quality\.md must have the lines"):
        recipe.main(table=True)


def test_the_page_has_the_tables_of_the_recorded_scores(recipe):
    lines = recipe.RESULTS.read_text(encoding="utf-8").splitlines() if recipe.RESULTS.exists() else []
    made = "\n".join(recipe.tables([json.loads(line) for line in lines]))
    assert made in recipe.PAGE.read_text(encoding="utf-8"), "run python recipes/characters.py --table"


def test_the_benchmark_of_distillation_trains_the_models_of_the_recipe(tmp_path):
    distill, recipe = imported("distill", BENCHMARKS), imported("multi30k")
    teacher = distill.teacher_settings(tmp_path, tmp_path, 2, 7)
    assert teacher == replace(recipe.settings(tmp_path, tmp_path, 2), max_updates=7)
    back = distill.back_settings(tmp_path, tmp_path, 5, 0)
    assert back == replace(recipe.settings_back(tmp_path, tmp_path), max_updates=5)
    assert (teacher.max_minutes, back.max_minutes) == (None, None)
