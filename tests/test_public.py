"""The public names, and that they load torch only when used."""

import ast
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import glassformer

[TYPED] = [node for node in ast.parse(Path(glassformer.__file__).read_bytes()).body if isinstance(node, ast.If)]
HOME = {alias.name: line.module for line in TYPED.body for alias in line.names}
"""Each public name and its module, as type checkers are told."""
NAMES = [
    *(
        "Aligner",
        "BacktranslateConfig",
        "ClusterConfig",
        "DistillConfig",
        "GlassformerError",
        "Glossary",
        "ModelConfig",
    ),
    *("MultiheadAttention", "Observation", "PairFiles"),
    *("PruneConfig", "RunFolder", "Score", "SearchConfig", "TrainConfig", "TrainResult", "Transformer"),
    *("Translation", "Translator", "Want"),
    *("attend", "backtranslate", "capture", "cluster_writer", "compare_speed", "distill", "from_torch"),
    *("multi_head_attention_forward", "observe"),
    *("observe_weights", "open_run", "page", "prune", "qk_clip"),
    *("replace_attention", "resume", "score", "train", "train_once", "translate_dataset", "translate_document"),
    *("translate_file", "translate_folder", "translate_markup", "translate_paragraphs", "watch", "write_pairs"),
]


def test_public_names_are_these_and_type_checkers_know_them():
    assert glassformer.__all__ == NAMES == sorted(HOME)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_can_be_imported(name):
    value = getattr(glassformer, name)
    assert (value.__name__, value.__module__) == (name, HOME[name])
    assert value.__doc__


def test_a_public_function_keeps_its_name_beside_a_folder_of_that_name():
    import_module("glassformer.capture.record")
    import_module("glassformer.page.report")
    from glassformer import capture, page

    assert (capture.__module__, page.__module__) == ("glassformer.capture.capture", "glassformer.page.report")


def test_dir_lists_them():
    assert set(NAMES) <= set(dir(glassformer))
    assert dir(glassformer) == sorted(set(dir(glassformer)))


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="module 'glassformer' has no attribute 'transfomer'"):
        _ = glassformer.transfomer


def test_version_is_that_of_the_package():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert glassformer.__version__ == version("glassformer") == project["version"]


@pytest.mark.parametrize(
    "statement",
    [
        "import glassformer",
        "import glassformer; dir(glassformer)",
        "import glassformer.cli",
        "from glassformer import TrainConfig",
        "from glassformer import ModelConfig",
    ],
)
def test_torch_is_not_loaded_by(statement):
    code = f"import sys; {statement}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
