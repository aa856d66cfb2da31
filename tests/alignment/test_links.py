"""Links: Pharaoh's lines there and back, two directions joined as worked out by hand, error rates by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.alignment.links import SYMMETRIZATIONS, Link, error_rate, pharaoh, read_pharaoh, symmetrize
from glassformer.errors import ArgumentError, ConfigError, DataError

PLACES = st.sets(st.tuples(st.integers(0, 11), st.integers(0, 13)))
FORWARD, BACKWARD = read_pharaoh("0-0 1-1 1-2 3-3 5-5"), read_pharaoh("0-0 1-1 2-2 4-4 4-5 6-6")


@given(PLACES, st.sampled_from((0.0, 0.125, 0.5, 1.0)))
def test_a_line_reads_back_as_it_was(places, probability):
    links = sorted(Link(*place, probability) for place in places)
    assert read_pharaoh(pharaoh(links, probabilities=True)) == links
    assert read_pharaoh(pharaoh(links)) == [link._replace(probability=1.0) for link in links]


@pytest.mark.parametrize(
    "text", ["1", "1-", "-1", "1-2-3", "a-b", "1-2:", "1-2:x", "1-2:1.5", "1-2:nan", "1--2", "²-1"]
)
def test_what_is_no_link_is_refused(text):
    with pytest.raises(DataError, match=r"^a link must be like 3-4 or 3-4:0\.5, source before target, got "):
        read_pharaoh(f"0-0 {text}")


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("forward", "0-0 1-1 1-2 3-3 5-5"),
        ("backward", "0-0 1-1 2-2 4-4 4-5 6-6"),
        ("intersection", "0-0 1-1"),
        ("union", "0-0 1-1 1-2 2-2 3-3 4-4 4-5 5-5 6-6"),
        # 0-0 and 1-1 are in both. Beside 1-1 are 1-2, which brings target 2, and 2-2, which brings source 2; beside
        # that 3-3, then 4-4, then 4-5 and 5-5, each with a word that had none, and 6-6.
        ("grow-diag-final-and", "0-0 1-1 1-2 2-2 3-3 4-4 4-5 5-5 6-6"),
    ],
)
def test_two_directions_are_joined_as_by_hand(method, expected):
    assert pharaoh(symmetrize(FORWARD, BACKWARD, method)) == expected


def test_growing_takes_no_link_between_words_that_have_one():
    # 1-1 lies beside both links of the intersection, but neither of its words lacks a link; 0-3 is beside none.
    assert pharaoh(symmetrize(read_pharaoh("0-1 1-0 1-1 0-3"), read_pharaoh("0-1 1-0"))) == "0-1 1-0"
    # At the end a link is taken if both of its words lack one: 4-4, which is beside no other; not 0-4.
    assert pharaoh(symmetrize(read_pharaoh("0-0 4-4"), read_pharaoh("0-0 0-4"))) == "0-0 4-4"


def test_probabilities_are_means_where_both_directions_have_the_link():
    joined = symmetrize([Link(0, 0, 0.5), Link(1, 1, 0.75)], [Link(0, 0, 1.0)], "union")
    assert joined == [Link(0, 0, 0.75), Link(1, 1, 0.375)]


@given(PLACES, PLACES)
def test_grown_links_lie_between_intersection_and_union(here, there):
    forward, backward = ([Link(*place) for place in side] for side in (here, there))
    found = {link[:2] for link in symmetrize(forward, backward)}
    assert here & there <= found <= here | there
    assert {link[:2] for link in symmetrize(backward, forward, "union")} == here | there


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_way_to_join_is_refused():
    with pytest.raises(ConfigError, match=f"symmetrize must be one of {', '.join(SYMMETRIZATIONS)}, got 'grow'"):
        symmetrize(FORWARD, BACKWARD, "grow")


def test_error_rate_by_hand():
    found = [read_pharaoh("0-0 1-1 2-3"), read_pharaoh("")]
    sure, possible = [read_pharaoh("0-0 2-2"), read_pharaoh("1-1")], [read_pharaoh("1-1"), []]
    rate = error_rate(found, sure, possible)  # of 3 found 1 is sure, 2 are possible; 3 are sure
    assert rate == pytest.approx((1 - (1 + 2) / (3 + 3), 2 / 3, 1 / 3))


@pytest.mark.parametrize(
    ("found", "sure", "message"),
    [
        ([[]], [], "found, sure and possible must be of the same pairs, got 1, 0 and 0"),
        ([[]], [[]], "sure must have at least one link, got none"),
    ],
)
def test_error_rate_needs_links_of_the_same_pairs(found, sure, message):
    with pytest.raises(ArgumentError, match=f"^{message}$"):
        error_rate(found, sure)
