"""Checkpoints: everything a run needs to go on, written whole or not at all, read without running code.

Fields: format, model (weights and the features' scaling), config, classes, features, globals, options, optimiser (with
its step count), random (the state of torch's generator on the CPU, the only one that a training draws from), epoch
(finished ones), best, cache (fingerprint), versions, threads.
"""

import os
from pathlib import Path

import torch

from impl.gnn.errors import InputError
from impl.gnn.model import Config, EventNet

FORMAT = 1


def save(path: Path, state: dict) -> None:
    """Write beside the name, flush to disk, rename: a crash leaves the old file or the new one."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(path, "room and permission for a checkpoint", error.strerror or str(error)) from None


def load(path) -> dict:
    """Read a checkpoint onto the CPU; raises InputError where there is none that this version understands."""
    path = Path(path)
    if path.is_dir():
        path = path / "last.pt"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        version = state["format"]
    except FileNotFoundError:
        raise InputError(path, "a checkpoint", "none", "make one with `train`") from None
    except Exception as error:  # torch raises several kinds for a file that is no archive or holds code
        raise InputError(path, "a checkpoint", str(error).splitlines()[0][:80], "take another of the run") from None
    if version > FORMAT:
        raise InputError(path, f"checkpoint format {FORMAT} or older", str(version), "update impl.gnn")
    return state


def network(state: dict, backend: str = "fused", **options) -> EventNet:
    """The network of a checkpoint, with any backend."""
    net = EventNet(Config(**state["config"]), backend, **options)
    net.load_state_dict(state["model"])
    return net


def transfer(net: EventNet, state: dict) -> dict:
    """Take over every tensor but the head's from another task's checkpoint, for fine-tuning.

    Returns
    -------
    dict            names of tensors: loaded, skipped (in the checkpoint only, or of another shape), new

    Raises
    ------
    InputError      nothing fits
    """
    own, given = net.state_dict(), state["model"]
    fits = [
        name
        for name, tensor in given.items()
        if not name.startswith("head.") and name in own and own[name].shape == tensor.shape
    ]
    if not any(name.startswith("updates.") for name in fits):
        raise InputError("fine-tuning", "a checkpoint of the same hidden width", "one whose message rounds do not fit",
                         "give the same --hidden and rounds")  # fmt: skip
    net.load_state_dict({name: given[name] for name in fits}, strict=False)
    return {
        "loaded": fits,
        "skipped": [name for name in given if name not in fits],
        "new": [name for name in own if name not in fits],
    }
