"""A learned mapping: sequences of symbols in reverse. Slow, because it is learned to a stated score."""

from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.training.train import train


def test_learns_to_reverse(tiny, reversed_symbols, tmp_path):
    for name, count, seed in (("train", 4000, 1), ("valid", 100, 2), ("test", 300, 3)):
        lines = reversed_symbols(count, seed, symbols="abcdef", longest=5)
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = tiny(
        tmp_path / "run",
        source=tmp_path / "train.tsv",
        valid_source=tmp_path / "valid.tsv",
        d_model=32,
        heads=4,
        d_ff=64,
        dropout=0.0,
        batch_tokens=384,
        learning_rate=1e-2,
        warmup=50,
        max_updates=350,
        validate_every=70,
        score_pairs=100,
        average=3,
        metric="exact",
    )
    result = train(config)

    test = [line.split("\t") for line in lines]
    translator = Translator.load(result.folder, "cpu")
    for beam in (1, 4):
        translations = translator.translate([source for source, _ in test], SearchConfig(beam=beam))
        right = sum(a == target for a, (_, target) in zip(translations, test, strict=True))
        assert right >= 0.95 * len(test), f"beam {beam}: {right} of {len(test)}"
