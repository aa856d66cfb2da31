"""The routes under /v1, with workers that echo: what is asked of them, and what is refused before they are asked."""

import asyncio
import html

import pytest

from glassformer.serve.schemas import AlternativesAnswer, Runs
from glassformer.serve.workers.messages import Alternatives, Event, Facts, Stream, Translate


def test_runs_and_limits(client):
    answer = Runs.model_validate(client()("GET", "/v1/runs").json)
    (run,) = answer.runs
    assert (run.run, run.source, run.target, run.encoder_layers, run.decoder_layers) == ("tiny", "en", "de", 1, 2)
    assert (run.precision, run.parameters, run.ready) == ("float32", 7, True)
    assert answer.limits["max_line_chars"] == 5000


def test_a_request_is_handed_on_as_it_is(client):
    asks = client()
    wanted = {
        **{"q": ["the cat", "a dog"], "source": "en", "target": "de", "beam": 7, "n_best": 2, "length_penalty": 1},
        **{"max_length": 99, "prefixes": ["THE", ["▁A"]], "scores": True, "confidence": True},
        "attention": {"stacks": ["source"], "layers": [1], "facts": ["entropy"], "top": 3},
    }
    reply = asks("POST", "/v1/translate", wanted)
    assert (reply.json["run"], reply.json["source"], reply.json["target"]) == ("tiny", "en", "de")
    assert [line["translations"][0]["text"] for line in reply.json["lines"]] == ["THE CAT", "A DOG"]
    ((kind, fields),) = asks.pool.asked
    assert kind is Translate
    assert fields == {
        **{"lines": ["the cat", "a dog"], "beam": 7, "n_best": 2, "length_penalty": 1.0, "max_length": 99},
        **{"prefixes": ["THE", ["▁A"]], "scores": True, "confidence": True, "placeholders": None, "terms": []},
        **{"attention": Facts(["source"], [1], ["entropy"], 3), "paragraphs": False},
    }
    assert asks("POST", "/v1/translate", {"q": "a", "run": "tiny"}).status == 200


def test_paragraphs_have_texts_and_scores_alone(client):
    asks = client()
    wanted = {"q": ["The cat. A dog."], "segment": "paragraph"}
    assert asks("POST", "/v1/translate", wanted).status == 200
    assert asks.pool.asked[-1][1]["paragraphs"] is True
    more = {"n_best": 2, "prefixes": ["A"], "scores": True, "confidence": True, "attention": {}}
    for name, value in more.items():
        reply = asks("POST", "/v1/translate", {**wanted, name: value})
        assert (reply.status, reply.json["code"]) == (400, "invalid")
        assert reply.json["error"].endswith(f"for each line: leave out {name}")
    reply = asks("POST", "/v1/translate", {**wanted, "segment": "sentence"})
    assert "segment must be 'line' or 'paragraph'" in reply.json["error"]


def test_terms_and_placeholders_are_handed_on(client):
    asks = client()
    terms = [{"source": "cat", "target": "Katze"}, {"source": "dog", "target": ["Hund", "Rüde"]}, {"source": "mat"}]
    assert asks("POST", "/v1/translate", {"q": "the cat", "glossary": terms, "placeholders": True}).status == 200
    ((_, fields),) = asks.pool.asked
    assert fields["terms"] == [("cat", ["Katze"]), ("dog", ["Hund", "Rüde"]), ("mat", [""])]
    assert fields["placeholders"] is True


def test_what_is_left_out_is_the_default_within_the_limits(client):
    asks = client(max_beam=3, max_n_best=3, max_length=50)
    for path, wanted in (("/translate", {"source": "en", "target": "de"}), ("/v1/translate", {})):
        assert asks("POST", path, {"q": "a", **wanted}).status == 200
        assert asks.pool.asked[-1][1].items() >= {"beam": 3, "n_best": 1, "max_length": 50}.items()
    assert asks("POST", "/v1/translate/stream", {"q": "a"}).status == 200
    assert asks.pool.asked[-1][1]["max_length"] == 50
    asks = client(max_n_best=8)
    assert asks("POST", "/v1/translate", {"q": "a", "n_best": 7}).status == 200
    assert asks.pool.asked[-1][1].items() >= {"beam": 7, "n_best": 7, "max_length": 256}.items()


def test_a_stream_is_events(client):
    asks = client()
    reply = asks("POST", "/v1/translate/stream", {"q": "the cat", "attention": {}})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    start, piece, done, rest = reply.body.decode().split("\n\n")
    assert start == 'event: start\ndata: {"run":"tiny","source":"en","target":"de","source_pieces":["the cat","</s>"]}'
    assert piece == 'event: piece\ndata: {"piece":"A","probability":0.5,"text":"A"}'
    assert done.startswith('event: done\ndata: {"run":"tiny","source":"en","target":"de","lines":[{')
    assert rest == ""
    assert asks.pool.asked[0][0] is Stream


def test_alternatives(client):
    asks = client()
    reply = asks("POST", "/v1/alternatives", {"q": "the cat", "prefix": ["▁A"], "count": 3})
    assert AlternativesAnswer.model_validate(reply.json).alternatives[0].piece == "x"
    assert asks.pool.asked == [(Alternatives, {"line": "the cat", "prefix": ["▁A"], "count": 3})]


LINES = ["a"] * 9
REFUSED = [
    ({"q": "a", "run": "none"}, "unknown_run", "there are tiny"),
    ({"q": "a", "source": "fr"}, "unknown_run", "name a run"),
    ({"q": "a", "source": "de", "target": "de"}, "unknown_language", "source must be one of en"),
    ({"q": "a", "beam": 11}, "invalid", "beam must be at most 10, got 11"),
    ({"q": "a", "n_best": 6, "beam": 10}, "invalid", "n_best must be at most 5, got 6"),
    ({"q": "a", "n_best": 3, "beam": 2}, "invalid", "n_best must be at most the beam"),
    ({"q": "a", "max_length": 257}, "invalid", "max_length must be at most 256"),
    ({"q": "a\nb"}, "invalid", "an end of line within a line"),
    ({"q": ["a", "b\x00"]}, "invalid", "q has the character NUL, which is no text"),
    ({"q": "a", "run": "tiny", "source": "fr"}, "invalid", "source must be that of the run, en: or leave out run"),
    ({"q": "a", "run": "tiny", "source": "en", "target": "fr"}, "invalid", "target must be that of the run, de"),
    ({"q": "a", "attention": {"facts": []}}, "invalid", "attention.facts must have at least one entry"),
    ({"q": "a", "attention": {"stacks": []}}, "invalid", "attention.stacks must have at least one entry"),
    ({"q": ["a", "b"], "prefixes": ["a"]}, "invalid", "prefixes must be one for each line: 1 for 2"),
    ({"q": "a", "prefixes": ["x" * 5001]}, "too_long", "a prefix may have at most 5,000"),
    ({"q": LINES, "attention": {}}, "too_many_lines", "attention is observed for at most 8 lines at once, got 9"),
    ({"q": ["a"] * 129}, "too_many_lines", "at most 128 lines"),
    ({"q": "x" * 5001}, "too_long", "5,001 characters"),
    ({"q": "a", "glossary": [{"source": "a"}] * 101}, "invalid", "glossary may have at most 100 terms, got 101"),
    ({"q": "a", "glossary": [{"source": "a"}, {"source": " "}]}, "invalid", "glossary[1].source must have letters"),
    ({"q": "a", "glossary": [{"source": "a", "target": ["b\n"]}]}, "invalid", "glossary[0].target has an end of line"),
    ({"q": "a", "glossary": [{"source": "a" * 201}]}, "too_long", "glossary[0].source has 201 characters, and may"),
    ({"q": "a", "glossary": [{"target": "a"}]}, "invalid", "glossary[0].source is missing"),
    ({"q": "a", "glossary": {"a": "b"}}, "invalid", "glossary must be a valid list"),
    ({"q": "a", "placeholders": "x+"}, "invalid", "placeholders must be a valid boolean"),
]


@pytest.mark.parametrize(("wanted", "code", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_what_is_too_much_is_refused_before_a_worker_sees_it(client, wanted, code, message):
    asks = client()
    paths = ["/v1/translate"]
    if isinstance(wanted["q"], str) and set(wanted) <= {"q", "run", "source", "target"}:
        paths += ["/v1/translate/stream", "/v1/alternatives"]
    for path in paths:
        reply = asks("POST", path, wanted)
        assert (reply.status, reply.json["code"]) == (400, code)
        assert message in reply.json["error"]
    assert asks.pool.asked == []


def test_openapi_and_its_page_need_no_network(client):
    asks = client()
    described = asks("GET", "/openapi.json").json
    assert {"/translate", "/v1/translate/stream", "/v1/jobs/{number}/result"} <= set(described["paths"])
    for name in ("LibreRequest", "TranslateRequest", "Failure", "Job"):
        assert described["components"]["schemas"][name]["description"]
    schemas = described["components"]["schemas"]
    form = described["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    fields = [one for schema in [*schemas.values(), form] for one in schema.get("properties", {}).items()]
    assert len(fields) > 100
    assert [name for name, field in fields if not field.get("description")] == []
    about = schemas["TranslateRequest"]["properties"]["prefixes"]["description"]
    assert "the text that its translation begins with" in about
    assert "Error" not in "".join(schemas)
    routes = {f"{how} {at}": set(r["responses"]) for at, one in described["paths"].items() for how, r in one.items()}
    assert all({"400", "401", "403", "500"} <= statuses and "422" not in statuses for statuses in routes.values())
    counting = {f"post {path}" for path in ("/translate", "/v1/translate", "/v1/translate/stream", "/v1/alternatives")}
    assert {route for route, statuses in routes.items() if "429" in statuses} == counting | {"post /v1/jobs"}
    found = {route for route, statuses in routes.items() if "404" in statuses}
    assert found == {"get /v1/jobs/{number}", "get /v1/jobs/{number}/result", "delete /v1/jobs/{number}"}
    page = asks("GET", "/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    text = page.body.decode()
    assert "POST /v1/alternatives" in text
    assert html.escape(about) in text
    assert "<script" not in text
    assert "http://" not in text.replace("http://localhost", "")
    assert "https://" not in text


def test_what_finds_no_room_costs_its_client_nothing(new_client):
    asks = new_client(max_chars_per_minute=20)
    paths = ("/v1/translate", "/v1/translate/stream", "/v1/alternatives", "/translate")
    asks.pool.has_room = False
    for path in paths * 2:
        languages = {"source": "en", "target": "de"} if path == "/translate" else {}
        reply = asks("POST", path, {"q": "x" * 15, **languages})
        assert (reply.status, reply.json["code"]) == (503, "busy")
    asks.pool.has_room = True
    assert asks("POST", "/v1/translate", {"q": "x" * 15}).status == 200
    assert asks("POST", "/v1/translate", {"q": "x" * 15}).json["code"] == "too_many"


def test_a_stream_that_is_given_up_ends_with_an_error(new_client):
    async def work() -> bytes:
        asks = new_client()
        pool = asks.server._pool(asks.server.service.runs["tiny"])
        (worker, *_) = pool._workers
        worker.ready, worker._send = asks.pool.ready, lambda message: None  # as if there were a process that is silent
        asks.server.service.pools["tiny"] = pool
        asked = asyncio.create_task(asks.call("POST", "/v1/translate/stream", {"q": "a"}))
        while not worker.waiting:
            await asyncio.sleep(0)
        (coming,) = worker.waiting.values()
        coming.put_nowait(Event(1, "start", {"source_pieces": ["a", "</s>"]}))
        while not coming.empty():
            await asyncio.sleep(0)
        pool.give_up()
        assert pool.pending == 1
        reply = await asked
        assert (pool.pending, reply.status) == (0, 200)
        return reply.body

    start, error, rest = asyncio.run(work()).decode().split("\n\n")
    assert start.startswith("event: start\n")
    assert rest == ""
    said = '{"error":"the server ends, and could not wait for it any longer","code":"stopping"}'
    assert error == f"event: error\ndata: {said}"


def test_metrics_count_what_was_answered(new_client):
    asks = new_client()
    asks("POST", "/v1/translate", {"q": "the cat"})
    asks("POST", "/v1/translate", {"q": "the cat", "beam": 99})
    asks("GET", "/made/up/path")
    text = asks("GET", "/metrics").body.decode()
    assert 'glassformer_requests_total{method="POST",route="/v1/translate",status="200"} 1.0' in text
    assert 'glassformer_requests_total{method="POST",route="/v1/translate",status="400"} 1.0' in text
    assert 'glassformer_requests_total{method="GET",route="other",status="404"} 1.0' in text
    assert 'glassformer_request_seconds_count{route="/v1/translate"} 2.0' in text
    assert "glassformer_chars_total 7.0" in text
    assert 'glassformer_workers{run="tiny"} 1.0' in text
    assert "made" not in text
