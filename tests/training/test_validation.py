"""The samples that a validation shows."""

import pytest

from glassformer.training.validation import choose_samples

SOURCES = ("1", "2", "3", "4", "5")


@pytest.mark.parametrize(
    ("translations", "shown"),
    [
        (["a", " b", "c", "d ", "e"], "123"),
        ("abcde", "123"),
        ("abXde", "123"),
        ("abcdX", "125"),
        ("abcXX", "124"),
        ("X", "1"),
    ],
    ids=[
        "all right but for spaces",
        "all right",
        "a wrong one among them",
        "a wrong one later",
        "two wrong ones later",
        "one pair",
    ],
)
def test_a_wrong_translation_is_worth_more_than_a_third_right_one(translations, shown):
    count = len(translations)
    samples = choose_samples(SOURCES[:count], "abcde"[:count], translations)
    assert "".join(source for source, _, _ in samples) == shown
    assert all(translation == translations[int(source) - 1] for source, _, translation in samples)
