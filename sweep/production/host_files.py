"""Files for a machine that has vLLM itself: `serve.sh`, `vllm.yaml` and a systemd unit."""

from __future__ import annotations

import getpass
import math
import re
import shlex

import yaml

from sweep.production.serving import PORT, Serving

_PLAIN = re.compile(r"[A-Za-z0-9_./:=@,+-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def serve_sh(serving: Serving) -> str:
    """A script of POSIX shell; its own words (`--port 9000`) come behind the flags."""
    lines = ["set -eu"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(serving.env.items())]
    lines += [
        f': "${{{name}:?is a secret and not in this file: set it in the environment}}"' for name in serving.secrets
    ]
    lines += [f"export {name}" for name in serving.secrets]
    groups = [(*serving.command, serving.model), *serving.flags]
    lines.append("exec " + " \\\n  ".join([*map(shlex.join, groups), '"$@"']))
    head = serving.head(f"Listens where vLLM does by default: every address, port {PORT}.")
    return "#!/bin/sh\n" + head + "\n".join(lines) + "\n"


def vllm_yaml(serving: Serving) -> str:
    """The flags as `vllm serve --config` reads them."""
    if serving.own_command:
        how = f"The study started servers with {shlex.join(serving.command)}; whether that takes --config is not known."
    else:
        how = "vllm serve --config vllm.yaml"
    notes = [how, *(f"Not expressible here, add to the command: {text}" for text in serving.content.unsaid)]
    names = [f"{name}={shlex.quote(value)}" for name, value in sorted(serving.env.items())]
    if names or serving.secrets:
        notes.append(f"Environment: {' '.join([*names, *serving.secrets])}")
    return serving.head(*notes) + yaml_text(dict(serving.content.entries))


def systemd_unit(serving: Serving) -> str:
    """A system service."""
    user = getpass.getuser()
    lines = [
        "[Unit]",
        f"Description={_specifiers(f'vLLM, flags of the study {serving.provenance.study}')}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=exec",
        # Whose cache of models and folders the study used; as root nobody's in particular.
        *([f"User={user}"] if user != "root" else []),
        *(f"Environment={_quoted(f'{name}={value}', dollar='$')}" for name, value in sorted(serving.env.items())),
        *([f"EnvironmentFile=/etc/{serving.name}.env"] if serving.secrets else []),
        "ExecStart=" + " \\\n  ".join(" ".join(map(_quoted, group)) for group in _groups(serving)),
        "Restart=on-failure",
        "RestartSec=10",
        f"TimeoutStartSec={math.ceil(serving.startup_timeout_s)}",
        f"TimeoutStopSec={math.ceil(serving.stop_timeout_s)}",
        "LimitNOFILE=65536",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    notes = [f"Install as /etc/systemd/system/{serving.name}.service; listens on every address, port {PORT}."]
    if serving.secrets:
        notes.append(
            f"/etc/{serving.name}.env (mode 600) must hold {', '.join(serving.secrets)}: NAME=value, one a line."
        )
    return serving.head(*notes) + "\n".join(lines) + "\n"


def yaml_text(*documents: object) -> str:
    """Plain YAML, in the order given."""
    text: str = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=120)
    return text


def _groups(serving: Serving) -> list[tuple[str, ...]]:
    return [(*serving.program, serving.model), *serving.flags]


def _quoted(word: str, *, dollar: str = "$$") -> str:
    """A word of systemd: specifiers (`%`) and, in commands, variables (`$`) are doubled."""
    if _PLAIN.fullmatch(word):
        return word
    text = "".join(_ESCAPES.get(char, char if char.isprintable() else _bytes(char)) for char in word)
    return f'"{_specifiers(text).replace("$", dollar)}"'


def _bytes(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode())


def _specifiers(text: str) -> str:
    return " ".join(text.splitlines()).replace("%", "%%")
