"""A TOML document -> a Job: the type, the default and the check of every key; README.md explains them."""

import math
from dataclasses import replace

import numpy as np

from impl.mapping import tables as t
from impl.mapping.detector import FROM_HEXRD, Detector, HexrdPanel
from impl.mapping.frames import FORMATS, Input, Monitor
from impl.mapping.geometry import AXES, b_matrix, exponential_map, wave_number
from impl.mapping.goniometer import ANGLES, Given, Motor
from impl.mapping.grid import Grid
from impl.mapping.instrument import PoniDetector, energy_of, read_poni
from impl.mapping.job import Corrections, Job
from impl.mapping.sources import SourceError, read_grains, read_instrument

#: depths by the names of their accuracy
PRESETS = {"center": 0, "low": 1, "balanced": 2, "high": 3, "very_high": 4, "maximum": 5}
#: a number twice said (in a file and in the job) agrees within this share
AGREE = 1e-6

_TRIPLE = t.several(t.number(), 3, words="three finite numbers")
_MATRIX = t.several(_TRIPLE, 3, words="a matrix: three lists of three finite numbers")
_PAIR = t.several(t.number(above=0), 2, words="two finite numbers above 0, rows first")
_SHAPE = t.several(t.whole(1, 1 << 20), 2, words="two whole numbers from 1 to 1048576, rows first")
_EDGES = t.several(t.whole(1), 3, words="three whole numbers of at least 1")
_NUMBERS = t.several(t.number(), least=1, words="a list of finite numbers")
_DEPTH = t.either(
    t.whole(0, 8), t.choice(*PRESETS), words=f"a whole number from 0 to 8, or one of {', '.join(PRESETS)}"
)


def parse(raw: dict, where: str, folder) -> Job:
    """A Job from a parsed TOML document; `where` names it in messages, relative paths lie in `folder`.

    Raises SourceError.
    """
    path, paths = t.path(folder), t.several(t.path(folder), least=1, words="a list of paths or patterns")
    top = t.check(
        raw,
        {
            "job": (t.table, t.NEEDED), "input": (t.table, t.NEEDED), "instrument": (t.table, t.NEEDED),
            "goniometer": (t.table, {}), "angles": (t.table, {}), "crystal": (t.table, {}),
            "grids": (t.table, t.NEEDED), "corrections": (t.table, {}), "monitors": (t.table, {}), "run": (t.table, {}),
        },
        where,
    )  # fmt: skip
    job = t.check(
        top["job"],
        {
            "name": (t.text, t.NEEDED), "output": (path, t.NEEDED), "scratch": (path, None),
            "depth": (_DEPTH, 2), "exposure": (t.choice("continuous", "stationary"), "continuous"),
            "excluded": (t.several(t.either(t.whole(0), _range, words=_range.__doc__), words=_range.__doc__), ()),
            "allow_empty": (t.flag, False), "compression": (t.choice("gzip", "bitshuffle"), "gzip"),
        },
        where, "job",
    )  # fmt: skip
    run = t.check(
        top["run"],
        {
            "threads": (t.whole(0, 256), 0), "readers": (t.whole(0, 64), 0), "budget": (t.size, 2 << 30),
            "frames_per_call": (t.whole(0, 1024), 0), "checkpoints": (t.whole(1, 9999), 10),
        },
        where, "run",
    )  # fmt: skip
    instrument, number, stage_chi, saturation = _instrument(top["instrument"], where, path)
    motors = _motors(top["goniometer"], where, stage_chi)
    given = {_axis_name(name): _given(entry, where, name, path) for name, entry in top["angles"].items()}
    unused = [name for name in given if name not in {motor.axis for motor in motors.values()}]
    if unused:
        axes = [motor.axis for motor in motors.values() if motor.axis]
        raise SourceError(
            f"{where}: angles.{unused[0]}",
            f"an axis that [goniometer] names ({', '.join(axes) or 'none'})",
            f"'{unused[0]}'",
            t.nearest(unused[0], axes),
        )
    ub, u, position = _crystal(top["crystal"], where, path)
    grids = _grids(top["grids"], where, ub, u)
    monitors = {name: _monitor(entry, where, f"monitors.{name}", path) for name, entry in top["monitors"].items()}
    if "exposure" in monitors:
        raise SourceError(f"{where}: monitors.exposure", "another name", "'exposure'", "use [input.exposure]")
    corrections = _corrections(top["corrections"], where, path, monitors)
    frames = _input(top["input"], where, path, paths, motors, given, instrument, number, monitors)
    if frames.saturation is None and saturation is not None:
        frames = replace(frames, saturation=saturation)
    excluded = set()
    for item in job["excluded"]:
        excluded |= {item} if isinstance(item, int) else set(item)
    depth = job["depth"]
    return Job(
        name=job["name"], source=where, input=frames, instrument=instrument, wave_number=number, ub=ub, u=u,
        position=position, grids=grids, output=job["output"],
        scratch=job["scratch"] or job["output"].with_name(job["output"].name + ".scratch"),
        depth=PRESETS[depth] if isinstance(depth, str) else depth, exposure=job["exposure"], corrections=corrections,
        allow_empty=job["allow_empty"], compression=job["compression"], excluded=tuple(sorted(excluded)), **run,
    )  # fmt: skip


def _range(value):
    """a list of frame numbers and ranges such as '10-20'"""
    if isinstance(value, str):
        first, dash, last = value.partition("-")
        if dash and first.strip().isdecimal() and last.strip().isdecimal():
            low, high = int(first), int(last)
            if low <= high < 10**7:
                return range(low, high + 1)
    raise t.Wrong(_range.__doc__)


def _one_of(values: dict, names, where: str, table: str, need: bool = True) -> str:
    """The one of several keys that is there; more, or none where one is needed, is an error."""
    there = [name for name in names if values[name] is not None]
    if len(there) > 1 or (need and not there):
        found = " and ".join(f"'{name}'" for name in there) or "none"
        raise SourceError(f"{where}: {table}", f"exactly one of {', '.join(names)}", found)
    return there[0] if there else ""


def _instrument(raw, where, path) -> tuple[Detector, float, float, float | None]:
    """The detector, the wave number in Å⁻¹, the stage's tilt in radians (0 where the file has none), the saturation."""
    values = t.check(
        raw,
        {
            "hexrd": (path, None), "panel": (t.text, None), "poni": (path, None),
            "shape": (_SHAPE, None), "pixel_m": (_PAIR, None), "distance_m": (t.number(above=0), None),
            "poni_m": (t.several(t.number(), 2, words="two finite numbers, along rows first"), None),
            "rotations_radians": (_TRIPLE, (0.0, 0.0, 0.0)), "azimuth_degrees": (t.number(), 0.0),
            "energy_keV": (t.number(above=0), None), "wavelength_angstrom": (t.number(above=0), None),
        },
        where, "instrument",
    )  # fmt: skip
    kind = _one_of(values, ("hexrd", "poni", "distance_m"), where, "instrument")
    described = [key for key in ("poni_m", "rotations_radians", "distance_m") if key in raw]
    if kind != "distance_m" and described:
        raise SourceError(f"{where}: instrument.{described[0]}", f"nothing beside '{kind}'", t.shown(raw[described[0]]))
    if kind == "hexrd" and (others := [key for key in ("shape", "pixel_m", "azimuth_degrees") if key in raw]):
        raise SourceError(f"{where}: instrument.{others[0]}", "nothing beside 'hexrd'", t.shown(raw[others[0]]))
    if kind != "hexrd" and values["panel"]:
        raise SourceError(f"{where}: instrument.panel", "nothing without 'hexrd'", t.shown(raw["panel"]))
    azimuth, chi, wavelength, saturation = math.radians(values["azimuth_degrees"]), 0.0, None, None
    if kind == "hexrd":
        read = read_instrument(values["hexrd"])
        name = values["panel"] or (next(iter(read.panels)) if len(read.panels) == 1 else None)
        if name not in read.panels:
            found = f"'{name}'" if name else "nothing"
            raise SourceError(
                f"{where}: instrument.panel", f"one of {', '.join(read.panels)}", found, t.nearest(name, read.panels)
            )
        detector, chi, wavelength = read.panels[name], read.chi, 2 * math.pi / read.wave_number
        saturation = read.saturation.get(name)
    elif kind == "poni":
        detector, wavelength = read_poni(values["poni"], values["shape"], values["pixel_m"], azimuth)
    else:
        for key in ("shape", "pixel_m", "poni_m"):
            if values[key] is None:
                raise SourceError(f"{where}: instrument.{key}", "two numbers, rows first", "nothing", "add it")
        detector = PoniDetector(
            values["shape"], values["pixel_m"], values["poni_m"], values["distance_m"], values["rotations_radians"],
            azimuth,
        )  # fmt: skip
    key = _one_of(values, ("energy_keV", "wavelength_angstrom"), where, "instrument", need=wavelength is None)
    if not key:
        return detector, 2 * math.pi / wavelength, chi, saturation
    number = wave_number(values[key]) if key == "energy_keV" else 2 * math.pi / values[key]
    if wavelength is not None and abs(number * wavelength / (2 * math.pi) - 1) > AGREE:
        raise SourceError(
            f"{where}: instrument.{key}",
            f"the {wavelength:.9g} angstrom ({energy_of(wavelength):.9g} keV) of the instrument's file",
            f"{values[key]:.9g}",
            "leave one of them out",
        )
    return detector, number, chi, saturation


def _motors(raw, where, stage_chi: float) -> dict[str, Motor]:
    """Which axis is which angle."""
    values = t.check(
        raw,
        {"convention": (t.choice("hexrd"), None), **dict.fromkeys(ANGLES, (t.table, None))},
        where,
        "goniometer",
    )
    if values["convention"]:
        if len(raw) > 1:
            other = next(key for key in raw if key != "convention")
            raise SourceError(
                f"{where}: goniometer.{other}", "nothing beside convention = 'hexrd'", t.shown(raw[other])
            )
        # A vector of HEXRD's sample goes to the laboratory by Rx(chi) Ry(omega) in its own axes.
        return {"alpha": Motor("", 1.0, math.degrees(stage_chi)), "omega": Motor("omega", -1.0)}
    out = {}
    for angle in ANGLES:
        if values[angle] is None:
            continue
        entry = t.check(
            values[angle],
            {"axis": (t.text, ""), "sign": (t.choice(1, -1), 1), "offset_degrees": (t.number(), 0.0),
             "degrees": (t.number(), None)},
            where, f"goniometer.{angle}",
        )  # fmt: skip
        if (entry["degrees"] is None) == (entry["axis"] == ""):
            found = "both" if entry["axis"] else "neither"
            raise SourceError(f"{where}: goniometer.{angle}", "either axis or degrees", found)
        if entry["degrees"] is not None:
            for key in ("sign", "offset_degrees"):
                if key in values[angle]:
                    raise SourceError(
                        f"{where}: goniometer.{angle}.{key}", "nothing beside degrees", t.shown(entry[key])
                    )
            out[angle] = Motor("", 1.0, entry["degrees"])
        else:
            out[angle] = Motor(_axis_name(entry["axis"]), float(entry["sign"]), entry["offset_degrees"])
    return out


def _axis_name(name: str) -> str:
    """Axes are known in lower case; an HDF5 path keeps its own."""
    return name if name.startswith("/") else name.lower()


def _given(raw, where, name, path) -> Given:
    """What the job says about one axis."""
    table = f"angles.{name}"
    values = t.check(
        raw,
        {
            "bounds_degrees": (t.several(t.several(t.number(), 2), least=1, words="a list of [start, end]"), None),
            "centres_degrees": (_NUMBERS, None), "start_degrees": (t.number(), None),
            "increment_degrees": (t.number(), None), "file": (path, None),
            "exposure": (t.choice("midpoint", "stationary"), ""), "invented": (t.flag, False),
        },
        where, table,
    )  # fmt: skip
    key = _one_of(
        values,
        ("bounds_degrees", "centres_degrees", "start_degrees", "file"),
        where,
        table,
        need=not values["exposure"],
    )
    if (values["start_degrees"] is None) != (values["increment_degrees"] is None):
        missing = "increment_degrees" if values["increment_degrees"] is None else "start_degrees"
        raise SourceError(f"{where}: {table}.{missing}", "a finite number", "nothing", "add it")
    if key == "centres_degrees" and not values["exposure"]:
        raise SourceError(f"{where}: {table}.exposure", "'midpoint' or 'stationary'", "nothing", "add it")
    if values["exposure"] and key in ("bounds_degrees", "start_degrees"):
        raise SourceError(f"{where}: {table}.exposure", f"nothing beside {key}", f"'{values['exposure']}'")
    return Given(
        values["bounds_degrees"], values["start_degrees"], values["increment_degrees"], values["centres_degrees"],
        values["exposure"], values["file"], values["invented"],
    )  # fmt: skip


def _rotation(value, where, key):
    """A rotation matrix from an exponential map or a matrix."""
    given = np.array(value, float)
    if given.shape == (3,):
        return exponential_map(given)
    if np.abs(given @ given.T - np.eye(3)).max() > 1e-6 or np.linalg.det(given) < 0:
        raise SourceError(f"{where}: {key}", "a rotation (orthogonal to 1e-6, determinant 1)", t.shown(value))
    return given


def _crystal(raw, where, path):
    """UB, U and the position; None for a matrix that is not given."""
    values = t.check(
        raw,
        {
            "ub": (_MATRIX, None), "two_pi": (t.flag, True),
            "cell": (
                t.several(t.number(above=0), 6, words="a, b, c in angstrom and alpha, beta, gamma in degrees"), None
            ),
            "orientation": (
                t.either(_TRIPLE, _MATRIX, words="an exponential map (three radians) or a rotation matrix"), None
            ),
            "grains": (path, None), "grain": (t.whole(0), None), "position_mm": (_TRIPLE, None),
            "axes": (t.choice("phi", "hexrd"), None),
        },
        where, "crystal",
    )  # fmt: skip
    if not raw:
        return None, None, np.zeros(3)
    key = _one_of(values, ("ub", "orientation", "grains"), where, "crystal", need=False)
    if key != "ub" and "two_pi" in raw:
        raise SourceError(f"{where}: crystal.two_pi", "nothing without 'ub'", t.shown(raw["two_pi"]))
    if key != "grains" and values["grain"] is not None:
        raise SourceError(f"{where}: crystal.grain", "nothing without 'grains'", t.shown(values["grain"]))
    if key == "grains" and (others := [k for k in ("position_mm", "axes") if values[k] is not None]):
        raise SourceError(f"{where}: crystal.{others[0]}", "nothing beside 'grains'", t.shown(values[others[0]]))
    b = None
    if values["cell"] is not None:
        try:
            b = b_matrix(*values["cell"][:3], *np.radians(values["cell"][3:]))
        except ValueError:
            raise SourceError(f"{where}: crystal.cell", "a cell with a volume", t.shown(list(values["cell"]))) from None
    axes = FROM_HEXRD if values["axes"] == "hexrd" else np.eye(3)
    position = axes @ np.array(values["position_mm"] or (0.0, 0.0, 0.0)) * 1e-3
    ub = u = None
    if key == "ub":
        ub = axes @ np.array(values["ub"]) * (1.0 if values["two_pi"] else 2 * math.pi)
        if not np.isfinite(np.linalg.cond(ub)) or np.linalg.cond(ub) > 1e8:
            raise SourceError(f"{where}: crystal.ub", "an invertible matrix", t.shown(values["ub"]))
        if b is not None:
            u = ub @ np.linalg.inv(b)
            if np.abs(u @ u.T - np.eye(3)).max() > 1e-3:
                raise SourceError(
                    f"{where}: crystal.cell", "the cell of ub, so that U is a rotation to 1e-3", t.shown(values["cell"])
                )
    elif key == "orientation":
        u = axes @ _rotation(values["orientation"], where, "crystal.orientation")
    elif key == "grains":
        grains, index = read_grains(values["grains"]), values["grain"] or 0
        if index >= len(grains):
            raise SourceError(f"{where}: crystal.grain", f"a number from 0 to {len(grains) - 1}", str(index))
        u = grains[index].u()
        position = FROM_HEXRD @ np.array(grains[index].position_mm) * 1e-3
    if ub is None and u is not None:
        if b is None:
            raise SourceError(f"{where}: crystal.cell", f"a cell beside '{key}'", "nothing", "add it")
        ub = u @ b
    return ub, u, position


def _grids(raw, where, ub, u) -> tuple[tuple[str, Grid], ...]:
    if not raw:
        raise SourceError(f"{where}: grids", "at least one table [grids.NAME]", "none")
    out = []
    for name, entry in raw.items():
        if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
            raise SourceError(f"{where}: grids", "names of letters, digits, - and _", t.shown(name))
        table = f"grids.{name}"
        values = t.check(
            entry,
            {
                "axes": (t.text, "hkl"), "minimum": (_TRIPLE, t.NEEDED), "maximum": (_TRIPLE, None),
                "shape": (_EDGES, None), "chunk": (_EDGES, (64, 64, 64)),
                "step": (t.several(t.number(above=0), 3, words="three finite numbers above 0"), t.NEEDED),
            },
            where, table,
        )  # fmt: skip
        axes = values["axes"].removeprefix("q_")
        if axes not in AXES:
            raise SourceError(f"{where}: {table}.axes", f"one of {', '.join(AXES)}", f"'{axes}'", t.nearest(axes, AXES))
        if (axes == "hkl" and ub is None) or (axes == "crystal" and u is None):
            need = "ub, or a cell with an orientation" if axes == "hkl" else "an orientation, or ub with its cell"
            raise SourceError(f"{where}: crystal", f"{need} for the grid '{name}' in {axes}", "none")
        key = _one_of(values, ("maximum", "shape"), where, table)
        if key == "maximum" and any(high <= low for low, high in zip(values["minimum"], values["maximum"])):
            found = t.shown(list(values["maximum"]))
            raise SourceError(f"{where}: {table}.maximum", "numbers above those of minimum", found)
        try:
            if key == "shape":
                grid = Grid(values["minimum"], values["step"], values["shape"], values["chunk"], axes)
            else:
                grid = Grid.over(values["minimum"], values["maximum"], values["step"], values["chunk"], axes)
        except ValueError as error:
            raise SourceError(f"{where}: {table}", *_parts(str(error))) from None
        out.append((name, grid))
    return tuple(out)


def _parts(message: str) -> tuple[str, str, str]:
    """expected, found and next of a sentence."""
    head, _, rest = message.partition(": expected ")
    expected, _, rest = rest.partition(", found ")
    found, _, following = rest.partition("; ")
    return expected or head, found, following


def _monitor(raw, where, table, path) -> Monitor:
    values = t.check(
        raw,
        {
            "values": (_NUMBERS, None), "variances": (_NUMBERS, None), "file": (path, None),
            "header": (t.text, None), "dataset": (t.text, None),
        },
        where, table,
    )  # fmt: skip
    _one_of(values, ("values", "file", "header", "dataset"), where, table)
    if values["variances"] is not None and (
        values["values"] is None or len(values["variances"]) != len(values["values"]) or min(values["variances"]) < 0
    ):
        expected = "one number of at least 0 beside each of values"
        raise SourceError(f"{where}: {table}.variances", expected, t.shown(list(values["variances"])))
    return Monitor(
        values["values"] or (),
        values["variances"] or (),
        values["file"],
        values["header"] or "",
        values["dataset"] or "",
    )


def _corrections(raw, where, path, monitors) -> Corrections:
    def image(value):
        """A path, for HDF5 files followed by :: and the data set."""
        name, colons, dataset = value.partition("::") if isinstance(value, str) else (value, "", "")
        return str(path(name)) + colons + dataset

    values = t.check(
        raw,
        {
            "solid_angle": (t.flag, True), "polarisation": (t.number(low=0, high=1), None),
            "flat": (image, ""), "background": (image, ""), "background_variance": (image, ""), "mask": (image, ""),
            "exposure_time": (t.flag, False), "monitors": (t.several(t.text, words="a list of monitors' names"), ()),
            "lorentz": (t.flag, False), "repair": (t.whole(0, 1000), 0),
        },
        where, "corrections",
    )  # fmt: skip
    for name in values["monitors"]:
        if name not in monitors:
            raise SourceError(
                f"{where}: corrections.monitors",
                f"one of the tables [monitors.NAME] ({', '.join(monitors) or 'none'})",
                f"'{name}'",
                t.nearest(name, monitors),
            )
    if len(set(values["monitors"])) != len(values["monitors"]):
        raise SourceError(f"{where}: corrections.monitors", "each monitor once", t.shown(list(values["monitors"])))
    if values["background_variance"] and not values["background"]:
        raise SourceError(f"{where}: corrections.background_variance", "a background beside it", "none")
    return Corrections(**values)


def _input(raw, where, path, paths, motors, given, instrument, number, monitors) -> Input:
    values = t.check(
        raw,
        {
            "format": (t.choice(*FORMATS), t.NEEDED), "files": (paths, None), "saturation": (t.number(), None),
            "sentinels": (t.several(t.whole(), words="a list of whole numbers"), None), "gaps": (t.flag, False),
            "overrule": (t.several(t.choice("wavelength_angstrom", "pixel_m", "distance_m")), ()),
            "dataset": (t.text, ""), "mask_dataset": (t.text, ""), "exposure": (t.table, None),
            "synthetic": (t.table, None),
        },
        where, "input",
    )  # fmt: skip
    kind, made = values["format"], {}
    if kind == "synthetic":
        if values["files"] is not None:
            raise SourceError(f"{where}: input.files", "nothing for a synthetic scan", t.shown(raw["files"]))
        made = t.check(
            values["synthetic"] or {},
            {
                "frames": (t.whole(1, 10**7), t.NEEDED), "rows": (t.whole(1, 1 << 16), instrument.shape[0]),
                "columns": (t.whole(1, 1 << 16), instrument.shape[1]), "seed": (t.whole(0, 2**62), 0),
                "counts": (t.choice("integer", "real"), "integer"), "mean": (t.number(low=0, high=1000), 5.0),
                "masked": (t.number(low=0, high=1), 0.0), "start_degrees": (t.number(), 0.0),
                "increment_degrees": (t.number(), 0.1),
            },
            where, "input.synthetic",
        )  # fmt: skip
    elif values["files"] is None:
        raise SourceError(f"{where}: input.files", "a list of paths or patterns", "nothing", "add it")
    elif values["synthetic"] is not None:
        raise SourceError(f"{where}: input.synthetic", f"nothing for the format '{kind}'", "a table")
    for key in ("dataset", "mask_dataset"):
        if values[key] and kind != "hdf5":
            raise SourceError(f"{where}: input.{key}", f"nothing for the format '{kind}'", t.shown(values[key]))
    expected = {"wavelength_angstrom": 2 * math.pi / number}
    if isinstance(instrument, PoniDetector):
        expected |= {"pixel_m": tuple(instrument.pitch), "distance_m": instrument.distance}
    elif isinstance(instrument, HexrdPanel):
        expected["pixel_m"] = tuple(1e-3 * x for x in instrument.pixel_mm)
    exposure = (
        {} if values["exposure"] is None else {"exposure": _monitor(values["exposure"], where, "input.exposure", path)}
    )
    kept = ("saturation", "sentinels", "overrule", "gaps", "dataset", "mask_dataset")
    return Input(
        format=kind,
        files=values["files"] or (),
        motors=motors,
        given=given,
        job=where,
        shape=tuple(instrument.shape),
        expected=expected,
        monitors={**monitors, **exposure},
        synthetic=made,
        **{key: values[key] for key in kept},
    )
