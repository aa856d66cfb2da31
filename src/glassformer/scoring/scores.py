"""Scores of translations: BLEU, chrF, exact match, word and symbol error rate, all in percent."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glassformer.errors import ConfigError, DataError, check_texts, shown

MOST_COMPARISONS = 10**11
"""Most units of one line times those of the other, for an edit distance of three seconds: 300,000 characters a line."""
METRICS = ("bleu", "chrf", "exact", "wer", "ser")
LOWER_IS_BETTER = ("wer", "ser")


@dataclass(frozen=True)
class Score:
    """One score in percent, with the signature that says how it was computed.

    >>> print(score(["2024-05-03"], ["2024-05-03"], "exact"))
    exact match 100.00 %  (share of equal lines)
    """

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        unit = "" if self.name in ("BLEU", "chrF") else " %"
        return f"{self.name} {self.value:.2f}{unit}  ({self.signature})"


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    metric: str,
    *,
    tokenize: str = "auto",
    symbols: bool = False,
) -> Score:
    """Return one metric of `METRICS` over lines and their references.

    `bleu`, `chrf`: corpus scores of sacreBLEU (Post 2018). `tokenize` names its BLEU tokenizer; "auto" picks one by the
    script of the references (`pick_bleu_tokenizer`). `exact`: share of lines equal to their reference (`is_same`).
    `wer`, `ser`: edits per word (split at spaces) and per character. With `symbols`, where a line is a sequence of
    symbols split at spaces (phones), `wer` is the share of wrong lines and `ser` counts edits per symbol, as in the
    SIGMORPHON tasks (Gorman et al. 2020).

    Raises ArgumentError for what are no lines, ConfigError for an unknown metric or tokenizer, DataError where there
    are more lines or more references.

    >>> score(["a b c", "d"], ["a x c", "d"], "wer").value
    25.0
    """
    if metric not in METRICS:
        raise ConfigError(f"metric must be one of {', '.join(METRICS)}, got {shown(metric)}")
    check_texts("hypotheses", hypotheses)
    check_texts("references", references)
    if len(hypotheses) != len(references):
        raise DataError(
            f"hypotheses and references must have the same number of lines, got {len(hypotheses)} and "
            f"{len(references)}: give one reference for each hypothesis"
        )
    if not references:
        raise DataError("nothing to score: there are no references")
    if metric in ("bleu", "chrf"):
        return _sacrebleu(hypotheses, references, metric, tokenize)
    if metric == "exact":
        return Score("exact match", _exact(hypotheses, references), "share of equal lines")
    if metric == "wer" and symbols:
        return Score("word error rate", 100 - _exact(hypotheses, references), "share of wrong lines")
    by_word = metric == "wer" or symbols
    edits = total = 0
    unit = "symbol" if symbols else "word" if by_word else "character"
    for number, (hypothesis, reference) in enumerate(zip(hypotheses, references, strict=True), start=1):
        left, right = (hypothesis.split(), reference.split()) if by_word else (hypothesis, reference)
        if left != right and len(left) * len(right) > MOST_COMPARISONS:
            raise DataError(
                f"line {number:,} is too long for {metric}: it has {len(left):,} {unit}s and its reference "
                f"{len(right):,}, and one times the other may be at most {MOST_COMPARISONS:,}: split it"
            )
        edits += edit_distance(left, right)
        total += len(right)
    name = "word error rate" if metric == "wer" else "symbol error rate"
    return Score(name, 100 * edits / max(total, 1), f"edits per reference {unit}")


def score_all(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    first: str = METRICS[0],
    tokenize: str = "auto",
    symbols: bool = False,
) -> list[Score]:
    """Return every metric of `METRICS`, as `score` does; `first` is the one that comes before the others."""
    metrics = (first, *(metric for metric in METRICS if metric != first))
    return [score(hypotheses, references, metric, tokenize=tokenize, symbols=symbols) for metric in metrics]


def is_same(hypothesis: str, reference: str) -> bool:
    """Return whether a line is its reference, whatever the number of spaces: no tokenizer writes two, or one at an end.

    >>> is_same("a b", "a  b "), is_same("ab", "a b")
    (True, False)
    """
    return hypothesis == reference or _with_single_spaces(hypothesis) == _with_single_spaces(reference)


def sentence_chrf(hypothesis: str, reference: str) -> float:
    """Return the chrF of one line against its reference, from 0 to 100 (Popović 2015).

    >>> sentence_chrf("a dog runs", "a dog runs"), round(sentence_chrf("a dog ran", "a dog runs"), 1)
    (100.0, 42.6)
    """
    return _chrf().sentence_score(hypothesis, [reference]).score


def seem_swapped(hypotheses: Sequence[str], sources: Sequence[str], chrf: float) -> bool:
    """Return whether translations are much more like the sources than like the references, to which they have `chrf`.

    That is so where a model is given text of its target language, and where it only copies.
    """
    return score(hypotheses, sources, "chrf").value > max(20, 2 * chrf)


def edit_distance(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Return the fewest insertions, deletions and substitutions that make `left` into `right` (Levenshtein 1966)."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.distance(left, right)


def pick_bleu_tokenizer(references: Sequence[str]) -> str:
    """Return sacreBLEU's tokenizer for the script of the references.

    `ja-mecab` where there are kana (`char` where MeCab or its dictionary ipadic isn't installed), `zh` where a third of
    the characters are Han, else `13a`.
    """
    text = "".join(references[:1000])
    kana = sum("぀" <= character <= "ヿ" for character in text)
    han = sum("一" <= character <= "鿿" or "㐀" <= character <= "䶿" for character in text)
    if kana > 0.05 * len(text):
        return "ja-mecab" if find_spec("MeCab") and find_spec("ipadic") else "char"
    return "zh" if 3 * han > len(text) else "13a"


def check_bleu_tokenizer(tokenize: str) -> None:
    """Raise ConfigError unless BLEU can be computed with this tokenizer, or with that which `auto` picks."""
    if tokenize != "auto":
        bleu_scorer(tokenize)


def bleu_scorer(tokenize: str) -> Any:
    """Return sacreBLEU's BLEU with this tokenizer; raise ConfigError where it is unknown or not installed."""
    from sacrebleu.metrics.bleu import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        raise ConfigError(f"tokenize must be auto or one of {', '.join(BLEU.TOKENIZERS)}, got {shown(tokenize)}")
    model = _model_file(tokenize)
    try:
        return BLEU(tokenize=tokenize, force=tokenize == "none")  # "none" means that the text is tokenised: no warning
    except (ImportError, RuntimeError):
        if model is not None:
            raise ConfigError(f"{model} is not the sentencepiece model of {tokenize}: fetch it again") from None
        raise ConfigError(
            f'the BLEU tokenizer {tokenize} is not installed: pip install "glassformer[ja]" for Japanese, '
            "or choose --tokenize char"
        ) from None


def _model_file(tokenize: str) -> Path | None:
    """Return the file of this tokenizer, None where it needs none; raise ConfigError where it would be downloaded."""
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
    from sacrebleu.utils import SACREBLEU_DIR

    if tokenize not in SPM_MODELS:
        return None
    url = SPM_MODELS[tokenize]["url"]
    path = Path(SACREBLEU_DIR, "models", url.rpartition("/")[2])
    if not path.is_file():
        raise ConfigError(
            f"the BLEU tokenizer {tokenize} needs a file that is not here, and nothing is downloaded for you: "
            f"fetch {url} and save it as {path}"
        )
    return path


@cache
def _chrf() -> Any:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF()


def _exact(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    return 100 * sum(map(is_same, hypotheses, references)) / len(references)


def _with_single_spaces(line: str) -> str:
    return " ".join(filter(None, line.strip().split(" ")))


def _sacrebleu(hypotheses: Sequence[str], references: Sequence[str], metric: str, tokenize: str) -> Score:
    if metric == "chrf":
        scorer = _chrf()
    else:
        scorer = bleu_scorer(pick_bleu_tokenizer(references) if tokenize == "auto" else tokenize)
    result = scorer.corpus_score(list(hypotheses), [list(references)])
    return Score("BLEU" if metric == "bleu" else "chrF", result.score, str(scorer.get_signature()))
