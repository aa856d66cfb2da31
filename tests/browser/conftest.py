"""Runs a script of the page in Node; a folder that looks like onnxruntime-web."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.browser.runtime import TESTED, WEBASSEMBLY, Variant
from glassformer.page.assets import PACKAGE

NODE = shutil.which("node")
WEB = PACKAGE / "browser" / "web"


@pytest.fixture(scope="session")
def in_node() -> Callable[..., Any]:
    """Runs a script of this folder with the path of a module of the page and a value, and returns what it answers."""
    if NODE is None:
        pytest.skip("needs node, version 20 or later")

    def run(script: str, module: str, value: Any) -> Any:
        command = [NODE, str(Path(__file__).parent / script), str(WEB / module)]
        done = subprocess.run(command, input=json.dumps(value), capture_output=True, text=True, encoding="utf-8")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def fake_runtime() -> Callable[..., Path]:
    """Writes the package onnxruntime-web, its files empty, and returns its folder."""

    def write(package: Path, version: str = TESTED, variants: tuple[Variant, ...] = (WEBASSEMBLY,)) -> Path:
        (package / "dist").mkdir(parents=True)
        (package / "package.json").write_text(json.dumps({"name": "onnxruntime-web", "version": version}))
        for variant in variants:
            for name in (variant.module, variant.loader, variant.binary):
                (package / "dist" / name).write_text(f"// {name}\n")
        return package

    return write
