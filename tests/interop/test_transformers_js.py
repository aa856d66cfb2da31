"""transformers.js loads an exported folder from the disk, and translates as this library does."""

import re

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


@pytest.mark.parametrize(
    ("bits", "shared"), [("", True), ("--quantization int8", False), ("--quantization fp16", True)]
)
def test_the_program_of_the_model_card_runs(
    random_run, sides, english, tmp_path, transformers_js, run_command, bits, shared
):
    pytest.importorskip("onnx", reason="pip install 'glassformer[onnx]'")
    source, target = sides[0], sides[0 if shared else 1]
    random_run(tmp_path / "run", source, target, shared=shared, tied_output=False, seed=28)
    out = tmp_path / "model"
    assert run_command(f"export {tmp_path / 'run'} --to onnx --out {out} {bits}") == 0
    (code,) = re.findall(r"```js\n(.*?)```", (out / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    line = english[0]
    (found,) = transformers_js("card.mjs", dict(folder=str(out), code=code, line=line))
    assert found
    if not bits:
        [ours] = Translator.load(tmp_path / "run", precision="float32").translate([line], SearchConfig(beam=1))
        assert len(ours) > 50
        assert found.startswith(ours)  # it has no beam, and another limit, to which a random model writes
