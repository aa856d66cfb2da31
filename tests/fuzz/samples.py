"""The files that are mutated: real ones, made by the commands themselves, tiny so that a case takes milliseconds."""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

SIZES = "--d-model 8 --heads 2 --encoder-layers 1 --decoder-layers 1 --d-ff 11"
FLAGS = f"{SIZES} --preset tiny --precision float32 --device cpu --threads 1 --batch-tokens 64 --warmup 2 --average 2"
SUBWORDS = "--tokenizer unigram"
PAIRS = "--source pairs.tsv --valid-source valid.tsv"
FEW = 2
"""Updates of a training."""
PROCESSOR = "a processor\na torch"
"""The processor whose calibration is kept in the user's cache folder."""


def make_samples() -> None:
    """Make the samples in the current folder. It takes seconds: call it in a process of its own."""
    from glassformer.alignment.heads import AligningHeads, write_heads
    from glassformer.attention.kernels.calibration import recall
    from glassformer.confidence.calibration import Calibration, write_calibration
    from glassformer.confidence.features import FEATURES

    pairs = _pairs(40)
    files: dict[str, bytes] = {
        "pairs.tsv": _tsv(pairs),
        "valid.tsv": _tsv(pairs[:7]),
        "many.tsv": _tsv(_pairs(1100)),
        "source.txt": "".join(f"{source}\n" for source, _ in pairs).encode(),
        "target.txt": "".join(f"{target}\n" for _, target in pairs).encode(),
        "seven.txt": "".join(f"{source}\n" for source, _ in pairs[:7]).encode(),
        "prefixes.txt": b"a\n\nb c\n\n\nd\n\n",
        "long.txt": b"a b\n" * 2100,
        "trees.conllu": _trees([source for source, _ in pairs[:7]]),
    }
    files |= {name: make(pairs) for name, make in TABLES.items()}
    for name, content in files.items():
        Path(name).write_bytes(content)
    _run(f"train {FLAGS} {PAIRS} --tokenizer symbols --out run --watch 1 --max-updates {FEW}")
    _run(f"train {FLAGS} {PAIRS} {SUBWORDS} --out subwords --max-updates {FEW}")
    _run(f"train {FLAGS} --source many.tsv --valid-source valid.tsv --out kept --tokenizer symbols --max-updates 1")
    _run("heads run --data pairs.tsv --sentences 5")
    write_heads("run", AligningHeads(layer=0, heads=(1, 0), shift=1, agreement=0.75, chance=0.25, pairs=100))
    fitted = dict(weights=(0.5,) * len(FEATURES), bias=-1.5, temperature=2.5, lines=7, words=100, right=0.75)
    omissions = dict(omitted_below=0.125, omissions_found=0.5, false_alarms=0.25)
    write_calibration("run", Calibration(layer=0, heads=(1, 0), shift=0, **fitted, **omissions))
    _run("export subwords --to huggingface --out marian")
    _run("import --from marian --out imported")
    recall(Path("calibration"), PROCESSOR)
    _stop_training()
    _stop_translating()
    Path("kept.tsv").write_bytes(files["many.tsv"])


def _run(command: str) -> None:
    """Run a command that must succeed."""
    from glassformer import cli

    try:
        cli.main(command.split())
    except SystemExit as end:
        if end.code != 0:
            raise RuntimeError(f"{command} ended with {end.code}") from None


def _stop_training() -> None:
    """Leave an unfinished training with a checkpoint and a guided head."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    updates = []

    def stop(*_: object) -> None:
        # A checkpoint is left out while another is written, which takes longer on a busy computer.
        deadline = time.monotonic() + 60
        before = f"resume/checkpoint-*{len(updates)}"
        while updates and not any(Path("unfinished").glob(before)) and time.monotonic() < deadline:
            time.sleep(0.001)
        updates.append(1)
        if len(updates) == 6:
            raise KeyboardInterrupt

    handle = register_optimizer_step_post_hook(stop)
    command = f"train {FLAGS} {PAIRS} {SUBWORDS} --out unfinished --guide 1 --max-updates 9 --validate-every 2"
    try:
        _run(f"{command} --checkpoint-seconds 0.001")
    except RuntimeError:
        pass
    finally:
        handle.remove()


def _stop_translating() -> None:
    """Leave a translation from file to file that was stopped after its first chunk."""
    from glassformer.generation import files
    from glassformer.generation.config import SearchConfig
    from glassformer.generation.translator import Translator

    translate, chunks = files.translate_chunk, []

    def once(*args: object, **kwargs: object) -> bytes:
        if chunks:
            raise KeyboardInterrupt
        chunks.append(1)
        return translate(*args, **kwargs)

    files.translate_chunk = once
    search = SearchConfig(beam=1, max_length=2)
    try:
        files.translate_file(Translator.load("run", "cpu", "float32"), "long.txt", "long.out", config=search)
    except KeyboardInterrupt:
        pass
    finally:
        files.translate_chunk = translate


def _pairs(count: int) -> list[tuple[str, str]]:
    draw = random.Random(1)
    sources = [[draw.choice("abcdefg") for _ in range(draw.randint(1, 6))] for _ in range(count)]
    return [(" ".join(source), " ".join(reversed(source))) for source in sources]


Pairs = list[tuple[str, str]]


def _tsv(pairs: Pairs) -> bytes:
    return "".join(f"{source}\t{target}\n" for source, target in pairs).encode()


def _csv(pairs: Pairs) -> bytes:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("en", "de", "score"), *((*pair, 0.5) for pair in pairs)])
    return text.getvalue().encode()


def _objects(pairs: Pairs) -> list[dict[str, object]]:
    return [{"id": n, "translation": {"en": source, "de": target}} for n, (source, target) in enumerate(pairs)]


def _zstandard(pairs: Pairs) -> bytes:
    import zstandard

    return zstandard.compress(_tsv(pairs))


def _parquet(pairs: Pairs) -> bytes:
    import pyarrow
    import pyarrow.parquet

    buffer = io.BytesIO()
    table = pyarrow.table({"en": [source for source, _ in pairs], "de": [target for _, target in pairs]})
    pyarrow.parquet.write_table(table, buffer)
    return buffer.getvalue()


def _xlsx(pairs: Pairs) -> bytes:
    import openpyxl

    workbook, buffer = openpyxl.Workbook(), io.BytesIO()
    for row in [("en", "de"), *pairs]:
        workbook.active.append(row)
    workbook.save(buffer)
    return buffer.getvalue()


def _tmx(pairs: Pairs) -> bytes:
    sides = "".join(
        f'<tu><tuv xml:lang="en"><seg>{s}</seg></tuv><tuv xml:lang="de"><seg>{t} <ph x="1">b</ph></seg></tuv></tu>\n'
        for s, t in pairs[:7]
    )
    return f'<?xml version="1.0"?>\n<tmx version="1.4"><header srclang="en"/><body>{sides}</body></tmx>'.encode()


def _xliff(pairs: Pairs) -> bytes:
    units = "".join(
        f'<trans-unit id="{n}"><source>{s}</source><target state="final">{t}</target></trans-unit>\n'
        for n, (s, t) in enumerate(pairs[:7])
    )
    file = (
        f'<file original="a" source-language="en" target-language="de" datatype="plaintext"><body>{units}</body></file>'
    )
    return f'<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">{file}</xliff>'.encode()


def _xliff_2(pairs: Pairs) -> bytes:
    units = "".join(
        f'<unit id="{n}"><segment><source>{s}</source><target>{t}</target></segment></unit>\n'
        for n, (s, t) in enumerate(pairs[:7])
    )
    begin = '<xliff version="2.0" srcLang="en" trgLang="de" xmlns="urn:oasis:names:tc:xliff:document:2.0">'
    return f'{begin}<file id="f">{units}</file></xliff>'.encode()


def _po(pairs: Pairs) -> bytes:
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    return (head + "".join(f'#: a.c:7\nmsgid "{s}"\nmsgstr "{t}"\n\n' for s, t in pairs[:7])).encode()


TABLES: Mapping[str, Callable[[Pairs], bytes]] = {
    "pairs.csv": _csv,
    "pairs.jsonl": lambda pairs: "".join(f"{json.dumps(one)}\n" for one in _objects(pairs)).encode(),
    "pairs.json": lambda pairs: json.dumps(_objects(pairs)).encode(),
    "pairs.parquet": _parquet,
    "pairs.xlsx": _xlsx,
    "pairs.tmx": _tmx,
    "pairs.xliff": _xliff,
    "pairs2.xliff": _xliff_2,
    "pairs.po": _po,
    "pairs.utf16": lambda pairs: codecs.BOM_UTF16_LE + _tsv(pairs).decode().encode("utf-16-le"),
    "pairs.tsv.gz": lambda pairs: gzip.compress(_tsv(pairs)),
    "pairs.tsv.bz2": lambda pairs: bz2.compress(_tsv(pairs)),
    "pairs.tsv.xz": lambda pairs: lzma.compress(_tsv(pairs)),
    "pairs.tsv.zst": _zstandard,
}
"""Files of the same pairs in every format."""


def _trees(sources: list[str]) -> bytes:
    """Return the dependency trees of lines, in which each word depends on the first."""
    sentences = []
    for source in sources:
        rows = [
            f"{n}\t{word}\t{word}\tNOUN\tN\t_\t{0 if n == 1 else 1}\t{'root' if n == 1 else 'obj'}\t_\t_\n"
            for n, word in enumerate(source.split(), start=1)
        ]
        sentences.append(f"# text = {source}\n{''.join(rows)}\n")
    return "".join(sentences).encode()
