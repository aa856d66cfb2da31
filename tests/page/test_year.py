"""The example's head that reads the year, from the data behind the page."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glassformer import Translator, page
from glassformer.demo.dates import make_dates
from glassformer.demo.demonstration import settings, write_phrases
from glassformer.training.train import train


@pytest.mark.usefixtures("unchecked")
def test_the_head_chosen_on_validation_reads_the_year_of_held_out_dates(tmp_path, monkeypatch, hypotheses_of):
    # Slow: the model must have learned dates (of four languages) before a head can read their years.
    spec = importlib.util.spec_from_file_location("year", Path(__file__).parents[2] / "examples" / "year.py")
    year = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(year)
    monkeypatch.setattr(year, "DATES", 60)
    made = make_dates(seed=1)
    train_dates, valid, test = (
        [date for date in part if date.language in ("English", "German", "French", "Spanish")]
        for part in (made.train, made.valid, made.test)
    )
    for name, dates in (("train", train_dates), ("valid", valid)):
        write_phrases(tmp_path / f"{name}.tsv", dates)
    quick = dict(batch_tokens=512, max_updates=600, max_minutes=None, warmup=100, validate_every=300, average=1)
    small = dict(d_model=64, heads=2, d_ff=128, learning_rate=8e-3)
    train(replace(settings(tmp_path, tmp_path / "run", 1, overwrite=False), **quick, **small))

    translator = Translator.load(tmp_path / "run", "cpu", "float32")
    _, on_validation = year.shares(year.translate(translator, valid))
    chosen = int(on_validation.argmax())
    shares = []
    for date, translation in year.translate(translator, test):
        (hypothesis,) = hypotheses_of(page(translation))
        axes = hypothesis["axes"]
        (view,) = (view for view in hypothesis["views"] if view["group"] == "source")
        shares.append(year.on_year(view["facts"]["weights"], axes["source"], axes["next"], date))
    assert len(shares) == 60
    mean = torch.stack(shares).mean(0)
    assert mean[chosen] >= 0.8, mean
