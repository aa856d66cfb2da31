"""Loading tokenizers from the files that they were saved to."""

from pathlib import Path

from glassformer.decoding import MOST_BYTES, read_limited
from glassformer.errors import DataError, RunError
from glassformer.text.tokenizer import SubwordTokenizer, SymbolTokenizer, Tokenizer, read_model, read_subwords
from glassformer.text.vocabulary import VOCABULARY, VocabularyTokenizer, read_vocabulary


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer that `Tokenizer.save` wrote, or any sentencepiece .model; its ids are put into our order.

    Raises RunError where the file is missing, and DataError or RunError where it is damaged.

    >>> import tempfile
    >>> saved = SymbolTokenizer("abc").save(Path(tempfile.mkdtemp()) / "source")
    >>> saved.name, load_tokenizer(saved).encode(["c a"])
    ('source.symbols', [[4, 2]])
    """
    if not path.exists():
        raise RunError(f"{path}: the tokenizer file is missing")
    if path.suffix == SymbolTokenizer.suffix:
        try:
            return SymbolTokenizer(read_limited(path, MOST_BYTES).decode().split("\n")[:-1])
        except UnicodeDecodeError:
            raise RunError(f"{path} is damaged, it must be UTF-8 text: copy it again") from None
    if path.suffix != SubwordTokenizer.suffix or not (vocabulary := path.with_suffix(VOCABULARY)).exists():
        return read_subwords(path)
    try:
        return VocabularyTokenizer(read_model(path), read_vocabulary(vocabulary))
    except DataError as error:
        raise RunError(f"{path}: {error}") from None


def tokenizer_files(tokenizer: Path) -> list[Path]:
    """Return the files that the tokenizer at this path was saved to."""
    return [path for path in (tokenizer, tokenizer.with_suffix(VOCABULARY)) if path.exists()]
