"""Advice at the end of a training, and the command that goes on."""

from pathlib import Path

import pytest

from glassformer.run.metrics import Metrics, Report, Validation
from glassformer.training.advice import command_to_go_on, concerns
from glassformer.training.config import TrainConfig

CONFIG = TrainConfig(out=Path("run"), metric="bleu", cooldown=0.0)


def metrics(losses: list[float], scores: list[float], metric: str = "bleu") -> Metrics:
    pairs = zip(losses, scores, strict=True)
    found = [Validation(10 * n, loss, metric, score, 1.0 * n) for n, (loss, score) in enumerate(pairs, start=1)]
    return Metrics(reports=[], validations=found)


@pytest.mark.parametrize(
    ("losses", "scores", "updates", "said"),
    [
        ([3.0, 2.9, 2.89, 2.88], [1.0, 2.0, 3.0, 3.0], 40, []),
        ([3.0, 2.0, 1.5, 1.0], [1.0, 2.0, 3.0, 4.0], 40, ["the loss was still falling fast"]),
        ([3.0, 2.9, 2.89, 2.88], [0.0] * 4, 40, ["bleu was 0 in every validation: the model has not"]),
        ([3.0], [1.0], 15, ["the learning rate never reached its peak: 15 of 20 updates of its warm-up were made"]),
    ],
)
def test_concerns(losses, scores, updates, said):
    found = list(concerns(CONFIG, metrics(losses, scores), updates, warmup=20))
    assert len(found) == len(said)
    assert all(one.sentence.startswith(begins) for one, begins in zip(found, said, strict=True))


def test_an_error_rate_that_was_never_below_100_is_not_said_to_have_been_the_same_each_time():
    found = metrics([3.0, 2.9, 2.88], [100.0, 544.7, 536.8], "wer")
    (concern,) = concerns(TrainConfig(out=Path("run"), metric="wer", cooldown=0.0), found, 30, warmup=20)
    assert concern.sentence.startswith("wer was 100 or more in every validation: the model has not learned it yet")


@pytest.mark.parametrize(("scores", "count"), [([0.0] * 5, 2), ([1.0, 2.0, 3.0, 2.0, 2.0], 1)])
def test_a_model_that_memorises_its_pairs_needs_no_longer_training(scores, count):
    config = TrainConfig(out=Path("run"), metric="bleu", cooldown=0.3)
    found = list(concerns(config, metrics([4.0, 3.0, 2.5, 3.0, 3.5], scores), 50, warmup=20))
    assert len(found) == count
    assert found[-1].sentence.startswith(
        "the validation loss was lowest at update 30 (2.5000, in the end 3.5000): the model"
    )
    assert all(concern.times == 0 for concern in found)


@pytest.mark.parametrize(
    ("epoch", "begins"), [(1, "no validation was better than the first"), (2, "the validation loss")]
)
def test_what_costs_in_the_first_epoch_is_no_memory(epoch, begins):
    config = TrainConfig(out=Path("run"), metric="bleu", cooldown=0.0, from_=Path("before"), max_updates=30)
    found = [Validation(10 * n, loss, "bleu", 9.0 - n) for n, loss in enumerate([2.0, 2.5, 2.4])]
    reports = [Report(20, 3.0, 0.001, 1.0, epoch)]
    (concern,) = concerns(config, Metrics(reports=reports, validations=found), 30, warmup=3)
    assert concern.sentence.startswith(begins)
    assert concern.times == (4 if epoch == 1 else 0)


def test_a_file_that_one_epoch_reads_many_times_is_memorised():
    config = TrainConfig(out=Path("run"), source=Path("small.tsv:50"), metric="bleu", cooldown=0.3)
    found = metrics([2.0, 2.0, 1.9, 2.5, 3.0], [1.0, 2.0, 3.0, 2.0, 2.0])
    (concern,) = concerns(
        config, Metrics(reports=[Report(50, 3.0, 0.001, 1.0, 1)], validations=found.validations), 50, warmup=20
    )
    assert "the model memorises its pairs" in concern.sentence


def test_a_score_that_is_best_in_the_cooldown_is_worth_its_loss():
    config = TrainConfig(out=Path("run"), metric="bleu", cooldown=0.3)
    assert not list(concerns(config, metrics([4.0, 3.0, 2.5, 3.0, 3.5], [1.0, 2.0, 3.0, 4.0, 5.0]), 50, warmup=20))


@pytest.mark.parametrize(("last", "count"), [(0.9, 1), (1.1, 0)])
def test_a_loss_that_rose_in_the_cooldown_does_not_fall_fast(last, count):
    config = TrainConfig(out=Path("run"), metric="bleu", cooldown=0.3)
    found = list(concerns(config, metrics([3.0, 2.0, 1.5, 1.0, last], [1.0, 2.0, 3.0, 4.0, 4.0]), 60, warmup=20))
    assert len(found) == count


def test_an_error_rate_is_bad_where_it_is_high():
    config = TrainConfig(out=Path("run"), metric="wer")
    for rate, count in ((100.0, 1), (0.0, 0)):
        assert len(list(concerns(config, metrics([3.0], [rate], "wer"), 40, warmup=20))) == count


def test_a_perfect_score_is_no_concern():
    losses, scores = [0.01, 0.005, 0.006, 0.006, 0.007], [90.0, 100.0, 100.0, 100.0, 100.0]
    config = TrainConfig(out=Path("run"), metric="exact", cooldown=0.3)
    assert not list(concerns(config, metrics(losses, scores, "exact"), 50, warmup=20))


def test_a_warm_up_of_the_users_decides_how_much_longer():
    config = TrainConfig(out=Path("run"), warmup=4000, max_updates=100)
    (concern,) = concerns(config, metrics([3.0, 3.5], [0.1, 0.1]), 100, warmup=4000)
    assert command_to_go_on(config, Path("run"), concern.times) == (
        "glassformer train --from run --max-updates 40000 --warmup 4000 --out run-more"
    )


def test_a_training_far_too_short_is_advised_to_be_longer():
    (concern,) = concerns(TrainConfig(out=Path("run")), metrics([3.0], [1.0]), 5, warmup=20)
    command = command_to_go_on(TrainConfig(out=Path("run"), max_minutes=0.5), Path("run"), concern.times)
    assert command == "glassformer train --from run --max-minutes 5 --out run-more"


def test_a_training_without_an_update_is_advised_too():
    config = TrainConfig(out=Path("run"), warmup=100)
    assert [concern.times for concern in concerns(config, metrics([3.0], [1.0]), 0, warmup=100)] == [1000]


def test_the_command_trains_on_with_the_same_files_and_limits():
    files = dict(source=(Path("a b.tsv"), Path("c.tsv:2")), columns=("en", "de"), out=Path("run"))
    own = dict(tokenizer="char", preset="base", d_model=64)  # which the run keeps
    config = TrainConfig(**files, **own, max_minutes=2.5, max_epochs=3, seed=7, shard=True)
    assert command_to_go_on(config, Path("my run")) == (
        "glassformer train --from 'my run' --columns en de --max-epochs 3 --max-minutes 2.5 --seed 7 --shard "
        "--source 'a b.tsv' c.tsv:2 --out 'my run-more'"
    )
