"""Features: marks between angle brackets, such as `<V>` and `<PST>`, that stand in a text beside its characters."""

import re
from collections import Counter
from collections.abc import Iterable

from glassformer.errors import DataError

MOST_FEATURES = 5_000
"""Most different features of a text. More are the tags of a markup language rather than features of words."""
LONGEST_FEATURE = 100
"""Most characters between the brackets; what is longer is text."""
_FEATURE = re.compile(rf"<[^<>\s\u2581\u2585\0]{{1,{LONGEST_FEATURE}}}>")
_RESERVED = frozenset(("</s>", "<unk>", "<pad>", "<s>"))


def find_features(lines: Iterable[str]) -> list[str]:
    """Return the different features of a text, the most frequent first, and in the order of their names where equal.

    The names of a vocabulary's own tokens (`</s>`, `<unk>`, `<pad>`, `<s>`) are text. Raises DataError where the text
    has more than `MOST_FEATURES`.

    >>> find_features(["<V><PST>walk", "<V><PRS>go < >", "<V>", "a </s>"])
    ['<V>', '<PRS>', '<PST>']
    """
    counts = Counter(found for line in lines for found in _FEATURE.findall(line) if found not in _RESERVED)
    if len(counts) > MOST_FEATURES:
        raise DataError(
            f"the text has {len(counts):,} different features, such as {min(counts)}, and may have {MOST_FEATURES:,}: "
            "is it HTML or XML? then take another tokenizer"
        )
    return sorted(counts, key=lambda feature: (-counts[feature], feature))


def is_feature(text: str) -> bool:
    """Return whether a text is one feature, and nothing else."""
    return _FEATURE.fullmatch(text) is not None and text not in _RESERVED
