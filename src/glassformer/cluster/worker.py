"""A worker of a cluster: it holds a translator, and does one block after the other."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow
import ray

from glassformer.cluster.forms import FORMS
from glassformer.cluster.lines import Piece, Problem
from glassformer.cluster.plan import Block, PlannedFile, write_block
from glassformer.cluster.source import block_of
from glassformer.cluster.storage import Storage
from glassformer.cluster.weights import Packed, unpack_run
from glassformer.device import tame_memory
from glassformer.generation.config import SearchConfig
from glassformer.generation.files import LineDemands, translations_of_chunk
from glassformer.generation.translator import Translation, Translator


@dataclass(frozen=True)
class Job:
    """The work of all workers."""

    output: Storage
    files: tuple[PlannedFile, ...]
    config: SearchConfig
    wanted: LineDemands
    scores: bool
    device: str
    precision: str
    threads: int


class BlockWorker:
    """Translates blocks and writes their outputs. Ray Data makes one for each place of the pool."""

    def __init__(self, run: "ray.ObjectRef[Packed]", job: Job) -> None:
        """Load the run; its files are in the object store."""
        tame_memory()
        self._job = job
        self._translator = unpack_run(run, job.device, job.precision, job.threads)

    def __call__(self, blocks: pyarrow.Table) -> pyarrow.Table:
        """Translate the blocks that are the rows of a table; return which were done, and by whom."""
        done = [self._do(*block_of(row)) for row in blocks.to_pylist()]
        return pyarrow.Table.from_pylist(done)

    def _do(self, block: Block, piece: Piece) -> dict[str, Any]:
        job, (place, number) = self._job, block
        file = job.files[place]
        form, (first, _) = FORMS[file.form], file.rows_of(number)
        texts, problems = form.texts(piece, first, file.column)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = translations_of_chunk(self._translator, texts, first, job.config, wanted=job.wanted)
        if warned and job.wanted.segment == "line":
            problems += cut_sources(self._translator, texts, first, job.config)
        problems += cut_translations(found, first, job.config)
        output = form.output(piece, found, first, job.config, scores=job.scores)
        write_block(job.output, block, output, sorted(problems, key=lambda problem: problem.row))
        worker = f"{ray.get_runtime_context().get_node_id()} {os.getpid()}"
        return {"file": place, "block": number, "rows": piece.rows, "worker": worker}


def cut_sources(translator: Translator, texts: Sequence[str], first: int, config: SearchConfig) -> list[Problem]:
    """Return the texts that were cut to `max_source_tokens` before they were translated."""
    lengths = map(len, translator.source_tokenizer.encode(texts))
    most = config.max_source_tokens
    return [
        Problem(number, f"it has {length:,} tokens, and was cut to its first {most - 1:,}")
        for number, length in enumerate(lengths, start=first)
        if length >= most
    ]


def cut_translations(found: Sequence[Sequence[Translation]], first: int, config: SearchConfig) -> list[Problem]:
    """Return the rows whose translation reached its limit before its end."""
    return [
        Problem(number, f"its translation was cut at its limit, at most {config.max_length:,} tokens")
        for number, best in enumerate(found, start=first)
        if any(one.cut for one in best)
    ]
