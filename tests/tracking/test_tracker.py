"""Which tracker is meant, and what is said before any work where there is none."""

import sys
from types import ModuleType

import pytest

from glassformer.errors import ConfigError
from glassformer.tracking.tracker import check_tracker, chosen_tracker, name_of


def test_no_tracker_is_chosen_unless_one_is_named_or_given(notebook, tmp_path):
    tracker = notebook()
    assert chosen_tracker("none", None, tmp_path) is None
    assert chosen_tracker("none", tracker, tmp_path) is tracker


def test_a_tracker_is_called_by_its_module_or_type(notebook):
    module = ModuleType("wandb")
    module.init = module.log = module.finish = print
    assert (name_of(notebook()), name_of(module)) == ("Notebook", "wandb")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("track", "tracker", "message"),
    [
        ("wandb", None, "track must be one of none, tensorboard, trackio, got 'wandb'"),
        ("none", 7, "tracker must have init, log and finish, .* got 7"),
        ("tensorboard", sys, "track tensorboard and tracker exclude each other: give track='none'"),
    ],
)
def test_what_is_no_tracker_is_named(track, tracker, message, monkeypatch):
    monkeypatch.setattr("glassformer.tracking.tracker.find_spec", lambda name: sys)
    with pytest.raises(ConfigError, match=message):
        check_tracker(track, tracker)


@pytest.mark.parametrize("name", ["tensorboard", "trackio"])
def test_a_missing_package_is_named_with_its_extra(name, monkeypatch, settings, unchecked):
    from glassformer.training.train import train

    monkeypatch.setattr("glassformer.tracking.tracker.find_spec", lambda name: None)
    config = settings(track=name)
    with pytest.raises(ImportError, match=rf"tracking with {name} needs its package: .*glassformer\[tracking\]"):
        train(config)
    assert not config.out.exists()
