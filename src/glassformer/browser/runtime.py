"""The files of onnxruntime-web, which compute in the browser: found where npm has installed them."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from glassformer.decoding import read_json
from glassformer.errors import ConfigError

PACKAGE = "onnxruntime-web"
TESTED = "1.30.0"
"""The version that the page was tested with."""
LEAST = (1, 30)
"""The first version whose files are taken: older ones have other names, or lack functions that the page calls."""


@dataclass(frozen=True)
class Variant:
    """The files of one build: the module that the page imports, the module that it loads, and the compiled library."""

    module: str
    loader: str
    binary: str


WEBASSEMBLY = Variant("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
WEBGPU = Variant("ort.webgpu.min.mjs", "ort-wasm-simd-threaded.asyncify.mjs", "ort-wasm-simd-threaded.asyncify.wasm")


@dataclass(frozen=True)
class Runtime:
    """An installed onnxruntime-web."""

    folder: Path
    """The folder of its files, the package's dist."""
    version: str

    @property
    def name(self) -> str:
        """The package with its version."""
        return f"{PACKAGE} {self.version}"

    def has(self, variant: Variant) -> bool:
        """Return whether all files of a build are there."""
        return all((self.folder / name).is_file() for name in (variant.module, variant.loader, variant.binary))


class _Package(Struct):
    """The fields of package.json that are read."""

    name: str
    version: str


def find_runtime(given: Path | None = None) -> Runtime:
    """Return the onnxruntime-web in the folder that is given: the package's, or its dist.

    Without one it is looked for where Node would: in node_modules of the current folder and of those above it; and in
    the Python environment, where `make web` puts it. ConfigError says how to install it.
    """
    if given is not None:
        return _read(given if (given / WEBASSEMBLY.module).exists() else given / "dist")
    here = Path.cwd()
    places = [*(folder / "node_modules" for folder in (here, *here.parents)), Path(sys.prefix, "web", "node_modules")]
    for place in places:
        if (folder := place / PACKAGE / "dist").is_dir():
            return _read(folder)
    raise ConfigError(
        f"the page computes with {PACKAGE}, which is not in {here / 'node_modules'}: run npm install --ignore-scripts "
        f"{PACKAGE}@{TESTED} here, or name its folder with --runtime"
    )


def _read(folder: Path) -> Runtime:
    if not (folder / WEBASSEMBLY.module).exists() or not (folder.parent / "package.json").exists():
        raise ConfigError(
            f"runtime must be the folder of {PACKAGE}, with dist/{WEBASSEMBLY.module} in it, got {folder}: npm install "
            f"--ignore-scripts {PACKAGE}@{TESTED} makes node_modules/{PACKAGE}"
        )
    version = read_json(folder.parent / "package.json", _Package, error=ConfigError).version
    numbers = re.fullmatch(r"([0-9]+)\.([0-9]+)\.[\w.+-]+", version)  # a folder of the page is named after it
    if numbers is None or (int(numbers[1]), int(numbers[2])) < LEAST:
        raise ConfigError(
            f"{folder.parent} is {PACKAGE} {version}, and the page needs {'.'.join(map(str, LEAST))} or later: npm "
            f"install --ignore-scripts {PACKAGE}@{TESTED}"
        )
    runtime = Runtime(folder, version)
    if not runtime.has(WEBASSEMBLY):
        raise ConfigError(f"{folder} lacks files of {PACKAGE}: install it again")
    return runtime
