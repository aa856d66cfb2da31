"""Count lines that have other ids or texts in Hugging Face's tokenizers, and in transformers.js, than in a run's own.

    python benchmarks/fast_tokenizers.py RUN FILE...

Each line of the files is encoded by the tokenizer of the source and that of the target, and its ids are decoded. Needs
transformers; transformers.js where `make web` installed it.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from glassformer.interop.fast_tokenizer import fast_tokenizer, tokenizer_settings
from glassformer.pairs.lines import read_lines
from glassformer.run.folder import open_run
from glassformer.text.tokenizer import Tokenizer

SCRIPT = Path(__file__).parents[1] / "tests" / "interop" / "tokenize.mjs"
PACKAGES = Path(sys.prefix) / "web" / "node_modules"


def in_python(tokenizer: Tokenizer, side: str, lines: Sequence[str]) -> tuple[list[list[int]], list[str]]:
    """Return ids of the lines and their texts by Hugging Face's tokenizers."""
    read = tokenizers.Tokenizer.from_str(json.dumps(fast_tokenizer(tokenizer, side)))
    ids = [encoding.ids for encoding in read.encode_batch(list(lines))]
    return ids, read.decode_batch(ids, skip_special_tokens=True)


def in_node(tokenizer: Tokenizer, side: str, lines: Sequence[str]) -> tuple[list[list[int]], list[str]]:
    """Return ids of the lines and their texts by transformers.js; the texts are those of our ids."""
    ours = [[*ids, 0] for ids in tokenizer.encode(lines)]
    task = dict(
        file=fast_tokenizer(tokenizer, side), settings=tokenizer_settings(tokenizer), lines=list(lines), ids=ours
    )
    done = subprocess.run(
        ["node", str(SCRIPT), str(PACKAGES)], input=json.dumps([task]), capture_output=True, text=True, check=True
    )
    (answer,) = json.loads(done.stdout)
    return answer["ids"], answer["texts"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    run = open_run(arguments.run)
    ways = {f"tokenizers {tokenizers.__version__}": in_python}
    if shutil.which("node") and PACKAGES.exists():
        version = json.loads((PACKAGES / "@huggingface/transformers/package.json").read_text(encoding="utf-8"))[
            "version"
        ]
        ways[f"transformers.js {version}"] = in_node
    for side, tokenizer in (("source", run.source_tokenizer), ("target", run.target_tokenizer)):
        for file in arguments.files:
            lines = list(read_lines(file))
            ours = [[*ids, 0] for ids in tokenizer.encode(lines)]
            texts = tokenizer.decode(ours)
            for name, way in ways.items():
                ids, read = way(tokenizer, side, lines)
                other_ids = sum(one != other for one, other in zip(ids, ours, strict=True))
                other_texts = sum(
                    one != other and same == mine for one, other, same, mine in zip(read, texts, ids, ours, strict=True)
                )
                print(
                    f"{side} {file.name} {name}: {len(lines):,} lines, {other_ids} other ids, {other_texts} other texts"
                )


if __name__ == "__main__":
    main()
