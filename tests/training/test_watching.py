"""A training that is watched: what it writes, and that it goes on as it would have."""

import pytest

from glassformer.capture.sightings import read_sightings
from glassformer.errors import ConfigError
from glassformer.run.names import WATCHED, WEIGHTS
from glassformer.training.train import resume, train


@pytest.fixture
def files(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{n} b c\tc b {n}\n" for n in range(40)))
    return dict(source=path, valid_source=path, tokenizer="char", encoder_layers=1, decoder_layers=1)


@pytest.mark.usefixtures("unchecked")
def test_a_watched_training_writes_down_its_heads(files, tiny, tmp_path):
    result = train(tiny(tmp_path / "run", **files, watch=3, max_updates=7))
    sightings = read_sightings(result.folder / WATCHED)
    assert [sighting.step for sighting in sightings] == [1, 3, 6]
    assert len(sightings[0].figures) == 3  # the encoder's, and two of the decoder's
    assert all({"entropy", "max_score", "sink"} == set(facts) for facts in sightings[0].figures.values())
    assert not (train(tiny(tmp_path / "plain", **files, max_updates=3)).folder / WATCHED).exists()


@pytest.mark.usefixtures("unchecked")
def test_a_watched_training_that_goes_on_comes_to_the_same_weights_and_lines(files, tiny, tmp_path, interrupting):
    whole = train(tiny(tmp_path / "whole", **files, watch=3, max_updates=8)).folder
    with interrupting(5):
        run = train(tiny(tmp_path / "run", **files, watch=3, max_updates=8)).folder
    with (run / WATCHED).open("a") as file:  # as if it had gone further, to be killed before the next checkpoint
        file.write('{"step": 6, "layers": {}}\n')
    resume(run)
    assert (run / WATCHED).read_text() == (whole / WATCHED).read_text()
    assert (run / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()


def test_watch_and_guide_exclude_each_other(files, tiny, tmp_path):
    with pytest.raises(ConfigError, match="watch and guide exclude each other"):
        tiny(tmp_path / "run", **files, watch=3, guide=1.0)
