"""A trained run's translations beside those of Hugging Face and CTranslate2, and `auto` precision beside float32.

    python benchmarks/parity.py RUN --source FILE --target FILE [--sentences 1000] [--only ids precision]

The run is exported to the Marian layout and from there to CTranslate2. In float32, with a beam of 5 and length penalty
1, ids are compared with Hugging Face's for each rule of stopping and with CTranslate2's at patience 1; greedy search
with both. Where they differ, the score that our model gives to each tells a tie from a fault. Then `auto` against
float32: BLEU, and the mean of the scores that the float32 model gives to the translations. Appends to
benchmarks/results/parity.jsonl. Needs the extras huggingface and ctranslate2.
"""

import tempfile
import warnings
from pathlib import Path
from typing import Any, Literal

import bench
import sacrebleu
import torch
import torch.nn.functional as F
import tyro

from glassformer import SearchConfig, Translator
from glassformer.generation.engines.engine import Engine
from glassformer.generation.search import beam_search, greedy
from glassformer.interop.huggingface import export_marian
from glassformer.pairs.files import PairFiles
from glassformer.run.folder import load_run
from glassformer.text.batching import pad_source
from glassformer.text.tokenizer import EOS

BEAM, BATCH, MOST = 5, 50, 200
RULES = {"exact": "never", "heuristic": False, "first": True}
Ids = list[list[int]]


def main(
    run: tyro.conf.Positional[Path],
    source: Path,
    target: Path,
    sentences: int = 1000,
    only: tuple[Literal["ids", "precision"], ...] = ("ids", "precision"),
) -> None:
    """Compare the translations of SOURCE.

    Args:
        run: The run folder.
        source: Sources, one a line.
        target: References, one a line.
        sentences: How many of them to take.
        only: ids, precision.
    """
    print(bench.machine())
    pairs = [pair for pair in PairFiles(source, target) if pair[0].strip()][:sentences]
    translator = Translator.load(run, "cpu", "float32")
    measured: dict[str, Any] = {"run": run.name, "sentences": len(pairs)}
    if "ids" in only:
        measured |= same_ids(run, translator, [source for source, _ in pairs])
    if "precision" in only:
        measured |= precisions(run, translator, pairs)
    bench.keep("parity", measured)


def same_ids(run: Path, translator: Translator, lines: list[str]) -> dict[str, Any]:
    """Return the share of translations whose ids are the peers'."""
    sources = [[*ids, EOS] for ids in translator.source_tokenizer.encode(lines)]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(scratch)
        export_marian(load_run(run), folder / "marian")
        ctranslate2 = CTranslate2(folder, translator)
        huggingface = HuggingFace(folder / "marian")
        for rule, early in RULES.items():
            ours = search(translator, sources, SearchConfig(beam=BEAM, stopping=rule))
            name = f"beam {BEAM}, {rule}, Hugging Face early_stopping={early}"
            found[name] = compare(name, translator, sources, ours, huggingface.translate(sources, BEAM, early))
            if rule == "first":
                name = f"beam {BEAM}, {rule}, CTranslate2 patience 1"  # which by default returns nothing empty
                ours = search(translator, sources, SearchConfig(beam=BEAM, stopping=rule, min_length=1))
                found[name] = compare(name, translator, sources, ours, ctranslate2.translate(sources, BEAM))
        ours = search(translator, sources, SearchConfig(beam=1))
        for name, theirs in (
            ("greedy, Hugging Face", huggingface.translate(sources, 1, False)),
            ("greedy, CTranslate2", ctranslate2.translate(sources, 1)),
        ):
            found[name] = compare(name, translator, sources, ours, theirs)
    return found


def search(translator: Translator, sources: Ids, config: SearchConfig) -> Ids:
    """Return our ids, with the peers' limit on the length: the same for every source."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    found: dict[int, list[int]] = {}
    for first in range(0, len(order), BATCH):
        chosen = order[first : first + BATCH]
        batch = pad_source([torch.tensor(sources[i]) for i in chosen], translator.engine.source_pad)
        limits = [MOST] * len(chosen)
        if config.beam == 1:
            best = greedy(translator.engine, *batch, limits, config)
        else:
            best = [hypotheses[0] for hypotheses in beam_search(translator.engine, *batch, limits, config)]
        found |= {i: hypothesis.ids for i, hypothesis in zip(chosen, best, strict=True)}
    return [found[i] for i in range(len(sources))]


def compare(name: str, translator: Translator, sources: Ids, ours: Ids, theirs: Ids) -> dict[str, Any]:
    """Count the translations that are the same; for the others, measure our score of ours minus that of theirs."""
    differ = [i for i, (our, their) in enumerate(zip(ours, theirs, strict=True)) if our != their]
    gains = []
    for i in differ:
        our, their = (score(translator.engine, sources[i], ids) for ids in (ours[i], theirs[i]))
        gains.append(our - their)
    same = 1 - len(differ) / len(ours)
    print(f"  {name}: {same:.1%} the same; our score less theirs where not: {[f'{gain:.1e}' for gain in gains]}")
    return {"same": same, "score gains": gains}


@torch.inference_mode()
def score(engine: Engine, source: list[int], ids: list[int]) -> float:
    """Return the mean log-probability of `ids` and `</s>`. Text encoded again might have other ids."""
    target = torch.tensor([*ids, EOS])
    logits = engine.decode(torch.tensor([[engine.target_pad, *ids]]), torch.tensor([source]))
    return -F.cross_entropy(logits[0], target).item()


def precisions(run: Path, exact: Translator, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Compare `auto` with float32 by BLEU and mean score."""
    lines, references = [source for source, _ in pairs], [reference for _, reference in pairs]
    auto = Translator.load(run, "cpu")
    tokenize = "zh" if any("\u4e00" <= character <= "\u9fff" for character in references[0]) else "13a"
    figures: dict[str, dict[str, float]] = {}
    for name, translator in ((f"auto: {auto.precision}", auto), ("float32", exact)):
        texts = translator.translate(lines)
        scores = exact.score(lines, texts)
        lengths = [len(ids) + 1 for ids in exact.target_tokenizer.encode(texts)]
        figures[name] = {
            "BLEU": sacrebleu.corpus_bleu(texts, [references], tokenize=tokenize).score,
            "mean score": sum(score / length for score, length in zip(scores, lengths, strict=True)) / len(scores),
        }
        print(f"  {name}: BLEU {figures[name]['BLEU']:.2f}, mean score {figures[name]['mean score']:.5f}")
    ours, theirs = figures.values()
    drop = theirs["BLEU"] - ours["BLEU"]
    change = ours["mean score"] / theirs["mean score"] - 1
    better = "better" if change < 0 else "worse"  # scores are negative
    print(f"  auto loses {drop:.2f} BLEU; its mean score is {abs(change):.3%} {better}")
    return {"precisions": figures, "BLEU lost": drop, "score changed": change}


class HuggingFace:
    """The exported model, in float32."""

    def __init__(self, folder: Path) -> None:
        from transformers import MarianMTModel
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._model = MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()

    def translate(self, sources: Ids, beam: int, early_stopping: bool | str) -> Ids:
        """Return the best ids of each source."""
        pad = self._model.config.pad_token_id
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        found: dict[int, list[int]] = {}
        for first in range(0, len(order), BATCH):
            chosen = order[first : first + BATCH]
            longest = max(len(sources[i]) for i in chosen)
            ids = torch.tensor([sources[i] + [pad] * (longest - len(sources[i])) for i in chosen])
            output = self._model.generate(
                input_ids=ids,
                attention_mask=(ids != pad).long(),
                num_beams=beam,
                length_penalty=1.0,
                early_stopping=early_stopping,
                do_sample=False,
                max_new_tokens=MOST,
                forced_eos_token_id=None,
                bad_words_ids=[[pad]],
            )
            for i, row in zip(chosen, output.tolist(), strict=True):
                found[i] = [token for token in row if token not in (EOS, pad)]
        return [found[i] for i in range(len(sources))]


class CTranslate2:
    """The model converted from the export, in float32."""

    def __init__(self, folder: Path, translator: Translator) -> None:
        import ctranslate2

        ctranslate2.converters.TransformersConverter(str(folder / "marian")).convert(str(folder / "ctranslate2"))
        self._theirs = ctranslate2.Translator(str(folder / "ctranslate2"), compute_type="float32")
        self._source, target = translator.source_tokenizer, translator.target_tokenizer
        self._ids = {token: i for i, token in enumerate(target.tokens(range(target.vocab_size)))}

    def translate(self, sources: Ids, beam: int) -> Ids:
        """Return the best ids of each source."""
        results = self._theirs.translate_batch(
            [self._source.tokens(ids) for ids in sources],
            beam_size=beam,
            patience=1,
            length_penalty=1.0,
            max_batch_size=BATCH,
            max_decoding_length=MOST,
        )
        return [[self._ids[token] for token in result.hypotheses[0]] for result in results]


if __name__ == "__main__":
    tyro.cli(main)
