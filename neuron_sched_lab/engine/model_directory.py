"""Checks a model's directory before vLLM does, whose errors are many lines long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..tiny_model.tasks import tiny_model_path

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json")

FIX = 'give "tiny" or the directory of a whole Hugging Face Llama checkpoint'


def find_model(model: str | Path, *, max_model_len: int, needs_tokenizer: bool = True) -> Path:
    """Return the directory of a model that an engine can be started with.

    Args:
        model: `"tiny"` for the model that ships with the kit, or a directory.
        max_model_len: longest sequence that it is to serve, in tokens.
        needs_tokenizer: whether the directory must have one.

    Raises:
        ValueError: it is no such directory, or the model cannot serve so long a sequence.
    """
    path = tiny_model_path() if model == "tiny" else model
    if not isinstance(path, (str, Path)) or not _has_file(path, "config.json"):
        raise ValueError(f"model: {_text(model)} is no directory with a config.json; {FIX}")
    path = Path(path)
    config = _read_config(path)
    if needs_tokenizer and not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(f"model: {_text(path)} has none of {', '.join(TOKENIZER_FILES)}; {FIX}")
    longest = config.get("max_position_embeddings")
    if isinstance(longest, int) and max_model_len > longest and not _stretches(config):
        raise ValueError(
            f"max_model_len: {max_model_len} must be at most {longest}, the positions that the "
            f"model was trained on (its max_position_embeddings); lower it"
        )
    return path


def find_adapter(adapter: str | Path) -> Path:
    """Return the directory of a LoRA adapter, resolved, so that one has one path.

    Raises:
        ValueError: it is no such directory.
    """
    if not isinstance(adapter, (str, Path)) or not _has_file(adapter, "adapter_config.json"):
        raise ValueError(
            f"adapter: {_text(adapter)} is no directory with an adapter_config.json; give one that "
            f"PEFT has saved"
        )
    return Path(adapter).resolve()


def _has_file(directory: str | Path, name: str) -> bool:
    try:
        return (Path(directory) / name).is_file()
    except OSError:  # the name of the directory is too long
        return False


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"model: {_text(path)}: config.json is no JSON ({error}); {FIX}"
        ) from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise ValueError(f"model: {_text(path)}: config.json has no model_type; {FIX}")
    return config


def _stretches(config: dict[str, Any]) -> bool:
    """Tell whether positions are scaled; how far they then reach is for vLLM to work out."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    return isinstance(scaling, dict) and scaling.get("rope_type", "default") != "default"


def _text(model: object) -> str:
    return repr(str(model) if isinstance(model, Path) else model)
