"""The wheel that users install, in an environment of its own, and the source distribution."""

import email
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from glassformer.training.train import train

ROOT = Path(__file__).parents[1]


def run(*command: object, **options) -> str:
    """Its output; a failure shows both streams."""
    ours = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in ours} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of a fresh environment with the wheel; third-party packages are lent by the present one."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    folder = environment / ("Scripts" if os.name == "nt" else "bin")
    packages = Path(run(folder / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", folder / "python", *install, wheel)
    return folder


def test_holds_every_module_and_nothing_else(wheel):
    files = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    expected = {name for name in files if "__pycache__" not in name}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert "glassformer/py.typed" in held
    assert held == expected


def test_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).name: name for name in archive.namelist() if ".dist-info/" in name}
        assert "LICENSE" in names
        metadata = email.message_from_bytes(archive.read(names["METADATA"]))
    assert metadata["Name"] == "glassformer"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "# glassformer" in metadata.get_payload()


def test_the_source_distribution_holds_every_file_of_the_repository(tmp_path):
    # Of a repository: in an unpacked source distribution nobody knows which files those are.
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (built,) = tmp_path.iterdir()
    with tarfile.open(built) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    assert held == {"PKG-INFO"} | {name for name in listed if name and (ROOT / name).is_file()}


def test_its_own_package_is_imported(scripts, wheel, tmp_path):
    code = "import glassformer, glassformer.cli; print(glassformer.__file__, glassformer.__version__)"
    path, version = run(scripts / "python", "-c", code, cwd=tmp_path).split()
    assert Path(path).is_relative_to(scripts.parent)
    assert wheel.name == f"glassformer-{version}-py3-none-any.whl"


def test_its_command_translates(scripts, tmp_path, settings):
    # 6 seconds: it trains, and starts a Python that loads torch. In float32 numba, which finds a new package, compiles
    # for 3 seconds; what it compiles for eight bits takes 10.
    train(settings(max_updates=3))
    command = ("translate", "run", "--precision", "float32", "--max-length", "7")
    out = run(scripts / "glassformer", *command, cwd=tmp_path, input="a b c\n\ng f\n")
    translated = out.split("\n")
    assert len(translated) == 4
    assert translated[1] == translated[3] == ""
    assert translated[0]
    assert translated[2]
