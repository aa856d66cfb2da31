"""The door: which attentions are recorded, what is refused, and that nothing is left of it."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from glassformer import ModelConfig, Transformer, Want, capture
from glassformer.errors import ArgumentError

UNCHECKED = """
import sys, torch
from glassformer import capture
from glassformer.errors import ArgumentError
model = torch.nn.TransformerEncoderLayer(24, 3, 40)
with capture(model) as captured:
    model(torch.randn(2, 3, 24))
assert len(captured) == 1
assert "torch._dynamo" not in sys.modules  # it takes longer to load than all else here
print(*{name.split(".")[1] for name in sys.modules if name.startswith("glassformer.")})
for wrong in ({"model": "bert"}, {"want": True}, {"layers": 3}, {"layers": [3]}, {"budget": "1 GiB"}):
    try:
        capture(**{"model": model, **wrong}).__enter__()
    except ArgumentError as error:
        print(error)
"""


def test_it_needs_attention_alone_and_refuses_wrong_types():
    """In a process without the hook that checks annotations."""
    done = subprocess.run([sys.executable, "-c", UNCHECKED], capture_output=True, text=True, timeout=120, check=True)
    rooms, *messages = done.stdout.splitlines()
    leaves = {"decoding", "device", "errors", "files", "meter", "pictures", "settings", "stopping", "tensors"}
    assert set(rooms.split()) - leaves == {"attention", "capture", "reference"}
    assert messages == [
        "model must be a torch.nn.Module, got str",
        "want must be a Want, got True: pass Want(entropy=True), for example",
        "layers must be paths of attentions, such as 'self_attn', got 3",
        "layers must be paths of attentions, such as 'self_attn', got 3",
        "budget must be a whole number of bytes above 0, got '1 GiB': 2**30 is 1 GiB",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": nn.Linear(2, 2)}, r"^model must contain attention .*, and Linear has none: .* observe\(q"),
        ({"budget": 0}, "budget must be a whole number of bytes above 0, got 0"),
        ({"budget": -7}, "budget must be a whole number of bytes above 0, got -7"),
        ({"layers": "layers.0.self_atn"}, "'layers.0.self_atn': near it are 'layers.0.self_attn', 'layers.1.self"),
        ({"layers": []}, "layers must be paths of attentions, .* got none: leave it out for all"),
        ({"layers": ["layers.0.self_attn", "nothing"]}, "model's 2 attentions, got 'nothing': near it are 'layers"),
    ],
)
def test_wrong_arguments_are_refused(make, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        capture(**{"model": make.encoder(), **arguments}).__enter__()


@torch.no_grad()
def test_layers_that_are_not_chosen_compute_as_before(make):
    model, inputs = make.family("bart")
    plain = model(**inputs).logits
    with capture(model, layers="*.encoder_attn") as captured:
        torch.testing.assert_close(model(**inputs).logits, plain, rtol=1e-5, atol=1e-5)
    assert list(captured) == [f"model.decoder.layers.{n}.encoder_attn" for n in (0, 1)]


@pytest.mark.parametrize("kind", ["torch", "hugging face", "ours"])
def test_a_second_capture_and_an_error_inside_leave_the_model_as_before(make, state_of, kind):
    model = make.encoder()
    if kind != "torch":
        ours = ModelConfig.tiny(source_vocab_size=97, target_vocab_size=97)
        model = Transformer(ours) if kind == "ours" else make.family("bert")[0]
    before = state_of(model)
    with capture(model), pytest.raises(ArgumentError, match=r"already.*: leave that context first$"), capture(model):
        pass
    assert state_of(model) == before
    with pytest.raises(ZeroDivisionError), capture(model, Want(top=1)):
        raise ZeroDivisionError
    assert state_of(model) == before


@pytest.mark.filterwarnings("ignore")  # of tracing, and that it is deprecated
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (torch.compile, r"model is compiled, .* capture model\._orig_mod"),
        (lambda model: nn.Sequential(torch.compile(model)), r"model\.0 is compiled, .* capture model\.0\._orig_mod"),
        (lambda model: torch.jit.trace(model, torch.randn(1, 5, 24), check_trace=False), "model is TorchScript"),
    ],
)
def test_compiled_models_are_refused(make, change, message):
    with pytest.raises(ArgumentError, match=message):
        capture(change(make.encoder().eval())).__enter__()
