"""A git revision, or the working tree as it is now -> a built tree of its own under .harness/trees/.

A tree is a git worktree at .harness/trees/<key>, where the key is a digest of commit, overlays, build inputs and
Python: paths of all trees are equally long, and what was built once is used again. Beside it lie <key>.log (what the
build said) and <key>.json, written last: the digest of every file that an overlay or the build made or changed. A tree
that no longer agrees with it (an arm wrote into its own sources, say) is made anew.

The user's checkout is only read: the working tree is captured through a copy of git's index, so that neither files nor
staged changes move. Ignored files are not part of any tree.

A build runs in the tree with the arm's environment and the harness's interpreter first on PATH. Without a build of
its own a Python project is built as its wheel, unpacked below the tree's .harness/site (first on PYTHONPATH), and
its extension modules are also put beside their sources, where `python -m` in the tree looks first.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.errors import ConfigurationError, UnfitError, sentence
from harness.process import guarded, temporary

PLACE = ".harness"
SITE = Path(PLACE) / "site"
#: environment variables that decide what a build makes
BUILD_VARIABLES = re.compile(
    r"^(CC|CXX|FC|LD|AR|RUSTC|MAKEFLAGS|MACOSX_DEPLOYMENT_TARGET|.*FLAGS|CMAKE_.*|PIP_.*|PYTHONPATH)$"
)
#: bytes of new files that are not ignored; more is rather data that should be
LARGEST_SNAPSHOT = 256 << 20
#: trees that are kept, the latest used first
KEPT = 16
#: set by git for its hooks; they would make it look at another repository
_OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")
_BINARY = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"MZ")
_VERSION = 1  # of this file's way of building; a new one makes old trees stale


@dataclasses.dataclass(frozen=True)
class Request:
    """The tree that an arm wants.

    Attributes
    ----------
    rev : str | None          as git names it; None: the working tree as it is now
    build : tuple | None      argument list that builds it, run in the project's folder of the tree
    copy : tuple of (from, to) files or folders of the project, and where they go in the tree
    environment : tuple       (name, value) pairs of the arm's own environment, which the build sees as well
    """

    rev: str | None = None
    build: tuple[str, ...] | None = None
    copy: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Tree:
    """A tree that is there and built.

    Attributes
    ----------
    folder : Path             the project's folder in the tree
    commit : str              the revision, or for a changed working tree the one it was changed from
    dirty : bool              whether it is a changed working tree
    key : str                 16 hex digits, the folder's name
    binaries : dict           path -> digest of every library and program that the build made
    environment : dict        what an arm needs to use it
    """

    folder: Path
    commit: str
    dirty: bool
    key: str
    binaries: dict[str, str]
    environment: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """As the record keeps it."""
        return {"commit": self.commit, "dirty": self.dirty, "tree": self.key, "binaries": self.binaries}


def home(root: Path) -> Path:
    """The project's .harness folder, made if need be; git ignores it whatever the project's .gitignore says."""
    folder = root / PLACE
    folder.mkdir(exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    return folder


def provide(request: Request, root: Path, who: str, say: Callable[[str], None] = lambda _: None) -> Tree:
    """The tree of a request, made and built if it is not there yet.

    `who` names the arm in messages, `say` hears that a build begins.
    Raises ConfigurationError for a revision or file that does not exist, UnfitError when the build fails.
    """
    top = _top(root, who)
    if request.rev is None:
        commit, base, dirty = _snapshot(root, top)
    else:
        commit = base = commit_of(root, request.rev, who)
        dirty = False
    inside = root.relative_to(top)
    overlays = _overlays(request, root, who)
    key = _key(commit, inside, request, overlays)
    place = home(root) / "trees"
    place.mkdir(exist_ok=True)
    tree = place / key
    with _held(place / f"{key}.lock") as lock:
        if not _sound(tree):
            lock(fcntl.LOCK_EX)
            if not _sound(tree):
                _make(tree, commit, root, top, overlays, request, who, say)
    os.utime(place / f"{key}.json")
    _thin_out(place, top)
    stamp = json.loads((place / f"{key}.json").read_text())
    folder = tree / inside
    return Tree(folder, base, dirty, key, stamp["binaries"], _environment(folder))


def changes(tree: Path) -> list[str]:
    """The files of a tree that are no longer as they were built: what an arm wrote into its own sources."""
    stamp = json.loads(tree.with_name(f"{tree.name}.json").read_text())
    now, was = _state(tree, stamp["overlaid"]), stamp["state"]
    return sorted(name for name in now.keys() | was.keys() if now.get(name) != was.get(name))


def commit_of(root: Path, rev: str, who: str) -> str:
    """The full commit id of a revision. Raises ConfigurationError with the nearest name of a branch or tag."""
    from harness.worker import nearest

    top = _top(root, who)
    commit = _git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}", check=False)
    if commit:
        return commit
    names = ["HEAD", *(_git(top, "for-each-ref", "--format=%(refname:short)", check=False) or "").split()]
    raise ConfigurationError(sentence(who, "a git revision after '@'", f"'{rev}'", nearest(rev, names)))


# ------------------------------------------------------------------------------------------------- git


def _git(folder: Path, *words: str, check: bool = True, given: str = "", **environment: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *words],
            input=given,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            env={name: value for name, value in os.environ.items() if name not in _OF_HOOKS} | environment,
        )
    except OSError as error:
        raise ConfigurationError(sentence("git", "a program that runs", error.strerror or str(error))) from None
    if done.returncode != 0:
        if not check:
            return None
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ConfigurationError(f"git {' '.join(words[:2])} failed in {folder}: {said}")
    return done.stdout.removesuffix("\n")


def _top(root: Path, who: str) -> Path:
    top = _git(root, "rev-parse", "--show-toplevel", check=False)
    if top is None:
        raise ConfigurationError(sentence(who, "a git repository, of which trees are made", f"none at {root}"))
    return Path(top)


def _snapshot(root: Path, top: Path) -> tuple[str, str, bool]:
    """The working tree as a commit that no branch knows: (its id, the id of HEAD, whether they differ)."""
    head = _git(top, "rev-parse", "--verify", "--quiet", "HEAD", check=False)
    if head is None:
        raise ConfigurationError(sentence(str(top), "a repository with a commit", "none", "commit first"))
    prefix = "" if root == top else f"{root.relative_to(top)}/"
    outside = [f":(exclude,top){prefix}{name}" for name in (PLACE, "reports")]
    new = _git(top, "ls-files", "--others", "--exclude-standard", "-z", "--", ".", *outside).split("\0")
    # a name that ends in a slash is a repository inside this one
    sizes = {name: (top / name).lstat().st_size for name in new if name and not name.endswith("/")}
    if sum(sizes.values()) > LARGEST_SNAPSHOT:
        largest = max(sizes, key=sizes.get)
        raise ConfigurationError(
            sentence(
                str(top),
                f"new files of at most {LARGEST_SNAPSHOT >> 20} MiB",
                f"{sum(sizes.values()) >> 20} MiB, the largest of them '{largest}'",
                "let .gitignore name data and results",
            )
        )
    index = home(root) / f"index.{os.getpid()}"
    own = Path(top, _git(top, "rev-parse", "--git-path", "index"))
    with temporary(index, index.with_name(f"{index.name}.lock")):
        if own.exists():
            shutil.copy2(own, index)
        _git(top, "add", "-u", "--", ".", GIT_INDEX_FILE=str(index))
        # not by `git add`, which refuses to leave out what is ignored anyway
        _git(top, "update-index", "--add", "-z", "--stdin", given="\0".join(sizes), GIT_INDEX_FILE=str(index))
        tree = _git(top, "write-tree", GIT_INDEX_FILE=str(index))
    if tree == _git(top, "rev-parse", "HEAD^{tree}"):
        return head, head, False
    # the same content is the same commit, whoever makes it and whenever
    made_by = {f"GIT_{who}_{what}": "harness" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    at = {f"GIT_{who}_DATE": "2000-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")}
    words = ("commit-tree", tree, "-p", head, "-m", "the working tree, captured by harness")
    return _git(top, *words, **made_by, **at), head, True


# ------------------------------------------------------------------------------------------------- identity


def _overlays(request: Request, root: Path, who: str) -> list[tuple[Path, str, str]]:
    """(source, place in the project, digest of its content) of every overlay."""
    found = []
    for source, to in request.copy:
        path = root / source
        if not path.exists():
            raise ConfigurationError(sentence(f"{who}: copy", "a file or folder of the project", f"'{source}'"))
        place = Path(os.path.normpath(to))
        if place.is_absolute() or place.parts[:1] in ((), ("..",)) or place.parts[0] in (".git", PLACE):
            raise ConfigurationError(sentence(f"{who}: copy", "a place inside the tree", f"'{to}'"))
        found.append((path, str(place), _digest_of(path)))
    return found


def _digest_of(path: Path) -> str:
    """Digest of a file, or of a folder's names and bytes."""
    state = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            name = str(file.relative_to(path)) if file != path else ""
            state.update(name.encode("utf-8", "surrogateescape") + b"\0" + (b"x" if os.access(file, os.X_OK) else b"-"))
            state.update(_file_digest(file).encode())
    return state.hexdigest()[:32]


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def _key(commit: str, inside: Path, request: Request, overlays) -> str:
    """What makes two trees the same: 16 hex digits."""
    parts = [
        _VERSION,
        commit,
        str(inside),
        request.build,
        [(to, digest) for _, to, digest in overlays],
        sorted(request.environment),
        sorted((name, value) for name, value in os.environ.items() if BUILD_VARIABLES.match(name)),
        _compiler(dict(request.environment)),
        [platform.python_version(), sys.executable, sys.implementation.cache_tag, platform.platform()],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _compiler(environment: dict[str, str]) -> list:
    """Which compiler a build would find: path, size and time of the program itself."""
    words = {**os.environ, **environment}.get("CC", "cc").split()
    path = shutil.which(words[0]) if words else None
    if path is None:
        return []
    facts = os.stat(path)
    return [os.path.realpath(path), facts.st_size, facts.st_mtime_ns]


# ------------------------------------------------------------------------------------------------- making


#: lock file of a tree -> its descriptor; a shared lock is held to the end, so that nobody rebuilds a tree in use
_locks: dict[Path, int] = {}


@contextlib.contextmanager
def _held(path: Path) -> Iterator[Callable[[int], None]]:
    """Hold a tree's lock, shared; yields a function that takes fcntl.LOCK_EX or LOCK_SH."""
    if path not in _locks or not path.exists():
        _locks[path] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    descriptor = _locks[path]
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        yield lambda how: fcntl.flock(descriptor, how)
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def release() -> None:
    """Let others rebuild or remove the trees that this process used: for one that lives on after a comparison."""
    for descriptor in _locks.values():
        os.close(descriptor)
    _locks.clear()


def _sound(tree: Path) -> bool:
    """Whether a tree is there, built, and still as it was then."""
    if not (tree / ".git").exists() or not tree.with_name(f"{tree.name}.json").exists():
        return False
    try:
        return not changes(tree)
    except (ConfigurationError, ValueError, KeyError, OSError):
        return False


def _make(tree: Path, commit: str, root: Path, top: Path, overlays, request: Request, who: str, say) -> None:
    stamp = tree.with_name(f"{tree.name}.json")
    log = tree.with_name(f"{tree.name}.log")
    stamp.unlink(missing_ok=True)
    shutil.rmtree(tree, ignore_errors=True)
    _git(top, "worktree", "prune")
    # a hook of the user's repository has no business here
    quiet = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
    _git(top, *quiet, "worktree", "add", "--detach", "--force", str(tree), commit)
    folder = tree / root.relative_to(top)
    folder.mkdir(parents=True, exist_ok=True)
    overlaid = []
    for source, to, digest in overlays:
        overlaid += [str(path.relative_to(tree)) for path in _lay_over(source, folder / to, digest, who)]
    words, after = list(request.build or ()), None
    if not words and _is_python_project(folder):
        words, after = _wheel(folder), _beside_sources
    if words:
        say(f"building {who} ({log.relative_to(root)} has what the build says)")
        _build(words, folder, dict(request.environment), log, root, who)
    if after is not None:
        after(folder)
    facts = {"commit": commit, "overlaid": overlaid, "state": _state(tree, overlaid), "binaries": _binaries(tree)}
    temporary = stamp.with_suffix(".new")
    temporary.write_text(json.dumps(facts, indent=1))
    temporary.replace(stamp)


def _lay_over(source: Path, target: Path, digest: str, who: str) -> list[Path]:
    """Copy a file or folder into the tree, see that the bytes arrived, and return the files that it became."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
        pairs = [(path, target / path.relative_to(source)) for path in _files(source)]
    else:
        target.unlink(missing_ok=True)
        shutil.copy2(source, target)
        pairs = [(source, target)]
    if _digest_of(source) != digest or any(_file_digest(old) != _file_digest(new) for old, new in pairs):
        raise ConfigurationError(
            sentence(f"{who}: copy", f"'{source}' to stay as it is", "that it changed meanwhile", "start again")
        )
    return [new for _, new in pairs]


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _is_python_project(folder: Path) -> bool:
    if (folder / "setup.py").is_file():
        return True
    try:
        tables = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return "project" in tables or "build-system" in tables


def _wheel(folder: Path) -> list[str]:
    """pip builds the wheel and unpacks it; in this environment if what the build asks for is installed here."""
    words = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-input", "--disable-pip-version-check"]
    if _has_build_requirements(folder):
        words.append("--no-build-isolation")
    return [*words, "--target", str(SITE), "."]


def _has_build_requirements(folder: Path) -> bool:
    import importlib.metadata

    try:
        tables = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        tables = {}
    wanted = tables.get("build-system", {}).get("requires", ["setuptools"])
    for requirement in wanted:
        name = re.match(r"[\w.-]+", requirement.strip())
        try:
            importlib.metadata.version(name[0] if name else requirement)
        except importlib.metadata.PackageNotFoundError:
            return False
    return True


def _build(words: list[str], folder: Path, environment: dict[str, str], log: Path, root: Path, who: str) -> None:
    if words[0] == "python":
        words = [sys.executable, *words[1:]]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    with log.open("wb") as file:
        file.write(f"$ {' '.join(words)}\n".encode())
        file.flush()
        try:
            with guarded():
                process = subprocess.Popen(
                    words,
                    cwd=folder,
                    env={**os.environ, "PATH": path, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise UnfitError(
                f"nothing was measured: the build of {who} could not start: {error.strerror} ({words[0]})"
            ) from None
        try:
            code = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if code != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
        shown = log.relative_to(root) if log.is_relative_to(root) else log
        raise UnfitError(
            f"nothing was measured: the build of {who} ended with {how}; "
            f"it said: {lines[-1][:200]} (all of it: {shown})"
        )


def _beside_sources(folder: Path) -> None:
    """Put the extension modules of the unpacked wheel beside their sources, as an in-place build would."""
    site = folder / SITE
    for path in _files(site):
        place = folder / path.relative_to(site)
        if path.suffix in (".so", ".dylib") and place.parent.is_dir():
            shutil.copy2(path, place)


def _environment(folder: Path) -> dict[str, str]:
    site = folder / SITE
    if not site.is_dir():
        return {}
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(site), *([before] if before else [])])}


# ------------------------------------------------------------------------------------------------- soundness


def _state(tree: Path, overlaid: list[str]) -> dict[str, str]:
    """path -> digest of what a tree has beside its revision: changed files, overlays and built binaries."""
    told = _git(tree, "status", "--porcelain=v1", "-z", "--untracked-files=no", "--no-renames", "--ignore-submodules")
    names = {item[3:] for item in told.split("\0") if item} | set(overlaid)
    paths = {name: tree / name for name in sorted(names)}
    return {name: _file_digest(path) if path.is_file() else "gone" for name, path in paths.items()} | _binaries(tree)


def _binaries(tree: Path) -> dict[str, str]:
    """path -> digest of every library and program that git does not know: the build's products."""
    found = {}
    for name in _git(tree, "ls-files", "--others", "-z").split("\0"):
        path = tree / name
        if name and path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4).startswith(_BINARY):
                    found[name] = _file_digest(path)
    return found


def _thin_out(place: Path, top: Path) -> None:
    """Remove the trees that were not used for longest, but none that a running comparison holds."""
    stamps = sorted(place.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    removed = False
    for stamp in stamps[KEPT:]:
        with (place / f"{stamp.stem}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            stamp.unlink(missing_ok=True)
            shutil.rmtree(place / stamp.stem, ignore_errors=True)
            for suffix in (".log", ".lock"):
                (place / f"{stamp.stem}{suffix}").unlink(missing_ok=True)
            removed = True
    if removed:
        _git(top, "worktree", "prune", check=False)
