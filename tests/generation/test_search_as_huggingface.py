"""Searches find what transformers' generate finds with the same weights and the settings that correspond."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.generation.config import SearchConfig
from glassformer.generation.engine import Engine
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
    run = random_run(
        folder,
        tokenizer,
        tokenizer,
        shared=True,
        seed=9,  # whose translations end at different lengths
        d_model=14,
        heads=2,
        decoder_layers=1,
        d_ff=17,
        output_bias=True,
    )
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


def theirs(both: tuple[Run, Any], **settings: Any) -> list[list[tuple[list[int], float]]]:
    """What transformers finds for each source: ids without `</s>`, and score."""
    run, model = both
    source, keep = sources(run)
    found = model.generate(
        input_ids=source,
        attention_mask=keep[:, 0, 0].long(),
        do_sample=False,
        max_length=LIMIT + 1,  # with the start
        forced_eos_token_id=None,
        bad_words_ids=None,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    ids = [[i for i in row if i not in (EOS, run.model.target_pad)] for row in found.sequences.tolist()]
    scores = found.sequences_scores.tolist() if settings.get("num_beams", 1) > 1 else [0.0] * len(ids)
    each = len(ids) // len(LENGTHS)
    pairs = list(zip(ids, scores, strict=True))
    return [pairs[i : i + each] for i in range(0, len(pairs), each)]


def ours(both: tuple[Run, Any], config: SearchConfig) -> list[list[tuple[list[int], float]]]:
    source, keep = sources(both[0])
    found = beam_search(Engine.of(both[0].model), source, keep, [LIMIT] * len(LENGTHS), config)
    return [[(hypothesis.ids, hypothesis.score) for hypothesis in hypotheses] for hypotheses in found]


def check_same(found: list[list[tuple[list[int], float]]], expected: list[list[tuple[list[int], float]]]) -> None:
    assert [[ids for ids, _ in best] for best in found] == [[ids for ids, _ in best] for best in expected]
    for ours_, theirs_ in zip(found, expected, strict=True):
        assert [score for _, score in ours_] == pytest.approx([score for _, score in theirs_], abs=1e-4)


@pytest.mark.parametrize("stopping", EARLY_STOPPING)
@pytest.mark.parametrize(("beam", "alpha"), [(3, 0.0), (2, 1.0), (5, 1.0), (3, 2.0)])
def test_each_way_to_stop_is_one_of_theirs(both, beam, alpha, stopping):
    found = ours(both, SearchConfig(beam=beam, n_best=beam, length_penalty=alpha, stopping=stopping))
    expected = theirs(
        both,
        num_beams=beam,
        num_return_sequences=beam,
        length_penalty=alpha,
        early_stopping=EARLY_STOPPING[stopping],
    )
    check_same(found, expected)


def test_the_model_gives_the_ways_to_stop_something_to_decide(both):
    lists = [ours(both, SearchConfig(beam=3, n_best=3, stopping=stopping)) for stopping in EARLY_STOPPING]
    assert lists[0] != lists[1] != lists[2] != lists[0]
    lengths = [len(ids) for found in lists for best in found for ids, _ in best]
    assert min(lengths) < LIMIT == max(lengths), "some end by themselves, some don't"


@pytest.mark.parametrize(
    ("least", "n", "stopping"),
    [(5, 0, "exact"), (13, 0, "heuristic"), (0, 1, "exact"), (0, 2, "heuristic"), (0, 3, "exact"), (11, 2, "exact")],
)
def test_least_lengths_and_forbidden_repeats_are_theirs(both, least, n, stopping):
    config = SearchConfig(beam=3, n_best=3, min_length=least, no_repeat_ngram=n, stopping=stopping)
    expected = theirs(
        both,
        num_beams=3,
        num_return_sequences=3,
        length_penalty=1.0,
        early_stopping=EARLY_STOPPING[stopping],
        min_length=least + 1,  # with the start
        no_repeat_ngram_size=n,
    )
    found = ours(both, config)
    check_same(found, expected)
    assert found != ours(both, SearchConfig(beam=3, n_best=3, stopping=stopping)), "the rule changes something"


@pytest.mark.parametrize(("least", "n"), [(0, 0), (9, 0), (0, 2)])
def test_greedy_is_theirs(both, least, n):
    source, keep = sources(both[0])
    config = SearchConfig(beam=1, min_length=least, no_repeat_ngram=n)
    found = greedy(Engine.of(both[0].model), source, keep, [LIMIT] * len(LENGTHS), config)
    expected = theirs(both, num_beams=1, min_length=least + 1, no_repeat_ngram_size=n)
    assert [hypothesis.ids for hypothesis in found] == [ids for [(ids, _)] in expected]
