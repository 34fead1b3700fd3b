"""The whole rule behind a refusal, where vLLM's line names it.

"No common block size for 24 (CPU_ATTN: [MultipleOf(32)])" is about every size that is no multiple of 32, not about 24.

`named_rule` reads the line that a diagnosis matched, and gives a value that says which values keep the rule. Flags have
their names as on a command line. None where a line names no more than the point itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_BLOCK, _BATCHED, _SEQS, _LENGTH = "block-size", "max-num-batched-tokens", "max-num-seqs", "max-model-len"
_UTILIZATION = "gpu-memory-utilization"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that one attention backend takes: these, and multiples of those."""

    exact: tuple[int, ...] = ()
    multiples_of: tuple[int, ...] = ()

    def takes(self, size: int) -> bool:
        """Whether the backend's kernels run on blocks of this size."""
        return size in self.exact or any(size % base == 0 for base in self.multiples_of)


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """What the attention backends of a server take, all at once. `refused` is the size that was asked for."""

    backends: tuple[Sizes, ...]
    refused: int | None

    def allows(self, size: int) -> bool:
        """Whether a block of `size` works: it, or a smaller size that divides it, is one of every backend (vLLM's
        `select_common_block_size`)."""
        kernels = [size, *(one for sizes in self.backends for one in sizes.exact if size % one == 0)]
        return any(all(sizes.takes(one) for sizes in self.backends) for one in kernels)

    def __str__(self) -> str:
        words = []
        for sizes in self.backends:
            exact = [str(one) for one in sizes.exact]
            words.append(" or ".join([*exact, *(f"a multiple of {base}" for base in sizes.multiples_of)]))
        return f"block-size must be {' and '.join(words)}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """A flag that takes these values only."""

    flag: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.flag} must be one of {', '.join(self.values)}"


@dataclass(frozen=True, slots=True)
class Limit:
    """A flag with a bound of its own: `at_least` and `at_most` count as allowed, `below` and `above` do not.

    `flag` None: the line gives only the value that was refused, `refused`. `memory`: the bound is that of the memory
    this launch had, so it holds for launches with as little.
    """

    flag: str | None
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    refused: float | None = None
    memory: bool = False

    def allows(self, value: float) -> bool:
        """Whether a value keeps the bound."""
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        words = (("at least", self.at_least), ("at most", self.at_most), ("above", self.above), ("below", self.below))
        bounds = " and ".join(f"{word} {value:g}" for word, value in words if value is not None)
        return f"{self.flag or 'the flag'} must be {bounds}"


@dataclass(frozen=True, slots=True)
class NotBelow:
    """A flag that must be at least as large as another one."""

    flag: str
    other: str

    def __str__(self) -> str:
        return f"{self.flag} must be at least {self.other}"


@dataclass(frozen=True, slots=True)
class Divides:
    """A flag that must divide a number of the model."""

    flag: str
    number: int
    what: str

    def __str__(self) -> str:
        return f"{self.flag} must divide the {self.number} {self.what}"


@dataclass(frozen=True, slots=True)
class DevicesAtMost:
    """The product of the parallel sizes may be no more than there are devices."""

    devices: int

    def __str__(self) -> str:
        return f"tensor and pipeline parallelism may not ask for more than {self.devices} devices"


@dataclass(frozen=True, slots=True)
class Excluded:
    """One value of a flag that does not work, whatever the others are. None: the value of the launch it refused."""

    flag: str
    value: str | None

    def __str__(self) -> str:
        return f"{self.flag} {'of that size' if self.value is None else self.value} is not supported here"


@dataclass(frozen=True, slots=True)
class KvShortage:
    """Too little KV cache for one request of `max_model_len`. None: not said.

    Memory is per device, and below zero where nothing is left. `longest_tokens` is the longest request that would fit.
    """

    max_model_len: int | None
    needed_gib: float | None
    available_gib: float | None
    longest_tokens: int | None

    def __str__(self) -> str:
        longest = "" if self.longest_tokens is None else f": max-model-len {self.longest_tokens} would fit"
        request = "anything" if self.max_model_len is None else f"one request of {self.max_model_len} tokens"
        return f"the KV cache is too small for {request}{longest}"


NamedRule = BlockSizes | OneOf | Limit | NotBelow | Divides | DevicesAtMost | Excluded | KvShortage

_Read = Callable[[re.Match[str]], NamedRule | None]
_MULTIPLE = re.compile(r"MultipleOf\((?:base=)?(\d+)\)")
_BACKEND = re.compile(r"[\w.]+: \[([^\[\]]*)\]")
_QUOTES = " '\"`"


def named_rule(line: str) -> NamedRule | None:
    """The rule that a line of a refusal names, None where it names none."""
    for pattern, read in _LINES:
        if (match := pattern.search(line)) is not None and (found := read(match)) is not None:
            return found
    return None


def _common(match: re.Match[str]) -> NamedRule | None:
    backends = []
    for inside in _BACKEND.findall(match[2]):
        multiples = tuple(int(base) for base in _MULTIPLE.findall(inside))
        exact = tuple(int(one) for one in re.findall(r"(?<![\w(=])\d+", _MULTIPLE.sub("", inside)))
        backends.append(Sizes(exact, multiples))
    if not backends or any(not sizes.exact and not sizes.multiples_of for sizes in backends):
        return Excluded(_BLOCK, match[1])
    return BlockSizes(tuple(backends), int(match[1]))


def _multiple(match: re.Match[str]) -> NamedRule | None:
    base = int(match["base"])
    return None if base < 1 else BlockSizes((Sizes(multiples_of=(base,)),), None)


def _exact_sizes(match: re.Match[str]) -> NamedRule | None:
    sizes = tuple(int(one) for one in re.findall(r"\d+", match["sizes"]))
    return OneOf(_BLOCK, tuple(str(one) for one in sizes)) if sizes else None


def _choices(match: re.Match[str]) -> NamedRule:
    return OneOf(match[1].replace("_", "-"), tuple(one.strip(_QUOTES) for one in match[2].split(",")))


def _pydantic(match: re.Match[str]) -> NamedRule | None:
    """The field stands in another line: whoever knows the flags finds it by the value."""
    refused, bound = float(match["refused"]), float(match["bound"])
    return {
        "greater than or equal to": Limit(None, at_least=bound, refused=refused),
        "less than or equal to": Limit(None, at_most=bound, refused=refused),
        "greater than": Limit(None, above=bound, refused=refused),
        "less than": Limit(None, below=bound, refused=refused),
    }[match["how"]]


def _attention(match: re.Match[str]) -> NamedRule | None:
    """No backend takes the block size, and some backend has no other objection."""
    reasons = re.findall(r"\w+: \[([^\[\]]+)\]", match["reasons"])
    sole = any(all("block_size" in one for one in reason.split(", ")) for reason in reasons)
    return Excluded(_BLOCK, match["size"]) if sole else None


def _shortage(match: re.Match[str]) -> NamedRule:
    groups = match.groupdict()
    asked, longest = groups.get("asked"), groups.get("longest")
    return KvShortage(
        max_model_len=None if asked is None else int(asked),
        needed_gib=None if groups.get("needed") is None else float(groups["needed"]),
        available_gib=None if groups.get("left") is None else float(groups["left"]),
        longest_tokens=None if longest is None else int(longest),
    )


_LINES: tuple[tuple[re.Pattern[str], _Read], ...] = tuple(
    (re.compile(pattern), read)
    for pattern, read in (
        (r"No common block size for (\d+)(?: \((.+)\))?", lambda m: _common(m) if m[2] else Excluded(_BLOCK, m[1])),
        (r"[Bb]lock[_ ]size must be (?:a )?(?:multiple of|divisible by) (?P<base>\d+)", _multiple),
        (r"only supports? block sizes that are multiples of (?P<base>\d+)", _multiple),
        (r"only supports? block sizes up to (\d+)", lambda m: Limit(_BLOCK, at_most=float(m[1]))),
        (r"Invalid block[ _]size: \d+\. Must be one of \[(?P<sizes>[\d, ]+)\]", _exact_sizes),
        (r"by passing (?P<sizes>--block-size \d+(?: or --block-size \d+)*)", _exact_sizes),
        (r"argument --([\w-]+): invalid choice: .+? \(choose from (.+)\)", _choices),
        (r"Input should be (?P<sizes>\d+(?:, \d+)* or \d+) \[type=literal_error", _exact_sizes),
        (
            r"Input should be (?P<how>(?:greater|less) than(?: or equal to)?) (?P<bound>-?[\d.]+) \[type=\w+, "
            r"input_value=(?P<refused>-?\d+(?:\.\d+)?),",
            _pydantic,
        ),
        (r"max_num_batched_tokens \(\d+\) (?:must be greater than or equal to|is smaller than) max_num_seqs",
         lambda _: NotBelow(_BATCHED, _SEQS)),
        (r"max_num_batched_tokens \(\d+\) is smaller than max_model_len", lambda _: NotBelow(_BATCHED, _LENGTH)),
        (r"attention heads \((\d+)\) must be divisible by tensor parallel size",
         lambda m: Divides("tensor-parallel-size", int(m[1]), "attention heads")),
        (r"tensor parallel size \(\d+\) must evenly divide (\d+) attention heads",
         lambda m: Divides("tensor-parallel-size", int(m[1]), "attention heads")),
        (r"World size \(\d+\) is larger than the number of available GPUs \((\d+)\)",
         lambda m: DevicesAtMost(int(m[1])) if int(m[1]) else None),
        (r"User-specified max_model_len \(\d+\) is greater than the derived max_model_len \(\D*(\d+)",
         lambda m: Limit(_LENGTH, at_most=float(m[1]))),
        (r"GPU memory utilization must be less than (\d+(?:\.\d+)?)", lambda m: Limit(_UTILIZATION, below=float(m[1]))),
        (r"max_num_seqs \(\d+\) exceeds available Mamba cache blocks \((\d+)\)",
         lambda m: Limit(_SEQS, at_most=float(m[1]), memory=True)),
        (r"models?'s max seq len \((?P<asked>\d+)\), \((?P<needed>[\d.]+) Gi?B KV cache is needed.*?memory "
         r"\((?P<left>-?[\d.]+) Gi?B\)(?:.*?estimated maximum model length is (?P<longest>\d+))?", _shortage),
        (r"max seq len \((?P<asked>\d+)\) is larger than the maximum number of tokens that can be stored in KV cache "
         r"\((?P<longest>\d+)\)", _shortage),
        (r"requested memory for kv \((?P<left>-[\d.]+)/", _shortage),
        (r"Selected backend \S+ is not valid for this configuration\. Reason: \['block_size not supported'\]",
         lambda _: Excluded(_BLOCK, None)),
        (r"AttentionSelectorConfig\(.*?\bblock_size=(?P<size>\d+).*?Reasons: \{(?P<reasons>.+)\}", _attention),
        (r"Unsupported block size: (\d+)", lambda m: Excluded(_BLOCK, m[1])),
        (r"block_size (\d+) not supported by", lambda m: Excluded(_BLOCK, m[1])),
    )
)  # fmt: skip
