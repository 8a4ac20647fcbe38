"""A scan in HDF5: EIGER masters with linked data files, NXmx, or a plain three-dimensional data set.

What the file says about the goniometer, the beam, the detector's mask and its limits is read by NeXus names (NXmx); a
path in the job goes before. HDF5 is not read by two threads at once.

Sources: NeXus, application definition NXmx 1.6; DECTRIS, EIGER HDF5 documentation.
"""

import contextlib
import itertools
import re
import threading
from pathlib import Path

import numpy as np

from impl.mapping.cbf import reason
from impl.mapping.frames import Input, Monitor, Stack
from impl.mapping.goniometer import Positions
from impl.mapping.images import AGREE, guarded, in_words
from impl.mapping.sources import SourceError

#: chunks that hold several frames are kept until the next is read, up to this size
BLOCK_BYTES = 256 << 20
DEGREES = {"deg": 1.0, "degree": 1.0, "degrees": 1.0, "°": 1.0, "": 1.0}
DEGREES |= dict.fromkeys(("rad", "radian", "radians"), 180 / np.pi)
METRES = {"m": 1.0, "metre": 1.0, "meter": 1.0, "metres": 1.0, "meters": 1.0, "mm": 1e-3, "um": 1e-6, "µm": 1e-6}
METRES |= {"micron": 1e-6, "microns": 1e-6, "cm": 1e-2, "nm": 1e-9, "angstrom": 1e-10, "angstroms": 1e-10, "å": 1e-10}
SECONDS = {"s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "": 1.0}


def need_h5py(where):
    """The package h5py, with the filters of hdf5plugin where that is installed."""
    try:
        import h5py
    except ImportError:
        raise SourceError(where, "the package h5py", "none", "pip install 'harness-ab[mapping]'") from None
    with contextlib.suppress(ImportError):
        import hdf5plugin  # noqa: F401

    return h5py


def _text(value) -> str:
    if isinstance(value, np.ndarray):
        value = value.reshape(-1)[0] if value.size else ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class _File:
    """One HDF5 file: its data sets of frames in order, and what else it says."""

    def __init__(self, path, given: Input):
        self.path, self.given, self.parts = Path(path), given, []
        h5py = self.h5py = need_h5py(f"{given.job}: input.format = 'hdf5'")
        try:
            self.file = h5py.File(path, "r", rdcc_nbytes=1 << 20)
        except FileNotFoundError:
            raise SourceError(path, "an HDF5 file", "No such file or directory", "check the path") from None
        except Exception as error:  # h5py raises OSError, and others for damaged files
            raise SourceError(path, "an HDF5 file", f"none ({reason(error)})", "check the file") from None
        try:
            with guarded(path, "an HDF5 file with frames"):
                self.parts = self._parts()
                self._check_sources()
                self.shape = tuple(int(n) for n in self.parts[0].shape[-2:])
                self.dtype = self.parts[0].dtype
                self.counts = [1 if part.ndim == 2 else int(np.prod(part.shape[:-2])) for part in self.parts]
                self.frames = sum(self.counts)
                self._check_parts()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file and those that it links to."""
        for part in self.parts:
            with contextlib.suppress(Exception):
                part.file.close()
        with contextlib.suppress(Exception):  # a damaged file may not even close
            self.file.close()

    def fault(self, expected, found, following=""):
        """The sentence about this file."""
        return SourceError(self.path, expected, found, following)

    # where the frames are

    def _get(self, group, name):
        """An object behind a link; a broken external link is named."""
        try:
            return group[name]
        except (KeyError, OSError, RuntimeError) as error:
            link = None
            with contextlib.suppress(Exception):  # the link itself may be what is damaged
                link = group.get(name, getlink=True)
            if isinstance(link, self.h5py.ExternalLink):
                raise self.fault(
                    f"the linked file '{link.filename}' with '{link.path}'", f"none ({reason(error)})", "put it beside"
                ) from None
            raise self.fault(f"an object '{name}' in '{group.name}'", f"none ({reason(error)})") from None

    def _dataset(self, path):
        """The data set of an absolute path, or None."""
        found = self.file
        for name in path.strip("/").split("/"):
            if not isinstance(found, self.h5py.Group) or name not in found:
                return None
            found = self._get(found, name)
        return found if isinstance(found, self.h5py.Dataset) else None

    def _parts(self) -> list:
        if self.given.dataset:
            found = self._dataset(self.given.dataset)
            if found is None:
                group = self.file
                for name in self.given.dataset.strip("/").split("/"):
                    if isinstance(group, self.h5py.Group) and name in group:
                        group = self._get(group, name)
                if isinstance(group, self.h5py.Group) and group.name == self.given.dataset.rstrip("/"):
                    return self._numbered(group) or self._missing()
                raise self.fault(f"a data set '{self.given.dataset}'", self._shown())
            return [found]
        for entry in self._entries():
            data = entry.get("data") if "data" in entry else None
            if isinstance(data, self.h5py.Group):
                plain = data.get("data", getlink=True) if "data" in data else None
                if plain is not None:
                    return [self._get(data, "data")]
                if parts := self._numbered(data):
                    return parts
            signal = self._signal(entry)
            if signal is not None:
                return [signal]
        return self._only() or self._missing()

    def _missing(self):
        raise self.fault("frames in /entry/data/data or /entry/data/data_000001", self._shown(), "set input.dataset")

    def _shown(self) -> str:
        names = ", ".join(f"'/{name}'" for name in list(self.file)[:6])
        return f"{names or 'nothing'} at the top"

    def _entries(self):
        """Groups that may be entries, the default first."""
        groups = [self.file[name] for name in self.file if self.file.get(name, getclass=True) is self.h5py.Group]
        default = _text(self.file.attrs.get("default", ""))
        entries = [g for g in groups if _text(g.attrs.get("NX_class", "")) == "NXentry" or g.name == "/entry"]
        return sorted(entries, key=lambda g: g.name.strip("/") != default)

    def _numbered(self, group) -> list:
        """The data sets data_000001 … of a group, in the order of their numbers."""
        found = sorted((int(m[1]), name) for name in group if (m := re.fullmatch(r"data_(\d+)", name)))
        if found and found[0][0] > 1 and not self.given.gaps:
            raise self.fault("'data_000001'", f"'{found[0][1]}' first", "add the missing file, or set gaps = true")
        for (low, name), (high, other) in itertools.pairwise(found):
            if high != low + 1 and not self.given.gaps:
                raise self.fault(
                    f"'data_{low + 1:06d}' after '{name}'", f"'{other}'", "add the missing file, or set gaps = true"
                )
        return [self._get(group, name) for _, name in found]

    def _signal(self, entry):
        """The data set that default and signal attributes lead to, if it holds frames."""
        name = _text(entry.attrs.get("default", ""))
        groups = [entry[name]] if name and name in entry else [g for g in entry.values() if self._is(g, "NXdata")]
        for group in groups:
            signal = _text(group.attrs.get("signal", ""))
            if signal and signal in group:
                found = self._get(group, signal)
                if isinstance(found, self.h5py.Dataset) and found.ndim == 3:
                    return found
        return None

    def _is(self, thing, kind) -> bool:
        return isinstance(thing, self.h5py.Group) and _text(thing.attrs.get("NX_class", "")) == kind

    def _only(self) -> list:
        """The one data set of three dimensions that the file has."""
        found = []
        self.file.visititems(
            lambda name, thing: (
                found.append(thing) if isinstance(thing, self.h5py.Dataset) and thing.ndim == 3 else None
            )
        )
        if len(found) > 1:
            names = ", ".join(f"'{thing.name}'" for thing in found[:4])
            raise self.fault("one data set of three dimensions", names, "set input.dataset")
        return found

    def _check_sources(self) -> None:
        """A virtual data set whose source is missing reads as zeros without a word: refuse it."""
        for path in self.linked():
            if not path.is_file():
                raise self.fault(f"the linked file '{path}'", "No such file or directory", "put it beside")

    def linked(self) -> list[Path]:
        """Files that hold the frames, other than this one."""
        out = []
        for part in self.parts:
            home = Path(part.file.filename)
            files = [home]
            if part.is_virtual:
                sources = [Path(source.file_name) for source in part.virtual_sources()]
                files += [s if s.is_absolute() else home.parent / s for s in sources if str(s) != "."]
            out += [f for f in files if f != self.path and f not in out]
        return out

    def _check_parts(self) -> None:
        first = self.parts[0]
        for part in self.parts:
            if part.ndim not in (2, 3) and not (part.ndim > 3 and np.prod(part.shape[1:-2]) == 1):
                raise self.fault("frames in two or three dimensions", f"{part.name} with {part.shape}")
            filters = part.id.get_create_plist()
            for code, _, _, name in map(filters.get_filter, range(filters.get_nfilters())):
                if not self.h5py.h5z.filter_avail(code):
                    raise self.fault(
                        f"the HDF5 filter {code} ({_text(name) or 'unnamed'}) of {part.name}", "none",
                        "pip install 'harness-ab[mapping]' for hdf5plugin",
                    )  # fmt: skip
            if part.dtype.kind not in "iuf":
                raise self.fault("frames of numbers", f"{part.name} of {part.dtype}")
            if part.shape[-2:] != first.shape[-2:]:
                wanted, found = (" x ".join(map(str, p.shape[-2:])) for p in (first, part))
                raise self.fault(f"{wanted} pixels as in {first.name}", f"{found} in {part.name}")
            if part.dtype != first.dtype:
                raise self.fault(f"counts of {first.dtype} as in {first.name}", f"{part.dtype} in {part.name}")
        for group in self._groups("detectorSpecific"):
            numbers = [self.scalar(group, name) for name in ("nimages", "ntrigger")]
            if None not in numbers and numbers[0] * numbers[1] != self.frames and not self.given.gaps:
                raise self.fault(
                    f"{int(numbers[0] * numbers[1])} frames, as nimages and ntrigger say",
                    str(self.frames),
                    "add the missing data files, or set gaps = true",
                )

    # what it says beside

    def _groups(self, *names) -> list:
        """Groups of the first entry with one of these names or classes, as deep as a NeXus file keeps them."""
        found = []
        for entry in self._entries()[:1]:
            level = [entry]
            for _ in range(4):
                below = []
                for group in level:
                    for name in group:
                        if group.get(name, getclass=True, getlink=True) is not self.h5py.HardLink:
                            continue
                        thing = group[name]
                        if isinstance(thing, self.h5py.Group):
                            below.append(thing)
                            if name in names or _text(thing.attrs.get("NX_class", "")) in names:
                                found.append(thing)
                level = below
        return found

    def values(self, thing, units=None, what="") -> np.ndarray:
        """Numbers of a data set, one dimension, in the table's unit."""
        array = np.asarray(thing[()])
        if array.dtype.kind not in "iufb":
            raise self.fault(f"numbers in {thing.name}", str(array.dtype))
        factor = 1.0
        if units is not None:
            unit = _text(thing.attrs.get("units", "")).strip().lower()
            if unit not in units:
                if unit == "":
                    unit = {"length": "m"}.get(what, "")
                if unit not in units:
                    raise self.fault(f"{thing.name} in one of {', '.join(u for u in units if u)}", f"units '{unit}'")
            factor = units[unit]
        return np.atleast_1d(array.astype(float).squeeze()) * factor

    def scalar(self, group, name, units=None, what=""):
        """A number of a group, None where it has none or several."""
        thing = group.get(name) if name in group else None
        if not isinstance(thing, self.h5py.Dataset) or thing.size != 1:
            return None
        value = float(self.values(thing, units, what)[0])
        return value if np.isfinite(value) else None

    def first(self, groups, names, units=None, what=""):
        """The first number that one of the groups has under one of the names."""
        for group in groups:
            for name in names:
                value = self.scalar(group, name, units, what)
                if value is not None:
                    return value
        return None

    def detectors(self) -> list:
        """Groups that describe the detector."""
        return self._groups("NXdetector", "detector", "detectorSpecific")

    def geometry(self) -> dict:
        """wavelength_angstrom, distance_m and pixel_m (rows first), as far as the file has them."""
        beams = self._groups("NXbeam", "beam", "NXmonochromator")
        out, detectors = {}, self.detectors()
        wavelength = self.first(beams, ("incident_wavelength", "wavelength"), METRES | {"": 1e-10})
        if wavelength and wavelength > 0:
            out["wavelength_angstrom"] = wavelength * 1e10
        distance = self.first(detectors, ("detector_distance", "distance"), METRES, "length")
        if distance and distance > 0:
            out["distance_m"] = distance
        pixel = [self.first(detectors, (f"{axis}_pixel_size",), METRES, "length") for axis in "yx"]
        if None not in pixel and min(pixel) > 0:
            out["pixel_m"] = tuple(pixel)
        return out

    def mask(self):
        """bool (rows, columns) of the detector's pixel_mask, None without one: 0 alone is a good pixel."""
        if self.given.mask_dataset:
            found = self._dataset(self.given.mask_dataset)
            if found is None:
                raise self.fault(f"a data set '{self.given.mask_dataset}'", self._shown())
        else:
            found = next((g["pixel_mask"] for g in self.detectors() if "pixel_mask" in g), None)
        if found is None:
            return None
        array = np.asarray(found[()]).squeeze() if found.size == np.prod(self.shape) else np.asarray(found[()])
        if array.shape != self.shape and array.size == np.prod(self.shape):
            array = array.reshape(self.shape)
        if array.shape != self.shape:
            wanted, shown = (" x ".join(map(str, shape)) for shape in (self.shape, array.shape))
            raise self.fault(f"a mask of {wanted} pixels in {found.name}", shown)
        return array != 0

    def limits(self):
        """(least count that is valid or None, count from which on it is not or None)."""
        detectors = self.detectors()
        low = self.first(detectors, ("underload_value",))
        # NXmx: valid up to and including saturation_value; the cut-off is itself the largest that the correction gives.
        top = self.first(detectors, ("saturation_value",))
        cut = self.first(detectors, ("countrate_correction_count_cutoff",))
        above = None if top is None else np.nextafter(top, np.inf)
        high = [value for value in (above, cut) if value is not None and value > 0]
        return low, min(high) if high else None

    def exposure(self):
        """Seconds of every frame, None where the file has none."""
        for group in self.detectors():
            thing = group.get("count_time") if "count_time" in group else None
            if isinstance(thing, self.h5py.Dataset):
                times = self.values(thing, SECONDS)
                if len(times) in (1, self.frames):
                    return np.repeat(times, self.frames) if len(times) == 1 else times
        return None

    def axis(self, name: str):
        """(start, end) or (centres, None) of an axis in degrees, and where; None where the file has none."""
        thing = self._axis(name)
        if thing is None:
            return None
        start, group, key = self.values(thing, DEGREES), thing.parent, thing.name.rpartition("/")[2]
        where = thing.name
        if len(start) not in (1, self.frames):
            raise self.fault(f"{self.frames} values in {where}, one a frame", str(len(start)))
        fixed = thing.size == 1 and (self.frames > 1 or thing.ndim == 0)
        start = np.repeat(start, self.frames) if len(start) != self.frames else start
        if f"{key}_end" in group:
            end = self.values(group[f"{key}_end"], DEGREES)
            if len(end) not in (1, self.frames):
                raise self.fault(f"{self.frames} values in {where}_end, one a frame", str(len(end)))
            return start, np.broadcast_to(end, start.shape).copy(), f"{where} and {where}_end"
        for ending in ("increment_set", "increment", "range_average"):
            if f"{key}_{ending}" in group:
                step = self.values(group[f"{key}_{ending}"], DEGREES)
                if len(step) not in (1, self.frames):
                    raise self.fault(f"{self.frames} values in {where}_{ending}, one a frame", str(len(step)))
                if fixed and self.frames > 1 and step.any():
                    raise self.fault(
                        f"{self.frames} values in {where}, one a frame", "one, and an increment", "give [angles]"
                    )
                return start, start + step, f"{where} and {where}_{ending}"
        # A single number for the whole scan is an axis that stood still.
        return (start, start, where) if fixed else (start, None, where)

    def _axis(self, name):
        if name.startswith("/"):
            return self._dataset(name)
        groups = self._groups(
            "goniometer", "NXgoniometer", "NXtransformations", "transformations", "sample", "NXsample"
        )
        groups += [entry["data"] for entry in self._entries()[:1] if self._is(entry.get("data"), "NXdata")]
        for group in groups:
            if "detector" in group.name:
                continue
            for key in group:
                if key.lower() == name and group.get(key, getclass=True) is self.h5py.Dataset:
                    return group[key]
        return None


class NexusStack(Stack):
    """Frames in HDF5 files; h5py serves one thread at a time."""

    concurrent = False

    def __init__(self, given: Input, paths):
        self.where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        self.input = given
        self._files: list[_File] = []
        self._lock, self._block = threading.Lock(), (None, 0, None)
        try:
            for path in paths:
                self._files.append(_File(path, given))
            first = self._files[0]
            self.shape, self.dtype = first.shape, first.dtype
            for file in self._files[1:]:
                if file.shape != self.shape or file.dtype != self.dtype:
                    found = f"{file.shape[0]} x {file.shape[1]} of {file.dtype}"
                    raise file.fault(f"{self.shape[0]} x {self.shape[1]} pixels of {self.dtype} as in the first", found)
            self._places = [
                (part, index)
                for file in self._files
                for part, count in zip(file.parts, file.counts)
                for index in range(count)
            ]
            self.frames = len(self._places)
            for file in self._files:
                with guarded(file.path, "NeXus metadata"):
                    self._check_geometry(file)
            with guarded(first.path, "NeXus metadata"):
                masks = [mask for file in self._files if (mask := file.mask()) is not None]
                self.static_mask = np.logical_or.reduce(masks) if masks else None
                if masks:
                    self.static_mask.setflags(write=False)  # frames share it
                limits = [file.limits() for file in self._files]
                self._low = max((low for low, _ in limits if low is not None), default=None)
                self._high = min((high for _, high in limits if high is not None), default=None)
                self._prepare(given)
        except BaseException:
            self.close()
            raise

    def _check_geometry(self, file: _File) -> None:
        for name, found in file.geometry().items():
            expected = self.input.expected.get(name)
            if expected is None or name in self.input.overrule:
                continue
            pairs = zip(found, expected) if isinstance(found, tuple) else [(found, expected)]
            if any(abs(a - b) > AGREE[name] * abs(b) for a, b in pairs):
                raise file.fault(
                    f"{name} {in_words(expected)} as the job's instrument has",
                    in_words(found),
                    f"correct [instrument], or set input.overrule = ['{name}'] if the file is wrong",
                )

    def place(self, frame):
        part, index = self._places[frame]
        return f"{part.file.filename}: {part.name}[{index}]"

    def positions(self):
        out = {}
        for name in {motor.axis for motor in self.input.motors.values() if motor.axis}:
            found = [file.axis(name) for file in self._files]
            if any(one is None for one in found):
                continue
            start = np.concatenate([one[0] for one in found])
            if any(one[1] is None for one in found):
                out[name] = Positions(None, None, found[0][2], start)
            else:
                out[name] = Positions(start, np.concatenate([one[1] for one in found]), found[0][2])
        return out

    def exposure_times(self):
        times = [file.exposure() for file in self._files]
        return None if any(one is None for one in times) else np.concatenate(times)

    def quantity(self, monitor: Monitor):
        if not monitor.dataset:
            return super().quantity(monitor)
        parts = []
        for file in self._files:
            found = file._dataset(monitor.dataset)
            if found is None:
                raise file.fault(f"a data set '{monitor.dataset}'", "none", "check the path in the job")
            parts.append(file.values(found))
        return np.concatenate(parts)

    def limit(self, frame):
        return self._high

    def least(self, frame):
        return self._low

    def counts(self, frame):
        part, index = self._places[frame]
        with self._lock, guarded(self.place(frame), "a readable frame"):
            if part.ndim == 2:
                return part[()], None
            depth = part.chunks[0] if part.chunks else 1
            size = depth * self.shape[0] * self.shape[1] * self.dtype.itemsize
            if depth == 1 or size > BLOCK_BYTES:
                return part[index].reshape(self.shape), None
            first = index - index % depth
            if self._block[:2] != (part, first):
                self._block = (part, first, part[first : first + depth])
            return self._block[2][index - first].reshape(self.shape).copy(), None

    def close(self):
        self._block = (None, 0, None)
        for file in self._files:
            file.close()


def linked_files(given: Input, paths) -> list[Path]:
    """Files that HDF5 masters draw their frames from."""
    out = []
    for path in paths:
        file = _File(path, given)
        try:
            with guarded(path, "an HDF5 file with frames"):
                out += file.linked()
        finally:
            file.close()
    return out
