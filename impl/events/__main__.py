"""Command line of impl.events: prepare, inspect, verify, export, import; arguments in, exit code out.

Exit codes: 0 done, 2 bad command, option or schema, 3 damaged source, 4 missing branch, 5 unequal counts, 6 not a
finite number, 7 no events, 8 too many objects, 9 worker died, 10 storage, 11 cache refused, 12 package missing,
130 interrupted.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from impl.events.errors import EventsError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m impl.events", description="ROOT files to graph caches.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    prepare = commands.add_parser("prepare", help="make a cache from ROOT files")
    _sources(prepare)
    prepare.add_argument("--output", metavar="DIR", help="folder of the cache")
    prepare.add_argument("--quiet", action="store_true", help="no progress on standard error")

    inspect = commands.add_parser("inspect", help="say what a cache or a ROOT file holds")
    inspect.add_argument("path")
    inspect.add_argument("--schema", help="a ROOT file: which branch would serve which quantity")
    inspect.add_argument("--event", type=int, metavar="N", help="a cache: show the nodes of this event")
    inspect.add_argument("--json", action="store_true", help="a cache: print its manifest")

    verify = commands.add_parser("verify", help="check every byte of a cache, and with files that it is theirs")
    verify.add_argument("cache")
    _sources(verify)

    export = commands.add_parser("export", help="write a cache as DGL graphs (needs torch and dgl)")
    export.add_argument("cache")
    export.add_argument("output", metavar="FILE", help="a file for dgl.load_graphs")

    back = commands.add_parser("import", help="make a cache from a file that export wrote (needs torch and dgl)")
    back.add_argument("file")
    back.add_argument("output", metavar="DIR")
    return parser


def _sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="ROOT files, patterns, or FILE:TREE, in source order")
    parser.add_argument("--schema", metavar="NAME", help="name of a schema or path of a TOML file")
    parser.add_argument("-c", "--config", metavar="FILE", help="TOML file of options; the keys of -s")
    parser.add_argument("-s", "--set", action="append", default=[], metavar="KEY=VALUE",
                        help="set an option: " + ", ".join(_option_names()))  # fmt: skip


def _option_names() -> list[str]:
    import dataclasses

    from impl.events.config import Options

    return [field.name for field in dataclasses.fields(Options)]


class _Progress:
    """Events done and events/s on standard error, at most twice a second; one line where that is a terminal."""

    def __init__(self):
        self.begin = self.last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last < 0.5:
            return
        self.last = now
        end = "\r" if sys.stderr.isatty() else "\n"
        speed = done / (now - self.begin)
        print(f"{done} of {total} events, {speed:.0f} events/s", end=end, file=sys.stderr, flush=True)


def _prepare(arguments) -> None:
    from impl.events import config
    from impl.events.prepare import prepare

    options = config.load(arguments.config, arguments.set, files=arguments.files or None, schema=arguments.schema,
                          output=arguments.output)  # fmt: skip
    done = prepare(options, progress=None if arguments.quiet else _Progress())
    manifest, report = done.manifest, done.manifest["report"]
    if done.reason:
        print(f"workers: {done.reason}", file=sys.stderr)
    for skipped in report["skipped_files"]:
        print(f"skipped {skipped['path']}: {skipped['cause']}", file=sys.stderr)
    touched = [f"{count} {name.replace('_', ' ')}" for name, count in report.items()
               if isinstance(count, int) and count and name != "events_read"]  # fmt: skip
    touched += [f"{count} not finite in {name}" for name, count in report["not_finite"].items()]
    if touched:
        print("; ".join(touched), file=sys.stderr)
    print(f"{done.path}: {manifest['events']} events, {manifest['nodes']} nodes, {manifest['edges']} edges; "
          f"{report['events_read'] / done.seconds:.0f} events/s with {done.workers} workers; "
          f"fingerprint {manifest['fingerprint'][:12]}, content {manifest['content'][:12]}")  # fmt: skip


def _inspect(arguments) -> None:
    from impl.events.cache import Cache

    if Path(arguments.path).is_file():
        _inspect_root(arguments.path, arguments.schema)
        return
    cache = Cache.open(arguments.path)
    if arguments.json:
        print(json.dumps(cache.manifest, indent=1, sort_keys=True, ensure_ascii=False))
        return
    manifest = cache.manifest
    print(f"{len(cache)} events, {manifest['nodes']} nodes, {manifest['edges']} edges"
          f"{' with self loops' if cache.self_loops else ''}, "
          f"edge features {'rebuilt on reading' if cache.edge_x is None else 'stored'}")  # fmt: skip
    if len(cache):
        counts = cache.node_counts
        print(f"nodes an event: {counts.min()} to {counts.max()}, mean {counts.mean():.2f}; "
              f"{(counts == 0).sum()} events without, {(counts == 1).sum()} with one")  # fmt: skip
    print(f"node features: {', '.join(cache.node_features)}")
    print(f"globals: {', '.join(cache.globals) or 'none'}")
    print(f"metadata: {', '.join(f'{name} ({array.dtype})' for name, array in cache.meta.items()) or 'none'}")
    print(f"label: {cache.label.dtype} {list(cache.label.shape)}, classes: {', '.join(cache.classes) or 'unnamed'}")
    for source in manifest["sources"]:
        print(f"from {source['path']}:{source['tree']}, {source['entries']} events")
    print(f"fingerprint {cache.fingerprint}\ncontent     {cache.content}")
    if arguments.event is not None:
        _print_event(cache, arguments.event)


def _print_event(cache, number: int) -> None:
    from impl.events.errors import ConfigurationError

    if not 0 <= number < len(cache):
        raise ConfigurationError("--event", f"0 to {len(cache) - 1}", str(number), "")
    event = cache.batch([number])
    scalars = [f"{name} {value:.6g}" for name, value in zip(cache.globals, event.glob[0], strict=True)]
    scalars += [f"{name} {array[0]}" for name, array in event.meta.items()]
    print(f"event {number}: label {event.label[0]}, weight {event.weight[0]:.6g}, {', '.join(scalars)}")
    print("".join(f"{name:>12}" for name in cache.node_features))
    for row in event.node_x:
        print("".join(f"{value:12.5g}" for value in row))


def _inspect_root(path: str, schema_name: str | None) -> None:
    import contextlib

    from impl.events import root, schema

    if schema_name is None:
        for name in root.trees_of(path):
            with root.Reader(path, name) as reader:
                print(f"{name}: {reader.entries} events, {len(reader.branches)} branches")
        return
    chosen = schema.load(schema_name)
    with contextlib.closing(root.Reader(path, chosen.tree)) as reader:
        for key, binding in root.bind(chosen, [reader]).items():
            served = binding.branch if binding.branch is not None else f"constant {binding.constant:g}"
            print(f"{key:24} {served}" + (f" [{binding.index}]" if binding.index is not None else ""))


def _verify(arguments) -> None:
    from impl.events import config
    from impl.events.cache import Cache
    from impl.events.prepare import identity_for

    expect = None
    if arguments.files or arguments.config or arguments.schema or arguments.set:
        expect = identity_for(config.load(arguments.config, arguments.set, files=arguments.files or None,
                                          schema=arguments.schema, output=arguments.cache))  # fmt: skip
    cache = Cache.open(arguments.cache, expect)
    cache.verify()
    print(f"{arguments.cache}: {len(cache)} events, every column is whole"
          + (", and it is the cache of these files and options" if expect else ""))  # fmt: skip


def _export(arguments) -> None:
    from impl.events.export import to_dgl

    print(f"{arguments.output}: {to_dgl(arguments.cache, arguments.output)} DGL graphs")


def _import(arguments) -> None:
    from impl.events.export import from_dgl

    print(f"{arguments.output}: {len(from_dgl(arguments.file, arguments.output))} events")


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        arguments = _parser().parse_args(argv)
        {"prepare": _prepare, "inspect": _inspect, "verify": _verify, "export": _export, "import": _import}[
            arguments.command
        ](arguments)
    except EventsError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; no cache was left", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
