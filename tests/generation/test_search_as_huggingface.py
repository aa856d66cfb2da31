"""Searches find what transformers' generate finds with the same weights and the settings that correspond."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.generation.config import SearchConfig
from glassformer.generation.engines.engine import Engine
from glassformer.generation.search import beam_search, greedy
from glassformer.interop.huggingface import export_marian
from glassformer.run.folder import Run
from glassformer.text.batching import pad_source
from glassformer.text.tokenizer import EOS, SubwordTokenizer

transformers = pytest.importorskip("transformers", reason="pip install 'glassformer[huggingface]'")

LENGTHS = [2, 7, 5, 11, 3, 13]
LIMIT = 17
EARLY_STOPPING = {"heuristic": False, "first": True, "exact": "never"}


@pytest.fixture(scope="module")
def both(random_run, tmp_path_factory) -> tuple[Run, Any]:
    """A random run, and the model that transformers loads of it."""
    folder: Path = tmp_path_factory.mktemp("both")
    text = ["two dogs run over the green grass", "a man sings a song"]
    tokenizer = SubwordTokenizer.train(text, kind="char", vocab_size=None, seed=1)
    sizes = dict(d_model=14, heads=2, decoder_layers=1, d_ff=17, output_bias=True)
    run = random_run(folder, tokenizer, tokenizer, shared=True, seed=9, **sizes)  # ends at different lengths
    with torch.no_grad():
        run.model.output_bias[EOS] = 1.0
    export_marian(run, folder / "marian")
    theirs = transformers.MarianMTModel.from_pretrained(folder / "marian").eval()
    return run, theirs


def sources(run: Run) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    rows = [
        torch.tensor([*torch.randint(2, run.model.source_pad, (n,), generator=generator).tolist(), EOS])
        for n in LENGTHS
    ]
    return pad_source(rows, run.model.source_pad)


Found = list[list[tuple[list[int], float]]]
"""For each source, best first, ids without `</s>` and score."""


def theirs(both: tuple[Run, Any], config: SearchConfig) -> Found:
    """What transformers finds; by greedy search without a score."""
    run, model = both
    source, keep = sources(run)
    of_beams = dict(length_penalty=config.length_penalty, early_stopping=EARLY_STOPPING[config.stopping])
    found = model.generate(
        input_ids=source,
        attention_mask=keep[:, 0, 0].long(),
        do_sample=False,
        num_beams=config.beam,
        num_return_sequences=config.n_best,
        min_length=config.min_length + 1,  # with the start
        max_length=LIMIT + 1,
        no_repeat_ngram_size=config.no_repeat_ngram,
        forced_eos_token_id=None,
        bad_words_ids=None,
        return_dict_in_generate=True,
        output_scores=True,
        **(of_beams if config.beam > 1 else {}),
    )
    ids = [[i for i in row if i not in (EOS, run.model.target_pad)] for row in found.sequences.tolist()]
    pairs = list(zip(ids, found.sequences_scores.tolist() if config.beam > 1 else [0.0] * len(ids), strict=True))
    return [pairs[i : i + config.n_best] for i in range(0, len(pairs), config.n_best)]


def ours(both: tuple[Run, Any], config: SearchConfig) -> Found:
    batch = Engine.of(both[0].model), *sources(both[0]), [LIMIT] * len(LENGTHS), config
    if config.beam == 1:
        return [[(hypothesis.ids, 0.0)] for hypothesis in greedy(*batch)]
    return [[(hypothesis.ids, hypothesis.score) for hypothesis in hypotheses] for hypotheses in beam_search(*batch)]


def settings(beam: int, stopping: str = "exact", alpha: float = 1.0, least: int = 0, n: int = 0) -> SearchConfig:
    rules = dict(min_length=least, no_repeat_ngram=n)
    return SearchConfig(beam=beam, n_best=beam, stopping=stopping, length_penalty=alpha, **rules)


EACH_WAY_TO_STOP = [
    settings(beam, stopping, alpha)
    for beam, alpha in [(3, 0.0), (2, 1.0), (5, 1.0), (3, 2.0)]
    for stopping in EARLY_STOPPING
]
RULES = [(5, 0, "exact"), (13, 0, "heuristic"), (0, 1, "exact"), (0, 2, "heuristic"), (0, 3, "exact"), (11, 2, "exact")]
WITH_RULES = [settings(3, stopping, least=least, n=n) for least, n, stopping in RULES]
GREEDY = [settings(1), settings(1, least=9), settings(1, n=2)]


@pytest.mark.parametrize("config", [*EACH_WAY_TO_STOP, *WITH_RULES, *GREEDY])
def test_what_is_found_is_what_they_find(both, config):
    found, expected = ours(both, config), theirs(both, config)
    assert [[ids for ids, _ in best] for best in found] == [[ids for ids, _ in best] for best in expected]
    for best, best_of_theirs in zip(found, expected, strict=True):
        assert [score for _, score in best] == pytest.approx([score for _, score in best_of_theirs], abs=1e-4)


def test_the_model_gives_the_ways_to_stop_and_the_rules_something_to_decide(both):
    lists = [ours(both, settings(3, stopping)) for stopping in EARLY_STOPPING]
    assert lists[0] != lists[1] != lists[2] != lists[0]
    lengths = [len(ids) for found in lists for best in found for ids, _ in best]
    assert min(lengths) < LIMIT == max(lengths), "some end by themselves, some don't"
    for config in WITH_RULES:
        assert ours(both, config) != ours(both, settings(3, config.stopping))
