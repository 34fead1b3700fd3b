"""Builds `fake_nvml.c` and lets a test script the machine it shows.

Two ways to use it, both through the real `pynvml`:
- a subprocess with `environment()`: `pynvml` loads `libnvidia-ml.so.1` by name, as on a machine with a driver;
- in this process, `loaded()`: the library is loaded from its path, and afterwards all is as it was.

Name this module in `pytest_plugins` for the fixtures `nvml_library` and `nvml`. Tests also import from it, which
pytest would warn of unless told PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"


def compiler() -> str | None:
    """The C compiler, None where there is none (skip then)."""
    return shutil.which("gcc") or shutil.which("cc")


def build(folder: Path, *, missing: tuple[str, ...] = ()) -> Path:
    """Compile into `folder/libnvidia-ml.so.1`, without the functions in `missing`; does nothing if it is there."""
    library = folder / LIBRARY
    found = compiler()
    if found is None:
        raise RuntimeError("no C compiler")
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        hidden = [f"-D{name}=hidden_{name}" for name in missing]
        # Without -soname the loader never takes this library for one asked for by name.
        flags = ["-O0", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([found, *flags, *hidden, str(SOURCE), "-o", str(library), "-lpthread"], check=True, timeout=300)
    return library


class FakeNvml:
    """A built library and its script."""

    def __init__(self, library: Path, script: Path) -> None:
        self.library, self.script = library, script
        self.write()

    def write(self, *lines: str) -> None:
        """Replace the script (see `fake_nvml.c`) at once; no line at all is four idle A6000."""
        fresh = self.script.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in lines))
        fresh.replace(self.script)

    def environment(self) -> dict[str, str]:
        """This process's environment with the library first on the loader's path."""
        paths = [str(self.library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(filter(None, paths)),
            "FAKE_NVML_STATE": str(self.script),
        }

    def opened(self) -> int:
        """How many times NVML is open in this process."""
        return int(ctypes.CDLL(str(self.library)).fakeOpened())

    @contextmanager
    def loaded(self) -> Iterator[FakeNvml]:
        """`pynvml` of this process speaks to this library until the end of the block."""
        before = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache), os.environ.get("FAKE_NVML_STATE")
        pynvml.nvmlLib = ctypes.CDLL(str(self.library))
        pynvml._nvmlGetFunctionPointer_cache.clear()
        os.environ["FAKE_NVML_STATE"] = str(self.script)
        try:
            yield self
        finally:
            pynvml.nvmlLib, cache, script = before
            pynvml._nvmlGetFunctionPointer_cache.clear()
            pynvml._nvmlGetFunctionPointer_cache.update(cache)
            if script is None:
                del os.environ["FAKE_NVML_STATE"]
            else:
                os.environ["FAKE_NVML_STATE"] = script


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole library, built once."""
    if compiler() is None:
        pytest.skip("no C compiler to build the NVML library")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> Iterator[FakeNvml]:
    """Four idle cards behind this process's `pynvml`; NVML must be closed again at the end of the test."""
    with FakeNvml(nvml_library, tmp_path / "state").loaded() as fake:
        yield fake
        assert fake.opened() == 0, "NVML was left open"
