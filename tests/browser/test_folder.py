"""The exported folder: its files, their addresses, and that it is there whole or not at all."""

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from glassformer import cli
from glassformer.browser.folder import export_web
from glassformer.browser.runtime import WEBASSEMBLY, WEBGPU
from glassformer.errors import ConfigError
from glassformer.run.folder import load_run
from glassformer.text.tokenizer import train_tokenizer

IMPORTS = re.compile(r'^import [^;]*? from "([^"]+)";$', re.MULTILINE)
ATTRIBUTES = re.compile(r'(?:src|href)="([^":]+)"')


@pytest.fixture(scope="module")
def run(random_run, tmp_path_factory) -> Path:
    """A run with a vocabulary for each side."""
    source, target = (
        train_tokenizer([text] * 9, kind="char", vocab_size=None, seed=1) for text in ("two dogs", "zwei große Hunde")
    )
    folder = tmp_path_factory.mktemp("runs") / "random"
    random_run(folder, source, target)
    return folder


@pytest.fixture(scope="module")
def runtime(fake_runtime, tmp_path_factory) -> Path:
    return fake_runtime(tmp_path_factory.mktemp("npm") / "onnxruntime-web", variants=(WEBASSEMBLY, WEBGPU))


@pytest.fixture(scope="module")
def folder(run, runtime, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out") / "page"
    command = ["export", str(run), "--to", "web", "--out", str(out), "--runtime", str(runtime)]
    with pytest.raises(SystemExit, match="0"):
        cli.main([*command, "--target-language", "fr", "--source-language", "en"])
    return out


def test_the_document_leads_to_every_script_and_style(folder):
    document = (folder / "index.html").read_text(encoding="utf-8")
    left = [folder / address for address in ATTRIBUTES.findall(document)]
    left += next(folder.glob("code/*/browser/web/worker.js")), next(folder.glob("code/*/browser/web/main.js"))
    found = set()
    while left:
        path = left.pop().resolve()
        if path not in found:
            found.add(path)
            text = path.read_text(encoding="utf-8")
            left += [path.parent / name for name in IMPORTS.findall(text)] if path.suffix == ".js" else []
            assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|\beval\(|new Function|innerHTML|@import", text)
    own = {*folder.glob("code/*/browser/web/*"), *folder.glob("code/*/page/translator/*")}
    assert own <= found


def test_the_policy_allows_the_one_script_in_the_document_and_no_evaluation(folder):
    document = (folder / "index.html").read_text(encoding="utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', document)
    scripts = [script for script in re.findall(r"<script[^>]*>([^<]*)</script>", document) if script]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    directives = dict(directive.split(" ", 1) for directive in policy.split("; "))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == f"'self' 'wasm-unsafe-eval' 'sha256-{digests[0]}'"
    assert len(scripts) == 1
    assert not re.search(r"<style| style=| on\w+=", document)
    assert "unsafe" not in policy.replace("wasm-unsafe-eval", "")


def test_the_manifest_names_the_files_and_the_run(folder):
    manifest = json.loads((folder / "glassformer.json").read_text(encoding="utf-8"))
    for file in manifest["files"]:
        content = (folder / file["path"]).read_bytes()
        assert len(content) == file["size"]
        assert hashlib.sha256(content).hexdigest().startswith(file["digest"])
    listed = {file["path"] for file in manifest["files"]}
    assert listed == {*manifest["model"].values(), *(files["wasm"] for files in manifest["runtime"].values())}
    assert manifest["model"]["target_tokenizer"] == "model/target/tokenizer.json"
    assert manifest["runtime"].keys() == {"wasm", "webgpu"}
    assert {manifest["run"][name] for name in ("run", "source_name", "target_name")} == {"random", "English", "French"}
    assert (folder / "README.md").exists()


def test_graphs_in_integers_have_no_files_for_a_gpu(run, runtime, tmp_path):
    found = export_web(load_run(run), tmp_path / "page", "random", "int8", runtime=runtime)
    manifest = json.loads((tmp_path / "page" / "glassformer.json").read_text(encoding="utf-8"))
    assert manifest["runtime"].keys() == {"wasm"}
    assert manifest["model"]["encoder"] == "model/onnx/encoder_model_quantized.onnx"
    assert manifest["run"]["precision"] == "int8"
    assert found.model_bytes == sum(p.stat().st_size for p in (tmp_path / "page" / "model").rglob("*") if p.is_file())


def test_nothing_is_written_where_the_runtime_is_missing(run, tmp_path):
    with pytest.raises(ConfigError, match="runtime must be the folder"):
        export_web(load_run(run), tmp_path / "page", "random", runtime=tmp_path)
    assert list(tmp_path.iterdir()) == []
