"""The callback for Hugging Face's Trainer: with the events that it gives, and where accelerate is, with the Trainer."""

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="pip install 'glassformer[huggingface]'")

from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

from glassformer.capture.sightings import read_sightings
from glassformer.capture.trainer import WatchCallback

from .conftest import make_family

PATHS = ["model.layers.0.self_attn", "model.layers.1.self_attn"]


def run_events(
    callback: WatchCallback, model: nn.Module, inputs: dict[str, Any], steps: range, *, first: bool = True
) -> None:
    """Train as the Trainer does, with two passes a step and an evaluation after each."""
    arguments: Any = SimpleNamespace()
    state, control = TrainerState(global_step=steps.start, is_world_process_zero=first), TrainerControl()
    handler = CallbackHandler([callback], model, None, None, None)
    handler.on_train_begin(arguments, state, control)
    for step in steps:
        for _ in range(2):
            model.train()(**inputs).logits.sum().backward()
        state.global_step = step + 1
        handler.on_step_end(arguments, state, control)
        with torch.no_grad():
            model.eval()(**inputs)
    handler.on_train_end(arguments, state, control)


def test_callback_watches_the_steps_of_the_optimizer(tmp_path):
    model, inputs = make_family("llama")
    before = model.config._attn_implementation
    file = tmp_path / "attention.jsonl"
    callback = WatchCallback(every=3, file=file)
    run_events(callback, model, inputs, range(7))
    assert [sighting.step for sighting in callback.seen.sightings] == [1, 3, 6]
    assert list(callback.seen.sightings[0].figures) == PATHS
    assert model.config._attn_implementation == before
    run_events(WatchCallback(every=3, file=file), model, inputs, range(4, 9))  # goes on after step 4
    assert [sighting.step for sighting in read_sightings(file)] == [1, 3, 5, 6, 9]


def test_other_processes_than_the_first_do_not_watch(tmp_path):
    model, inputs = make_family("llama")
    callback = WatchCallback(every=1, file=tmp_path / "attention.jsonl")
    run_events(callback, model, inputs, range(2), first=False)
    assert callback.seen is None
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(find_spec("accelerate") is None, reason="pip install accelerate, which the Trainer needs")
def test_trainer_runs_the_callback(tmp_path: Path):
    from transformers import Trainer, TrainingArguments

    model, inputs = make_family("bert")
    head = nn.Linear(24, 1)

    class Scorer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert, self.head = model, head

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
            states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return {"loss": self.head(states).square().mean()}

    rows = [{name: x[n % 2] for name, x in inputs.items()} for n in range(12)]
    callback = WatchCallback(every=2)
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=5, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    Trainer(model=Scorer(), args=arguments, train_dataset=rows, callbacks=[callback]).train()
    assert [sighting.step for sighting in callback.seen.sightings] == [1, 2, 4]
