"""A run whose words have features, in all that takes it: translation, the page, and every export."""

import json
import zlib
from pathlib import Path

import pytest

from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.interop.ctranslate2 import export_ctranslate2
from glassformer.interop.huggingface import export_marian
from glassformer.page.inspection import inspect
from glassformer.run.folder import Run, load_run
from glassformer.text.tokenizer import SubwordTokenizer

WORDS = ["<V><PST>walk", "<V><PST>go on", "<N><PL>dög", "<AT+ABL(PL)>x", "<Q>walk Ж"]
"""The feature and the letter of the last were never seen."""
GREEDY = SearchConfig(beam=1, max_length=7)


@pytest.fixture(scope="module")
def folder(random_run, tmp_path_factory) -> Path:
    text = [*WORDS[:-1], "walked", "went on", "dögs", "xen"]
    tokenizer = SubwordTokenizer.train(text, kind="features", vocab_size=None, seed=1)
    folder = tmp_path_factory.mktemp("words") / "run"
    random_run(folder, tokenizer, tokenizer, shared=True)
    return folder


@pytest.fixture(scope="module")
def words(folder) -> Run:
    return load_run(folder)


@pytest.fixture(scope="module")
def written(folder) -> list[str]:
    """What the run makes of the words."""
    return Translator.load(folder, precision="float32").translate(WORDS, GREEDY)


def test_the_page_shows_each_as_one_token(folder):
    raw = zlib.decompress(inspect(folder, "<V><PST>go", hypotheses=1).data)
    header = json.loads(raw[4 : 4 + int.from_bytes(raw[:4], "little")])
    assert header["hypotheses"][0]["axes"]["source"] == ["▁", "<V>", "<PST>", "g", "o", "</s>"]


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_transformers_reads_our_ids(words, tmp_path: Path):
    transformers = pytest.importorskip("transformers", reason="pip install 'glassformer[huggingface]'")
    export_marian(words, tmp_path / "marian")
    theirs = transformers.MarianTokenizer.from_pretrained(tmp_path / "marian")
    ids = theirs(WORDS).input_ids
    assert ids == [[*line, 0] for line in words.source_tokenizer.encode(WORDS)]
    assert theirs.batch_decode(ids[:-1], skip_special_tokens=True) == WORDS[:-1]


def test_ctranslate2_writes_the_same(words, written, tmp_path: Path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="pip install 'glassformer[ctranslate2]'")
    export_ctranslate2(words, tmp_path / "out")
    theirs = ctranslate2.Translator(str(tmp_path / "out"), device="cpu", compute_type="float32", intra_threads=1)
    pieces = [[*words.source_tokenizer.tokens(ids), "</s>"] for ids in words.source_tokenizer.encode(WORDS)]
    found = theirs.translate_batch(pieces, beam_size=1, min_decoding_length=0, max_decoding_length=7)
    ids = [[words.target_tokenizer.id_of(token) for token in line.hypotheses[0]] for line in found]
    assert words.target_tokenizer.decode(ids) == written


def test_onnx_writes_the_same(words, written, tmp_path: Path):
    export = pytest.importorskip("glassformer.interop.onnx.export", exc_type=ImportError)
    generate = pytest.importorskip("glassformer.interop.onnx.generate", exc_type=ImportError)
    export.export_onnx(words, tmp_path / "out")
    assert generate.OnnxTranslator.load(tmp_path / "out", threads=1).translate(WORDS, GREEDY) == written
