"""Runs written as folders that any web server can hand out, and in which a browser translates by itself.

    index.html           the document
    glassformer.json     the files that the page loads, with their sizes and digests, and what it says of the run
    code/DIGEST/         the page's scripts and styles, at addresses that change with them
    model/               the model as `export --to onnx` writes it
    runtime/VERSION/     onnxruntime-web

All addresses are relative, so that the folder may lie anywhere on a server.
"""

import base64
import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.browser.runtime import WEBASSEMBLY, WEBGPU, Runtime, Variant, find_runtime
from glassformer.errors import RunError
from glassformer.files import new_folder, write_json
from glassformer.generation.segments.sentences import segmentation_of
from glassformer.interop.onnx.export import export_onnx
from glassformer.interop.onnx.validate import Likeness
from glassformer.page.assets import translator_code
from glassformer.run.folder import Run
from glassformer.run.languages import name_of
from glassformer.transformer.model import count_parameters

WEB = Path(__file__).parent / "web"
DOCUMENT, MANIFEST, CODE, MODEL, RUNTIME = "index.html", "glassformer.json", "code", "model", "runtime"
OPENED = "opened.js"
"""The one script that stands in the document itself: it must work where modules can't be loaded."""


@dataclass(frozen=True)
class Exported:
    """Tells the sizes of a page that was written, and how well its graphs agree with the model."""

    likeness: Likeness
    """The agreement of its graphs with the model."""
    model_bytes: int
    runtime_bytes: int
    runtime: str
    """The name and version of what computes in the browser."""
    runtime_folder: Path
    """The folder that it was taken from."""


def export_web(
    run: Run,
    out: Path,
    name: str,
    quantization: str | None = None,
    *,
    languages: tuple[str, str] | None = None,
    runtime: Path | None = None,
    validate: Path | None = None,
) -> Exported:
    """Write `run` as a page to the folder `out`, complete or not at all; the page calls it by `name`.

    `out` must be new or empty. `languages` are the codes of the source and the target, for the page to say. `runtime`
    is the folder of onnxruntime-web, else that of `find_runtime`. Its files for WebGPU are taken where it has them and
    the graphs are in floats: a GPU doesn't compute those in integers. `quantization`, `validate` and the errors are
    those of `export_onnx`; RunError also says that no head is left which looks at the source.
    """
    if not run.model.config.source_heads:
        raise RunError(
            "this run has no head left that looks at the source, so the page could show nothing: export it --to onnx"
        )
    found = find_runtime(runtime)
    variants = {"wasm": WEBASSEMBLY} | ({"webgpu": WEBGPU} if quantization != "int8" and found.has(WEBGPU) else {})
    with new_folder(out) as made:
        likeness = export_onnx(run, made / MODEL, quantization, attention="cross", validate=validate)
        computes = {device: _copy_runtime(found, variant, made) for device, variant in variants.items()}
        model = _model_files(made)
        loaded = {*model.values(), *(files["wasm"] for files in computes.values())}
        manifest = {
            "run": _described(run, name, quantization, languages or ("", "")),
            "model": model,
            "runtime": computes,
            "files": [_file(made, path) for path in sorted(loaded)],
        }
        write_json(made / MANIFEST, manifest)
        (made / DOCUMENT).write_text(_document(_copy_code(made)), encoding="utf-8")
        return Exported(likeness, _size(made / MODEL), _size(made / RUNTIME), found.name, found.folder.parent)


def _described(run: Run, name: str, quantization: str | None, languages: tuple[str, str]) -> dict[str, Any]:
    """Return what the page says of a run, with the names that the server's answers have."""
    config = run.model.config
    source, target = languages
    return {
        "run": name,
        "source": source,
        "target": target,
        "source_name": name_of(source),
        "target_name": name_of(target),
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "heads": config.heads,
        "precision": quantization or "float32",
        "parameters": count_parameters(config),
        "segment": segmentation_of(run.source_tokenizer),
    }


def _model_files(made: Path) -> dict[str, str]:
    """Return the paths of the model's files, by what they are."""
    model = made / MODEL
    target = "target/tokenizer.json" if (model / "target" / "tokenizer.json").exists() else "tokenizer.json"
    (encoder,), (decoder,) = (list((model / "onnx").glob(f"{part}_model*.onnx")) for part in ("encoder", "decoder"))
    files = {
        "config": model / "config.json",
        "generation": model / "generation_config.json",
        "source_tokenizer": model / "tokenizer.json",
        "target_tokenizer": model / target,
        "encoder": encoder,
        "decoder": decoder,
    }
    return {name: path.relative_to(made).as_posix() for name, path in files.items()}


def _copy_runtime(runtime: Runtime, variant: Variant, made: Path) -> dict[str, str]:
    """Copy the files of a build, and return their paths by what they are.

    Modules are named .js: web servers that don't know .mjs send it as a file to save, which no browser runs.
    """
    folder = Path(RUNTIME, runtime.version)
    (made / folder).mkdir(parents=True, exist_ok=True)
    paths = {
        "module": folder / variant.module.replace(".mjs", ".js"),
        "loader": folder / variant.loader.replace(".mjs", ".js"),
        "wasm": folder / variant.binary,
    }
    for name, path in zip((variant.module, variant.loader, variant.binary), paths.values(), strict=True):
        shutil.copyfile(runtime.folder / name, made / path)
    return {name: path.as_posix() for name, path in paths.items()}


def _copy_code(made: Path) -> str:
    """Copy scripts and styles, in folders as they lie in the package, and return the path of these folders."""
    contents = {path: content for path, content in translator_code("browser/web").items() if Path(path).name != OPENED}
    folder = Path(CODE, _digest(b"".join(contents.values())))
    for path, content in contents.items():
        place = made / folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return folder.as_posix()


def _document(code: str) -> str:
    """Return the document, whose policy allows the one script that stands in it, by its digest."""
    text = (WEB / DOCUMENT).read_text(encoding="utf-8")
    inline = (WEB / OPENED).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
    return text.replace("{code}", code).replace("{digest}", digest).replace("{inline}", inline)


def _size(folder: Path) -> int:
    """Return the bytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _file(made: Path, path: str) -> dict[str, Any]:
    content = (made / path).read_bytes()
    return {"path": path, "size": len(content), "digest": _digest(content)}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]
