"""LibreTranslate's API: JSON and forms, lists, HTML, errors."""

import pytest

ASK = {"q": "the cat", "source": "en", "target": "de"}


def test_a_text_a_list_and_a_form(client):
    asks = client()
    assert asks("POST", "/translate", ASK).json == {"translatedText": "THE CAT"}
    several = {**ASK, "q": ["the cat", "", "a dog"], "alternatives": 2}
    assert asks("POST", "/translate", several).json == {
        "translatedText": ["THE CAT", "", "A DOG"],
        "alternatives": [["THE CAT'", "THE CAT''"], [], ["A DOG'", "A DOG''"]],
    }
    form = b"q=the+cat&source=auto&target=de&format=text&alternatives=1"
    assert asks("POST", "/translate", form, content_type="application/x-www-form-urlencoded").json == {
        "translatedText": "THE CAT",
        "alternatives": ["THE CAT'"],
        "detectedLanguage": {"confidence": 100, "language": "en"},
    }
    for written in ("q=ein+Käfer 猫", "q=ein%20K%C3%A4fer+%E7%8C%AB"):  # as curl -d and --data-urlencode send it
        form = f"{written}&source=en&target=de".encode()
        reply = asks("POST", "/translate", form, content_type="application/x-www-form-urlencoded; charset=utf-8")
        assert reply.json == {"translatedText": "EIN KÄFER 猫"}
    assert asks("POST", "/translate", {**ASK, "q": ["the cat", "a dog"], "source": "auto"}).json == {
        "translatedText": ["THE CAT", "A DOG"],
        "detectedLanguage": [{"confidence": 100, "language": "en"}] * 2,
    }
    assert (
        asks("POST", "/translate", {**ASK, "alternatives": 0, "api_key": "", "secret": "", "format": None}).status
        == 200
    )


def test_lines_and_outer_spaces_stay_where_they_were(client):
    asks = client()
    text = "  the cat \r\n\n\ta dog\nsat\n"
    assert asks("POST", "/translate", {**ASK, "q": text}).json["translatedText"] == "  THE CAT \r\n\n\tA DOG\nSAT\n"
    assert asks.pool.asked[-1][1]["lines"] == ["the cat", "a dog", "sat"]
    assert asks.pool.asked[-1][1]["paragraphs"] is True, "clients of LibreTranslate send whole paragraphs"
    assert asks("POST", "/translate", {**ASK, "q": " \n "}).json == {"translatedText": " \n "}


def test_html_has_its_tags_on_the_words_that_their_words_became(client):
    kept = "<br/>\n<script>if (a < b) the()</script><!-- the --></p>"
    text = f'<!doctype html><P  class="the cat">the <b>cat</B > &amp; a <i>&lt; dog</i>{kept}'
    asks = client()
    reply = asks("POST", "/translate", {**ASK, "q": text, "format": "html", "alternatives": 1})
    translated = f'<!doctype html><P  class="the cat"><i>DOG &lt;</i> A &amp; <b>CAT</B > THE{kept}'
    assert reply.json["translatedText"] == translated
    assert asks.pool.asked[-1][1]["lines"] == ["the cat & a < dog"]
    assert asks.pool.asked[-1][1]["linked"] == [0]
    assert asks.pool.asked[-1][1]["paragraphs"] is True
    assert reply.json["alternatives"] == []


def test_several_texts_in_html_are_asked_for_at_once(client):
    asks = client()
    texts = ["the <code>x</code> cat", "", " <p> </p>", "<p>a</p>b"]
    reply = asks("POST", "/translate", {**ASK, "q": texts, "format": "html", "source": "auto"})
    assert reply.json["translatedText"] == ["CAT <code>x</code> THE", "", " <p> </p>", "<p>A</p>B"]
    assert len(reply.json["detectedLanguage"]) == 4
    assert asks.pool.asked[-1][1]["lines"] == ["the \U000f0000 cat", "a", "b"]
    assert asks("POST", "/translate", {**ASK, "q": "<br>", "format": "html"}).json == {"translatedText": "<br>"}
    assert len(asks.pool.asked) == 1, "nothing is asked for where there is no text"


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"q": 5}, "invalid", "q must be"),
        *(({"q": nothing}, "invalid", "Invalid request: missing q parameter") for nothing in ("", [], None)),
        ({"source": ""}, "invalid", "Invalid request: missing source parameter"),
        ({"target": None}, "invalid", "Invalid request: missing target parameter"),
        ({"source": "fr"}, "unknown_language", "source must be one of en"),
        ({"target": "en"}, "unknown_language", "target must be one of de"),
        ({"source": "auto", "target": "fr"}, "unknown_language", "target must be one of de"),
        ({"format": "markdown"}, "invalid", "format must be 'text' or 'html'"),
        ({"alternatives": -1}, "invalid", "alternatives must be greater than or equal to 0"),
        ({"alternatives": "2"}, "invalid", "alternatives must be a valid integer"),
        ({"alternatives": 5}, "invalid", "alternatives must be at most 4, got 5"),
        ({"alternatives": 5, "format": "html"}, "invalid", "alternatives must be at most 4, got 5"),
        ({"q": "x" * 5_001}, "too_long", "the line has 5,001 characters"),
        ({"q": ["x" * 4_999] * 11}, "too_long", "a request may have at most 50,000 characters, got 54,989"),
        ({"q": ["x"] * 129}, "too_many_lines", "q may have at most 128 lines, got 129"),
        ({"q": "<" * 50_001, "format": "html"}, "too_long", "at most 50,000 characters, got 50,001"),
        ({"q": "x\n" * 129}, "too_many_lines", "q may have at most 128 lines, got 129"),
        ({"model": "x"}, "invalid", "the body has an unknown field"),
    ],
)
def test_what_is_wrong_is_said(client, changes, code, message):
    asks = client()
    reply = asks("POST", "/translate", {**ASK, **changes})
    assert (reply.status, reply.json["code"]) == (400, code)
    assert message in reply.json["error"]
    assert asks.pool.asked == []


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b"q=a&q=b&source=en&target=de", "application/x-www-form-urlencoded", "may be given once"),
        (b"source=en&target=de", "application/x-www-form-urlencoded", "missing q parameter"),
        (b"q=&source=en&target=de", "application/x-www-form-urlencoded", "missing q parameter"),
        (b"q=a&source=en&target=de&alternatives=x", "application/x-www-form-urlencoded", "must be a whole number"),
        (b"&".join(b"f%d=1" % n for n in range(30)), "application/x-www-form-urlencoded", "too many fields, more"),
        (b"q=%ff&source=en&target=de", "application/x-www-form-urlencoded", "the body is not a form in UTF-8"),
        (b"q=\xff&source=en&target=de", "application/x-www-form-urlencoded", "the body is not a form in UTF-8"),
        (b"--x\r\nnonsense", "multipart/form-data; boundary=x", ""),
        (b"--x\r\nnonsense", "multipart/form-data", ""),
        (b"{}", "application/json", "missing q parameter"),
        (b"[]", "application/json", "the body must be an object"),
        (b"q", "text/plain", "missing q parameter"),
    ],
)
def test_forms_that_are_none_are_refused(client, body, kind, message):
    reply = client()("POST", "/translate", body, content_type=kind)
    assert (reply.status, reply.json["code"]) == (400, "invalid")
    assert message in reply.json["error"]


def test_the_only_language_is_detected_and_none_where_there_are_several(new_client):
    asks = new_client()
    only = [{"confidence": 100, "language": "en"}]
    assert asks("POST", "/detect", {"q": "the cat", "api_key": ""}).json == only
    assert asks("POST", "/detect", {"q": ["the cat", "a dog"]}).json == only
    assert asks("POST", "/detect", b"q=the+cat", content_type="application/x-www-form-urlencoded").json == only
    assert b'"confidence":100,' in asks("POST", "/detect", {"q": "the cat"}).body, "a whole number"
    for nothing in ({}, {"q": ""}, {"q": []}):
        reply = asks("POST", "/detect", nothing)
        assert (reply.status, reply.json["error"]) == (400, "Invalid request: missing q parameter")
    assert asks("POST", "/detect", {"q": "a" * 50_001}).json["code"] == "too_long"
    assert asks("POST", "/detect", {"q": "a", "target": "de"}).json["code"] == "invalid"
    assert asks.pool.asked == [], "no model is asked"
    asks.server.service._pairs[("fr", "de")] = asks.server.service.runs["tiny"]
    reply = asks("POST", "/detect", {"q": "the cat"})
    assert (reply.status, reply.json["code"]) == (400, "unknown_language")
    assert reply.json["error"] == "languages are not detected: name the source, which may be en, fr"
    asks.server.service._pairs.clear()
    assert asks("POST", "/detect", {"q": "the cat"}).status == 400


def test_languages_health_and_settings(client):
    asks = client()
    assert asks("GET", "/languages").json == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert asks("GET", "/health").json == {"status": "ok"}
    settings = asks("GET", "/frontend/settings").json
    assert settings["language"] == {
        "source": {"code": "en", "name": "English"},
        "target": {"code": "de", "name": "German"},
    }
    assert (settings["keyRequired"], settings["charLimit"]) == (False, 50_000)
