"""`glassformer export`: a run becomes a model of another library."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from glassformer.errors import ConfigError, RunError
from glassformer.files import check_name, check_new_folder, new_folder
from glassformer.run.config import read_config
from glassformer.settings.checks import Flag
from glassformer.terminal import say

if TYPE_CHECKING:
    from glassformer.interop.card import CardFacts, Layout
    from glassformer.interop.onnx.validate import Likeness
    from glassformer.run.folder import Run

README = "README.md"


@dataclass(frozen=True, kw_only=True)
class ExportFlags:
    """Write a run's model in the layout of another library, with a model card.

    All layouts take subword tokenizers, trained here or from a .model file; none takes --tokenizer symbols. argos takes
    only a shared vocabulary, the others separate ones too. onnx and web refuse tokenizers with character rules of their
    own (OPUS-MT's), which transformers.js can't follow. All but huggingface take models with norm_first layers.

    Pruned heads are left out in onnx and web, and become zeros in huggingface. In ctranslate2 and argos all attentions
    of a stack have equally many heads, so an attention with fewer gets zeros. onnx and web give the attention of all
    heads; ctranslate2 gives the mean of the heads that `glassformer align` has chosen. docs/howto/export.md has the
    table.
    """

    run: Annotated[Path, Flag(positional=True)]
    """The run folder."""
    to: Literal["huggingface", "ctranslate2", "onnx", "web", "argos"]
    """huggingface: a Marian model, for transformers and whatever reads its files. ctranslate2: for CTranslate2. onnx:
    graphs for onnxruntime in any language and for transformers.js. web: a page that translates in the browser, as a
    folder for any web server. argos: a package that Argos Translate and LibreTranslate install."""
    out: Path
    """The folder to write; with --to argos the file, NAME.argosmodel."""
    quantization: str | None = None
    """Store the weights in fewer bits. With --to ctranslate2 or argos: int8, int8_float32, int8_float16, int8_bfloat16,
    int16, float16, bfloat16 or float32. With --to onnx or web: int8 or fp16. Left out: as they are, in float32."""
    attention: Literal["cross", "all"] | None = None
    """With --to onnx: let the graphs return attention weights too. cross: those of target over source. all: also those
    of the encoder and of the target over itself."""
    validate: Path | None = None
    """With --to onnx or web: lines of source text. The export fails unless onnxruntime translates them as this library
    does, greedily."""
    runtime: Path | None = None
    """With --to web: the folder of onnxruntime-web. Left out: where npm puts it, node_modules here or above."""
    source_language: Annotated[str, Flag("CODE")] | None = None
    """Code of the source language, such as en, for the model card and --to argos. Left out, as --target-language then
    is too: as it was trained."""
    target_language: Annotated[str, Flag("CODE")] | None = None
    """Code of the target language; it belongs to --source-language."""
    name: str | None = None
    """The model's name in the model card. Left out: that of the run folder."""
    license: str | None = None
    """The licence for the model card, as the Hugging Face hub names it: apache-2.0, cc-by-4.0, other."""


def export_model(flags: ExportFlags) -> int:
    """Write the model, and print how it is used there."""
    target = TARGETS[flags.to]
    for name in ("quantization", "attention", "validate", "runtime"):
        takers = [other for other, kind in TARGETS.items() if name in kind.takes]
        if getattr(flags, name) is not None and name not in target.takes:
            known = " or ".join(filter(None, (", ".join(takers[:-1]), takers[-1])))
            why = ", whose page always shows it" if (name, flags.to) == ("attention", "web") else ""
            raise ConfigError(f"{name} is for --to {known}: leave it out with --to {flags.to}{why}")
    if (flags.source_language is None) != (flags.target_language is None):
        raise ConfigError("give both --source-language and --target-language, or neither")
    read_config(flags.run)
    if flags.run.resolve() in flags.out.resolve().parents:
        raise ConfigError(f"--out must not be in the run folder itself, got {flags.out}: choose a place beside it")
    target.check(flags.out)
    say(target.doing)  # loading torch alone takes seconds

    from glassformer.interop.card import CardFacts
    from glassformer.run.folder import load_run
    from glassformer.run.lock import check_free

    languages = None
    if flags.source_language is not None and flags.target_language is not None:
        languages = flags.source_language, flags.target_language
    name = flags.run.resolve().name if flags.name is None else flags.name
    facts = CardFacts(name=name, license=flags.license, languages=languages)
    check_free(flags.run)
    target.export(flags, load_run(flags.run), facts)
    return 0


@dataclass(frozen=True)
class Target:
    """A layout that runs are written in."""

    export: "Callable[[ExportFlags, Run, CardFacts], None]"
    """Writes the run, and prints how it is used."""
    takes: frozenset[str] = frozenset()
    """The flags that only some targets have a use for, and this one has."""
    check: Callable[[Path], None] = check_new_folder
    """Raises an error where nothing can be written to --out."""
    doing: str = "writing the model"
    """The line that is printed before it begins."""


@contextmanager
def _carded(flags: ExportFlags, run: "Run", facts: "CardFacts", layout: "Layout") -> Iterator[Path]:
    """Give a folder to write the run into: with a model card it becomes --out, or nothing does."""
    from glassformer.interop.card import model_card

    card = model_card(flags.run, run, layout, facts)
    with new_folder(flags.out) as made:
        yield made
        (made / README).write_text(card, encoding="utf-8")


def _to_huggingface(flags: ExportFlags, run: "Run", facts: "CardFacts") -> None:
    from glassformer.interop.card import Layout
    from glassformer.interop.huggingface import export_marian

    use = (
        "from transformers import MarianMTModel, MarianTokenizer\n\n"
        "tokenizer, model = (kind.from_pretrained(FOLDER) for kind in (MarianTokenizer, MarianMTModel))\n"
        'found = model.generate(**tokenizer([LINE], return_tensors="pt"))\n'
        "print(tokenizer.batch_decode(found, skip_special_tokens=True))"
    )
    layout = Layout(
        "transformers", "a Marian model of Hugging Face's transformers", use, tags=("marian",), fills_heads=True
    )
    with _carded(flags, run, facts, layout) as made:
        export_marian(run, made)
    if run.model.config.heads_left:
        print("heads that were pruned are zeros in it: the Marian layout can't leave them out, so it is no smaller")
    print(f"{flags.out}: load it with transformers.MarianMTModel.from_pretrained({str(flags.out)!r})")


def _to_ctranslate2(flags: ExportFlags, run: "Run", facts: "CardFacts") -> None:
    from glassformer.alignment.heads import read_aligning_heads
    from glassformer.interop.card import Layout
    from glassformer.interop.ctranslate2 import export_ctranslate2
    from glassformer.text.vocabulary import VocabularyTokenizer

    tokenizer = run.source_tokenizer
    codes = tokenizer.languages if isinstance(tokenizer, VocabularyTokenizer) else []

    def lines(folder: str, source: str, target: str) -> list[str]:
        return [
            f"reader = sentencepiece.SentencePieceProcessor({source})",
            "pieces = reader.id_to_piece(reader.encode(line))",
            *(f'pieces.insert(0, "{code}")  # the language to translate into' for code in codes[:1]),
            f"translator = ctranslate2.Translator({folder})",
            'best = translator.translate_batch([[*pieces, "</s>"]], beam_size=5, patience=2)[0].hypotheses[0]',
            f"print(sentencepiece.SentencePieceProcessor({target}).decode(best))",
        ]

    anywhere = lines("FOLDER", 'FOLDER + "/source.spm"', 'FOLDER + "/target.spm"')
    use = "\n".join(["import ctranslate2", "import sentencepiece", "", *anywhere])
    layout = Layout("ctranslate2", "a model of CTranslate2", use, tags=("ctranslate2",), fills_heads=True)
    with _carded(flags, run, facts, layout) as made:
        export_ctranslate2(run, made, flags.quantization, read_aligning_heads(flags.run, run.model.config))
    print(f"{flags.out}: translate a line with:")
    here = lines(*(repr(str(path)) for path in (flags.out, flags.out / "source.spm", flags.out / "target.spm")))
    print("\n".join(f"  {line}" for line in here))


def _to_onnx(flags: ExportFlags, run: "Run", facts: "CardFacts") -> None:
    from glassformer.interop.card import Layout
    from glassformer.interop.onnx.export import export_onnx
    from glassformer.interop.onnx.names import DTYPES

    dtype = DTYPES.get(flags.quantization, "")  # an unknown form is refused below
    use = (
        'import { AutoModelForSeq2SeqLM, AutoTokenizer } from "@huggingface/transformers";\n\n'
        "const tokenizer = await AutoTokenizer.from_pretrained(FOLDER);\n"
        f'const model = await AutoModelForSeq2SeqLM.from_pretrained(FOLDER, {{ dtype: "{dtype}" }});\n'
        "const found = await model.generate(await tokenizer(LINE));\n"
        "console.log(tokenizer.batch_decode(found, { skip_special_tokens: true }));"
    )
    if not run.model.config.shared_vocab:
        use = use.replace(
            "const model", "const target = await AutoTokenizer.from_pretrained(`${FOLDER}/target`);\nconst model"
        ).replace("tokenizer.batch_decode", "target.batch_decode")
    layout = Layout("transformers.js", "graphs of ONNX", use, "js", tags=("onnx", "marian"))
    with _carded(flags, run, facts, layout) as made:
        found = export_onnx(run, made, flags.quantization, attention=flags.attention, validate=flags.validate)
    print(f"{flags.out}: {_described(found)}")


def _described(found: "Likeness") -> str:
    """Return how like the model its graphs are."""
    differ = (
        f"scores differ from the model's by {found.mean_difference:.1g} on average, {found.difference:.1g} at worst"
    )
    if not found.lines:
        return differ
    ties = f", {found.ties} more up to a tie in rounding" if found.ties else ""
    lines = "line translates" if found.lines == 1 else "lines translate"
    return f"{differ}\n{found.same:,} of {found.lines:,} {lines} to the same tokens, greedily{ties}"


def _to_web(flags: ExportFlags, run: "Run", facts: "CardFacts") -> None:
    from glassformer.browser.folder import export_web
    from glassformer.interop.card import Layout, languages_for

    use = "python -m http.server --bind localhost --directory FOLDER"
    layout = Layout(None, "a page that translates in the browser", use, "bash", tags=("onnx",))
    languages = languages_for(run, facts)
    with _carded(flags, run, facts, layout) as made:
        found = export_web(
            run,
            made,
            facts.name,
            flags.quantization,
            languages=languages,
            runtime=flags.runtime,
            validate=flags.validate,
        )
    print(f"{flags.out}: {_described(found.likeness)}")
    sizes = f"the model has {found.model_bytes / 1e6:.1f} MB, {found.runtime} {found.runtime_bytes / 1e6:.1f} MB"
    print(f"{sizes}, which a browser loads once")
    print(f"{found.runtime} is that of {found.runtime_folder}")
    print("open it at http://localhost:8000 after:")
    print(f"  python -m http.server --bind localhost --directory {shlex.quote(str(flags.out))}")


def _to_argos(flags: ExportFlags, run: "Run", facts: "CardFacts") -> None:
    from glassformer.interop.argos import export_argos
    from glassformer.interop.card import Layout, languages_for, model_card

    languages = languages_for(run, facts)
    if languages is None:
        raise RunError(
            "an Argos package names its languages, and this run doesn't know its own: give their codes with "
            "--source-language and --target-language"
        )
    use = (
        "import argostranslate.package\nimport argostranslate.translate\n\n"
        "argostranslate.package.install_from_path(FILE)\n"
        f"print(argostranslate.translate.translate(LINE, {languages[0]!r}, {languages[1]!r}))"
    )
    layout = Layout(
        None, "a package of Argos Translate", use, tags=("argos-translate", "ctranslate2"), fills_heads=True
    )
    readme = model_card(flags.run, run, layout, facts)
    export_argos(run, flags.out, languages, quantization=flags.quantization, readme=readme)
    print(f"{flags.out}: install it with argospm install {shlex.quote(str(flags.out))}")


def _check_named_folder(out: Path) -> None:
    """Raise RunError unless a new folder can be written there, under a name that safetensors and onnxruntime take."""
    check_new_folder(out)
    check_name(out)


def _check_package(out: Path) -> None:
    from glassformer.interop.argos import check_new_package

    check_new_package(out)


GRAPHS = "writing the graphs, then checking them against the model"
TARGETS = {
    "huggingface": Target(_to_huggingface, check=_check_named_folder),
    "ctranslate2": Target(_to_ctranslate2, frozenset({"quantization"})),
    "onnx": Target(_to_onnx, frozenset({"quantization", "attention", "validate"}), _check_named_folder, GRAPHS),
    "web": Target(_to_web, frozenset({"quantization", "validate", "runtime"}), _check_named_folder, GRAPHS),
    "argos": Target(_to_argos, frozenset({"quantization"}), _check_package),
}
