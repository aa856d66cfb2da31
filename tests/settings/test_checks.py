import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from glassformer.errors import ConfigError
from glassformer.settings.checks import Choice, Count, Device, Natural, Number, Seed, Share, Whole, check_settings


@dataclass(kw_only=True)
class Settings:
    size: Count = 7
    extra: Natural = 0
    share: Share | None = None
    weight: Annotated[float | None, Number(at_least=0, less_than=math.inf, note="0 turns it off")] = 0
    rate: Annotated[float, Number(above=1e-6, less_than=1e6)] = 1
    limit: Annotated[int, Whole()] = 3
    seed: Seed = 1
    word: Annotated[str, "no rule", Choice("red", "blue")] = "red"
    device: Device = "cpu"
    plain_count: int = 5
    plain_number: float | None = None
    flag: bool = False
    name: str | None = None
    parts: tuple[str, ...] = ()
    path: Path | None = None
    paths: tuple[Path, ...] = ()
    either: Path | tuple[Path, ...] | None = None
    columns: tuple[str, str] | None = None
    anything: int | str = 3


REFUSED = {
    "size must be at least 1, got 0": dict(size=0),
    "size must be a whole number, at least 1, got '128'": dict(size="128"),
    "size must be a whole number, at least 1, got True": dict(size=True),
    "size must be a whole number, at least 1, got 7.0": dict(size=7.0),
    "size must be a whole number, at least 1, got None": dict(size=None),
    "size must be a whole number, at least 1, got nan": dict(size=math.nan),
    "extra must be at least 0, got -1": dict(extra=-1),
    "share must be at least 0 and at most 1, got 1.5": dict(share=1.5),
    "share must be at least 0 and at most 1, got nan": dict(share=math.nan),
    "share must be a number, at least 0 and at most 1, got 'half'": dict(share="half"),
    "share must be a number, at least 0 and at most 1, got False": dict(share=False),
    "weight must be at least 0 and finite (0 turns it off), got inf": dict(weight=math.inf),
    "weight must be at least 0 and finite (0 turns it off), got -1": dict(weight=-1),
    "rate must be above 1e-6 and less than 1e6, got 1e-06": dict(rate=1e-6),
    "rate must be above 1e-6 and less than 1e6, got 1000000": dict(rate=1000000),
    "limit must be a whole number, got 2.5": dict(limit=2.5),
    "seed must be at least 0 and less than 2^32, got 4294967296": dict(seed=1 << 32),
    "word must be one of red, blue, got 'red:1'": dict(word="red:1"),
    "word must be one of red, blue, got None": dict(word=None),
    "device must be one of auto, cpu, cuda, mps, got 'tpu'": dict(device="tpu"),
    "device must be one of auto, cpu, cuda, mps, got 0": dict(device=0),
    "plain_count must be a whole number, got 'five'": dict(plain_count="five"),
    "plain_number must be a number, got nan": dict(plain_number=math.nan),
    "flag must be True or False, got 1": dict(flag=1),
    "name must be text, got 7": dict(name=7),
    "path must be a path, got 7": dict(path=7),
    "path must be a path, got ['a']": dict(path=["a"]),
    "paths must be a path or a list of paths, got ['a', 3]": dict(paths=["a", 3]),
    "either must be a path or a list of paths, got 3": dict(either=3),
    "either must be a path or a list of paths, got []": dict(either=[]),
    "columns must be two names or numbers, such as ('en', 'de'), got 'en'": dict(columns="en"),
    "columns must be two names or numbers, such as ('en', 'de'), got ('en',)": dict(columns=("en",)),
    "columns must be two names or numbers, such as ('en', 'de'), got (1, True)": dict(columns=(1, True)),
}


@pytest.mark.parametrize(("message", "changes"), REFUSED.items(), ids=REFUSED)
def test_a_value_out_of_bounds_is_refused_with_what_was_expected(message: str, changes: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_settings(Settings(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        dict(size=1, extra=0, share=0, weight=0.0, rate=1.1e-6, seed=0),
        dict(share=1, weight=None, rate=999_999, seed=(1 << 32) - 1, device="cuda:1", word="blue"),
        dict(limit=-5, plain_count=-5, plain_number=-math.inf, name="", parts=7, anything=2.5),
    ],
)
def test_bounds_themselves_and_fields_without_a_rule_are_allowed(changes: dict[str, Any]):
    check_settings(Settings(**changes))


@pytest.mark.parametrize(
    ("name", "given", "own"),
    [
        ("size", np.int64(9), 9),
        ("rate", np.float64(0.5), 0.5),
        ("rate", np.int32(2), 2),
        ("share", Fraction(1, 4), 0.25),
        ("path", "a/b", Path("a/b")),
        ("paths", "a", (Path("a"),)),
        ("paths", ["a", Path("b")], (Path("a"), Path("b"))),
        ("either", "a", Path("a")),
        ("either", ["a"], Path("a")),
        ("either", ["a", Path("b")], (Path("a"), Path("b"))),
        ("columns", ["en", "de"], ("en", "de")),
        ("columns", (2, 3), ("2", "3")),
    ],
)
def test_what_is_given_in_another_form_is_put_into_the_fields_own(name, given, own):
    settings = Settings(**{name: given})
    check_settings(settings)
    found = getattr(settings, name)
    assert (type(found), found) == (type(own), own)
    assert json.loads(json.dumps(found, default=str)) is not None


def test_checks_load_no_torch():
    code = "import sys, glassformer.settings.checks; assert not {'torch', 'numpy', 'tyro'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
