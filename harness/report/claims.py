"""Published claims beside what was measured here: claims.toml in a folder of comparisons, one [[claim]] each.

Keys: `what` and `published` in words, `source`, `scenario`, `a` and `b` (arms), `ratio` (B/A that the claim means, two
numbers; absent where it cannot be said as one) and `parameters` (laid over those of both arms, as -p does). The newest
comparison that counts, of these arms with these parameters and no other, is set beside it. A claim that no pair of arms
can show has `elsewhere` in the place of scenario and arms: what does show it.
"""

import difflib
import tomllib
from pathlib import Path

from harness import analysis, records
from harness.errors import ConfigurationError, sentence
from harness.report import numbers

NAME = "claims.toml"
ARMS = ("scenario", "a", "b")
KEYS = dict.fromkeys(("what", "published", "source", *ARMS, "elsewhere"), str)


def read(folder: Path) -> list[dict]:
    """The claims of a folder, none where it has no claims.toml. Raises ConfigurationError for a bad one."""
    path = Path(folder) / NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(sentence(str(path), "a TOML file", str(error))) from None
    claims = document.pop("claim", [])
    if document or not isinstance(claims, list):
        raise ConfigurationError(sentence(str(path), "[[claim]] tables alone", f"'{next(iter(document), 'claim')}'"))
    for position, claim in enumerate(claims, 1):
        _check(f"{path}: claim {position}", claim)
    return claims


def _check(where: str, claim: dict) -> None:
    for key, value in claim.items():
        if key == "ratio":
            bounds = isinstance(value, list) and len(value) == 2 and all(type(x) in (int, float) for x in value)
            if not bounds or not 0 < value[0] <= value[1]:
                raise ConfigurationError(sentence(f"{where}: ratio", "two numbers, the lower first", repr(value)))
        elif key == "parameters":
            if not isinstance(value, dict):
                raise ConfigurationError(sentence(f"{where}: parameters", "a table", repr(value)))
        elif key not in KEYS:
            known = [*KEYS, "ratio", "parameters"]
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean '{close[0]}'?" if close else ""
            raise ConfigurationError(sentence(where, f"one of {', '.join(known)}", f"'{key}'", hint))
        elif not isinstance(value, KEYS[key]):
            raise ConfigurationError(sentence(f"{where}: {key}", "a string", repr(value)))
    wanted = ("what", "published", "source", *(() if "elsewhere" in claim else ARMS))
    missing = [key for key in wanted if key not in claim]
    if missing:
        raise ConfigurationError(sentence(where, f"the key '{missing[0]}'", "none"))
    beside_it = [key for key in (*ARMS, "ratio", "parameters") if key in claim]
    if "elsewhere" in claim and beside_it:
        raise ConfigurationError(sentence(where, "'elsewhere' or arms that show it", f"'{beside_it[0]}' too"))


def asks(opening: records.Comparison, parameters: dict) -> bool:
    """Whether both arms were measured with these parameters laid over their scenario's, and with no other."""
    return all(analysis.laid(opening, arm) == analysis.laid(opening, arm, parameters) for arm in "ab")


def beside(claims: list[dict], rows: list[dict]) -> list[dict]:
    """Each claim with the newest comparison that asks the same and counts (index.collect's rows), and its outcome."""
    found = []
    for claim in claims:
        means = claim.get("ratio")
        told = claim | {"row": None, "means": _range(means)}
        if "elsewhere" in claim:
            found.append(told | {"outcome": f"see {claim['elsewhere']}"})
            continue
        fitting = [
            row
            for row in rows
            if not row["fault"]
            and (row["scenario"], row["names"]["a"], row["names"]["b"]) == tuple(claim[key] for key in ARMS)
            and asks(row["opening"], claim.get("parameters", {}))
        ]
        counted = [row for row in fitting if row["counts"] and row["ratio"].get("estimate")]
        if counted:
            told |= {"row": counted[-1], "outcome": outcome(means, counted[-1]["ratio"])}
        else:
            told |= {"outcome": f"{fitting[-1]['word']}: does not count" if fitting else "not measured here"}
        found.append(told)
    return found


def _range(means: list[float] | None) -> str:
    """A claimed range; a hundred times as fast, or as slow, is no number that anyone claimed but a direction alone."""
    if means is None:
        return ""
    low, high = (numbers.ratio(bound, 2) for bound in means)
    return f"below {high}" if means[0] <= 0.01 else f"above {low}" if means[1] >= 100 else f"{low} to {high}"


def outcome(claimed: list[float] | None, measured: dict) -> str:
    """What the interval of a measured ratio says about a claimed range."""
    low, high = measured.get("low"), measured.get("high")
    if claimed is None or low is None or high is None:
        return "open"
    if claimed[0] <= low and high <= claimed[1]:
        return "holds here"
    if high < claimed[0]:
        return "more than claimed"
    if low > claimed[1]:
        return "less than claimed"
    return "open"
