"""`best.yaml`: the recommended flags as a file for `vllm serve --config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from sweep.atomic_file import write_atomically
from sweep.flags import FlagValue, printable, render
from sweep.redact import Redactor
from sweep.runner import TrialSetup
from sweep.trial import Flags


@dataclass(frozen=True, slots=True)
class YamlContent:
    """What a file for `--config` says, and what it cannot: `unsaid` are words to add to the command (a flag given
    several times), `withheld` names flags that are left out because their value is a secret.
    """

    entries: Mapping[str, object]
    unsaid: tuple[str, ...]
    withheld: tuple[str, ...]


def yaml_content(setup: TrialSetup, redactor: Redactor, flags: Flags) -> YamlContent:
    """The flags of a trial in the spelling of the installed vLLM.

    A switch that is off stands as its `no-` twin, since older versions drop `false`.
    """
    content: dict[str, object] = {"model": setup.model, "served-model-name": setup.served_name}
    unsaid, withheld = [], []
    for name, value in setup.server_flags(flags).items():
        words = words_of(setup, name, value)
        names = [word for word in words if word.startswith("--")]
        if redactor.argv(words) != words:
            withheld.append(name)
        elif len(names) > 1 or any("=" in word for word in names):
            unsaid.append(printable(words))
        elif words:
            # As JSON, not nested: older versions of vLLM read only flat files.
            plain = words[1] if isinstance(value, Mapping) else value
            content[words[0].removeprefix("--")] = True if len(words) == 1 else plain
    return YamlContent(content, tuple(unsaid), tuple(withheld))


def words_of(setup: TrialSetup, name: str, value: FlagValue) -> tuple[str, ...]:
    """The words of one flag."""
    return tuple(render({name: value}, setup.dialect.server))


def write_best_yaml(setup: TrialSetup, redactor: Redactor, flags: Flags, sentence: str) -> Path:
    """Write the file and return its path. What it cannot say stands in it as comments. Raises WriteFailed."""
    content = yaml_content(setup, redactor, flags)
    path = setup.folder / "best.yaml"
    comments = [sentence]
    if setup.is_installed_vllm:  # what a command of the user's own does with --config nobody knows
        comments.append(f"vllm serve --config {path.name}")
    comments += [f"Environment: {name}={value}" for name, value in setup.server_env.items()]
    comments += [f"Not expressible here, add to the command: {text}" for text in content.unsaid]
    comments += [f"Left out, since its value is a secret: --{name}" for name in content.withheld]
    head = "".join(f"# {' '.join(line.splitlines())}\n" for line in comments)
    write_atomically(path, redactor.text(head + yaml.safe_dump(dict(content.entries), sort_keys=False)).encode())
    return path
