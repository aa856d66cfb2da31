"""Where onnxruntime-web is looked for, and what is said of one that can't be used."""

import re
import sys

import pytest

from glassformer.browser.runtime import TESTED, WEBASSEMBLY, WEBGPU, find_runtime
from glassformer.errors import ConfigError


def test_it_is_found_where_node_would_find_it(fake_runtime, tmp_path, monkeypatch):
    package = fake_runtime(tmp_path / "project" / "node_modules" / "onnxruntime-web")
    below = tmp_path / "project" / "runs" / "news"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert find_runtime().folder == package / "dist"
    assert find_runtime().name == f"onnxruntime-web {TESTED}"


def test_it_is_found_in_the_python_environment(fake_runtime, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    package = fake_runtime(tmp_path / "environment" / "web" / "node_modules" / "onnxruntime-web")
    assert find_runtime().folder == package / "dist"


def test_the_package_or_its_dist_is_given(fake_runtime, tmp_path):
    package = fake_runtime(tmp_path / "runtime", version="1.31.0-dev.20260914")
    for given in (package, package / "dist"):
        found = find_runtime(given)
        assert (found.folder, found.version) == (package / "dist", "1.31.0-dev.20260914")
        assert found.has(WEBASSEMBLY)
        assert not found.has(WEBGPU)


def test_without_one_the_command_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(ConfigError, match=f"run npm install --ignore-scripts onnxruntime-web@{re.escape(TESTED)} here"):
        find_runtime()


@pytest.mark.parametrize("version", ["1.29.9", "0.99.0", "latest", "1.30.0/../../elsewhere"])
def test_an_older_one_is_refused(fake_runtime, tmp_path, version):
    package = fake_runtime(tmp_path / "runtime", version=version)
    with pytest.raises(ConfigError, match=rf"is onnxruntime-web {version}, and the page needs 1\.30 or later"):
        find_runtime(package)


def test_another_folder_is_refused(fake_runtime, tmp_path):
    with pytest.raises(
        ConfigError, match=r"runtime must be the folder of onnxruntime-web, with dist/ort\.wasm\.min\.mjs"
    ):
        find_runtime(tmp_path)
    package = fake_runtime(tmp_path / "runtime")
    (package / "dist" / WEBASSEMBLY.binary).unlink()
    with pytest.raises(ConfigError, match="lacks files of onnxruntime-web: install it again"):
        find_runtime(package)
    (package / "package.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"package\.json"):
        find_runtime(package)
