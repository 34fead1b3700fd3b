"""vllm.yaml is read by the installed vLLM's own parser, and says what the trial's command said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import fake_study
import pytest
from produced import BEST, BETTER, hostile, study, trials

from sweep import vllm_cpu
from sweep.production import RECOMMENDED, write_production

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(vllm_cpu.installed() is None, reason="no vLLM here"),
]

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


def test_vllm_reads_the_file_as_it_reads_the_command(tmp_path: Path) -> None:
    one = hostile(study(tmp_path))
    write_production(one, BETTER, trials())
    path = one.setup.folder / RECOMMENDED / "vllm.yaml"
    unsaid = ["--middleware", "one.two", "--middleware", "three.four"]
    assert "add to the command: --middleware one.two --middleware three.four" in path.read_text()
    fixed = {name: value for name, value in one.setup.fixed_flags.items() if name not in ("api-key", "middleware")}
    words = one.setup.server_flags(BEST)
    command = ["serve", one.setup.model]
    from sweep.flags import render

    command += render({**fixed, **BEST, "served-model-name": one.setup.served_name}, one.setup.dialect.server)
    assert words.keys() >= fixed.keys()
    done = subprocess.run(
        [sys.executable, "-c", PARSE],
        input=json.dumps([["serve", "--config", str(path), *unsaid], [*command, *unsaid]]),
        env=fake_study.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    by_file, by_words = map(json.loads, done.stdout.splitlines()[-2:])
    model = {by_file.pop("model"), by_words.pop("model")}
    assert f"'{one.setup.model}'" in str(model)
    assert by_file == by_words
    assert by_file["max_num_seqs"] == "64"
