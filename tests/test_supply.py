"""What is installed comes from where it should: versions are pinned, and hashes are known."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIN = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    """Each package of a file with its version."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in PIN.findall(text)}


@pytest.mark.parametrize("name", ["requirements/locked.txt", "requirements/tools.txt"])
def test_every_locked_package_has_hashes(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    packages = [part for part in re.split(r"^(?=\S)", text, flags=re.MULTILINE) if part and not part.startswith("#")]
    assert len(packages) == len(pins(name)) > 10
    assert [p.split()[0] for p in packages if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", p)] == []


def test_the_lock_has_the_versions_of_the_constraints():
    constraints = pins("constraints.txt")
    assert constraints.pop("torch")
    assert pins("requirements/locked.txt") == constraints


def test_the_build_backend_is_the_locked_one():
    required = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert required == [f"hatchling=={pins('constraints.txt')['hatchling']}"]


def test_no_second_index_is_offered():
    # With two indexes pip takes the higher version, whoever put it there.
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile", ROOT / ".ci/run"]
    pages += (ROOT / ".github").rglob("*.yml")
    assert len(pages) > 20
    found = [
        page.name for page in pages if re.search(r"extra.index.url", page.read_text(encoding="utf-8"), re.IGNORECASE)
    ]
    assert found == []


def test_actions_are_pinned_by_commit():
    workflows = [path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")]
    used = re.findall(r"uses: *(\S+)", "\n".join(workflows))
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []
