"""Runs exported as ONNX graphs, which onnxruntime itself runs."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer.attention.want import Want
from glassformer.capture.capture import capture
from glassformer.errors import ConfigError, RunError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.insight.prune import without_heads
from glassformer.interop.huggingface import import_marian
from glassformer.run.folder import Run
from glassformer.text.tokenizer import SymbolTokenizer
from glassformer.transformer.positions import sinusoids

EXTRA = "pip install 'glassformer[onnx]'"
onnx = pytest.importorskip("onnx", reason=EXTRA)
onnxruntime = pytest.importorskip("onnxruntime", reason=EXTRA)
export = pytest.importorskip("glassformer.interop.onnx.export", reason=EXTRA, exc_type=ImportError)
generate = pytest.importorskip("glassformer.interop.onnx.generate", reason=EXTRA, exc_type=ImportError)
parts = pytest.importorskip("glassformer.interop.onnx.parts", reason=EXTRA, exc_type=ImportError)

validate = pytest.importorskip("glassformer.interop.onnx.validate", reason=EXTRA, exc_type=ImportError)

GREEDY = SearchConfig(beam=1, max_length=17)
SOURCE = torch.tensor([[5, 7, 3, 6, 0], [4, 0, 0, 0, 0], [3, 2, 0, 0, 0]])
KEEP = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]])
TARGET = torch.tensor([[2, 4, 3], [5, 6, 7], [3, 3, 4]])
REMOVED = {
    "encoder.0.self_attention": [1],
    "encoder.1.self_attention": [0, 1, 2],
    "decoder.0.self_attention": [0, 2],
    "decoder.0.source_attention": [0, 1, 2],
    "decoder.1.source_attention": [2],
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch, unchecked) -> None:
    """What a random model writes has no end, and checks of shapes are most of the time."""
    monkeypatch.setattr(validate, "GREEDY", GREEDY)


def session(out: Path, name: str) -> Any:
    (path,) = (out / "onnx").glob(f"{name}*.onnx")
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def ours(run: Run) -> tuple[Tensor, Tensor, Tensor]:
    """The ids of sources and targets as the run has them, and its logits."""
    source = SOURCE.masked_fill(KEEP == 0, run.model.source_pad)
    target = torch.cat([torch.full((3, 1), run.model.target_pad), TARGET], dim=1)
    with torch.no_grad():
        return source, target, run.model(source, target)


def theirs(out: Path, *lengths: int) -> dict[str, Tensor]:
    """All that the graphs return; the decoder in steps of these lengths, the logits of all together."""
    pad = json.loads((out / "config.json").read_text(encoding="utf-8"))["pad_token_id"]
    source = SOURCE.masked_fill(KEEP == 0, pad).numpy()
    found = run_session(session(out, "encoder_model"), {"input_ids": source, "attention_mask": KEEP.numpy()})
    decoder = session(out, "decoder_model_merged")
    given = {"encoder_attention_mask": KEEP.numpy(), "encoder_hidden_states": found["last_hidden_state"].numpy()}
    for past in decoder.get_inputs():
        if past.name.startswith("past"):  # as transformers.js makes them: unknown axes are empty
            sizes = [3 if size == "batch_size" else size if isinstance(size, int) else 0 for size in past.shape]
            given[past.name] = torch.zeros(sizes).numpy()
    ids, logits = torch.cat([torch.full((3, 1), pad), TARGET], dim=1), []
    for step in ids.split(lengths or (4,), dim=1):
        of_step = run_session(decoder, {**given, "input_ids": step.numpy()})
        given |= {
            name.replace("present", "past_key_values"): values.numpy()
            for name, values in of_step.items()
            if name.startswith("present")
        }
        logits.append(of_step["logits"])
        found |= of_step
    return found | {"logits": torch.cat(logits, dim=1)}


def run_session(graph: Any, given: dict[str, Any]) -> dict[str, Tensor]:
    names = [output.name for output in graph.get_outputs()]
    return dict(zip(names, map(torch.from_numpy, graph.run(names, given)), strict=True))


def pruned(run: Run) -> Run:
    return replace(run, model=without_heads(run.model, REMOVED))


KINDS = {
    "plain-shared": (0, 0, {}),
    "plain": (0, 1, {}),
    "untied": (0, 0, {"tied_output": False, "activation": "gelu"}),
    "biased": (1, 0, {"output_bias": True, "scale_embedding": False, "activation": "swish"}),
    "norm first": (0, 1, {"norm_first": True, "final_norm": True}),
    "pruned": (0, 1, {"encoder_layers": 2}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_translations_are_ours(random_run, sides, english, german, tmp_path, kind):
    source, target, changes = KINDS[kind]
    run = random_run(tmp_path / "run", sides[source], sides[target], shared=source == target, **changes)
    run = pruned(run) if kind == "pruned" else run
    with torch.no_grad():
        run.model.target_embedding.weight[-1] = 0.3  # an imported model's decoder may start from anything
    lines = [*[english, german][source], "", "Ωmega dogs"]
    (tmp_path / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    found = export.export_onnx(run, tmp_path / "out", validate=tmp_path / "lines.txt")
    assert (found.lines, found.same, found.ties) == (7, 7, 0)
    assert found.difference < 1e-4
    _, _, expected = ours(run)
    for lengths in ((4,), (1, 1, 1, 1), (2, 2)):
        logits = theirs(tmp_path / "out", *lengths)["logits"]
        assert_close(logits[..., : run.model.target_pad], expected, atol=1e-5, rtol=1e-5)
        assert (logits[..., run.model.target_pad :] < -9000).all()  # padding, and ids that fill a vocabulary up
    translator = Translator.of(run.model, run.source_tokenizer, run.target_tokenizer, precision="float32")
    exported = generate.OnnxTranslator.load(tmp_path / "out", threads=1)
    assert exported.translate(lines, GREEDY) == translator.translate(lines, GREEDY)


@pytest.mark.parametrize("prune", [False, True], ids=["all heads", "pruned"])
def test_weights_of_attention_are_those_that_capture_sees(random_run, sides, tmp_path, prune):
    run = random_run(tmp_path / "run", *sides, encoder_layers=2)
    run = pruned(run) if prune else run
    export.export_onnx(run, tmp_path / "out", attention="all")
    found = theirs(tmp_path / "out")
    source, target, _ = ours(run)
    seen = {}
    for name in run.model.config.attentions:
        if run.model.config.heads_of(name):
            length = source.shape[1] if "encoder" in name else target.shape[1]
            with torch.no_grad(), capture(run.model, Want(rows=range(length)), layers=name) as captured:
                run.model(source, target)
            stack, n, kind = name.split(".")
            seen[f"{'cross' if kind.startswith('source') else stack}_attentions.{n}"] = captured[name].rows
    assert {name for name in found if "_attentions." in name} == set(seen)
    inside = KEEP.bool()[:, None, :, None]  # what padding looks at is of no interest
    for name, expected in seen.items():
        weights = found[name]
        if name.startswith("encoder"):
            weights, expected = weights * inside, expected * inside
        assert_close(weights, expected, atol=1e-6, rtol=1e-5)


def test_only_attention_over_the_source_is_returned_unless_all_is_wanted(run, tmp_path):
    export.export_onnx(run, tmp_path / "cross", attention="cross")
    export.export_onnx(run, tmp_path / "none")
    assert {name for name in theirs(tmp_path / "cross") if "attentions" in name} == {
        "cross_attentions.0",
        "cross_attentions.1",
    }
    assert not [name for name in theirs(tmp_path / "none") if "attentions" in name]


def test_inputs_and_outputs_are_named_as_transformers_js_reads_them(run, tmp_path):
    export.export_onnx(run, tmp_path / "out")
    encoder, decoder = (session(tmp_path / "out", name) for name in ("encoder_model", "decoder_model_merged"))
    assert [one.name for one in encoder.get_inputs()] == ["input_ids", "attention_mask"]
    assert [one.name for one in encoder.get_outputs()] == ["last_hidden_state"]
    cached = [f"{n}.{kind}.{which}" for n in range(2) for kind in ("decoder", "encoder") for which in ("key", "value")]
    shapes = {one.name: one.shape for one in decoder.get_inputs()}
    first = ["input_ids", "encoder_attention_mask", "encoder_hidden_states"]
    assert list(shapes) == [*first, *(f"past_key_values.{one}" for one in cached)]
    assert shapes["past_key_values.1.decoder.key"] == ["batch_size", 3, "past_decoder_sequence_length", 8]
    assert [one.name for one in decoder.get_outputs()] == ["logits", *(f"present.{one}" for one in cached)]
    config = json.loads((tmp_path / "out/config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["decoder_layers"], config["decoder_attention_heads"]) == ("marian", 2, 3)
    generation = json.loads((tmp_path / "out/generation_config.json").read_text(encoding="utf-8"))
    assert generation["decoder_start_token_id"] == config["pad_token_id"] == config["vocab_size"] - 1


def test_weights_are_stored_once_and_pruned_heads_not_at_all(random_run, sides, tmp_path):
    run = random_run(tmp_path / "run", sides[0], sides[0], shared=True, encoder_layers=2)
    for name, one in (("whole", run), ("pruned", pruned(run))):
        export.export_onnx(one, tmp_path / name)
        for graph in ("encoder_model", "decoder_model_merged"):
            onnx.checker.check_model(onnx.load(tmp_path / name / f"onnx/{graph}.onnx"), full_check=True)

    def numbers(name: str, graph: str) -> int:
        weights = onnx.load(tmp_path / name / f"onnx/{graph}.onnx").graph.initializer
        return sum(torch.Size(one.dims).numel() for one in weights if one.data_type == onnx.TensorProto.FLOAT)

    layers = sum(one.numel() for name, one in run.model.decoder.named_parameters())
    table = run.model.target_embedding.weight.numel()
    positions = 2 * 64 * 2 * 24
    logits_bias, constants = sides[0].vocab_size, 3  # sqrt(d_model), 0 and the least number
    assert numbers("whole", "decoder_model_merged") == layers + table + positions + logits_bias + constants
    head = 4 * 8 * 24 + 3 * 8
    gone = {"encoder": 4, "decoder": 6}  # heads
    assert numbers("whole", "encoder_model") - numbers("pruned", "encoder_model") == gone["encoder"] * head
    assert (
        numbers("whole", "decoder_model_merged") - numbers("pruned", "decoder_model_merged") == gone["decoder"] * head
    )


def test_the_same_run_gives_the_same_bytes(run, tmp_path, tree):
    for name in ("one", "other"):
        export.export_onnx(run, tmp_path / name, "int8", attention="all")
    assert tree(tmp_path / "one") == tree(tmp_path / "other")


@pytest.mark.parametrize(("quantization", "suffix", "share"), [("int8", "_quantized", 0.7), ("fp16", "_fp16", 0.8)])
def test_fewer_bits_are_smaller_and_nearly_the_same(random_run, sides, tmp_path, quantization, suffix, share, english):
    run = random_run(tmp_path / "run", sides[0], sides[0], shared=True, d_model=96)
    (tmp_path / "lines.txt").write_text("\n".join(english), encoding="utf-8")
    export.export_onnx(run, tmp_path / "whole")
    found = export.export_onnx(run, tmp_path / "out", quantization, attention="all", validate=tmp_path / "lines.txt")
    assert found.lines == 5
    assert 1e-5 < found.mean_difference < 0.1
    sizes = {}
    for graph in ("encoder_model", "decoder_model_merged"):
        sizes[graph] = [
            (tmp_path / f"{folder}/onnx/{graph}{end}.onnx").stat().st_size
            for folder, end in (("out", suffix), ("whole", ""))
        ]
        assert sizes[graph][0] < share * sizes[graph][1]
    expected, given = theirs(tmp_path / "whole"), theirs(tmp_path / "out")
    assert {one.dtype for one in given.values()} == {torch.float32}
    for name in ("last_hidden_state", "present.1.encoder.key"):
        assert_close(given[name], expected[name], atol=0.15, rtol=0.1)


def test_positions_are_sinusoids(tmp_path):
    coarse, fine = parts.rotation_tables(6)
    positions = torch.arange(parts.POSITIONS)
    found = (coarse[positions // parts.STRIDE] * fine[positions % parts.STRIDE]).sum(1)
    assert_close(found, sinusoids(parts.POSITIONS, 6), atol=1e-6, rtol=0)


# What is refused, and leaves nothing behind


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("target", "removed", "quantization", "message"),
    [
        (None, {}, "int4", "quantization must be int8 or fp16, got 'int4'"),
        (SymbolTokenizer("ab"), {}, None, "the target tokenizer of this run splits symbols at spaces"),
        (None, {f"decoder.{n}.self_attention": [0, 1, 2] for n in range(2)}, None, "no layer of this run's decoder"),
    ],
    ids=["quantization", "symbols", "no heads"],
)
def test_what_it_cannot_hold_is_refused(random_run, sides, tmp_path, target, removed, quantization, message):
    run = random_run(tmp_path / "run", sides[0], target or sides[1])
    run = replace(run, model=without_heads(run.model, removed)) if removed else run
    with pytest.raises((ConfigError, RunError), match=message):
        export.export_onnx(run, tmp_path / "out", quantization)
    assert names(tmp_path) == ["run"]


def test_graphs_that_are_not_the_model_are_not_left_behind(run, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "EPSILON", 0.1)
    with pytest.raises(RunError, match=r"logits differ from the model's by up to 0.*: nothing was written"):
        export.export_onnx(run, tmp_path / "out")
    assert names(tmp_path) == ["run"]


def test_translations_that_differ_are_not_left_behind(run, tmp_path, monkeypatch, english):
    (tmp_path / "lines.txt").write_text("\n".join(english), encoding="utf-8")
    monkeypatch.setattr(generate.OnnxTranslator, "search", lambda self, sources, _: [[3, 4] for _ in sources])
    with pytest.raises(RunError, match=r"onnxruntime translates line 1 as '.*', and glassformer as '.*: nothing was"):
        export.export_onnx(run, tmp_path / "out", validate=tmp_path / "lines.txt")
    assert names(tmp_path) == ["lines.txt", "run"]


def test_graphs_above_two_gib_are_refused(run, tmp_path, monkeypatch):
    graph = pytest.importorskip("glassformer.interop.onnx.graph")
    monkeypatch.setattr(graph, "MOST_BYTES", 10_000)
    with pytest.raises(RunError, match=r"the encoder has 0\.0 GiB of weights, and an ONNX file holds less than 2"):
        export.export_onnx(run, tmp_path / "out")
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize(("package", "module"), [("onnx", "graph"), ("onnxruntime", "generate")])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, run_command, run, tmp_path, capsys, package, module):
    for name in [name for name in sys.modules if name.startswith("glassformer.interop.onnx.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert run_command(f"export {tmp_path}/run --to onnx --out {tmp_path}/out") == 2
    said = run_command.complaint(capsys.readouterr().err)
    assert said.endswith(f"needs the package {package}: pip install 'glassformer[onnx]'")
    assert names(tmp_path) == ["run"]


def test_a_folder_without_graphs_of_this_precision_is_no_translator(run, tmp_path):
    export.export_onnx(run, tmp_path / "out")
    with pytest.raises(RunError, match=r"encoder_model_quantized\.onnx is missing: export the run --to onnx with the"):
        generate.OnnxTranslator.load(tmp_path / "out", "int8")


def test_graphs_are_not_imported(run, tmp_path):
    export.export_onnx(run, tmp_path / "out")
    with pytest.raises(
        RunError, match=r"weights in ONNX graphs, which aren't read: .* Give the folder with model\.safe"
    ):
        import_marian(tmp_path / "out", tmp_path / "again")
    assert names(tmp_path) == ["out", "run"]


# The command line


def test_the_command_says_how_like_the_model_the_graphs_are(run, run_command, english, tmp_path, capsys):
    (tmp_path / "lines.txt").write_text("\n".join(english), encoding="utf-8")
    command = f"export {tmp_path}/run --to onnx --out {tmp_path}/out"
    assert run_command(f"{command} --validate {tmp_path}/lines.txt --attention cross") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{tmp_path}/out: scores differ from the model's by ")
    assert second == "5 of 5 lines translate to the same tokens, greedily"


@pytest.mark.usefixtures("run")
def test_an_export_is_not_taken_for_a_run(run_command, tmp_path, capsys):
    (tmp_path / "one.txt").write_text("a\n", encoding="utf-8")
    assert run_command(f"export {tmp_path}/run --to onnx --out {tmp_path}/out --validate {tmp_path}/one.txt") == 0
    said = capsys.readouterr()
    assert said.err == "writing the graphs, then checking them against the model\n"
    assert said.out.endswith("\n1 of 1 line translates to the same tokens, greedily\n")
    assert run_command(f"export {tmp_path}/out --to onnx --out {tmp_path}/again") == 2
    assert "config.json is of an export, graphs of ONNX, not of a run: name the run" in capsys.readouterr().err


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--to huggingface --attention cross", "--attention is for --to onnx: leave it out with --to huggingface"),
        ("--to ctranslate2 --validate x", "--validate is for --to onnx or web: leave it out with --to ctranslate2"),
        ("--to web --attention all", "leave it out with --to web, whose page always shows it"),
        ("--to onnx --validate /dev/null", "/dev/null has no lines: give lines of source text"),
        ("--to onnx --validate missing.txt", "missing.txt: no such file"),
        ("--to onnx --quantization int4", "--quantization must be int8 or fp16, got 'int4'"),
    ],
)
def test_flags_that_make_no_sense_are_refused_in_one_line(run_command, tmp_path, capsys, flags, message):
    assert run_command(f"export {tmp_path}/run --out {tmp_path}/out {flags}") == 2
    assert message in run_command.complaint(capsys.readouterr().err)
    assert names(tmp_path) == ["run"]
