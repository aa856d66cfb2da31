"""Translations of a run in Argos Translate beside our own, with the same search: how many lines differ.

    python benchmarks/argos.py RUN FILE --source-language en --target-language de

The run is exported to a package, which Argos Translate installs in a temporary folder; it computes in float32. Its
splitting into sentences is left out, for it downloads a model. Needs argostranslate, which needs stanza and minisbd.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.interop.argos import export_argos
from glassformer.pairs.lines import read_lines
from glassformer.run.folder import load_run

SEARCH = SearchConfig(beam=4, length_penalty=0.2, stopping="first", min_length=1, replace_unknown=True)
PROGRAM = """
import json, sys
from argostranslate import package, translate
path, source, target = sys.argv[1:]
package.install_from_path(path)
translation = translate.get_translation_from_codes(source, target)
translation.underlying.sentencizer = type("Whole", (), {"split_sentences": lambda self, text: [text]})()
print(json.dumps([translation.translate(line) for line in json.load(sys.stdin)]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--source-language", default="en")
    parser.add_argument("--target-language", default="de")
    parser.add_argument("--lines", type=int, default=300)
    arguments = parser.parse_args()
    codes = arguments.source_language, arguments.target_language
    lines = [line for line in read_lines(arguments.file) if line.strip()][: arguments.lines]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "run.argosmodel"
        export_argos(load_run(arguments.run), package, codes)
        homes = dict.fromkeys(("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), folder)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(package), *codes],
            input=json.dumps(lines),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, **homes, "ARGOS_COMPUTE_TYPE": "float32"},
        )
    theirs = json.loads(done.stdout)
    ours = Translator.load(arguments.run, precision="float32").translate(lines, SEARCH)
    different = sum(line.replace("_", " ") != other for line, other in zip(ours, theirs, strict=True))
    print(f"{different} of {len(lines):,} lines have another translation in Argos Translate")


if __name__ == "__main__":
    main()
