"""What a study file may say. Frozen models; every key described; unknown keys are refused.

The descriptions are what the table of keys in docs/study-file.md is made of.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from sweep.config.mistakes import Mistake, shown
from sweep.errors import ConfigError
from sweep.expressions import Constraint
from sweep.trial import Flag

FlagValue = Flag | list[Any] | dict[str, Any]
Words = tuple[str, ...]

# Beyond it a float no longer tells whole numbers apart, and no flag goes there.
_LARGEST = 2**53

MOST_TRIALS = 100_000
_LOCAL_RESULTS = "results"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DURATION = re.compile(r"^(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?$")


def parse_duration_s(text: object) -> float:
    """Seconds of "8h", "1h30m", "90m", "45s" or a plain number. Raises ValueError for anything else."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        seconds = float(text)
    else:
        match = _DURATION.match(str(text).strip().lower())
        if match is None or not any(match.groups()):
            raise ValueError(f"{text!r} is not a duration; write 8h, 90m, 1h30m or seconds")
        hours, minutes, rest = (float(part or 0) for part in match.groups())
        seconds = hours * 3600 + minutes * 60 + rest
    if not 0 < seconds < float("inf"):
        raise ValueError("a duration must be above zero")
    return seconds


def _spelled_flags(value: object) -> object:
    """Flag names as vLLM prints them: hyphens, no leading dashes. Two spellings of one flag are refused."""
    value = _nothing_is_empty(value)
    if not isinstance(value, dict):
        return value
    flags: dict[str, Any] = {}
    for key, item in value.items():
        name = str(key).lstrip("-").replace("_", "-")
        if name in flags:
            raise Mistake(f"is set twice, in two spellings of {name}; keep one", str(key))
        if not name:
            raise Mistake("is no name of a flag", str(key))
        flags[name] = item
    return flags


def _nothing_is_empty(value: object) -> object:
    """A mapping whose entries are all commented out is an empty one."""
    return {} if value is None else value


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; fill it in or leave it out")
    return text


def _text_values(value: object) -> object:
    """Environment values as text: YAML turns 1 and true into numbers and booleans."""
    value = _nothing_is_empty(value)
    if not isinstance(value, dict):
        return value
    texts = {}
    for key, item in value.items():
        name = str(key)
        if not name or "=" in name or "\0" in f"{name}{item}":
            raise Mistake(f"{name!r} cannot be the name or value of an environment variable", str(key))
        if item is None or isinstance(item, (list, dict)):
            raise Mistake("needs a text or number; write an empty one as ''", str(key))
        texts[name] = str(int(item)) if isinstance(item, bool) else str(item)
    return texts


Duration = Annotated[float, BeforeValidator(parse_duration_s)]
FixedFlags = Annotated[dict[str, FlagValue], BeforeValidator(_spelled_flags)]
PlainFlags = Annotated[dict[str, Flag], BeforeValidator(_spelled_flags)]
Environment = Annotated[dict[str, str], BeforeValidator(_text_values)]
Text = Annotated[str, AfterValidator(_filled)]


class Section(BaseModel):
    """Base of every part of a study file: strict, frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class StudySection(Section):
    """What is run, how long, and where it is kept."""

    name: str = Field(description="Folder of the study under `results`; letters, digits, `.`, `_`, `-`.")
    seed: int = Field(0, ge=0, description="All randomness of the study comes from this number.")
    trials: int = Field(40, ge=1, le=MOST_TRIALS, description="Trials in all, the baseline included.")
    results: Text = Field(
        "results",
        description="Folder of all results, from where the command is typed. Or an object store, `s3://bucket/results` "
        "or `gs://...`: the folder is then `results` here, and every trial is copied there when it has ended.",
    )
    time_budget: Duration | None = Field(
        None, description="No trial starts that would end later: `8h`, `90m` or seconds."
    )
    engine: Literal["vllm", "replay", "simulated"] = Field(
        "vllm",
        description="What answers: `vllm`, real servers; `replay`, the launches of a recorded study (`replay.path`): "
        "a whole study in seconds, which recommends nothing for production; `simulated`, as the model's size and the "
        "card suggest (`simulated.card`), to try a study file without GPU or vLLM: nothing of it is true of a server.",
    )
    sampler: Literal["auto", "tpe", "gp", "random", "grid", "cmaes", "nsga2", "twin"] = Field(
        "tpe",
        description="Who proposes: `tpe`; `auto`, that is `twin` where all searched flags are of the scheduler or its "
        "memory and one score is looked for, else `tpe`; `gp`, a Gaussian process (needs torch, which comes with "
        "vLLM); `random`; `grid`, every point in the order of this file, the last parameter changing fastest; `cmaes` "
        "where all parameters are numbers; for a front `tpe`, `gp`, `nsga2`, `random` or `grid`; `twin`: what a "
        "simulation of the scheduler, fitted to the trials so far, finds promising; it ends the search once nothing "
        "is. Where it does not fit, `tpe` goes on.",
    )
    equivalence: bool = Field(
        True,
        description="Do not measure flags again that the engine's counters prove to be the same as measured ones.",
    )
    warm_start: Text | None = Field(
        None,
        description="Folder of an earlier study of this model on these devices, such as `results/OTHER`: its best "
        "three are tried first. None of its measurements counts.",
    )
    racing: bool = Field(
        True,
        description="Stop a trial after a round, or within one, once it is beyond doubt behind the best so far. Needs "
        "`load.rounds` of two or more; not for a front.",
    )
    gate: bool = Field(
        True,
        description="Launch no flags that cannot work, by the memory they need and by what vLLM refused before. Where "
        "nothing is known of them, they are launched.",
    )
    audit_share: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Share of what the gate would refuse that is launched all the same, to see how often it is right.",
    )
    optuna_storage: Text | None = Field(
        None,
        description="Database that optuna-dashboard reads, which each trial of the search is also written to: "
        "`postgresql+psycopg://user@host/name`, its password in the environment (PGPASSWORD). Nothing is read from it.",
    )
    max_retries: int = Field(2, ge=0, le=20, description="Further attempts at a trial after a passing fault.")
    retry_wait_s: float = Field(10.0, ge=0, description="Wait before another attempt.")
    stop_after_same_failure: int = Field(
        3,
        ge=1,
        description="The study stops after so many trials in a row fail of one cause that is not the flags: the same "
        "class and, where that is `other` or `unknown`, the same line of the log.",
    )

    @property
    def folder(self) -> Path:
        """The folder of all results on this machine."""
        return Path(_LOCAL_RESULTS if self.store is not None else self.results).expanduser()

    @property
    def store(self) -> str | None:
        """The address of the object store that the results are copied to, None for a plain folder."""
        return self.results if "://" in self.results else None

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or ".." in name:
            raise ValueError(
                "must be a plain folder name: letters, digits, '.', '_' and '-', starting with a letter or digit"
            )
        return name


class ModelSection(Section):
    """The model served."""

    path: Text = Field(
        description="Folder or hub id. A relative folder is looked for beside "
        "the study file, then where the command is typed."
    )
    served_name: Text | None = Field(None, description="Name that requests use; default: `path` as written.")
    tokenizer: Text | None = Field(
        None, description="Folder or hub id of the load client's tokenizer; default: `path`."
    )
    chat_template: Text | None = Field(None, description="File of a chat template for the server.")
    chat_template_content_format: Literal["auto", "string", "openai"] | None = Field(
        None, description="How the server hands message content to the template."
    )

    @field_validator("path", mode="before")
    @classmethod
    def _named(cls, path: object) -> object:
        if path is None or (isinstance(path, str) and not path.strip()):
            raise ValueError("is empty; name the model's folder, or its hub id such as Qwen/Qwen2.5-7B-Instruct")
        return path


class ServeSection(Section):
    """How each server is started."""

    command: Words | None = Field(
        None,
        strict=False,
        min_length=1,
        description="Words that start the server before the model and our flags; default: the installed vLLM.",
    )
    flags: FixedFlags = Field(
        default_factory=dict,
        description="Flags every trial gets: any that vLLM has. `true`/`false` "
        "for switches, lists and mappings where vLLM takes them.",
    )
    env: Environment = Field(default_factory=dict, description="Environment variables of the server.")
    host: Text = Field(
        "127.0.0.1",
        description="Address the server listens on. Anything but loopback opens a port to others.",
    )
    startup_timeout_s: float = Field(900.0, gt=0, description="Longest wait for a server to be ready.")
    stop_timeout_s: float = Field(30.0, gt=0, description="Longest wait after SIGTERM before SIGKILL.")
    clean_timeout_s: float = Field(
        120.0, ge=0, description="Longest wait for device memory to be free before a launch."
    )


class IntRange(Section):
    """Whole numbers from `low` to `high`."""

    type: Literal["int"]
    low: int = Field(ge=-_LARGEST, le=_LARGEST)
    high: int = Field(ge=-_LARGEST, le=_LARGEST)
    step: int | None = Field(None, ge=1, le=_LARGEST)
    log: bool = False
    or_null: bool = False

    @model_validator(mode="after")
    def _possible(self) -> IntRange:
        _check_range(self.low, self.high, self.step, self.log)
        return self


class FloatRange(Section):
    """Numbers from `low` to `high`."""

    type: Literal["float"]
    low: float
    high: float
    step: float | None = Field(None, gt=0)
    log: bool = False
    or_null: bool = False

    @model_validator(mode="after")
    def _possible(self) -> FloatRange:
        _check_range(self.low, self.high, self.step, self.log)
        return self


class Choice(Section):
    """One of `values`; null leaves the flag to vLLM."""

    type: Literal["choice"]
    values: tuple[Flag, ...] = Field(strict=False, min_length=1)

    @field_validator("values")
    @classmethod
    def _distinct(cls, values: tuple[Flag, ...]) -> tuple[Flag, ...]:
        # 8, 8.0 and "8" are one command line.
        plain = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values]
        spelled = [("switch", v) if isinstance(v, bool) or v is None else ("value", str(v)) for v in plain]
        for place, one in enumerate(spelled):
            if one in spelled[:place]:
                raise Mistake(f"{shown(values[place])} stands twice", place)
        return values


class Boolean(Section):
    """A switch: `--x` or `--no-x`."""

    type: Literal["bool"]
    or_null: bool = False


def _check_range(low: float, high: float, step: float | None, log: bool) -> None:
    if low > high:
        raise Mistake(f"low {low} is above high {high}", "low")
    if log and low <= 0:
        raise Mistake("a log range must start above zero", "low")
    if log and step is not None:
        raise Mistake("log and step cannot be combined; take a choice of values instead", "log")
    if step is not None and step > high - low and low != high:
        raise Mistake(f"step {step} is wider than the range", "step")


ParameterSpec = Annotated[IntRange | FloatRange | Choice | Boolean, Field(discriminator="type")]


class SearchSpaceConfig(Section):
    """What may vary."""

    parameters: Annotated[dict[str, ParameterSpec], BeforeValidator(_spelled_flags)] = Field(
        min_length=1,
        description="Flag to range: `{type: int|float, low, high, step, log, "
        "or_null}`, `{type: choice, values}`, `{type: bool}`.",
    )
    constraints: tuple[str, ...] = Field(
        (),
        strict=False,
        description="Expressions over flags, such as `max-num-batched-tokens >= max-num-seqs`.",
    )
    enqueue: tuple[PlainFlags, ...] = Field(
        (),
        strict=False,
        description="Points to try first, in this order: `{max-num-seqs: 64}`; a flag left out is the baseline's.",
    )

    @field_validator("constraints", "enqueue", mode="before")
    @classmethod
    def _none_of_them(cls, entries: object) -> object:
        return () if entries is None else entries

    @field_validator("constraints")
    @classmethod
    def _readable(cls, constraints: tuple[str, ...]) -> tuple[str, ...]:
        for place, text in enumerate(constraints):
            try:
                Constraint.parse(text)
            except ConfigError as error:
                raise Mistake(error.message, place) from None
        return constraints
