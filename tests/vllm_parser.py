"""What the parser of the installed `vllm serve` makes of words and files, without a start."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fake_study
from produced import BEST, BETTER, hostile, study, trials

from sweep.flags import render
from sweep.production import RECOMMENDED, write_production

PARSE = """
import json, sys
from sweep import vllm_cpu
vllm_cpu.adapt()
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
for words in json.load(sys.stdin):
    found = {name: repr(value) for name, value in vars(parser.parse_args(words)).items()}
    del found["config"], found["model_tag"]
    print(json.dumps(found))
"""


def parsed_by_vllm(*commands: Sequence[str]) -> list[dict[str, str]]:
    """The `repr` of every argument by its name, of each command (from "serve" on). One import of vLLM for all."""
    done = subprocess.run(
        [sys.executable, "-c", PARSE],
        input=json.dumps(commands),
        env=fake_study.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()[-len(commands) :]]


@dataclass(frozen=True)
class Production:
    """The same server twice: by `vllm.yaml` and by the command of its trial."""

    model: str
    file: list[str]
    command: list[str]


def hostile_production(folder: Path) -> Production:
    """Of a study whose flags are all hard to write down."""
    one = hostile(study(folder))
    write_production(one, BETTER, trials())
    path = one.setup.folder / RECOMMENDED / "vllm.yaml"
    unsaid = ["--middleware", "one.two", "--middleware", "three.four"]
    assert "add to the command: --middleware one.two --middleware three.four" in path.read_text()
    fixed = {name: value for name, value in one.setup.fixed_flags.items() if name not in ("api-key", "middleware")}
    assert one.setup.server_flags(BEST).keys() >= fixed.keys()
    flags = {**fixed, **BEST, "served-model-name": one.setup.served_name}
    command = ["serve", one.setup.model, *render(flags, one.setup.dialect.server)]
    return Production(one.setup.model, ["serve", "--config", str(path), *unsaid], [*command, *unsaid])
