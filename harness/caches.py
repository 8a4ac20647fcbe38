"""Where an arm's tools keep what they would write to the home folder: below .harness, compilers' caches apart.

A compiled kernel that one arm left in a common cache would be a head start for the other, so each arm has its own.
Where start-up itself is measured (metric startup_seconds), every launch begins with an empty one, thrown away after it.
A variable that the user has set is respected: an arm's own environment wins, and a cache folder named by the harness's
environment only gets a subfolder for each arm.
"""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from harness.arms import Arm
from harness.process import temporary
from harness.revision import PLACE

#: what every arm gets unless it is set
DEFAULTS = {"DGLBACKEND": "pytorch"}
#: variable -> folder below .harness, for all arms
COMMON = {"MPLCONFIGDIR": "matplotlib"}
#: variable -> folder in the arm's own cache: what compilers keep
PRIVATE = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


@contextlib.contextmanager
def environment(arm: Arm, root: Path, cold: bool) -> Iterator[dict[str, str]]:
    """The environment of one launch of an arm: its own, and what keeps tools inside the project.

    root is the project; cold: compilers' caches are new, empty folders that are gone afterwards.
    """
    own = secrets.token_hex(8) if cold else _key(arm)  # equally long: the environment's size moves the stack
    found = {name: value for name, value in DEFAULTS.items() if name not in os.environ}
    # Only named here: whoever has something to keep makes the folder.
    found |= {name: str(root / PLACE / folder) for name, folder in COMMON.items() if not os.environ.get(name)}
    places = []
    for name, folder in PRIVATE.items():
        base = Path(os.environ[name]) if os.environ.get(name) else root / PLACE / "caches" / folder
        place = base / own
        if name not in arm.environment:
            places.append(place)
            found[name] = str(place)
    with temporary(*places) if cold else contextlib.nullcontext():
        yield {**found, **arm.environment}


def _key(arm: Arm) -> str:
    """Names an arm's caches: the same arm of the same tree finds its own again."""
    tree = (arm.revision or {}).get("tree")
    facts = [arm.name, arm.reference, arm.parameters, sorted(arm.environment.items()), tree]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
