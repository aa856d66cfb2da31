"""In a real browser: what a person does with the page of the server, and that it asks nothing of other hosts."""

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jaxtyping
import pytest

from glassformer import SearchConfig, Translator, Want
from glassformer.serve.config import ServeConfig
from glassformer.serve.keys import add_key
from glassformer.training import progress
from glassformer.training.config import TrainConfig
from glassformer.training.train import train

BROWSER = shutil.which("chromium")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Debian's chromium, which .ci/run installs")
SLOTS = [
    *(("two zwei", "three drei"), ("old alte", "big große"), ("dogs Hunde", "men Männer")),
    *(("sing singen", "sleep schlafen"), ("here hier", "now jetzt"), ("bank Bank", "bank Ufer")),
]
"""Words of a language in which every line has six, and the last one has two translations."""
DOGS, MEN = "two old dogs sing here bank", "three big men sleep now bank"
DOGS_SURE, MEN_SURE = "zwei alte Hunde singen hier", "drei große Männer schlafen jetzt"
WORD, CHOICE = ".word", ".choices button"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run that was trained for 2 seconds, which is enough to know these words."""
    folder = tmp_path_factory.mktemp("words")
    draw = random.Random(1)
    for name, count in (("train", 1500), ("valid", 20)):
        pairs = [[draw.choice(slot).split() for slot in SLOTS] for _ in range(count)]
        lines = ["\t".join(map(" ".join, zip(*pair, strict=True))) for pair in pairs]
        (folder / f"{name}.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    sizes = dict(d_model=32, heads=2, encoder_layers=1, decoder_layers=2, d_ff=48)
    steps = dict(batch_tokens=256, learning_rate=1e-2, warmup=20, max_updates=80, validate_every=80, average=1)
    settings = TrainConfig(
        **{**sizes, **steps, "source": folder / "train.tsv", "valid_source": folder / "valid.tsv"},
        **dict(out=folder / "words", tokenizer="word", preset="small", metric="chrf", score_pairs=5),
        **dict(precision="float32", device="cpu"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # with it a training takes half the time
        patch.setattr(progress, "draw_curves", Mock())  # which takes as long as the updates
        train(settings)
    return folder / "words"


@pytest.fixture(scope="module")
def live(run, served) -> Iterator[Any]:
    """A server of this run."""
    settings = dict(languages=(f"{run}=en-de",), device="cpu", precision="float32", threads=1)
    with served(ServeConfig(run=(run,), **settings)) as started:
        yield started


@pytest.fixture(scope="module")
def address(live) -> str:
    """Where it is."""
    return f"http://127.0.0.1:{live.port}/"


class Tab:
    """A tab with the page, and what was asked and said in it."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(8000)
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        self.address = address

    def open(self) -> "Tab":
        self.page.goto(self.address)
        self.page.wait_for_selector(".pair select", state="attached")
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)

    def write(self, text: str) -> None:
        """Put a text in, without waiting for more of it, and wait until it is translated."""
        self.page.locator("#source").fill(text)
        self.page.evaluate("glassformer.write()")
        self.settled()

    def until(self, condition: str) -> None:
        """Wait for a condition. The policy of the page forbids Playwright's own way to do so."""
        for _ in range(160):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"this did not become true: {condition}")

    def settled(self) -> None:
        self.until(
            "(({ writer, source }) => !writer.waiting().length && source.text.replace(/\\n/g, '')"
            " === writer.sentences.map((one) => one.before + one.text + one.after).join(''))(glassformer)"
        )

    def look(self, word: int) -> str:
        """Click a word, and return what the page says of it."""
        self.page.locator(WORD).nth(word).click()
        return self.looked()

    def looked(self) -> str:
        self.until("document.querySelectorAll('.choices button').length > 2")
        for part in (".beside", ".readout"):  # two requests, either of which may be the later
            self.until(f"document.querySelector('{part}').getAttribute('aria-busy') === 'false'")
        self.until("document.querySelector('.ahead span.choice span') !== null")  # how the sentence goes on
        return plain(self.page.locator(".readout").inner_text())

    def words(self) -> list[str]:
        return self.page.locator(WORD).all_inner_texts()

    def check(self) -> None:
        """What the console says, and what is asked of other hosts, must be nothing."""
        assert self.said == []
        assert [url for url in self.asked if not url.startswith((self.address, "data:"))] == []


def plain(text: str) -> str:
    """Without the marks around a token that keep its direction to itself."""
    return text.translate({0x2068: None, 0x2069: None})


@pytest.fixture
def opened(browser, address) -> Iterator[Callable[..., Tab]]:
    """Opens the page in a fresh profile."""
    contexts: list[Any] = []
    tabs: list[Tab] = []

    def open_page(prepare: Callable[[Tab], None] = lambda tab: None, **settings: Any) -> Tab:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "locale": "en-GB", **settings})
        contexts.append(context)
        tab = Tab(context.new_page(), address)
        tabs.append(tab)
        prepare(tab)
        return tab.open()

    yield open_page
    for context in contexts:
        context.close()
    for tab in tabs:
        tab.check()


@pytest.fixture(scope="module")
def one_tab(browser, address) -> Iterator[Tab]:
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, locale="en-GB", permissions=["clipboard-read", "clipboard-write"]
    )
    yield Tab(context.new_page(), address).open()
    context.close()


@pytest.fixture
def tab(one_tab) -> Iterator[Tab]:
    """The page, empty, and knowing no translation. Opening it takes longer than most of what is done with it."""
    one_tab.evaluate("glassformer.chosen && glassformer.close(false)")
    one_tab.write("")
    one_tab.evaluate("glassformer.writer.results.clear()")
    one_tab.asked.clear()
    yield one_tab
    one_tab.check()


def test_lines_are_translated_in_order_and_only_new_ones_are_asked_for(tab):
    tab.write(f"{DOGS}\n\n   {MEN} ")
    first, empty, last = tab.locator(".line").all()
    assert first.inner_text().startswith(DOGS_SURE)
    assert empty.inner_text().strip() == ""
    assert last.text_content().startswith(f"   {MEN_SURE}")
    assert last.text_content().endswith(" ")
    assert tab.asked.count(f"{tab.address}v1/translate/stream") == 2
    tab.write(f"{DOGS}\n{MEN}\nthree old men sing now bank")
    assert tab.asked.count(f"{tab.address}v1/translate/stream") == 3
    tab.until("document.querySelector('[role=status]').textContent.split('\\n').length === 3")  # is read out
    tab.get_by_label("Clear the text").click()
    tab.until("!document.querySelector('.word')")


def test_sentences_of_a_line_are_translated_apart_and_stand_in_it_together(tab):
    tab.write(f"{DOGS}。{MEN}\n{MEN}")
    first, last = tab.locator(".line").all()
    assert re.fullmatch(rf"{DOGS_SURE} \S+ {MEN_SURE} \S+", first.inner_text()), first.inner_text()
    assert last.inner_text().startswith(MEN_SURE)
    assert tab.asked.count(f"{tab.address}v1/translate/stream") == 2, "a sentence that is there twice is asked for once"
    copied = tab.evaluate("glassformer.writer.text")
    assert copied.split("\n") == [first.inner_text(), last.inner_text()]

    focused = tab.locator(WORD).nth(8)
    tab.look(8)
    lit = tab.locator(".under .heat").all_inner_texts()
    assert set(lit) <= set(MEN.split()), "the words of the second sentence take colour where they stand"
    before = tab.evaluate(
        "document.querySelector('.under').textContent.indexOf(document.querySelector('.heat').textContent)"
    )
    assert before >= len(DOGS)
    assert focused.get_attribute("aria-pressed") == "true"
    tab.keyboard.press("Escape")

    tab.write(f"{DOGS}。three old men sing now bank\n{MEN}")
    assert tab.asked.count(f"{tab.address}v1/translate/stream") == 3, "the other sentences are known"
    tab.locator("#source").press("Control+Home")
    tab.get_by_role("button", name="Other translations").click()
    tab.until("document.querySelectorAll('.choices button').length === 5")
    assert tab.evaluate("glassformer.chosen.sentence") == 0, "the caret is in the first"
    tab.keyboard.press("Escape")
    tab.locator("#source").press("Control+Home")
    tab.locator("#source").press("End")
    tab.get_by_role("button", name="Other translations").click()
    tab.until("glassformer.chosen?.sentence === 1")


def test_what_is_in_focus_stays_so_while_the_next_sentence_is_written(tab):
    tab.write(f"{DOGS}。")
    tab.locator(WORD).nth(1).focus()
    tab.evaluate("window.focused = document.activeElement")
    tab.evaluate(SLOWLY)
    tab.evaluate(f"glassformer.source.text = {f'{DOGS}。{MEN}'!r}; glassformer.write()")
    tab.settled()
    tab.evaluate("restore()")
    assert tab.locator(".line").inner_text().count(" ") > 10
    assert tab.evaluate("document.activeElement === focused && focused.isConnected")


@pytest.fixture
def three_runs(tab) -> Iterator[Tab]:
    """The page of a server that has two more runs. What they translate is their name."""

    def add(route: Any) -> None:
        answer = route.fetch().json()
        (known,) = answer["runs"]
        back = {"run": "back", "source": "de", "target": "en", "source_name": "German", "target_name": "English"}
        french = {"run": "french", "target": "fr", "target_name": "French"}
        route.fulfill(json={**answer, "runs": [known, known | back, known | french]})

    def translate(route: Any) -> None:
        wanted = route.request.post_data_json
        if wanted["run"] == "words":
            route.fallback()
            return
        name = wanted["run"]
        word = {"text": name, "start": 0, "end": len(name), "first": 0, "last": 1, "probability": 1}
        made = {"text": name, "score": 0, "probability": 1, "pieces": [{"piece": name, "probability": 1}]}
        done = {"lines": [{"source_pieces": [wanted["q"]], "translations": [{**made, "words": [word]}]}]}
        route.fulfill(content_type="text/event-stream", body=f"event: done\ndata: {json.dumps(done)}\n\n")

    tab.route("**/v1/runs", add)
    tab.route("**/v1/translate/stream", translate)
    yield tab.open()
    tab.unroute_all()
    tab.evaluate("localStorage.clear()")
    tab.open()


def test_languages_are_chosen_and_swapped(three_runs):
    tab = three_runs
    names = {one: tab.locator(f"select[name={one}] option").all_inner_texts() for one in ("from", "to")}
    assert names == {"from": ["English", "German"], "to": ["German", "French"]}
    tab.write(DOGS)
    german = tab.locator(".line").inner_text()
    tab.get_by_label("Translate to").select_option("French")
    tab.settled()
    assert tab.words() == ["french"]
    assert tab.get_by_label("Swap the languages").is_disabled()
    tab.get_by_label("Translate to").select_option("German")
    tab.settled()
    tab.get_by_label("Swap the languages").click()
    tab.settled()
    assert tab.locator("#source").input_value() == german
    assert tab.words() == ["back"]
    assert tab.evaluate("glassformer.source.field.lang") == "de"
    assert tab.locator(".written").get_attribute("lang") == "en"


def test_the_translation_is_copied_with_its_lines(tab):
    tab.write(f"{DOGS}\n\n  {MEN}")
    tab.get_by_text("Copy").click()
    tab.get_by_text("Copied").first.wait_for()
    first, empty, last = tab.evaluate("navigator.clipboard.readText()").split("\n")
    assert (first.startswith(DOGS_SURE), empty, last.startswith(f"  {MEN_SURE}")) == (True, "", True)


def test_a_word_that_is_unsure_is_underlined_and_says_so(tab):
    tab.write(DOGS)
    marked = [[name in word.get_attribute("class") for name in ("unsure", "very")] for word in tab.locator(WORD).all()]
    assert marked[:5] == [[False, False]] * 5
    last = tab.locator(WORD).last
    share = float(last.get_attribute("title").removesuffix(" %"))
    assert marked[5] == [share < 50, share < 25]
    assert share < 75
    other = "Ufer" if last.inner_text() == "Bank" else "Bank"
    tab.look(5)
    assert tab.locator(".choices b").all_inner_texts()[:2] == [last.inner_text(), other]


def test_the_hint_says_what_the_underlined_share_is(tab):
    """Where the run has a calibration, words are underlined by how likely they are right."""
    tab.write(DOGS)
    doubt = """(name) => {
        for (const [key, result] of glassformer.writer.results)
            glassformer.writer.results.set(key, {
                ...result, words: result.words.map((word) => ({ ...word, [name]: 0.3 })),
            });
        glassformer.target.draw();
    }"""
    hint = tab.locator(".target .says")
    tab.evaluate(doubt, "probability")
    assert hint.inner_text().endswith("The model gave underlined words less than 50 %.")
    tab.evaluate(doubt, "right")
    assert hint.inner_text().endswith(
        "Underlined words are right with a probability below 50 %, as held-out text has shown."
    )


def test_a_word_shows_where_the_model_looked(tab, run):
    tab.write(DOGS)
    said = tab.look(2)
    seen = Translator.load(run, "cpu", "float32").translations(
        [DOGS], SearchConfig(beam=1), attention=Want(weights=True)
    )
    state = tab.evaluate("glassformer.glass.state")
    layer, head = int(state["at"].split(".")[1]), state["head"]
    row = seen[0].attention.source[layer].weights[0, head, 2]
    best = int(row.argmax())
    token, share = re.match(r"“Hunde” looks at “(.+?)” ([\d.]+) %", said).groups()
    assert token == [*DOGS.split(), "</s>"][best]
    assert float(share) / 100 == pytest.approx(float(row[best]), rel=0.05)
    assert tab.locator(".under .heat").all_inner_texts() == DOGS.split()
    assert tab.locator(".heads .cell").count() == 4
    before = tab.locator(".map").screenshot()
    tab.locator('.cell[aria-pressed="false"]').first.click()
    assert tab.locator(".map").screenshot() != before
    assert plain(tab.locator(".readout").inner_text()) != said
    tab.evaluate("glassformer.source.field.setSelectionRange(9, 9); glassformer.pointed(9)")  # in the word dogs
    assert plain(tab.locator(".readout").inner_text()).startswith("“dogs” is looked at by “")
    assert tab.locator(f"{WORD}.heat").count() == 6
    assert tab.locator(".under .chosen").inner_text() == "dogs"


def test_the_map_of_a_translation_ends_with_its_own_last_piece(tab):
    """Also where the search would go on: after `▁zwei` a model of six words finds no `</s>`."""
    ends = [{"piece": "▁zwei"}, {"piece": "</s>"}]
    queries, *sizes = tab.evaluate(
        "([q, pieces]) => glassformer.api.attention({ q, pieces, run: 'words' })"
        ".then(({ hypotheses: [{ axes, views }] }) => [axes.next, ...views.map(({ sizes }) => sizes)])",
        [DOGS, ends],
    )
    assert queries == ["▁zwei", "</s>"]
    assert sizes == [[2, 7], [2, 7]]


def test_what_is_drawn_while_a_word_is_looked_at_moves_nothing(tab):
    tab.write("\n".join([DOGS] * 60))
    said = tab.look(2)
    tab.evaluate("glassformer.source.paper.scrollTop = 400")
    tab.evaluate(
        "new MutationObserver(() => (document.changed = true)).observe(glassformer.glass.readout, {childList: true})"
    )
    tab.evaluate("glassformer.draw()")
    assert tab.evaluate("glassformer.source.paper.scrollTop") == 400
    assert tab.evaluate("new Promise((done) => setTimeout(() => done(document.changed ?? false), 50))") is False
    assert plain(tab.locator(".readout").inner_text()) == said
    assert tab.locator(".under .heat").count() == 6
    tab.locator(WORD).nth(3).click()
    tab.until("glassformer.source.paper.scrollTop === 0")


def test_the_caret_shows_what_looks_at_its_word(tab):
    tab.write(DOGS)
    tab.look(2)
    tab.evaluate("glassformer.source.field.setSelectionRange(3, 3)")
    tab.locator("#source").press("ArrowRight")
    assert plain(tab.locator(".readout").inner_text()).startswith("“old” is looked at by “")
    tab.evaluate("glassformer.glass.sourceWords = [{start: 0, end: 4, first: 0}, {start: 4, end: 7, first: 1}]")
    for place, token in ((3, 0), (4, 1), (7, 1)):  # words without spaces between them
        tab.evaluate(f"glassformer.pointed({place})")
        assert tab.evaluate("glassformer.glass.state.token") == token
    tab.evaluate("glassformer.glass.take(glassformer.glass.result, glassformer.glass.data)")


def test_figures_of_a_run_that_is_being_loaded_come_later(tab):
    tab.evaluate("glassformer.run = {...glassformer.run, ready: false, parameters: 0, precision: ''}")
    tab.evaluate("glassformer.draw()")
    facts = tab.locator("footer p").inner_text
    assert facts() == "words: 1 + 2 layers, 2 heads"
    tab.write(MEN)
    tab.until("glassformer.run.ready")
    assert re.fullmatch(r"words: [\d,]+ parameters, 1 \+ 2 layers, 2 heads, float32", facts())


def test_the_end_of_the_translation_stays_chosen_in_the_other_language(tab):
    tab.write(DOGS)
    tab.look(2)
    end = tab.evaluate("glassformer.glass.tokens('from').length - 1")
    tab.evaluate(f"glassformer.glass.choose({{side: 'from', token: {end}}})")
    tab.looked()
    for name in ("中文", "English"):
        tab.get_by_text(name, exact=True).click()
        tab.looked()
        assert tab.evaluate("[glassformer.figures.hidden, glassformer.glass.state.token]") == [False, end]


def test_another_word_is_chosen_and_the_translation_goes_on_from_it(tab):
    tab.write(f"{MEN}\n{DOGS}")
    tab.look(8)
    shares = [float(share.removesuffix(" %")) for share in tab.locator(".percent").all_inner_texts()]
    assert shares == sorted(shares, reverse=True)
    assert tab.locator(f'{CHOICE}[aria-current="true"]').inner_text().startswith("Hunde")
    tab.locator(CHOICE, has_text="Männer").click()
    tab.until("glassformer.target.word(1, 2).innerText === 'Männer'")
    assert tab.words()[:2] == MEN_SURE.split()[:2]
    assert tab.words()[6:9] == ["zwei", "alte", "Männer"]
    assert tab.looked().startswith("“Männer” looks at ")
    tab.keyboard.press("Escape")
    tab.get_by_text("Undo").click()
    assert tab.words()[6:9] == ["zwei", "alte", "Hunde"]
    assert not tab.locator(".panel").is_visible()
    assert not tab.get_by_text("Undo").is_visible()


def test_the_end_is_a_choice_that_nothing_can_follow(tab):
    tab.write(MEN)
    end = tab.locator(".choices button", has_text="(end)")
    for word in range(len(tab.words())):
        tab.look(word)
        if end.count():
            break
    assert end.is_disabled()
    assert end.locator(".percent").inner_text().endswith(" %")
    assert tab.locator(f"{CHOICE}:disabled").count() == 1
    tab.locator(CHOICE).first.focus()
    tab.keyboard.press("End")
    assert tab.evaluate("document.activeElement.matches('.choices button:not(:disabled)')")


@contextmanager
def late(tab: Tab, path: str, wanted: str | None = None) -> Iterator[list[Any]]:
    """Hold back what a path is asked for, or those requests that have this field, until the end. Gives what is held."""
    held: list[Any] = []

    def hold(route: Any) -> None:
        if wanted is None or route.request.post_data_json.get(wanted):
            held.append(route)
        else:
            route.fallback()

    tab.route(path, hold)
    yield held
    for route in held:
        route.continue_()
    tab.unroute(path, hold)


FAILED = "Failed to load resource: the server responded with a status of {} (Internal Server Error)"
BUSY = "document.querySelector('{}').getAttribute('aria-busy') === '{}'"


@pytest.mark.parametrize("others", [False, True])
def test_attention_that_comes_late_changes_nothing_else(tab, others):
    tab.write(f"{MEN}\n{DOGS}")
    tab.look(1)  # these maps stay until those of the other line are there
    with late(tab, "**/v1/translate", "attention") as held:
        tab.locator(WORD).nth(8).click()
        tab.until(BUSY.format(".beside", "false"))
        assert len(held) == 1
        tab.evaluate("glassformer.pointed(0)")  # the caret, and the maps, are of the other line
        tab.locator(".cell").first.click()
        assert tab.evaluate("glassformer.chosen.word") == 2
        assert tab.locator(".under .chosen").count() == 0
        if others:
            tab.get_by_role("button", name="Other translations").click()
            tab.until("document.querySelectorAll('.choices button').length === 5")
        else:
            tab.keyboard.press("Escape")
    tab.until("glassformer.writer.results.get(glassformer.writer.sentences[1].key).attention.then(() => true)")
    assert tab.locator(".looked").is_visible() is False
    if others:
        assert tab.locator(".beside").inner_text().startswith("Other translations")
    else:
        assert tab.evaluate("glassformer.chosen") is None
    assert tab.look(8).startswith("“Hunde” looks at ")


def test_the_words_to_choose_from_are_those_of_the_word_that_is_looked_at(tab):
    tab.write(f"{MEN}\n{DOGS}")
    tab.look(1)
    before = tab.words()
    with late(tab, "**/v1/alternatives"):
        tab.locator(WORD).nth(8).click()
        tab.locator(CHOICE).nth(1).click()  # of the other line, until its own are there
    tab.looked()
    assert tab.words() == before
    assert tab.locator(f'{CHOICE}[aria-current="true"]').inner_text().startswith("Hunde")


def test_a_word_that_is_taken_late_goes_where_it_belongs_and_takes_no_focus(tab):
    tab.write(f"{DOGS}\n{MEN}\n{DOGS}")
    with late(tab, "**/v1/translate", "prefixes") as held:
        tab.locator(WORD).nth(14).click()
        tab.locator(CHOICE, has_text="Männer").click()
        tab.until("Boolean(glassformer.taking)")
        tab.wait_for_timeout(100)
        assert len(held) == 3  # attention, how it goes on after each word, and after that which was taken
    tab.until("glassformer.target.word(2, 2).innerText === 'Männer'")
    assert tab.evaluate("glassformer.chosen.sentence") == 2
    tab.get_by_text("Undo").click()
    with late(tab, "**/v1/translate", "prefixes"):
        tab.locator(WORD).nth(14).click()
        tab.locator(CHOICE, has_text="Männer").click()
        tab.keyboard.press("Escape")
        tab.locator("#source").focus()
    tab.until("glassformer.target.word(2, 2).innerText === 'Männer'")
    assert not tab.locator(".panel").is_visible()
    assert tab.evaluate("document.activeElement.id") == "source"


def test_a_look_that_fails_leaves_nothing_of_another(tab):
    tab.write(f"{MEN}\n{DOGS}")
    tab.look(1)
    failing = dict(status=500, json={"error": "it failed", "code": "failed"})
    for path in ("**/v1/alternatives", "**/v1/translate"):
        tab.route(path, lambda route: route.fulfill(**failing))
    tab.locator(WORD).nth(8).click()
    tab.wait_for_selector(".notice:not([hidden])")
    tab.until(BUSY.format(".beside", "false"))
    assert tab.locator(CHOICE).count() == 0
    tab.until("document.querySelector('.looked').hidden")
    tab.unroute_all()
    tab.get_by_role("button", name="Try again").click()
    assert tab.looked().startswith("“Hunde” looks at ")
    assert {tab.said.pop(), tab.said.pop()} == {FAILED.format(500)}


def test_maps_take_the_theme_while_they_are_hidden_and_wait_for_the_first_attention(opened):
    tab = opened()
    tab.write(f"{MEN}\n{DOGS}")
    with late(tab, "**/v1/translate", "attention"):
        tab.locator(WORD).nth(1).click()
        tab.until(BUSY.format(".beside", "false"))
        assert tab.locator(".cross").is_hidden()
    tab.looked()
    tab.keyboard.press("Escape")
    tab.get_by_text("Dark").click()
    with late(tab, "**/v1/translate", "attention"):
        tab.locator(WORD).nth(8).click()
        tab.locator(".cross").hover()
        tab.locator(".cell").first.click()
    assert tab.looked().startswith("“Hunde” looks at ")


def test_what_was_typed_is_not_lost_when_the_languages_are_swapped(three_runs):
    tab = three_runs
    tab.write(DOGS)
    tab.locator("#source").fill(MEN)
    tab.get_by_label("Swap the languages").click()
    assert tab.locator("#source").input_value() == MEN


def test_arrow_keys_follow_the_script_and_leave_the_browser_its_own(tab):
    tab.write(DOGS)
    tab.evaluate("document.querySelector('.line').dir = 'rtl'")
    tab.locator(WORD).first.focus()
    tab.keyboard.press("ArrowLeft")
    assert tab.evaluate("document.activeElement.innerText") == "alte"
    tab.keyboard.press("Shift+ArrowRight")
    assert tab.evaluate("document.activeElement.innerText") == "alte"
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("document.activeElement.innerText") == "zwei"
    tab.evaluate("document.querySelector('.line').dir = 'auto'")


def test_a_browser_without_a_segmenter_shows_the_same(opened):
    tab = opened(lambda tab: tab.add_init_script("delete Intl.Segmenter"))
    tab.write(DOGS)
    assert tab.evaluate("Intl.Segmenter === undefined")
    assert tab.look(2).startswith("“Hunde” looks at ")


def test_other_translations_are_there_when_asked_for(tab):
    tab.write(f"{MEN}\n{DOGS}")  # the caret is in the last line
    best = tab.locator(".line").last.inner_text()
    tab.get_by_role("button", name="Other translations").click()
    tab.until("document.querySelectorAll('.choices button').length === 5")
    others = [row.inner_text() for row in tab.locator(".choice").all()]
    assert len({*others, best}) == 5
    tab.locator(CHOICE).nth(others.index(next(other for other in others if other != best))).click()
    assert tab.locator(".line").last.inner_text() in others
    assert tab.locator(".line").last.inner_text() != best
    assert tab.words()[:5] == MEN_SURE.split()


def test_the_keyboard_does_it_all(tab):
    focused = "document.activeElement.innerText || document.activeElement.tagName"
    tab.locator("#source").focus()
    tab.keyboard.type(DOGS)
    tab.settled()
    tab.keyboard.press("Tab")  # the button that clears the text
    tab.keyboard.press("Tab")
    assert tab.evaluate(focused) == "zwei"
    outline = "getComputedStyle(document.activeElement).outline"
    assert "solid 2px" in tab.evaluate(outline)  # 2.5 as this screen rounds it
    for key in ("End", "ArrowLeft", "Home", "ArrowRight", "ArrowRight"):
        tab.keyboard.press(key)
    assert tab.evaluate(focused) == "Hunde"
    tab.keyboard.press("Enter")
    tab.looked()
    while "choices" not in tab.evaluate("document.activeElement.closest('ol')?.className ?? ''"):
        tab.keyboard.press("Tab")
    assert tab.evaluate(focused).startswith("Hunde")
    tab.keyboard.press("ArrowDown")
    assert "solid 2px" in tab.evaluate(outline)
    chosen = tab.evaluate("document.activeElement.querySelector('b').innerText")
    tab.keyboard.press("Enter")
    tab.until(f"document.activeElement.innerText === {json.dumps(chosen)}")
    tab.looked()
    reached = set()
    for _ in range(12):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("document.activeElement.className || document.activeElement.tagName"))
    assert {"cell", "cross", "close"} <= reached
    tab.locator(".close").focus()
    tab.keyboard.press("Escape")
    assert not tab.locator(".panel").is_visible()
    assert tab.evaluate(focused) == chosen
    tab.look(2)
    tab.locator("#source").focus()
    tab.keyboard.press("Escape")
    assert not tab.locator(".panel").is_visible()
    assert tab.evaluate("document.activeElement.id") == "source", "who is typing goes on"


def test_it_fits_a_phone(opened):
    tab = opened(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    tab.write(f"{DOGS}\n" + "dogs" * 40)
    tab.locator(WORD).nth(2).tap()
    tab.looked()
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    boxes = [tab.locator(one).bounding_box() for one in (".pane >> nth=0", ".pane >> nth=1", ".panel")]
    assert all(above["y"] + above["height"] <= below["y"] for above, below in pairwise(boxes))


def test_dark_and_chinese_follow_the_browser_and_can_be_changed(opened):
    tab = opened(color_scheme="dark", locale="zh-CN")
    assert tab.evaluate("document.documentElement.lang") == "zh"
    assert tab.locator("#source").get_attribute("placeholder") == "在此输入或粘贴文本"
    assert tab.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(16, 20, 28)"
    tab.write(DOGS)
    assert tab.look(2).startswith("“Hunde” 注视 “")
    assert tab.locator(".says").first.inner_text().startswith("点选一个词")
    tab.get_by_text("浅色").click()
    tab.get_by_text("English", exact=True).click()
    assert tab.looked().startswith("“Hunde” looks at “")  # what was shown is shown
    tab.open()
    assert tab.evaluate("[document.documentElement.lang, document.documentElement.dataset.theme]") == ["en", "light"]


def test_without_a_connection_it_says_so_and_goes_on_when_there_is_one(tab):
    tab.write(DOGS)
    tab.context.set_offline(True)
    tab.locator("#source").fill(f"{DOGS}\n{MEN}")
    tab.wait_for_selector(".notice:not([hidden])")
    assert tab.locator(".notice").inner_text().startswith("There is no connection to the server.")
    assert tab.words()[:5] == DOGS_SURE.split()
    tab.context.set_offline(False)
    tab.settled()
    assert tab.locator(".notice").is_hidden()
    assert [tab.said.pop()] == ["Failed to load resource: net::ERR_INTERNET_DISCONNECTED"]


def refuse_once(tab: Tab, status: int, code: str, **headers: str) -> None:
    """Refuse the next translation."""
    answer = dict(status=status, headers=headers, json={"error": "refused", "code": code})
    tab.route("**/v1/translate/stream", lambda route: route.fulfill(**answer), times=1)


@pytest.mark.parametrize(("status", "code"), [(429, "too_many"), (503, "busy")])
def test_it_waits_as_long_as_the_server_says(tab, status, code):
    refuse_once(tab, status, code, **{"Retry-After": "1"})
    tab.locator("#source").fill(DOGS)
    tab.wait_for_selector(".notice:not([hidden])")
    assert "Trying again in 1 s." in tab.locator(".notice").inner_text()
    tab.settled()
    assert tab.locator(".notice").is_hidden()
    assert tab.words()[:5] == DOGS_SURE.split()
    assert len(tab.said) == 1
    tab.said.clear()


def test_a_line_that_is_refused_says_why_and_the_others_are_translated(tab):
    refuse_once(tab, 400, "too_long")
    tab.write(f"{MEN}\n{DOGS}")
    assert tab.locator(".failure").inner_text().startswith("This sentence is too long")
    assert tab.words()[:5] == DOGS_SURE.split()
    assert tab.get_by_text("Try again").count() == 0
    tab.write("")
    refuse_once(tab, 503, "deadline")
    tab.write(f"{MEN}\n{DOGS}")
    assert tab.locator(".failure").inner_text().startswith("This sentence took too long")
    assert tab.words()[:5] == DOGS_SURE.split()
    tab.get_by_text("Try again").click()
    tab.settled()
    assert tab.words()[:5] == MEN_SURE.split()
    tab.said.clear()


@pytest.fixture
def guarded(live, beside, tmp_path) -> Iterator[tuple[Any, str]]:
    """A server with a key, and the key."""
    path = tmp_path / "keys.json"
    key = add_key(path, "alice")
    with beside(live, keys=path) as server:
        yield server, key


def test_who_has_a_key_signs_in_once_and_out(browser, guarded):
    server, key = guarded
    context = browser.new_context(locale="en-GB", viewport={"width": 360, "height": 640}, color_scheme="dark")
    tab = Tab(context.new_page(), f"http://127.0.0.1:{server.port}/")
    answer = tab.goto(tab.address)
    assert answer.status == 401
    assert tab.evaluate("document.title") == "Sign in"
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 28)", "its style is allowed"
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    tab.get_by_text("中文").click()
    assert tab.evaluate("[document.documentElement.lang, document.title]") == ["zh", "登录"]
    for given in ("wrong", key):  # with the keyboard alone: the field has the focus
        tab.keyboard.type(given)
        tab.keyboard.press("Enter")
        if given == "wrong":
            assert tab.get_by_role("alert").inner_text() == "密钥不正确。"
    tab.wait_for_selector(".pair select", state="attached")
    (cookie,) = context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"], cookie["expires"]) == (True, "Strict", False, -1)
    assert tab.evaluate("[document.cookie, sessionStorage.length, localStorage.length]") == ["", 0, 0]
    tab.write(DOGS)
    assert tab.words()[:5] == DOGS_SURE.split()
    tab.look(2)
    assert tab.goto(f"{tab.address}docs").status == 200
    tab.open()
    tab.said.clear()

    context.clear_cookies()  # as if the session had ended
    tab.locator("#source").fill(MEN)
    for given in ("wrong", key):
        tab.locator("#key").fill(given)
        tab.keyboard.press("Enter")
        if given == "wrong":
            tab.get_by_text("This key was not accepted").wait_for()
    tab.settled()
    assert tab.words()[:5] == MEN_SURE.split(), "what was typed is still there"
    assert tab.locator(".notice").is_hidden()
    tab.get_by_text("Sign out").click()
    tab.wait_for_selector("input[name=page]", state="attached")
    assert context.cookies() == []
    assert tab.goto(f"{tab.address}docs").status == 401
    tab.locator("#key").fill(key)
    tab.keyboard.press("Enter")
    tab.get_by_role("heading", name="glassformer").wait_for()
    assert tab.page.url == f"{tab.address}docs"
    assert {message for message in tab.said if "401" not in message} == set()
    context.close()


def test_a_link_from_another_site_leads_who_has_signed_in_to_the_page(browser, guarded):
    server, key = guarded
    context = browser.new_context(locale="en-GB")
    tab = Tab(context.new_page(), f"http://127.0.0.1:{server.port}/")
    tab.goto(tab.address)
    tab.locator("#key").fill(key)
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".pair select", state="attached")
    link = f'<a href="{tab.address}">the page</a>'
    tab.route("http://other.example/", lambda route: route.fulfill(content_type="text/html", body=link))
    tab.goto("http://other.example/")
    tab.get_by_text("the page").click()
    tab.wait_for_selector(".pair select", state="attached")
    assert tab.evaluate("document.title") == "glassformer · Translator"
    context.close()


def test_what_an_input_method_composes_is_translated_when_it_is_done(tab):
    tab.locator("#source").focus()
    method = tab.context.new_cdp_session(tab.page)
    method.send("Input.imeSetComposition", {"text": "two o", "selectionStart": 5, "selectionEnd": 5})
    tab.wait_for_timeout(500)
    assert f"{tab.address}v1/translate/stream" not in tab.asked
    method.send("Input.insertText", {"text": DOGS})
    tab.settled()
    assert tab.words()[:5] == DOGS_SURE.split()


def test_typing_on_ends_the_request_before(tab):
    ended = []

    def note(request: Any) -> None:
        ended.append(json.loads(request.post_data)["q"])

    tab.route("**/v1/translate/stream", lambda route: None, times=1)  # the first has no answer
    tab.on("requestfailed", note)
    tab.locator("#source").fill(MEN)
    tab.until("glassformer.writer.aborting")
    tab.write(DOGS)
    tab.remove_listener("requestfailed", note)
    assert ended[0] == MEN  # Chromium sometimes says the same of a stream that was read to its end
    assert tab.words()[:5] == DOGS_SURE.split()


SLOWLY = """() => {
    const fetched = window.fetch;
    window.restore = () => { window.fetch = fetched; };
    window.fetch = async (...asked) => {
        const answer = await fetched(...asked);
        if (!String(asked[0]).endsWith("stream")) return answer;
        const parts = (await answer.text()).split(/(?<=\\n\\n)/);
        const body = new ReadableStream({
            async pull(into) {
                await new Promise((go) => setTimeout(go, 20));
                if (!parts.length) return into.close();
                const bytes = new TextEncoder().encode(parts.shift());
                for (const byte of bytes) into.enqueue(Uint8Array.of(byte)); // letters of two bytes come apart
            },
        });
        return new Response(body);
    };
    window.seen = [];
    const note = () => seen.push(document.querySelector(".line")?.textContent ?? "");
    new MutationObserver(note).observe(document.querySelector(".written"), { childList: true, subtree: true });
}"""
"""Lets a stream come event after event, and notes what is written meanwhile."""


def test_it_is_written_while_it_comes(tab):
    tab.evaluate(SLOWLY)
    tab.write(MEN)
    tab.evaluate("restore()")
    assert {"drei", "drei große", "drei große Männer"} <= set(tab.evaluate("seen"))


def test_pieces_find_their_places_in_the_text(tab):
    cases = {
        "Café  déjà-vu.": ["▁Caf", "é", "▁déjà", "-", "vu", ".", "</s>"],
        "ＡＢＣ ﬁn": ["▁abc", "▁f", "in", "</s>"],  # changed by NFKC and lower case
        "我们爱🙂你": ["▁我们", "爱", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "你", "</s>"],
        "a b c": ["c", "</s>"],
        "élève": [*"e\u0301le\u0300ve", "</s>"],  # read in parts
        "한국 사람": [*"\u1112\u1161\u11ab\u1100\u116e\u11a8", "▁", *"\u1109\u1161\u1105\u1161\u11b7", "</s>"],
        "ΜΕΓΑΛΟΣ ΔΡΟΜΟΣ": ["▁μεγαλος", "▁δρομος", "</s>"],
        f"a {'天' * 43} cat.": ["▁a", "▁", "<unk>", "▁cat", ".", "</s>"],
        "မြန်မာနိုင်": ["▁မြန်", "မာ", "နိုင်", "</s>"],
    }
    base = tab.evaluate("document.querySelector('script').src.replace('serve/web/main.js', 'page/translator/')")
    find = f"([text, pieces]) => import('{base}align.js').then((module) => module.wordsOf(pieces, text))"
    found = [[one["text"] for one in tab.evaluate(find, [text, pieces])] for text, pieces in cases.items()]
    assert found == [
        ["Café", "déjà", "-", "vu", "."],
        ["ＡＢＣ", "ﬁn"],
        ["我们", "爱", "🙂", "你"],
        ["c"],
        ["élève"],
        ["한국", "사람"],
        ["ΜΕΓΑΛΟΣ", "ΔΡΟΜΟΣ"],
        ["a", "天" * 43, "cat", "."],
        ["မြန်", "မာ", "နိုင်"],
    ]
    (last,) = tab.evaluate(find, ["a b c", ["c", "</s>"]])
    assert last == {"text": "c", "start": 4, "end": 5, "first": 0, "last": 1}


def test_events_are_read_however_they_are_cut(tab):
    base = tab.evaluate("document.querySelector('script').src.replace('main.js', '')")
    text = ": hello\nevent: a\r\ndata: 1\r\ndata:2\r\n\r\ndata: ü\n\nevent: lost\ndata: no end"
    read = """async ([base, text, size]) => {
        const { readEvents } = await import(`${base}events.js`);
        const bytes = new TextEncoder().encode(text), found = [];
        const body = new ReadableStream({
            start(into) {
                for (let n = 0; n < bytes.length; n += size) into.enqueue(bytes.slice(n, n + size));
                into.close();
            },
        });
        for await (const event of readEvents(body)) found.push(event);
        return found;
    }"""
    for size in (1, 2, 3, 1000):
        assert tab.evaluate(read, [base, text, size]) == [["a", "1\n2"], ["message", "ü"]]
