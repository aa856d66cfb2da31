"""Real files of every kind that glassformer reads, made by its own commands: what the fuzzer damages."""

import bz2
import gzip
import json
import lzma
import random
from collections.abc import Sequence
from pathlib import Path

from oracle import run, until

TINY = [
    "--preset",
    "tiny",
    "--d-model",
    "16",
    "--heads",
    "2",
    "--d-ff",
    "16",
    "--encoder-layers",
    "1",
    "--decoder-layers",
    "1",
    "--threads",
    "1",
]
TREES = "# text = abc def\n1\tabc\t_\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tdef\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"


def make(lab: Path) -> None:
    """Make the runs, the exported model and the files of pairs in an empty folder."""
    pairs = _pairs(120)
    for name, content in files_of_pairs(pairs).items():
        (lab / name).write_bytes(content)
    (lab / "lines.txt").write_text("".join(f"{source}\n" for source, _ in pairs[:7]))
    (lab / "prefixes.txt").write_text("abc\n\nb\n" + "\n" * 4)
    (lab / "trees.conllu").write_text(TREES)
    train = ["train", "--source", "p.tsv", "--valid-source", "p.tsv", *TINY]
    for argv in (
        [*train, "--out", "run", "--tokenizer", "char", "--max-updates", "4", "--validate-every", "2"],
        [*train, "--out", "phones", "--tokenizer", "symbols", "--max-updates", "2"],
        ["export", "run", "--to", "huggingface", "--out", "marian"],
        ["heads", "run", "--data", "p.tsv", "--sentences", "9"],
    ):
        run(argv, lab).check()
    stopped = [
        *train,
        "--out",
        "stopped",
        "--tokenizer",
        "char",
        "--max-updates",
        "9999",
        "--checkpoint-seconds",
        "0.1",
    ]
    until([*stopped, "--validate-every", "5"], lab, lambda: _is_under_way(lab / "stopped"))
    (lab / "stopped" / "resume" / "lock").unlink()


def _is_under_way(run: Path) -> bool:
    """Return whether a training has left all that it leaves before its end."""
    return (run / "metrics.jsonl").exists() and any(run.glob("resume/checkpoint-*/*.safetensors"))


def _pairs(count: int) -> list[tuple[str, str]]:
    draw = random.Random(7)
    sources = [" ".join("".join(draw.choice("abcdef") for _ in range(3)) for _ in range(4)) for _ in range(count)]
    return [(source, source[::-1]) for source in sources]


def files_of_pairs(pairs: Sequence[tuple[str, str]]) -> dict[str, bytes]:
    """Return the pairs in every format, by the name of the file."""
    tsv = "".join(f"{source}\t{target}\n" for source, target in pairs).encode()
    few = pairs[:20]
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{s}</seg></tuv><tuv xml:lang="de"><seg>{t}</seg></tuv></tu>' for s, t in few
    )
    segments = "".join(
        f'<trans-unit id="{n}"><source>{s}</source><target>{t}</target></trans-unit>' for n, (s, t) in enumerate(few)
    )
    return {
        "p.tsv": tsv,
        "p.csv": ("en,de\n" + "".join(f'"{s}",{t}\n' for s, t in few)).encode(),
        "p.jsonl": "".join(json.dumps({"en": s, "de": t, "n": 1}) + "\n" for s, t in few).encode(),
        "p.json": json.dumps([{"en": s, "de": t} for s, t in few]).encode(),
        "p.tmx": f'<?xml version="1.0"?><tmx version="1.4"><header/><body>{units}</body></tmx>'.encode(),
        "p.xliff": (
            '<?xml version="1.0"?><xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">'
            '<file original="x" source-language="en" target-language="de" datatype="plaintext">'
            f"<body>{segments}</body></file>"
            "</xliff>"
        ).encode(),
        "p.po": (
            'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
            + "".join(f'msgid "{s}"\nmsgstr "{t}"\n\n' for s, t in few)
        ).encode(),
        "p16.tsv": tsv.decode().encode("utf-16"),
        "p.tsv.gz": gzip.compress(tsv),
        "p.tsv.bz2": bz2.compress(tsv),
        "p.tsv.xz": lzma.compress(tsv),
        **_with_extras(few, tsv),
    }


def _with_extras(pairs: Sequence[tuple[str, str]], tsv: bytes) -> dict[str, bytes]:
    import io

    import openpyxl
    import pyarrow
    import pyarrow.parquet
    import zstandard

    workbook, sheet, table = openpyxl.Workbook(), io.BytesIO(), io.BytesIO()
    assert workbook.active is not None
    for row in (("en", "de"), *pairs):
        workbook.active.append(row)
    workbook.save(sheet)
    columns = {name: [pair[n] for pair in pairs] for n, name in enumerate(("en", "de"))}
    pyarrow.parquet.write_table(pyarrow.table(columns), table)
    return {
        "p.xlsx": sheet.getvalue(),
        "p.parquet": table.getvalue(),
        "p.tsv.zst": zstandard.compress(tsv),
    }
