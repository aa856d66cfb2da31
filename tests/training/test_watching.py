"""A training that is watched: what it writes, and that it goes on as it would have."""

import pytest
import torch

from glassformer import Want, watch
from glassformer.capture.sightings import Figures, read_sightings
from glassformer.errors import ConfigError
from glassformer.run.names import WATCHED, WEIGHTS
from glassformer.text.batching import Batch
from glassformer.training.train import resume, train
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer


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
    with pytest.raises(ConfigError, match="`watch` and `guide` exclude each other"):
        tiny(tmp_path / "run", **files, watch=3, guide=1.0)


def test_padding_of_a_batch_has_no_part_in_the_figures():
    vocabulary, pad = 17, 16
    sizes = dict(d_model=12, heads=3, encoder_layers=1, decoder_layers=1, d_ff=13, dropout=0.0)
    model = Transformer(ModelConfig(**sizes, source_vocab_size=vocabulary, target_vocab_size=vocabulary))
    lengths = [(5, 7), (11, 3), (2, 2)]
    ends = torch.zeros(1, dtype=torch.long)
    pairs = [[torch.cat([torch.randint(1, pad, (n - 1,)), ends]) for n in pair] for pair in lengths]
    seen: list[Figures] = []
    want = Want(entropy=True, max_score=True, sink=1, distance=True)
    for parts in ([pairs], [[pair] for pair in pairs]):  # in one batch, and each pair alone
        with watch(model, want=want) as watching:
            for part in parts:
                batch = Batch.of(*zip(*part, strict=True), pad, pad)
                start = model.start(model.encode(batch.source, packing=batch.sources), packing=batch.sources)
                model.decode(batch.target_in, start, batch.targets)
            seen.append(watching.log(0).figures)
    together, alone = seen
    for layer, facts in alone.items():
        for fact, values in facts.items():
            assert together[layer][fact] == pytest.approx(values, rel=1e-4), (layer, fact)
