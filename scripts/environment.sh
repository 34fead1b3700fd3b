# Sourced by the other scripts: a virtual environment in .venv with this project and the extras asked for.
# Usage: extras=cpu,dev; . "$(dirname "$0")/environment.sh". Leaves $root, $python and the working directory at the root.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# An active environment of something else must not leak in.
unset VIRTUAL_ENV PYTHONHOME PYTHONPATH CONDA_PREFIX
# Without compiled files each of the hundreds of processes of a test run compiles all it imports.
unset PYTHONDONTWRITEBYTECODE
python=$root/.venv/bin/python

find_python() {
    local name
    for name in "${PYTHON:-}" python3.13 python3.12 python3.11 python3 python; do
        if [ -n "$name" ] && "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            # The base interpreter: a link into some other environment would tie ours to it.
            "$name" -c 'import os, sys; print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))'
            return
        fi
    done
    echo "scripts: no Python 3.11 or newer with venv was found; install one or set PYTHON" >&2
    exit 2
}

# torch's CPU build and vLLM's are pinned to each other, so one stamp covers project and extras.
stamp=$(cat pyproject.toml "${BASH_SOURCE[0]}" | sha256sum | cut -d' ' -f1)
if ! { [ -x "$python" ] && "$python" -c '' 2>/dev/null; }; then
    rm -rf .venv
    "$(find_python)" -m venv .venv
fi
if ! grep -qsx "$stamp ${extras}" .venv/installed; then
    echo "scripts: installing .[${extras}] into .venv (minutes the first time)"
    "$python" -m pip install --quiet --quiet --disable-pip-version-check --no-compile --editable ".[${extras}]"
    # Compiled on all cores, where pip takes one; files that are no Python of ours to mend may fail.
    "$python" -m compileall -qq -j 0 .venv/lib sweep >/dev/null 2>&1 || true
    echo "$stamp ${extras}" >>.venv/installed
    # Whoever has the larger set has the smaller one, too.
    case "$extras" in *,*) echo "$stamp ${extras%%,*}" >>.venv/installed ;; esac
fi
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
