"""Lines with tags to lines, as a command translates them."""

from collections.abc import Sequence

from glassformer.errors import DataError
from glassformer.generation.config import SearchConfig
from glassformer.generation.files import FileCounts, LineDemands
from glassformer.generation.translator import Translator
from glassformer.markup.scan import Format, unclosed_in
from glassformer.markup.translate import read_texts, translate_documents


def translate_tagged_lines(
    translator: Translator,
    lines: Sequence[str],
    first: int,
    format: Format,
    config: SearchConfig,
    wanted: LineDemands,
    counts: FileCounts,
) -> bytes:
    """Return the output for lines of text with tags, of which the first has the number `first`.

    Raises DataError, with its number, for a line that isn't of the format, or of HTML that goes on in the next line:
    the rest of a script or a comment would be translated.
    """
    for number, line in enumerate(lines if format == "html" else (), first):
        if unclosed := unclosed_in(line):
            raise DataError(
                f"line {number}: {unclosed} isn't closed in its line, and each line is a text of its own: give a web "
                "page as a file whose name ends with .html, which is translated whole"
            )
    documents = read_texts(lines, format, first, "line {}")
    found = translate_documents(translator, documents, config, wanted)
    for number, one in enumerate(found, first):
        counts.count_parts(number, one.segments)
    return "".join(f"{one.text}\n" for one in found).encode()
