"""transformers.js loads an exported folder from the disk, and translates as this library does."""

import pytest

from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator

LENGTH = 30


@pytest.mark.parametrize("shared", [True, False], ids=["one vocabulary", "two"])
def test_it_gives_our_greedy_ids_and_texts(random_run, sides, english, tmp_path, transformers_js, shared):
    pytest.importorskip("onnx", reason="pip install 'glassformer[onnx]'")
    from glassformer.interop.onnx.export import export_onnx

    source, target = sides[0], sides[0 if shared else 1]
    run = random_run(tmp_path / "run", source, target, shared=shared, tied_output=False, seed=28)
    export_onnx(run, tmp_path / "model")
    asked = dict(folder=str(tmp_path / "model"), target="" if shared else "target", lines=english)
    asked["length"] = LENGTH + 1  # its last token is </s>, come what may
    answers = transformers_js("translate.mjs", asked)
    assert [one["source"] for one in answers] == [[*ids, 0] for ids in source.encode(english)]
    ours = Translator.load(tmp_path / "run", precision="float32").translations(
        english, SearchConfig(beam=1, max_length=LENGTH)
    )
    found = [[i for i in one["found"] if i not in (0, target.pad)] for one in answers]
    assert found == [[target.id_of(token) for token in one.tokens] for one in ours]
    assert [one["text"] for one in answers] == [one.text for one in ours]
    assert len({i for row in found for i in row}) > 5  # or it would be no test
