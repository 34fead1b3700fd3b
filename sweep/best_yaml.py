"""`best.yaml`: the recommended flags as a file for `vllm serve --config`."""

from __future__ import annotations

from pathlib import Path

import yaml

from sweep.atomic_file import write_atomically
from sweep.flags import printable, render
from sweep.redact import Redactor
from sweep.runner import TrialSetup
from sweep.trial import Flags


def write_best_yaml(setup: TrialSetup, redactor: Redactor, flags: Flags, sentence: str) -> Path:
    """Write the file, in the spelling of the installed vLLM, and return its path. Raises WriteFailed.

    A switch that is off stands as its `no-` twin, since older versions drop `false`. What such a file cannot say (a
    flag given several times) stands in it as a comment.
    """
    content: dict[str, object] = {"model": setup.model, "served-model-name": setup.served_name}
    unsaid: list[str] = []
    for name, value in setup.server_flags(flags).items():
        words = render({name: value}, setup.dialect.server)
        names = [word for word in words if word.startswith("--")]
        if len(names) > 1 or any("=" in word for word in names):
            unsaid.append(printable(words))
        elif words:
            content[words[0].removeprefix("--")] = True if len(words) == 1 else value
    path = setup.folder / "best.yaml"
    comments = [sentence, f"vllm serve --config {path.name}"]
    comments += [f"Environment: {name}={value}" for name, value in setup.server_env.items()]
    comments += [f"Not expressible here, add to the command: {text}" for text in unsaid]
    text = "".join(f"# {line}\n" for line in comments) + yaml.safe_dump(content, sort_keys=False)
    write_atomically(path, redactor.text(text).encode())
    return path
