"""The settings of the server, and the files of docs/ that start it with some of them."""

import re
import shlex
from pathlib import Path

import pytest

from glassformer.cli import COMMANDS
from glassformer.errors import ConfigError
from glassformer.serve.config import ServeConfig, is_loopback
from glassformer.settings.parser import parse

DOCS = Path(__file__).parents[2] / "docs"


def command(words: list[str]) -> ServeConfig:
    config, _ = parse(COMMANDS["serve"], words)
    config.check()
    return config


def test_defaults_are_those_of_the_page():
    page = (DOCS / "howto" / "serve.md").read_text(encoding="utf-8")
    table = page[page.index("## Limits") : page.index("## How it works")]
    said = set(re.findall(r"`(--[a-z-]+)`", table))
    headings = {f"--{name}" for name in ("max-queue", "deadline-seconds", "slow-seconds", "drain-seconds", "max-jobs")}
    assert headings <= said <= {argument.flag for argument in COMMANDS["serve"].arguments.values()}
    config = ServeConfig(run=(Path("run"),))
    numbers = {
        **{"128 lines": config.max_lines, "5,000 characters": config.max_line_chars, "50,000 a": config.max_chars},
        **{"10, 5, 256": (config.max_beam, config.max_n_best, config.max_length), "1,024": config.max_source_tokens},
        **{"100 requests": config.max_queue, "30 s": config.deadline_seconds, "512": config.max_connections},
        **{"100 header": config.max_headers, "60 s to": config.slow_seconds, "5 s between": config.keep_alive_seconds},
        **{"1,000,000": config.max_chars_per_minute, "20 jobs": config.max_jobs, "25 s": config.drain_seconds},
        **{"60 wrong keys": config.max_sign_ins_per_minute, "12 hours": config.session_hours},
    }
    for text, value in numbers.items():
        assert text in table
        first = value[0] if isinstance(value, tuple) else value
        assert f"{first:,.0f}" in text
    assert config.max_body_bytes == 1 << 20
    assert config.max_file_bytes == 8 << 20


def test_only_this_machine_reaches_it_without_keys():
    for host in ("127.0.0.1", "127.0.0.9", "::1", "[::1]", "localhost"):
        assert is_loopback(host)
        ServeConfig(run=(Path("run"),), host=host).check()
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        assert not is_loopback(host)
        with pytest.raises(ConfigError, match=r"^host must be an address of this machine alone"):
            ServeConfig(run=(Path("run"),), host=host).check()
        ServeConfig(run=(Path("run"),), host=host, keys=Path("keys.json")).check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"cors_origin": ("example.org",)},
            "cors_origin must be an origin such as https://example.org, got 'example.org'",
        ),
        ({"cors_origin": ("https://example.org/a",)}, "cors_origin must be an origin"),
        (
            {"allow_host": ("http://example.org",)},
            "allow_host must be a name alone, such as translate.example.org, got",
        ),
        ({"allow_host": ("example.org:8000",)}, "allow_host must be a name alone"),
        ({"max_n_best": 11}, "max_n_best must be at most max_beam"),
    ],
)
def test_settings_that_can_never_work_are_said(changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        ServeConfig(run=(Path("run"),), **changes).check()
    good = dict(cors_origin=("https://example.org", "http://localhost:3000"), allow_host=("a.example.org", "[::1]"))
    ServeConfig(run=(Path("run"),), **good).check()


def test_the_unit_and_the_container_start_it():
    unit = (DOCS / "serve" / "glassformer.service").read_text(encoding="utf-8")
    program, *words = shlex.split(re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1])
    assert program.endswith("/glassformer")
    assert words.pop(0) == "serve"
    config = command(words)
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[1]) > config.drain_seconds + 5
    container = (DOCS / "serve" / "Containerfile").read_text(encoding="utf-8")
    entry = re.findall(r'"([^"]*)"', re.search(r"^ENTRYPOINT (.*)$", container, re.MULTILINE)[1])
    assert entry[:2] == ["glassformer", "serve"]
    assert command([*entry[2:], "/runs/news"]).host == "0.0.0.0"
    proxy = (DOCS / "serve" / "nginx.conf").read_text(encoding="utf-8")
    assert f"client_max_body_size {config.max_file_bytes >> 20}m;" in proxy
    assert f"proxy_pass http://127.0.0.1:{config.port};" in proxy
    assert int(re.search(r"proxy_read_timeout (\d+)s", proxy)[1]) > config.deadline_seconds
