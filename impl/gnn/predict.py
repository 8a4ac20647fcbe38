"""Scores of a cache's events, row k for event k: in memory, or streamed to a file that a killed run continues.

Both go through the cache in ranges of RANGE events and make the same batches inside a range, so their bytes are equal.
"""

import json
import os
from pathlib import Path

import numpy as np
import torch

from impl.gnn import batches
from impl.gnn.errors import InputError
from impl.gnn.precision import autocast, check_precision

#: events between two marks of a streamed prediction
RANGE = 4096


def scores_of(net, cache, index, events: int = 256, edges: int = 0, precision: str = "float32", device="cpu"):
    """Logits float32 (n, C) of the events `index`, in that order.

    Parameters
    ----------
    net : EventNet
    cache : Cache
    index : int64 (n,)
    events, edges : int     budgets of a batch; edges 0: batches of `events` events
    precision, device : str
    """
    index = np.asarray(index, np.int64)
    out = np.empty((len(index), net.config.classes), np.float32)
    if edges:
        plan = batches.by_edges(np.arange(len(index)), np.diff(cache.edge_off)[index], edges, events)
    else:
        plan = batches.fixed(np.arange(len(index)), events)
    net.eval()
    with torch.inference_mode():
        for rows in plan:
            batch = batches.Batch(cache.batch(index[rows]), device)
            with autocast(precision, batch.node_x.device.type):
                logits = net(batch)
            out[rows] = logits.float().cpu().numpy()
    return out


def predict(net, cache, out, streaming: bool = False, identity: dict | None = None, events: int = 256, edges: int = 0,
            precision: str = "float32", allow_slow: bool = False, device="cpu", progress=None) -> dict:  # fmt: skip
    """Write the scores of every event of a cache to `out`, an .npy of float32 (n, C).

    Streaming holds one range in memory; the rows go to OUT.partial, a mark beside it (OUT.mark) says how many are
    safely there, and OUT appears only when all are. A later call with the same identity goes on at the mark.

    Parameters
    ----------
    out : str or Path
    streaming : bool
    identity : dict         what the scores depend on (checkpoint, cache); a mark of another one is refused
    progress : callable(done, events) or None

    Returns
    -------
    dict        events, classes, started (events that were there already)

    Raises
    ------
    InputError      a mark that belongs to another prediction; no room
    """
    out = Path(out)
    check_precision(precision, net.backend.name, allow_slow, torch.device(device).type)
    settings = {"events": events, "edges": edges, "precision": precision, "backend": net.backend.name}
    facts = {"rows": len(cache), "classes": net.config.classes, "settings": settings, **(identity or {})}
    partial, mark = out.with_name(out.name + ".partial"), out.with_name(out.name + ".mark")
    started = 0
    streaming = streaming and len(cache) > 0  # nothing cannot be mapped
    try:
        if streaming:
            started = _started(mark, partial, facts)
            mode = "r+" if started else "w+"
            rows = np.lib.format.open_memmap(partial, mode, np.float32, (len(cache), net.config.classes))
        else:
            rows = np.empty((len(cache), net.config.classes), np.float32)
        for first in range(started, len(cache), RANGE):
            last = min(first + RANGE, len(cache))
            rows[first:last] = scores_of(net, cache, np.arange(first, last), events, edges, precision, device)
            if streaming:
                rows.flush()
                _write(mark, {**facts, "done": last})
            if progress:
                progress(last, len(cache))
        if streaming:
            partial.replace(out)
        else:
            write(out, rows)
        mark.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(out, "room and permission for the scores", error.strerror or str(error)) from None
    return {"events": len(cache), "classes": net.config.classes, "started": started}


def write(out: Path, rows: np.ndarray) -> None:
    """Write an .npy whole or not at all; InputError where there is no room or permission."""
    partial = out.with_name(out.name + ".partial")
    try:
        with partial.open("wb") as file:
            np.save(file, rows)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(out)
    except OSError as error:
        raise InputError(out, "room and permission for the scores", error.strerror or str(error)) from None


def _write(path: Path, facts: dict) -> None:
    temporary = path.with_name(path.name + f".{os.getpid()}")
    with temporary.open("w") as file:
        file.write(json.dumps(facts) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _started(mark: Path, partial: Path, facts: dict) -> int:
    """Rows that are safely in `partial`; 0 without a mark. Raises InputError for a mark of another prediction."""
    try:
        found = json.loads(mark.read_text())
        done = found.pop("done")
    except FileNotFoundError:
        return 0
    except (ValueError, KeyError):
        raise InputError(mark, "the mark of a prediction", "something else", "remove it to start anew") from None
    if found != facts:
        differ = sorted(key for key in found.keys() | facts.keys() if found.get(key) != facts.get(key))
        raise InputError(mark, "the mark of this prediction", f"one that differs in {', '.join(differ)}",
                         f"remove it and {partial.name} to start anew")  # fmt: skip
    return done if partial.exists() else 0
