"""Translation with onnxruntime: the greedy loop over the graphs of an exported folder."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassformer.errors import RunError
from glassformer.files import check_name
from glassformer.generation.batches import batches_by_length, ended, longest_target
from glassformer.generation.config import SearchConfig
from glassformer.interop.huggingface import read_marian_config, read_marian_tokenizers
from glassformer.interop.onnx.names import DECODER, ENCODER, graph_file
from glassformer.text.tokenizer import EOS, Tokenizer

# From 1.32 on it tells Microsoft what it does, 9 s after it is loaded, and keeps a number for that in the home folder.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

try:
    import numpy as np
    import onnxruntime
except ImportError as error:
    raise ImportError("running ONNX graphs needs the package onnxruntime: pip install 'glassformer[onnx]'") from error

GREEDY = SearchConfig(beam=1)
SOURCES = 64
"""Most sources of a batch."""
SHARE = 8
"""Finished sources leave the batch once they are one in so many of it."""


class OnnxTranslator:
    """A folder that `glassformer export --to onnx` wrote, as a translator that searches greedily.

    Ids are those of the folder's vocabularies. `translate` gives what `Translator.translate` gives with a beam of 1.
    """

    def __init__(self, encoder: Any, decoder: Any, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer) -> None:
        """Join two sessions of onnxruntime and their tokenizers."""
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self._encoder, self._decoder = encoder, decoder
        self._pasts = {one.name: one.shape[1:] for one in decoder.get_inputs() if one.name.startswith("past")}
        outputs = [one.name for one in decoder.get_outputs()]
        self._presents = [name for name in outputs if name.startswith("present")]
        self._growing = [name for name in self._presents if ".decoder." in name]

    @classmethod
    def load(cls, folder: Path, quantization: str | None = None, threads: int = 0) -> "OnnxTranslator":
        """Load the graphs of a folder that were exported with this quantization; 0 threads: onnxruntime chooses."""
        check_name(folder)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        paths = [graph_file(folder, name, quantization) for name in (ENCODER, DECODER)]
        for path in paths:
            if not path.exists():
                raise RunError(f"{path} is missing: export the run --to onnx with the same --quantization")
        encoder, decoder = (
            onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]) for path in paths
        )
        shared = read_marian_config(folder).share_encoder_decoder_embeddings
        source_tokenizer, target_tokenizer = read_marian_tokenizers(folder, shared=shared)
        return cls(encoder, decoder, source_tokenizer, target_tokenizer)

    def translate(self, lines: Sequence[str], config: SearchConfig = GREEDY) -> list[str]:
        """Return the translation of each line, in order; an empty line stays empty.

        Of `config` the lengths are used: `max_length`, `min_length` aside, and `max_source_tokens`.
        """
        sources = ended(self.source_tokenizer.encode(lines), lines, config.max_source_tokens, "source")
        return self.target_tokenizer.decode(self.search(sources, config))

    def search(self, sources: Sequence[list[int]], config: SearchConfig = GREEDY) -> list[list[int]]:
        """Return the ids that follow greedily from each source, without `</s>`; an empty source has none."""
        found: list[list[int]] = [[] for _ in sources]
        for batch in batches_by_length(sources, config.batch_tokens, SOURCES):
            limits = [longest_target(sources[i], config) for i in batch]
            for i, ids in zip(batch, self._search([sources[i] for i in batch], limits), strict=True):
                found[i] = ids
        return found

    def encode(self, sources: Sequence[list[int]]) -> dict[str, Any]:
        """Return what the decoder's first step takes, but for its ids."""
        longest = max(map(len, sources))
        lengths = np.array([len(ids) for ids in sources])
        ids = np.full((len(sources), longest), self.source_tokenizer.pad, dtype=np.int64)
        for row, source in zip(ids, sources, strict=True):
            row[: len(source)] = source
        mask = (np.arange(longest) < lengths[:, None]).astype(np.int64)
        (states,) = self._encoder.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": mask})
        pasts = {
            name: np.zeros((len(sources), heads, 0, d_head), dtype=np.float32)
            for name, (heads, _, d_head) in self._pasts.items()
        }
        return {"encoder_attention_mask": mask, "encoder_hidden_states": states, **pasts}

    def step(self, ids: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the logits after these ids of each row, and what the next step takes."""
        is_first = not any(given[name].shape[2] for name in self._pasts)
        wanted = self._presents if is_first else self._growing  # the source's keys and values stay as they are
        logits, *presents = self._decoder.run(["logits", *wanted], {**given, "input_ids": ids})
        names = (name.replace("present", "past_key_values") for name in wanted)
        return logits, {**given, **dict(zip(names, presents, strict=True))}

    def _search(self, sources: list[list[int]], limits: list[int]) -> list[list[int]]:
        """Return the ids of each source of one batch."""
        given = self.encode(sources)
        written: list[list[int]] = [[] for _ in sources]
        open_ = np.arange(len(sources))  # the source of each row
        ids = np.full((len(sources), 1), self.target_tokenizer.pad, dtype=np.int64)
        is_done = np.zeros(len(sources), dtype=bool)
        while not is_done.all():
            logits, given = self.step(ids, given)
            ids = logits[:, -1].argmax(-1)[:, None]
            for source, token in zip(open_.tolist(), ids[:, 0].tolist(), strict=True):
                if not is_done[source]:
                    if token != EOS:
                        written[source].append(token)
                    is_done[source] = token == EOS or len(written[source]) >= limits[source]
            stay = ~is_done[open_]
            if stay.any() and SHARE * stay.sum() <= (SHARE - 1) * len(open_):
                ids, open_ = ids[stay], open_[stay]
                given = {name: values[stay] for name, values in given.items()}
        return written
