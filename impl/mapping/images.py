"""A scan of image files: CBF, TIFF and EDF, one or many frames a file.

Headers are read when the scan is opened and must agree with each other and with the job; counts are read frame by
frame. fabio decodes; whatever it raises for a damaged file becomes one sentence.
"""

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from impl.mapping import cbf
from impl.mapping.cbf import Header, reason
from impl.mapping.frames import Input, Monitor, Stack
from impl.mapping.goniometer import Positions
from impl.mapping.sources import SourceError

#: how far a header's value may be from the instrument's, as a share: headers are rounded, a distance is nominal
AGREE = {"wavelength_angstrom": 1e-3, "pixel_m": 1e-3, "distance_m": 0.02}


def need_fabio(where) -> None:
    """Raise the sentence that says what to install."""
    try:
        import fabio  # noqa: F401
    except ImportError:
        raise SourceError(where, "the package fabio", "none", "pip install 'harness-ab[mapping]'") from None


@contextlib.contextmanager
def guarded(path, what: str):
    """Whatever a reader of damaged files raises, as one sentence."""
    try:
        yield
    except SourceError:
        raise
    except MemoryError:
        raise SourceError(path, what, "one that asks for more memory than there is", "check the file") from None
    except Exception as error:  # fabio raises whatever its parsers stumble over
        raise SourceError(path, what, f"none ({reason(error)})", "check the file") from None


@dataclass
class Image:
    """One frame of a file: which, and what its header says.

    Attributes
    ----------
    path : Path
    index : int            frame of the file
    header : Header
    edf_words : bool       its words are motors and counters that are known at one moment alone
    """

    path: Path
    index: int
    header: Header
    edf_words: bool = False


def _tiff_images(path) -> list[Image]:
    from fabio.TiffIO import TiffIO

    out = []
    with guarded(path, "a TIFF file"), open(path, "rb") as handle:
        file = TiffIO(handle)
        count = file.getNumberOfImages()
        if count < 1:
            raise SourceError(path, "a TIFF file with an image", "none", "check the file")
        for index in range(count):
            info = file.getInfo(index)
            header = Header(shape=(int(info["nRows"]), int(info["nColumns"])))
            header.dtype = _tiff_dtype(info, path)
            if not 0 < header.shape[0] * header.shape[1] < 1 << 32:
                raise SourceError(path, "an image of 1 to 2^32 pixels", " x ".join(map(str, header.shape)))
            cbf.pilatus_lines(str(info.get("imageDescription") or ""), header)
            out.append(Image(Path(path), index, header))
    return out


def _tiff_dtype(info, path) -> np.dtype:
    bits, kind = info["nBits"], {1: "u", 2: "i", 3: "f"}.get(info.get("sampleFormat") or 1)
    if not isinstance(bits, int) or bits not in (8, 16, 32, 64) or kind is None or (kind == "f" and bits < 32):
        raise SourceError(path, "one number of 8 to 64 bits a pixel", f"{bits} bits", "convert the file to grey levels")
    return np.dtype(f"{kind}{bits // 8}")


def _tiff_counts(image: Image):
    from fabio.TiffIO import TiffIO

    with guarded(image.path, "a TIFF file"), open(image.path, "rb") as handle:
        file = TiffIO(handle)
        info = file.getInfo(image.index)
        if info.get("compression"):
            raise SourceError(
                image.path, "a TIFF file without compression", f"type {info['compression_type']}", "convert the file"
            )
        size = image.header.shape[0] * image.header.shape[1] * image.header.dtype.itemsize
        there = image.path.stat().st_size
        if size > there:
            raise SourceError(image.path, f"{size} bytes of counts", f"{there}; the file ends early", "copy it again")
        return np.asarray(file.getData(image.index))


def _edf_images(path) -> list[Image]:
    from fabio.edfimage import EdfImage

    out = []
    with guarded(path, "an EDF file"):
        file = EdfImage()
        try:
            file.read(str(path))
            for index in range(file.nframes):
                frame = file.get_frame(index)
                words = {str(key).lower(): str(value) for key, value in frame.header.items()}
                for names, values in (("motor_mne", "motor_pos"), ("counter_mne", "counter_pos")):
                    words |= dict(zip(words.get(names, "").lower().split(), words.get(values, "").split()))
                if len(frame.shape) != 2 or not 0 < frame.shape[0] * frame.shape[1] < 1 << 32:
                    raise SourceError(path, "images of two dimensions", " x ".join(map(str, frame.shape)))
                header = Header(words=words, shape=tuple(int(n) for n in frame.shape), dtype=np.dtype(frame.dtype))
                _edf_geometry(header)
                out.append(Image(Path(path), index, header, edf_words=True))
        finally:
            _close(file)
    return out


def _close(file) -> None:
    for handle in (getattr(file, "_file", None), getattr(file, "file", None)):
        if handle is not None and hasattr(handle, "close"):
            handle.close()


def _edf_geometry(header: Header) -> None:
    """Wavelength, distance and pixel size in metres and the exposure time, by the names that ESRF files use."""

    def value(*names):
        return next((v for name in names if (v := number(header.words.get(name))) is not None and v > 0), None)

    header.exposure = value("exposure_time", "exposuretime", "acq_expo_time", "count_time")
    wavelength = value("wavelength")
    header.wavelength_angstrom = wavelength * 1e10 if wavelength and wavelength < 1e-6 else None
    header.distance_m = value("sampledistance")
    rows, columns = value("psize_2"), value("psize_1")
    header.pixel_m = (rows, columns) if rows and columns and max(rows, columns) < 0.1 else None


def _edf_counts(image: Image):
    from fabio.edfimage import EdfImage

    with guarded(image.path, "an EDF file"):
        file = EdfImage()
        try:
            file.read(str(image.path))
            frame = file.get_frame(image.index)  # getframe would open a neighbouring file
            if tuple(frame.shape) != image.header.shape:
                raise SourceError(image.path, f"{image.header.shape}", f"{frame.shape}", "the file changed")
            counts = np.asarray(frame.data)
            if frame.incomplete_data:
                raise SourceError(image.path, "all counts of the frame", "a file that ends early", "copy it again")
            return counts
        finally:
            _close(file)


def read_one(path, kind: str):
    """The first image of a CBF, TIFF or EDF file, (rows, columns) as it lies there."""
    if kind == "cbf":
        return cbf.read_counts(path)[0]
    listed, counts = (_tiff_images, _tiff_counts) if kind == "tiff" else (_edf_images, _edf_counts)
    return counts(listed(path)[0])


def number(text) -> float | None:
    """The number at the start of a header's value, None for none."""
    found = re.match(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)", text or "")
    return float(found.group(1)) if found else None


def check_numbers(paths, gaps: bool, job: str) -> None:
    """Files whose names differ in a number alone must follow each other, none twice and none missing.

    Raises SourceError that names the first file at fault.
    """
    seen: dict[tuple, tuple[int, Path]] = {}
    if len(set(paths)) != len(paths):
        twice = next(path for k, path in enumerate(paths) if path in paths[:k])
        raise SourceError(f"{job}: input.files", "every file once", f"'{twice}' twice")
    for path in paths:
        # The last number of the name counts; what stands before and after it tells series apart.
        match = re.fullmatch(r"(.*?)(\d+)(\D*)", re.sub(r"\.(gz|bz2)$", "", path.name))
        if not match:
            continue
        series, at = (path.parent, match[1], match[3]), int(match[2])
        if series in seen:
            before, other = seen[series]
            if at <= before:
                raise SourceError(
                    f"{job}: input.files", "numbers that rise", f"'{path.name}' after '{other.name}'", "sort the list"
                )
            if at != before + 1 and not gaps:
                missing = str(before + 1).zfill(len(match[2]))
                raise SourceError(
                    f"{job}: input.files",
                    f"'{match[1]}{missing}{match[3]}' after '{other.name}'",
                    f"'{path.name}'",
                    "add the missing files, or set gaps = true",
                )
        seen[series] = (at, path)


class ImageStack(Stack):
    """Frames in image files; several threads may read at once, every read opens its own file."""

    def __init__(self, given: Input, paths):
        need_fabio(f"{given.job}: input.format = '{given.format}'")
        self.where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        self.input = given
        check_numbers(paths, given.gaps, given.job)
        self._images: list[Image] = []
        for path in paths:
            if not Path(path).is_file():
                raise SourceError(path, f"a {given.format.upper()} file", "none", "check the path")
            if given.format == "cbf":
                self._images.append(Image(Path(path), 0, cbf.read_header(path)))
            else:
                self._images += (_tiff_images if given.format == "tiff" else _edf_images)(path)
        self.frames, self.shape = len(self._images), self._images[0].header.shape
        self.dtype = self._images[0].header.dtype
        for frame, image in enumerate(self._images):
            self._check(frame, image)
        cutoffs = [image.header.cutoff for image in self._images]
        self._cutoffs = cutoffs if None not in cutoffs else None
        self._prepare(given)

    def _check(self, frame: int, image: Image) -> None:
        first, header = self._images[0].header, image.header
        if header.shape != first.shape:
            raise SourceError(
                self.place(frame),
                f"{first.shape[0]} x {first.shape[1]} pixels as in {self._images[0].path.name}",
                " x ".join(map(str, header.shape)),
            )
        if header.dtype != first.dtype:
            raise SourceError(
                self.place(frame), f"counts of {first.dtype} as in {self._images[0].path.name}", f"{header.dtype}"
            )
        for name, share in AGREE.items():
            found, expected = getattr(header, name), self.input.expected.get(name)
            if found is None or expected is None or name in self.input.overrule:
                continue
            pairs = zip(found, expected) if isinstance(found, tuple) else [(found, expected)]
            if any(abs(a - b) > share * abs(b) for a, b in pairs):
                raise SourceError(
                    self.place(frame),
                    f"{name} {in_words(expected)} as the job's instrument has",
                    f"{in_words(found)} in the header",
                    f"correct [instrument], or set input.overrule = ['{name}'] if the header is wrong",
                )

    def place(self, frame):
        image = self._images[frame]
        return f"{image.path}" + (f": frame {image.index}" if image.index else "")

    def positions(self):
        out = {}
        wanted = {motor.axis for motor in self.input.motors.values() if motor.axis}
        for axis in [*wanted, *self._images[0].header.positions]:
            pairs = [self._bounds(image, axis) for image in self._images]
            if None not in pairs:
                table = np.array(pairs, float)
                out[axis] = Positions(table[:, 0], table[:, 1], "the headers")
                continue
            centres = [self._centre(image, axis) for image in self._images]
            if None not in centres:
                out[axis] = Positions(None, None, "the headers", np.array(centres, float))
        return out

    @staticmethod
    def _bounds(image: Image, axis: str):
        words = image.header.words
        if axis in image.header.positions:
            return image.header.positions[axis]
        start, end, step = (number(words.get(key)) for key in (axis, f"{axis}_end", f"{axis}_increment"))
        if not image.edf_words or start is None or (end is None and step is None):
            return None
        return (start, end if end is not None else start + step)

    @staticmethod
    def _centre(image: Image, axis: str):
        return number(image.header.words.get(axis)) if image.edf_words else None

    def exposure_times(self):
        times = [image.header.exposure for image in self._images]
        return None if None in times else np.array(times, float)

    def quantity(self, monitor: Monitor):
        key = monitor.header.lower()
        if not key:
            return super().quantity(monitor)
        values = [number(image.header.words.get(key)) for image in self._images]
        if None in values:
            k = values.index(None)
            raise SourceError(self.place(k), f"a number '{monitor.header}' in the header", "none")
        return np.array(values, float)

    def limit(self, frame):
        return None if self._cutoffs is None else self._cutoffs[frame]

    def counts(self, frame):
        image = self._images[frame]
        if self.input.format == "cbf":
            counts, header = cbf.read_counts(image.path)
            if header.shape != image.header.shape:
                raise SourceError(image.path, "the header that it had", "another", "the file changed while it was open")
        else:
            counts = (_tiff_counts if self.input.format == "tiff" else _edf_counts)(image)
        if counts.dtype.newbyteorder("=") != self.dtype.newbyteorder("="):
            raise SourceError(self.place(frame), f"counts of {self.dtype}", f"{counts.dtype}")
        return counts, None


def in_words(value) -> str:
    """A number, or the two of a pair."""
    return " x ".join(f"{x:.6g}" for x in value) if isinstance(value, tuple) else f"{value:.6g}"
