"""ROOT files to flat arrays: opens trees, decides which branch serves which quantity, reads ranges of events.

TTree and RNTuple go the same way. Branch names are matched whole: '.', '/' and ':' are ordinary letters in them.
Whatever uproot raises on a damaged file (IndexError, struct.error, zlib.error …) becomes one SourceError.
"""

import contextlib
import dataclasses
from pathlib import Path

import numpy as np

from impl.events.errors import BranchError, CountError, PackageError, SourceError
from impl.events.schema import Schema, Value, nearest

try:
    import awkward as ak
    import uproot
except ImportError as _error:
    raise PackageError("reading ROOT files", _error.name, "", "install harness-ab[events]") from None


@dataclasses.dataclass(frozen=True)
class Binding:
    """What one quantity of the schema is in this set of files: a branch, or a constant for every event."""

    branch: str | None = None
    index: int | None = None
    constant: float | int | None = None


@dataclasses.dataclass
class Lists:
    """A list of numbers for every event: event i owns flat[offsets[i]:offsets[i+1]]; offsets start at 0."""

    offsets: np.ndarray
    flat: np.ndarray


@contextlib.contextmanager
def _guarded(path: str):
    """Turn whatever reading a damaged file raises into one SourceError."""
    try:
        yield
    except (SourceError, BranchError, CountError, MemoryError):
        raise
    except Exception as error:  # uproot lets IndexError, KeyError, struct.error, zlib.error and more through
        lines = str(error).strip().splitlines()
        found = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        raise SourceError(path, "a whole ROOT file", found[:160], "check the file, or set damaged=\"skip_file\"",
                          source=path) from None  # fmt: skip


class Reader:
    """One open tree of one file.

    Attributes
    ----------
    path, tree_name : str
    entries : int           events in the tree
    branches : frozenset    whole names of everything that can be read
    described : dict        branch -> kind, of those that `describe` was asked about; stays after `close`
    """

    def __init__(self, path: str, tree_name: str):
        self.path, self.tree_name = str(path), tree_name
        self._file, self.described = None, None
        if not Path(path).is_file():
            raise SourceError(path, "a ROOT file", "no such file", "check the path", source=self.path)
        try:
            with _guarded(self.path):
                _check_size(self.path)
                self._file = uproot.open(self.path)
                trees = tree_names(self._file)
                if not trees:
                    raise SourceError(path, "a tree of events", "none", "check the file, or set damaged=\"skip_file\"",
                                      source=self.path)  # fmt: skip
            if tree_name not in trees:
                close = nearest(tree_name, trees)
                raise BranchError(f"{path}: tree", f"'{tree_name}'", ", ".join(trees),
                                  f"set tree=\"{(close or trees)[0]}\"")  # fmt: skip
            with _guarded(self.path):
                self._tree = self._file[tree_name]
                self.entries = int(self._tree.num_entries)
                self._is_ttree = not hasattr(self._tree, "cluster_summaries") and hasattr(self._tree, "branches")
                self.branches = frozenset(self._tree.keys(recursive=True))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; entries and what was described stay known, the names of all other branches do not."""
        if self._file is not None:
            self._file.close()
            self._file = self._tree = None
            if self.described is not None:
                self.branches = frozenset(self.described)

    def describe(self, schema: Schema) -> None:
        """Find out the kinds of all branches that a schema may want, so that `bind` needs no open file."""
        if self.described is None:
            values = [*schema.list_values().values(), *schema.scalar_values().values()]
            wanted = {name for value in values for name in value.branches}
            self.described = self.kinds(sorted(wanted & self.branches))

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def kinds(self, branches) -> dict[str, tuple[str, np.dtype | None]]:
        """For every branch ('scalar' or 'list', its dtype), or ('other', None) when it is neither."""
        with _guarded(self.path):
            kinds = {name: self._quick_kind(name) for name in branches}
            unknown = [name for name, kind in kinds.items() if kind is None]
            if unknown:
                arrays = self._tree.arrays(unknown, entry_start=0, entry_stop=0, library="ak")
                kinds |= {name: _kind(_flat(arrays[name])) for name in unknown}
        return kinds

    def _quick_kind(self, branch: str):
        """The kind by a TTree's interpretation alone (reading no events takes as long as reading some: 0.4 ms each)."""
        if not self._is_ttree:
            return None
        interpretation = self._tree[branch].interpretation
        kind = "scalar"
        if isinstance(interpretation, uproot.interpretation.identify.UnknownInterpretation):
            return "other", None
        if isinstance(interpretation, uproot.AsJagged):
            kind, interpretation = "list", interpretation.content
        if not isinstance(interpretation, uproot.AsDtype) or interpretation.to_dtype.fields is not None:
            return None
        dtype = interpretation.to_dtype
        return ("other", None) if dtype.subdtype is not None else (kind, dtype.newbyteorder("="))

    def cuts(self, branches) -> list[int]:
        """Entries at which all these branches begin a new basket; [0, entries] where the format does not say."""
        if not self._is_ttree:
            return [0, self.entries]
        wanted = set(branches)
        chosen = [self._tree[name] for name in wanted]
        with _guarded(self.path):
            common = set(chosen[0].entry_offsets)
            for branch in chosen[1:]:
                common &= set(branch.entry_offsets)
        return sorted(common)

    def awkward(self, branches: list[str], start: int, stop: int):
        """Events start … stop-1 of some branches as one awkward record array, in one request to the file."""
        with _guarded(self.path):
            return self._tree.arrays(branches, entry_start=start, entry_stop=stop, library="ak")

    def read(self, branches: list[str], start: int, stop: int) -> dict[str, np.ndarray | Lists]:
        """Events start … stop-1 of some branches.

        Returns
        -------
        dict        branch -> array (stop - start,) in its own dtype and native byte order, or Lists

        Raises
        ------
        SourceError     a basket that cannot be read, or fewer events than the tree promises
        BranchError     a branch that is neither a number nor a list of numbers per event
        """
        arrays = self.awkward(branches, start, stop)
        with _guarded(self.path):
            found = {name: _flat(arrays[name]) for name in branches}
        for name, value in found.items():
            if value is None:
                raise BranchError(f"{self.path}: branch '{name}'", "a number or a list of numbers per event",
                                  str(arrays[name].type.content), "choose another branch")  # fmt: skip
            length = len(value.offsets) - 1 if isinstance(value, Lists) else len(value)
            if length != stop - start:
                raise SourceError(f"{self.path}: branch '{name}'", f"{stop - start} events", str(length),
                                  "check the file", source=self.path)  # fmt: skip
        return found


def _check_size(path: str) -> None:
    """Raise SourceError for a file that is shorter than the end that its header names (offset 12: fEND)."""
    with open(path, "rb") as file:
        head = file.read(20)
        size = file.seek(0, 2)
    if head[:4] != b"root" or len(head) < 20:
        return  # uproot says what it is instead
    wide = int.from_bytes(head[4:8], "big") >= 1_000_000
    promised = int.from_bytes(head[12 : 20 if wide else 16], "big")
    if promised > size:
        raise SourceError(path, f"{promised} bytes as its header says", str(size),
                          "fetch it again, or set damaged=\"skip_file\"", source=path)  # fmt: skip


def tree_names(file) -> list[str]:
    """Names of the TTrees and RNTuples of an open file, without cycle numbers."""
    classes = file.classnames(cycle=False, recursive=True)
    return [name for name, kind in classes.items() if kind in ("TTree", "ROOT::RNTuple", "TNtuple", "TChain")]


def trees_of(path: str) -> list[str]:
    """Names of the trees of a file; raises SourceError when it cannot be read."""
    with _guarded(path), uproot.open(path) as file:
        return tree_names(file)


def _flat(array) -> np.ndarray | Lists | None:
    layout = ak.to_layout(array)
    if layout.is_option or layout.is_indexed:
        layout = ak.to_layout(ak.to_packed(array))
    if layout.is_numpy:
        return _native(layout.data) if layout.data.ndim == 1 else None
    if not layout.is_list:
        return None
    layout = layout.to_ListOffsetArray64(True)
    if not layout.content.is_numpy or layout.content.data.ndim != 1:
        return None
    offsets = np.asarray(layout.offsets.data, np.int64)
    return Lists(offsets, _native(layout.content.data[: offsets[-1]]))


def _kind(value) -> tuple[str, np.dtype | None]:
    if value is None:
        return "other", None
    return ("list", value.flat.dtype) if isinstance(value, Lists) else ("scalar", value.dtype)


def _native(array) -> np.ndarray:
    array = np.asarray(array)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


# ---------------------------------------------------------------------------------------------------- binding


def bind(schema: Schema, readers: list[Reader]) -> dict[str, Binding]:
    """Decide for the whole set of files which branch serves which quantity.

    Of the names that a quantity allows, the first that every file has is taken. A default is taken only when no file
    has any of them: files cannot differ in silence.

    Raises
    ------
    BranchError     a quantity without branch and default, with the nearest names; or one that only some files have;
                    or one whose kind or dtype differs between files
    """
    for reader in readers:
        reader.describe(schema)
    bindings = {}
    lists = schema.list_values()
    for key, value in {**lists, **schema.scalar_values()}.items():
        bindings[key] = _bind_one(key, value, readers)
    branches = {binding.branch for binding in bindings.values() if binding.branch is not None}
    kinds = readers[0].described
    for key, binding in bindings.items():
        if binding.branch is None:
            continue
        wanted = "list" if key in lists or binding.index is not None else "scalar"
        kind = kinds[binding.branch][0]
        if kind != wanted:
            hint = "give an index to take one element of a list" if wanted == "scalar" and kind == "list" else ""
            raise BranchError(f"{readers[0].path}: branch '{binding.branch}' for {key}", f"a {wanted} of numbers",
                              "something else" if kind == "other" else f"a {kind}", hint)  # fmt: skip
    for reader in readers[1:]:
        for branch in sorted(branches):
            kind = reader.described[branch]
            if kind != kinds[branch]:
                expected = f"a {_words(kinds[branch])} as in {readers[0].path}"
                raise BranchError(f"{reader.path}: branch '{branch}'", expected, f"a {_words(kind)}",
                                  "prepare these files apart")  # fmt: skip
    return bindings


def _words(kind: tuple) -> str:
    return f"{kind[0]} of {kind[1]}" if kind[1] is not None else "thing that is not a number"


def _bind_one(key: str, value: Value, readers: list[Reader]) -> Binding:
    if value.constant is not None:
        return Binding(constant=value.constant)
    for name in value.branches:
        if all(name in reader.branches for reader in readers):
            return Binding(branch=name, index=value.index)
    with_any = [r for r in readers if any(name in r.branches for name in value.branches)]
    wanted = " or ".join(f"'{name}'" for name in value.branches)
    if with_any:
        without = next((r for r in readers if r not in with_any), None)
        found = f"it in {len(with_any)} of {len(readers)} files, not in {without.path}" if without else "no common one"
        raise BranchError(f"branch for {key}", f"{wanted} in every file", found, "prepare these files apart")
    if value.missing is not None:
        return Binding(constant=value.missing)
    close = nearest(value.branches[0], sorted(readers[0].branches), 3)
    raise BranchError(f"{readers[0].path}: branch for {key}", wanted, "none of that name",
                      f"nearest: {', '.join(close)}" if close else "name another branch in the schema")  # fmt: skip


def read_range(reader: Reader, bindings: dict[str, Binding], start: int, stop: int) -> dict[str, np.ndarray | Lists]:
    """All bound quantities of the events start … stop-1; constants are not filled in.

    Returns
    -------
    dict        key -> Lists, or array (stop - start,)

    Raises
    ------
    CountError      an `index` that an event's list does not reach
    """
    branches = sorted({binding.branch for binding in bindings.values() if binding.branch is not None})
    read = reader.read(branches, start, stop) if branches else {}
    values = {}
    for key, binding in bindings.items():
        if binding.branch is None:
            continue
        value = read[binding.branch]
        if binding.index is not None:
            short = np.flatnonzero(np.diff(value.offsets) <= binding.index)
            if len(short):
                raise CountError(f"{reader.path}: branch '{binding.branch}': event {start + short[0]}",
                                 f"at least {binding.index + 1} elements",
                                 str(int(np.diff(value.offsets)[short[0]])), "")  # fmt: skip
            value = value.flat[value.offsets[:-1] + binding.index]
        values[key] = value
    return values
