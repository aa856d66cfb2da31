"""A learned mapping: sequences of symbols in reverse. Slow, because it is learned to a stated score."""

import pytest

from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.training.train import train


# Slow: it learns, in 200 updates.
@pytest.mark.usefixtures("unchecked")
def test_learns_to_reverse(tiny, reversed_symbols, tmp_path):
    for name, count, seed in (("train", 4000, 1), ("valid", 100, 2), ("test", 300, 3)):
        lines = reversed_symbols(count, seed, symbols="abcdef", longest=5)
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = dict(source=tmp_path / "train.tsv", valid_source=tmp_path / "valid.tsv")
    sizes = dict(d_model=32, heads=4, d_ff=64, dropout=0.0, batch_tokens=384)
    course = dict(learning_rate=2e-2, warmup=50, max_updates=200, validate_every=40, cooldown=0.3, metric="exact")
    result = train(tiny(tmp_path / "run", **files, **sizes, **course, average=3, score_pairs=100))
    test = [line.split("\t") for line in lines]
    translator = Translator.load(result.folder, "cpu")
    for beam in (1, 4):
        translations = translator.translate([source for source, _ in test], SearchConfig(beam=beam))
        right = sum(a == target for a, (_, target) in zip(translations, test, strict=True))
        assert right >= 0.95 * len(test), f"beam {beam}: {right} of {len(test)}"
