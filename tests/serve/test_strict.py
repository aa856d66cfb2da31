"""Bodies that are refused before anything is made of them."""

import json
import time

import pytest

from glassformer.serve.strict import parse_json
from glassformer.serve.workers.messages import Refusal

HOSTILE = {
    b"": "not JSON",
    b"{": "not JSON",
    b'{"q": NaN}': "not JSON, or has NaN",
    b'{"q": -Infinity}': "NaN",
    b'{"q": 1, "q": 2}': "a name twice",
    b'{"q": {"a": 1, "a": 1}}': "a name twice",
    b'{"q": "\\ud800"}': "surrogate",
    b'{"\\udfff": 1}': "surrogate",
    b'{"q": ["a", ["\\ud83d"]]}': "surrogate",
    b"[" * 9 + b"]" * 9: "nested too deeply",
    b"[" * 100_000: "nested too deeply",
    b'{"a":' * 5_000 + b"1" + b"}" * 5_000: "nested too deeply",
    b"9" * 5_000: "huge numbers",
    b'{"q": "\xff"}': "not UTF-8",
    '{"q": "a"}'.encode("utf-16"): "not UTF-8",
    b"\xef\xbb\xbf{}": "not JSON",
    b'{"q": "a\nb"}': "not JSON",
    b"{'q': 'a'}": "not JSON",
}


@pytest.mark.parametrize(("body", "message"), HOSTILE.items(), ids=range(len(HOSTILE)))
def test_what_is_no_json_or_too_much_of_it_is_refused(body, message):
    with pytest.raises(Refusal, match=message) as failure:
        parse_json(body)
    assert failure.value.code == "invalid"


def test_what_is_json_is_read():
    assert parse_json('{"q": ["a", "😀", {"b": [1.5, null, true]}]}'.encode()) == {
        "q": ["a", "😀", {"b": [1.5, None, True]}]
    }
    assert parse_json(b'"\\ud83d\\ude00"') == "😀"
    assert parse_json(b"[" * 8 + b"]" * 8)


FIELDS = {
    '{"q": 5}': "q must be a valid string",
    '{"q": [5]}': "q[0] must be a valid string",
    '{"q": null}': "q must be",
    "{}": "q is missing",
    "[]": "the body must be an object",
    '{"q": "a", "beam": "5"}': "beam must be a valid integer",
    '{"q": "a", "beam": 5.0}': "beam must be",
    '{"q": "a", "beam": true}': "beam must be a valid integer",
    '{"q": "a", "beam": 0}': "beam must be greater than or equal to 1",
    '{"q": "a", "beam": 1e400}': "beam must be",
    '{"q": "a", "length_penalty": 1e400}': "length_penalty must be",
    '{"q": "a", "scores": 1}': "scores must be a valid boolean",
    '{"q": "a", "beem": 1}': "the body has an unknown field: did you mean beam?",
    '{"q": "a", "a secret name": 1}': "the body has an unknown field",
    '{"q": "a", "attention": {"layer": 1}}': "attention has an unknown field: did you mean layers?",
    '{"q": "a", "attention": {"stacks": ["secret"]}}': "attention.stacks[0] must be 'encoder', 'decoder' or 'source'",
    '{"q": "a", "attention": {"layers": [-1]}}': "attention.layers[0] must be",
    '{"q": "a", "attention": {"layers": [100000000000000000000]}}': "attention.layers[0] must be less than 65536",
    '{"q": "a", "attention": {"layers": []}}': "attention.layers must have at least one entry",
    '{"q": "a", "attention": {"top": 65}}': "attention.top must be less than or equal to 64",
    '{"q": "a", "prefixes": [[1]]}': "prefixes[0]",
}


@pytest.mark.parametrize(("body", "message"), FIELDS.items())
def test_fields_are_few_and_of_their_types(client, body, message):
    reply = client()("POST", "/v1/translate", body.encode(), content_type="application/json")
    assert (reply.status, reply.json["code"]) == (400, "invalid")
    assert message in reply.json["error"]
    assert "1e400" not in reply.json["error"]
    assert "secret" not in reply.json["error"]
    assert "beem" not in reply.json["error"]


def test_a_body_that_is_not_called_json_is_not_taken_for_it(client):
    for kind in ("text/plain", "", "application/x-www-form-urlencoded"):
        reply = client()("POST", "/v1/translate", b'{"q": "a"}', content_type=kind)
        assert reply.status == 400, kind


def test_a_body_of_a_million_mistakes_is_refused_at_once(client):
    asks = client()
    many = {
        "list": b'{"q": [' + b"1," * 300_000 + b"1]}",
        "prefixes": b'{"q": "a", "prefixes": [' + b"[1]," * 200_000 + b"1]}",
        "fields": b"{" + b",".join(b'"a%d":0' % n for n in range(90_000)) + b"}",
        "layers": b'{"q": "a", "attention": {"layers": [' + b"-1," * 300_000 + b"1]}}",
    }
    for name, body in many.items():
        began = time.thread_time()
        json.loads(body)
        read = time.thread_time()
        reply = asks("POST", "/v1/translate", body, content_type="application/json")
        refused = time.thread_time()
        assert (reply.status, reply.json["code"]) == (400, "invalid"), name
        assert refused - read < 25 * (read - began), name  # two to six times; with a message for each mistake 80 to 200
