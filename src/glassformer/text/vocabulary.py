"""The Marian layout: sentencepiece models whose pieces have their ids in a vocabulary file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from glassformer.decoding import MOST_BYTES, Natural, decode_json, read_limited
from glassformer.errors import DataError
from glassformer.files import write_json
from glassformer.text.tokenizer import EOS, UNK, SentencepieceTokenizer, as_line, piece_spans, piece_surfaces

VOCABULARY = ".vocab.json"


class VocabularyTokenizer(SentencepieceTokenizer):
    """A sentencepiece model and a vocabulary from pieces to ids. `</s>` = 0, `<unk>` = 1, `<pad>` = the last.

    For a multilingual model a line may begin with the code of the language to translate into, `>>deu<< ...`, if the
    vocabulary has that code.
    """

    def __init__(self, proto: bytes, vocabulary: Mapping[str, int]) -> None:
        super().__init__(proto)
        self._ids = dict(vocabulary)
        self.vocab_size = len(self._ids)
        self.pad = self.vocab_size - 1
        self._pieces = [""] * self.vocab_size
        for piece, i in self._ids.items():
            if not isinstance(i, int) or not 0 <= i < self.vocab_size or self._pieces[i]:
                raise DataError(f"a vocabulary must number its {self.vocab_size:,} pieces from 0, got {piece!r}: {i!r}")
            self._pieces[i] = piece
        for piece, i in (("</s>", EOS), ("<unk>", UNK), ("<pad>", self.pad)):
            if self._ids.get(piece) != i:
                raise DataError(f"a vocabulary must have {piece} = {i}, got {self._ids.get(piece)}")
        self.languages = [piece for piece in self._pieces if piece.startswith(">>") and piece.endswith("<<")]
        # An unknown run of characters is a piece of its own, and may be one that the other side's model has.
        special = {"</s>", "<pad>", *self.languages}
        self._ids_in_text = {piece: i for piece, i in self._ids.items() if piece not in special}

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line, without `</s>`; a language code at its beginning is one token.

        Raises DataError for the code of a language that the model doesn't know.
        """
        return self._encoded(lines, lambda texts: self._split(texts, str))

    def sample(self, lines: Sequence[str], seed: int) -> list[list[int]]:
        return self._encoded(lines, lambda texts: self._sampled(texts, seed, str))

    def _encoded(self, lines: Sequence[str], split: Callable[[list[str]], list[list[str]]]) -> list[list[int]]:
        """Return the ids of each line, which `split` splits into pieces, without the code at its beginning."""
        parts = [self._split_code(line) for line in lines]
        return [
            [*code, *(self._ids_in_text.get(piece, UNK) for piece in pieces)]
            for (code, _), pieces in zip(parts, split([text for _, text in parts]), strict=True)
        ]

    def _split_code(self, line: str) -> tuple[list[int], str]:
        if not line.startswith(">>") or "<<" not in line:
            return [], line
        end = line.index("<<") + 2
        code = line[:end]
        if code in self._ids:
            return [self._ids[code]], line[end:]
        if not self.languages:
            return [], line
        some = " ".join(self.languages[:10])
        raise DataError(f"the model knows no language {code}, but {some}{' ...' if len(self.languages) > 10 else ''}")

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        special = {EOS, self.pad}
        unknown = self._processor.id_to_piece(self._processor.unk_id())  # which the model shows in its own way
        texts = []
        for row in ids:
            pieces = [unknown if i == UNK else self._pieces[i] for i in row if i not in special]
            texts.append(as_line(self._processor.decode_pieces(pieces).replace("\u2581", " ")))
        return texts

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._pieces[i] for i in ids]

    def id_of(self, token: str) -> int | None:
        found = self._ids.get(token)
        return None if found == self.pad else found

    def surfaces(self, line: str) -> list[str]:
        code, text = self._split_code(line)
        return ["" for _ in code] + piece_surfaces(self._processor, text)

    def spans(self, line: str) -> list[tuple[int, int]]:
        code, text = self._split_code(line)
        skipped = len(line) - len(text)
        spans = [(start + skipped, end + skipped) for start, end in piece_spans(self._processor, text)]
        return [(skipped, skipped) for _ in code] + spans

    def save(self, stem: Path) -> Path:
        path = stem.with_suffix(self.suffix)
        path.write_bytes(self.proto)
        write_json(stem.with_suffix(VOCABULARY), self._ids)
        return path


def read_vocabulary(path: Path) -> dict[str, int]:
    """Read a JSON file of pieces and their ids; raise DataError where it is none."""
    try:
        return decode_json(read_limited(path, MOST_BYTES, error=DataError), dict[str, Natural])
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is no vocabulary, an object of pieces and their ids: {error}") from None
