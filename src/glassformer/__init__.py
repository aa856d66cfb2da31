"""glassformer: attention and the Transformer you can see through, at full speed.

The public names below load their module, and torch, when first used.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.alignment.aligner import Aligner
    from glassformer.attention.attend import attend
    from glassformer.attention.functional import multi_head_attention_forward
    from glassformer.attention.multihead import MultiheadAttention
    from glassformer.attention.observation import Observation
    from glassformer.attention.observe import observe, observe_weights
    from glassformer.attention.replace import replace_attention
    from glassformer.attention.want import Want
    from glassformer.capture.capture import capture
    from glassformer.capture.clip import qk_clip
    from glassformer.capture.watch import watch
    from glassformer.cluster.bulk import translate_folder
    from glassformer.cluster.config import ClusterConfig
    from glassformer.cluster.dataset import translate_dataset
    from glassformer.cluster.writer import cluster_writer
    from glassformer.documents.document import translate_document
    from glassformer.errors import GlassformerError
    from glassformer.generation.attention import Translation
    from glassformer.generation.config import SearchConfig
    from glassformer.generation.files import translate_file
    from glassformer.generation.lexical.glossary import Glossary
    from glassformer.generation.segments.paragraphs import translate_paragraphs
    from glassformer.generation.translator import Translator
    from glassformer.insight.config import PruneConfig
    from glassformer.insight.prune import prune
    from glassformer.insight.speed import compare_speed
    from glassformer.interop.torch_nn import from_torch
    from glassformer.markup.translate import translate_markup
    from glassformer.page.report import page
    from glassformer.pairs.files import PairFiles
    from glassformer.run.folder import RunFolder, open_run
    from glassformer.scoring.scores import Score, score
    from glassformer.synthesis.config import BacktranslateConfig, DistillConfig
    from glassformer.synthesis.student import backtranslate, distill, write_pairs
    from glassformer.training.config import TrainConfig
    from glassformer.training.result import TrainResult
    from glassformer.training.train import resume, train, train_once
    from glassformer.transformer.config import ModelConfig
    from glassformer.transformer.model import Transformer

_HOME = {
    "Aligner": "alignment.aligner",
    "BacktranslateConfig": "synthesis.config",
    "ClusterConfig": "cluster.config",
    "DistillConfig": "synthesis.config",
    "GlassformerError": "errors",
    "Glossary": "generation.lexical.glossary",
    "ModelConfig": "transformer.config",
    "MultiheadAttention": "attention.multihead",
    "Observation": "attention.observation",
    "PairFiles": "pairs.files",
    "PruneConfig": "insight.config",
    "RunFolder": "run.folder",
    "Score": "scoring.scores",
    "SearchConfig": "generation.config",
    "TrainConfig": "training.config",
    "TrainResult": "training.result",
    "Transformer": "transformer.model",
    "Translation": "generation.attention",
    "Translator": "generation.translator",
    "Want": "attention.want",
    "attend": "attention.attend",
    "backtranslate": "synthesis.student",
    "capture": "capture.capture",
    "cluster_writer": "cluster.writer",
    "compare_speed": "insight.speed",
    "distill": "synthesis.student",
    "from_torch": "interop.torch_nn",
    "multi_head_attention_forward": "attention.functional",
    "observe": "attention.observe",
    "observe_weights": "attention.observe",
    "open_run": "run.folder",
    "page": "page.report",
    "prune": "insight.prune",
    "qk_clip": "capture.clip",
    "replace_attention": "attention.replace",
    "resume": "training.train",
    "score": "scoring.scores",
    "train": "training.train",
    "train_once": "training.train",
    "translate_dataset": "cluster.dataset",
    "translate_document": "documents.document",
    "translate_file": "generation.files",
    "translate_folder": "cluster.bulk",
    "translate_markup": "markup.translate",
    "translate_paragraphs": "generation.segments.paragraphs",
    "watch": "capture.watch",
    "write_pairs": "synthesis.student",
}

__version__: str
__all__ = [  # sorted; pinned by tests/test_public.py
    "Aligner",
    "BacktranslateConfig",
    "ClusterConfig",
    "DistillConfig",
    "GlassformerError",
    "Glossary",
    "ModelConfig",
    "MultiheadAttention",
    "Observation",
    "PairFiles",
    "PruneConfig",
    "RunFolder",
    "Score",
    "SearchConfig",
    "TrainConfig",
    "TrainResult",
    "Transformer",
    "Translation",
    "Translator",
    "Want",
    "attend",
    "backtranslate",
    "capture",
    "cluster_writer",
    "compare_speed",
    "distill",
    "from_torch",
    "multi_head_attention_forward",
    "observe",
    "observe_weights",
    "open_run",
    "page",
    "prune",
    "qk_clip",
    "replace_attention",
    "resume",
    "score",
    "train",
    "train_once",
    "translate_dataset",
    "translate_document",
    "translate_file",
    "translate_folder",
    "translate_markup",
    "translate_paragraphs",
    "watch",
    "write_pairs",
]


class _Package(ModuleType):
    """This package, whose functions `capture` and `page` keep their names beside the folders that are called so."""

    def __setattr__(self, name: str, value: object) -> None:
        # Importing a folder sets it as an attribute of its package.
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # which takes longer to load than all the rest of --help

        return version("glassformer")
    if name not in _HOME:
        raise AttributeError(f"module 'glassformer' has no attribute {name!r}")
    return getattr(import_module(f"glassformer.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
