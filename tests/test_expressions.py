from __future__ import annotations

import pickle
import random

import pytest

from sweep.errors import ConfigError
from sweep.expressions import Constraint


@pytest.mark.parametrize(
    ("text", "flags", "expected"),
    [
        ("max-num-batched-tokens >= max-num-seqs", {"max-num-batched-tokens": 512, "max-num-seqs": 256}, True),
        ("max-num-batched-tokens >= max-num-seqs", {"max-num-batched-tokens": 128, "max-num-seqs": 256}, False),
        ("a - b == 1", {"a": 3, "b": 2}, True),
        ("a -b == 1", {"a": 3, "b": 2}, True),
        ("a-b == 1", {"a": 3, "b": 2, "a-b": 7}, False),
        ("2-a == -1", {"a": 3}, True),
        ("a + 2 * b % 4 - 1 == 6", {"a": 5, "b": 3}, True),
        ("(a + 2) * b == 21", {"a": 5, "b": 3}, True),
        ("a / 2 == 2.5 and a // 2 == 2", {"a": 5}, True),
        ("-a < - 4", {"a": 5}, True),
        ("10 - 3 - 2 == 5", {}, True),
        ("64 / 4 / 2 == 8", {}, True),
        ("8 <= a < b <= 256", {"a": 8, "b": 256}, True),
        ("8 <= a < b <= 256", {"a": 8, "b": 8}, False),
        ("a == 1 or b == 1 and a == 2", {"a": 1, "b": 0}, True),
        ("not a == 1 and b == 1", {"a": 2, "b": 1}, True),
        ("not (a == 1 and b == 1)", {"a": 1, "b": 1}, False),
        ("enable-chunked-prefill or a >= b", {"enable-chunked-prefill": True, "a": 1, "b": 2}, True),
        ("enable-chunked-prefill or a >= b", {"enable-chunked-prefill": False, "a": 1, "b": 2}, False),
        ("block-size in (16, 32)", {"block-size": 32}, True),
        ("block-size not in (16, 32,)", {"block-size": 32}, False),
        ("kv-cache-dtype != 'fp8' or a < 2", {"kv-cache-dtype": "fp8", "a": 2}, False),
        ('kv-cache-dtype == "auto"', {"kv-cache-dtype": "auto"}, True),
        ("a == true", {"a": True}, True),
        ("a == 1", {"a": True}, False),
        ("a == 1", {"a": 1.0}, True),
        ("a == 'x'", {"a": 1}, False),
        ("0.1 * 3 == a", {"a": 0.3}, True),
        ("a + b <= 0.9", {"a": 0.6, "b": 0.3}, True),
        ("a % 0.05 == 0", {"a": 0.85}, True),
        ("max_num_seqs > 4 and --max-num-seqs < 8", {"max-num-seqs": 6}, True),
        ("a >= 1e3", {"a": 1000}, True),
        ("a / b == 1", {"a": 1, "b": 0}, False),
    ],
)
def test_holds(text: str, flags: dict[str, int | float | bool | str], expected: bool) -> None:
    assert Constraint.parse(text).holds(flags) is expected


@pytest.mark.parametrize(
    ("text", "flags", "expected"),
    [
        ("a >= b", {"a": None, "b": 5}, True),
        ("a >= b", {"a": None}, True),
        ("not a >= b", {"a": 1, "b": None}, True),
        ("a + 1 > b and b == 1", {"a": None, "b": 1}, True),
        ("a + 1 > b and b == 1", {"a": None, "b": 2}, False),  # false whatever a turns out to be
        ("a > 1 or b == 1", {"a": None, "b": 2}, True),
        ("a != null or b <= 64", {"a": None, "b": 65}, False),
        ("a != null or b <= 64", {"a": 1, "b": 65}, True),
        ("a == null", {"a": None}, True),
        ("a == null", {"a": 3}, False),
        ("a in (1, null)", {"a": None}, True),
        ("a in (1, 2)", {"a": None}, True),
        ("a in (1, null)", {"a": 2}, False),
        ("1 < a < 3 < b", {"a": None, "b": 2}, False),
        ("switch", {"switch": None}, True),
    ],
)
def test_null_is_unknown_and_unknown_holds(text: str, flags: dict[str, int | None], expected: bool) -> None:
    assert Constraint.parse(text).holds(flags) is expected


def test_names() -> None:
    parsed = Constraint.parse("max_num_seqs * 2 <= --max-num-batched-tokens and not enforce-eager or true")
    assert parsed.names == {"max-num-seqs", "max-num-batched-tokens", "enforce-eager"}
    assert parsed.text.startswith("max_num_seqs")


def test_the_longest_known_name_wins() -> None:
    known = {"a", "a-b", "a-b-1", "c"}
    assert Constraint.parse("a-b-1 > 0", known).names == {"a-b-1"}
    assert Constraint.parse("a-b-2 > 0", known).names == {"a-b"}
    assert Constraint.parse("a-b-2 > 0", known).holds({"a-b": 3})
    assert Constraint.parse("a-c == 1", known).holds({"a": 3, "c": 2})
    assert Constraint.parse("a-d > 0", known).names == {"a", "d"}
    assert Constraint.parse("x-d > 0", known).names == {"x-d"}
    assert Constraint.parse("a-c > 0").names == {"a-c"}


@pytest.mark.parametrize(
    ("text", "column", "word"),
    [
        ("a >", 4, "the end"),
        ("", 1, "expected"),
        ("a = b", 3, "'=='"),
        ("a && b", 3, "'and'"),
        ("a || b", 3, "'or'"),
        ("!a", 1, "'not'"),
        ("a > 2 ** 9", 7, "power"),
        ("a > b)", 6, "')'"),
        ("(a > b", 7, "')'"),
        ("a > b c", 7, "'c'"),
        ("a --b > 1", 3, "'--b'"),
        ("a > 8k", 5, "8k"),
        ("a > $b", 5, "'$'"),
        ("a > 'x", 5, '"\'"'),
        ("a + 1", 1, "neither true nor false"),
        ("7", 1, "neither true nor false"),
        ("null", 1, "neither true nor false"),
        ("a > null", 9, "null"),
        ("a + null > 1", 10, "null"),
        ("a in 3", 6, "'('"),
        ("a in ()", 7, "')'"),
        ("and a", 1, "'and'"),
        ("a > 1e999999999", 5, "too long"),
        ("a > 1e-999999999", 5, "too long"),
        ("a > " + "9" * 60, 5, "too long"),
        ("__import__('os').system('true')", 1, "cannot be used"),
        ("a.b(1)", 4, "'('"),
        ("a[0] > 1", 2, "'['"),
    ],
)
def test_mistakes_are_one_line_with_the_column(text: str, column: int, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Constraint.parse(text)
    message = str(caught.value)
    assert f"column {column}:" in message
    assert word in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "flags", "word"),
    [
        ("a < b", {"a": "auto", "b": 1}, "a = 'auto' is not a number, as '<' needs$"),
        ("3 < b", {"b": "2k"}, "b = '2k' is not a number, as '<' needs; write the number in full and without quotes"),
        ("3 < 'x'", {}, ": 'x' is not a number"),
        ("a + 1 < 3", {"a": True}, "true is not a number"),
        ("a", {"a": 3}, "3 is neither true nor false"),
        ("a and b > 1", {"a": 3, "b": 2}, "3 is neither true nor false"),
        ("a == 1", {"a": [1]}, "a is list"),
        ("1e300 * 1e300 and a", {"a": True}, "a huge number is neither"),
    ],
)
def test_values_of_the_wrong_kind_are_the_users_mistake(text: str, flags: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        Constraint.parse(text).holds(flags)
    assert text in str(caught.value)


def test_numbers_that_are_not_finite_do_not_hold() -> None:
    assert not Constraint.parse("a < 1").holds({"a": float("nan")})
    assert not Constraint.parse("a > 1").holds({"a": float("inf")})


@pytest.mark.parametrize(
    "text", ["(" * 200 + "a" + ")" * 200, "not " * 200 + "a", "-" * 100 + "a > 1", "-+" * 99 + "1"]
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"deep|expected"):
        Constraint.parse(text)


def test_long_texts() -> None:
    assert Constraint.parse("+".join(["1"] * 480) + " == 480").holds({})
    assert Constraint.parse(" or ".join(["a > 1"] * 100)).holds({"a": 2})
    with pytest.raises(ConfigError, match="longer than"):
        Constraint.parse("a > 1 or " * 200 + "a > 1")


def test_any_text_parses_or_is_a_config_error() -> None:
    rng = random.Random(3)
    pieces = [
        "a",
        "b-c",
        " ",
        "-",
        "+",
        "(",
        ")",
        "<=",
        "==",
        "and ",
        "or ",
        "not ",
        "in ",
        "1",
        "0.5",
        "'x'",
        "null",
        ",",
    ]
    parsed, messages = 0, []
    for _ in range(3000):
        text = "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 12)))
        try:
            Constraint.parse(text).holds({"a": 1, "b-c": 0.5})
            parsed += 1
        except ConfigError as error:
            messages.append(str(error))
    assert parsed > 20
    assert messages
    assert not any("\n" in message for message in messages)


def test_constraints_travel_to_other_processes() -> None:
    copy = pickle.loads(pickle.dumps(Constraint.parse("a >= b and not c in (1, null)")))
    assert copy.holds({"a": 2, "b": 1, "c": 2})
    assert not copy.holds({"a": 0, "b": 1, "c": 2})
