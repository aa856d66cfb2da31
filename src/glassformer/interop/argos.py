"""Runs written as packages of Argos Translate, which LibreTranslate installs too.

A zip archive of one folder: metadata.json, model/ (CTranslate2), sentencepiece.model, README.md.
"""

import json
import shutil
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from glassformer.errors import ConfigError, RunError
from glassformer.files import replacement
from glassformer.interop.ctranslate2 import ctranslate2_model
from glassformer.interop.huggingface import check_subwords
from glassformer.run.folder import Run
from glassformer.run.languages import name_of
from glassformer.text.tokenizer import SubwordTokenizer
from glassformer.text.vocabulary import VocabularyTokenizer

ENDING = ".argosmodel"
_VERSION, _ARGOS = "1.0", "1.11"
_READABLE = 0o644 << 16


def check_new_package(out: Path) -> None:
    """Raise ConfigError unless the name of a package to write is one that Argos knows; RunError where it is taken."""
    if out.suffix != ENDING:
        raise ConfigError(f"{out}: Argos installs files whose names end in {ENDING}: give --out NAME{ENDING}")
    if out.exists() or out.is_symlink():
        raise RunError(f"{out} is there already: give a new name, or remove it first")


def export_argos(
    run: Run, out: Path, languages: tuple[str, str], *, quantization: str | None = None, readme: str = ""
) -> None:
    """Write `run` to the file `out` as a package of Argos Translate, complete or not at all.

    `languages` are the codes of the source's and the target's language. `quantization` is as in `export_ctranslate2`.
    `readme` is what the package says about itself. Needs the extra `ctranslate2`. RunError says why a run can't be
    exported: both sides must share one sentencepiece model.
    """
    check_new_package(out)
    model = ctranslate2_model(run, quantization)
    sentencepiece = _only_model(run)
    model.config.add_source_eos = True  # Argos gives the pieces alone
    source, target = languages
    metadata = {
        "package_version": _VERSION,
        "argos_version": _ARGOS,
        "from_code": source,
        "from_name": name_of(source),
        "to_code": target,
        "to_name": name_of(target),
    }
    folder = f"translate-{source}_{target}-{_VERSION.replace('.', '_')}"
    with replacement(out) as archive, ZipFile(archive, "x", ZIP_STORED) as package:
        saved = archive.parent / "model"
        saved.mkdir()
        model.save(str(saved))
        for path in sorted(saved.iterdir()):
            _add_file(package, f"{folder}/model/{path.name}", path)
        for name, content in (
            ("metadata.json", json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"),
            ("sentencepiece.model", sentencepiece),
            ("README.md", readme),
        ):
            package.writestr(_entry(f"{folder}/{name}"), content)


def _only_model(run: Run) -> bytes:
    """Return the sentencepiece model of both sides; RunError where there is none, or there are two."""
    protos = set()
    for side, tokenizer in (("source", run.source_tokenizer), ("target", run.target_tokenizer)):
        check_subwords(tokenizer, side)
        assert isinstance(tokenizer, SubwordTokenizer | VocabularyTokenizer)
        protos.add(tokenizer.proto)
        if tokenizer.languages:
            raise RunError(
                f"the {side} tokenizer of this run takes the code of a language at the beginning of a line, such as "
                f"{tokenizer.languages[0]}, and Argos gives none: export --to ctranslate2 or huggingface"
            )
    if len(protos) > 1:
        raise RunError(
            "this run has two sentencepiece models, and an Argos package holds one for both sides: train with a shared "
            "vocabulary and one --tokenizer, or export --to ctranslate2"
        )
    return protos.pop()


def _entry(name: str) -> ZipInfo:
    """Return the head of a file in the archive: the same at any time, and readable when it is unpacked."""
    entry = ZipInfo(name)
    entry.external_attr = _READABLE
    return entry


def _add_file(package: ZipFile, name: str, path: Path) -> None:
    entry = _entry(name)
    entry.file_size = path.stat().st_size  # from 2 GiB on the head is another one
    with path.open("rb") as file, package.open(entry, "w") as place:
        shutil.copyfileobj(file, place, 1 << 20)
