"""The rules of the house, read from the source itself: which way imports point, and what is never used."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "glassformer"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = [path.relative_to(SOURCE).as_posix() for path in sorted(SOURCE.rglob("*.py"))]
DRAWN = re.search(r"```\n(attention\n.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
FLOORS = [*(set(line.split(", ")) for line in DRAWN[1].splitlines()), {"__main__"}]
"""Imports point down, or stay in their own folder: two folders of one floor don't know each other."""
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
ALONE = "reference"  # imports nothing of ours; of ours only capture, which records it, tests and docs import it
LEAVES = [
    "errors",
    "decoding",
    "files",
    "memory",
    "stopping",
    "tensors",
    "device",
    "pictures",
    "meter",
    "seeds",
    "settings",
    "terminal",
]


@dataclass(frozen=True)
class Import:
    """`name` is what is imported, with dots; `guarded` if an ImportError of it is caught and explained."""

    module: str
    name: str
    line: int
    guarded: bool
    typing_only: bool

    @property
    def top(self) -> str:
        return self.name.split(".")[0]

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.name}"


@cache
def parsed(module: str) -> ast.Module:
    """A module as a tree: parsed in the test that asks first, since every process of the tests loads this file."""
    return ast.parse((SOURCE / module).read_bytes())


@cache
def imports(module: str) -> list[Import]:
    """Every import of a module, wherever it stands."""
    return list(_imports(module))


def _imports(module: str) -> Iterator[Import]:
    nodes = list(ast.walk(parsed(module)))
    tries = [node for node in nodes if isinstance(node, ast.Try)]
    explained = [t for t in tries if any("ImportError" in ast.unparse(h.type) for h in t.handlers if h.type)]
    guarded = {child for node in explained for part in node.body for child in ast.walk(part)}
    typing = [node for node in nodes if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    typing_only = {child for node in typing for child in ast.walk(node)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert getattr(node, "level", 0) == 0, f"{module}:{node.lineno} is a relative import"
            prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                yield Import(module, prefix + alias.name, node.lineno, node in guarded, node in typing_only)


def all_imports() -> list[Import]:
    """Every import of every module."""
    return [found for module in MODULES for found in imports(module)]


def code_of_modules() -> dict[str, str]:
    """The code of every module, without comments and layout."""
    return {module: ast.unparse(parsed(module)) for module in MODULES}


def place(module: str) -> str:
    """The layer or leaf of a module: `text/vocabulary.py` -> text, `run.py` -> run."""
    return module.removesuffix(".py").split("/")[0]


def test_every_module_has_its_place():
    places = {place(module) for module in MODULES} - {"__init__"}
    assert places <= {*FLOOR, *LEAVES, ALONE}, (
        "a new part of the library: draw it in CONTRIBUTING.md, or add it to LEAVES"
    )
    assert len(MODULES) > 20


@pytest.mark.parametrize("module", [module for module in MODULES if module != "__init__.py"])
def test_imports_point_one_way(module):
    here = place(module)
    for found in imports(module):
        if found.top != "glassformer":
            continue
        there = found.name.split(".")[1]
        assert there in (*FLOOR, *LEAVES, ALONE), f"{found}: import from the module that defines it"
        assert there == here == ALONE or here != ALONE, f"{found}, but {ALONE} stands alone"
        assert there != ALONE or here in (ALONE, "capture"), f"{found}, but {ALONE} is for reading"
        if here in LEAVES:
            assert there in LEAVES, f"{found}, but {here} is a leaf"
        elif there in FLOOR and there != here:
            assert FLOOR[there] < FLOOR[here], f"{found}, which stands above it, or on the same floor"


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("attention/kernels/")])
def test_forms_of_attention_know_nothing_of_who_calls_them(module):
    allowed = ("kernels", "want", "masks", "variant")
    ours = [found for found in imports(module) if found.name.startswith("glassformer.attention.")]
    assert [str(found) for found in ours if found.name.split(".")[2] not in allowed] == []


def test_the_package_itself_imports_nothing_but_the_standard_library():
    for found in imports("__init__.py"):
        assert found.typing_only or found.top in sys.stdlib_module_names, found


def names(requirements: list[str]) -> set[str]:
    """What `requirements` are imported as: all but one by their own names."""
    own = {re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("-", "_") for requirement in requirements}
    return {"translate" if name == "translate_toolkit" else name for name in own}


SERVE = names(PROJECT["optional-dependencies"]["serve"])
"""Packages that the server's modules import as they are: the command that starts it says what is missing."""
CLUSTER = names(PROJECT["optional-dependencies"]["cluster"])
"""Packages that the cluster's modules import as they are: its two doors say what is missing."""


def test_third_party_imports_are_declared():
    needed = names(PROJECT["dependencies"])
    extra = names([r for name, extra in PROJECT["optional-dependencies"].items() if name != "dev" for r in extra])
    third_party = [found for found in all_imports() if found.top not in {*sys.stdlib_module_names, "glassformer"}]
    assert {found.top for found in third_party} >= {"torch", "rich", "babel"}  # the walk sees them
    for found in third_party:
        own = {"serve": SERVE, "cluster": CLUSTER}.get(place(found.module), ())
        guarded = found.guarded or found.top in own
        assert found.top in needed or (guarded and found.top in extra), (
            f"{found}, which pyproject.toml doesn't list; an extra's import stands in a try that explains its absence"
        )


def test_one_command_imports_the_server_and_explains_its_absence():
    without = {"serve/config.py", "serve/keys.py", "serve/languages.py"}  # what is used before it starts
    web = {module for module in MODULES if module.startswith("serve/")} - without
    web = {module for module in web if not module.startswith("serve/workers/")}
    names_of_web = {f"glassformer.{module.removesuffix('.py').replace('/', '.')}" for module in web}
    outside = [f for f in all_imports() if place(f.module) != "serve" and f.name.rpartition(".")[0] in names_of_web]
    assert [(found.module, found.guarded) for found in outside] == [("commands/serve.py", True)]
    inside = [found for found in all_imports() if found.module in without or found.module.startswith("serve/workers/")]
    assert [str(found) for found in inside if found.top in SERVE] == []
    assert [str(f) for f in inside if f.module in without and f.name.rpartition(".")[0] in names_of_web] == []


def test_two_modules_open_the_cluster_and_explain_its_absence():
    doors = {"cluster/bulk.py", "cluster/dataset.py"}
    without = {"cluster/__init__.py", "cluster/config.py", "cluster/writer.py"}  # the last comes in by the first door
    inner = {module for module in MODULES if place(module) == "cluster"} - doors - without
    names_of_inner = {f"glassformer.{module.removesuffix('.py').replace('/', '.')}" for module in inner}
    inward = [
        found
        for found in all_imports()
        if found.name.rpartition(".")[0] in names_of_inner and found.module not in inner
    ]
    assert {found.module for found in inward} == doors
    assert [str(found) for found in inward if not found.guarded] == []
    assert [str(found) for found in all_imports() if found.module in without and found.top in CLUSTER] == []


def test_the_server_loads_no_torch():
    program = (
        "import sys; import glassformer.serve.server; print(sorted({'torch', 'numpy', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_extras_have_code_behind_them():
    extras = PROJECT["optional-dependencies"].items()
    packages = {name: names(extra) for name, extra in extras if name not in ("dev", "docs", "recipes")}
    imported = {found.top for found in all_imports()}
    assert {name: unused for name, needed in packages.items() if (unused := needed - imported)} == {}


def test_recipes_and_examples_need_no_internal_module():
    scripts = [*(ROOT / "recipes").glob("*.py"), *(ROOT / "examples").glob("*.py")]
    assert len(scripts) > 5
    public = re.compile(r"glassformer(\.demo\..*)?")  # the demonstration's data may be used in others
    for path in scripts:
        nodes = [
            node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        modules = {getattr(node, "module", None) or alias.name for node in nodes for alias in node.names}
        internal = {name for name in modules if name.startswith("glassformer") and not public.fullmatch(name)}
        assert not internal, f"{path.name} imports {internal}"


def test_nothing_is_pickled():
    pickling = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "torch.load", "torch.save"}
    assert [str(found) for found in all_imports() if {found.top, found.name} & pickling] == []
    assert [module for module, code in code_of_modules().items() if re.search(r"torch\.(load|save)\b", code)] == []


NAMES_ITS_CALLS = ["capture/calls/mode.py", "capture/calls/sdpa.py", "capture/capture.py"]
"""Modules that name torch's function to recognise a model's calls of it, and hand on those that aren't recorded."""


def test_one_file_calls_fused_attention():
    fused = re.compile(r"(F|functional|_nn|aten)\._?scaled_dot_product|flash_attention|efficient_attention")
    code = {name: code.replace("torch.nn.functional._scaled", "") for name, code in code_of_modules().items()}
    calls = [module for module in code if fused.search(code[module])]
    assert calls == ["attention/attend.py", *NAMES_ITS_CALLS]


def test_no_module_is_longer_than_500_lines():
    lengths = {module: (SOURCE / module).read_bytes().count(b"\n") for module in MODULES}
    assert {module: length for module, length in lengths.items() if length > 500} == {}


def test_no_lazy_annotations():
    # jaxtyping's shapes must be objects, or the tests' hook checks nothing.
    assert [str(found) for found in all_imports() if found.name == "__future__.annotations"] == []


def test_every_module_says_what_it_is():
    assert [module for module in MODULES if not ast.get_docstring(parsed(module))] == []
