"""Where the files of a study lie: beside the study file, where the command is typed, or on the hub."""

from __future__ import annotations

from pathlib import Path

from sweep.errors import ConfigError

# What says of a folder that it is a model's; the second is Mistral's own format.
_CONFIGURATIONS = ("config.json", "params.json")
# Beginnings and endings of the files that tokenizers come in.
_TOKENIZERS = ("tokenizer", "tokenization", "vocab", "tekken", "spiece", "sentencepiece", "merges")
_TOKENIZER_SUFFIXES = (".tiktoken", ".spm")


def find_model(name: str, study_path: Path, key: str) -> str:
    """The folder or `.gguf` file of that name beside the study file or here, or a hub id as it stands.

    Raises ConfigError for a path that is not there and for a folder that holds no model.
    """
    for base in (study_path.parent, Path()):
        candidate = base / Path(name).expanduser()
        if candidate.is_dir():
            return str(_checked_model(candidate, name, key).resolve())
        if candidate.suffix == ".gguf" and candidate.is_file():
            return str(candidate.resolve())
    if _is_path(name):
        raise ConfigError(f"no folder {name!r} beside the study file or here", path=study_path, key=key)
    return name


def find_tokenizer(name: str, study_path: Path, key: str) -> str:
    """The folder of that name, or a hub id as it stands. Raises ConfigError where there is no tokenizer in it."""
    for base in (study_path.parent, Path()):
        candidate = base / Path(name).expanduser()
        if candidate.is_dir():
            if not any(_of_tokenizer(entry.name) for entry in candidate.iterdir()):
                raise ConfigError(
                    f"the folder {name!r} holds no tokenizer (tokenizer.json, tokenizer.model, ...), which counting "
                    "prompts needs; set model.tokenizer to a folder or hub id that has one",
                    key=key,
                )
            return str(candidate.resolve())
        if candidate.is_file():
            raise ConfigError(
                f"{name!r} is a file; set model.tokenizer to the folder or hub id of its tokenizer", key=key
            )
    if _is_path(name):
        raise ConfigError(f"no folder {name!r} beside the study file or here", path=study_path, key=key)
    return name


def find_file(name: str, study_path: Path, key: str) -> Path:
    """The file of that name beside the study file or here. Raises ConfigError where there is none."""
    for base in (study_path.parent, Path()):
        candidate = base / Path(name).expanduser()
        if candidate.is_file():
            return candidate.resolve()
        if candidate.is_dir():
            raise ConfigError(f"{name!r} is a folder; name the file in it", path=study_path, key=key)
    raise ConfigError(f"no file {name!r} beside the study file or where the command is typed", path=study_path, key=key)


def find_folder(name: str, study_path: Path, key: str) -> Path:
    """The folder of that name beside the study file or here. Raises ConfigError where there is none."""
    for base in (study_path.parent, Path()):
        candidate = base / Path(name).expanduser()
        if candidate.is_dir():
            return candidate.resolve()
    raise ConfigError(
        f"no folder {name!r} beside the study file or where the command is typed", path=study_path, key=key
    )


def _checked_model(folder: Path, name: str, key: str) -> Path:
    if any((folder / one).is_file() for one in _CONFIGURATIONS):
        return folder
    inside = next((entry.name for entry in sorted(folder.iterdir()) if (entry / "config.json").is_file()), None)
    mend = f"name {name.rstrip('/')}/{inside}" if inside else "name the folder that has it, or a hub id"
    raise ConfigError(f"the folder {name!r} has no config.json, so it is no model; {mend}", key=key)


def _of_tokenizer(name: str) -> bool:
    return name.startswith(_TOKENIZERS) or name.endswith(_TOKENIZER_SUFFIXES)


def _is_path(name: str) -> bool:
    """Whether it can only be meant as a path: hub ids are `name` or `owner/name`."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith("/")
