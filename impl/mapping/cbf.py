"""A CBF file: its header (PILATUS lines and imgCIF loops) and its counts.

The bytes are checked here (length, MD5, number of elements) before and after fabio's decoder sees them: fabio itself
waits for ever for the data of a file that ends within its header, and only logs a wrong checksum.

Sources: imgCIF/CBF dictionary 1.8; DECTRIS, PILATUS CBF header specification 1.4.
"""

import base64
import bz2
import gzip
import hashlib
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from impl.mapping.sources import SourceError

#: separates the header of a binary section from its bytes
START = b"\x0c\x1a\x04\xd5"
SECTION = b"--CIF-BINARY-FORMAT-SECTION--"
#: a header longer than this is none: the longest known imgCIF templates have some 20 kB
HEADER_LIMIT = 1 << 20
TYPES = {
    f"{sign}signed {bits}-bit integer": np.dtype(f"<{kind}{bits // 8}")
    for sign, kind in (("", "i"), ("un", "u"))
    for bits in (8, 16, 32, 64)
}
#: motors that PILATUS headers have lines for
MOTORS = ("alpha", "omega", "kappa", "chi", "phi")


@dataclass
class Header:
    """What the header of a frame says; what it does not say is absent or None.

    Attributes
    ----------
    positions : dict of (start, end)    degrees, by axis in lower case: 'oscillation' is what turned during the exposure
    exposure : float or None            seconds
    wavelength_angstrom, distance_m : float or None
    pixel_m : (float, float) or None    rows first
    cutoff : float or None              counts at least this are saturated
    words : dict of str                 every line of a PILATUS header, by its first word in lower case
    shape : (int, int)                  rows and columns
    dtype : dtype                       of the counts
    """

    positions: dict[str, tuple[float, float]] = field(default_factory=dict)
    exposure: float | None = None
    wavelength_angstrom: float | None = None
    distance_m: float | None = None
    pixel_m: tuple[float, float] | None = None
    cutoff: float | None = None
    words: dict[str, str] = field(default_factory=dict)
    shape: tuple[int, int] = (0, 0)
    dtype: np.dtype = TYPES["signed 32-bit integer"]
    binary: dict[str, str] = field(default_factory=dict)


def opened(path):
    """The file as a stream, decompressed where its name ends in .gz or .bz2."""
    kind = Path(path).suffix.lower()
    return gzip.open(path, "rb") if kind == ".gz" else bz2.open(path, "rb") if kind == ".bz2" else open(path, "rb")


#: what a damaged or missing file raises while it is read
UNREADABLE = (OSError, EOFError, zlib.error, ValueError)


def reason(error: BaseException) -> str:
    """An exception on one line."""
    text = getattr(error, "strerror", None) or " ".join(str(error).split())
    return text or type(error).__name__


def _head(stream, path) -> tuple[bytes, bytes]:
    """The bytes up to the binary section's data, and those already read behind them."""
    data = b""
    while (place := data.find(START)) < 0:
        block = stream.read(1 << 14)
        data += block
        if not block or len(data) > HEADER_LIMIT:
            if SECTION not in data and not data.startswith(b"###CBF"):
                raise SourceError(path, "a CBF file", "one without a binary section", "check the file")
            raise SourceError(path, "the start of the counts after the header", f"{len(data)} bytes without it")
    return data[:place], data[place + len(START) :]


def read_header(path) -> Header:
    """The header of a CBF file. Raises SourceError."""
    try:
        with opened(path) as stream:
            head, _ = _head(stream, path)
    except UNREADABLE as error:
        raise SourceError(path, "a CBF file", reason(error), "check the file") from None
    return _header(head, path)


def read_counts(path) -> tuple[np.ndarray, Header]:
    """Counts (rows, columns) of a CBF file and its header.

    Raises SourceError: a file that ends early, whose checksum or number of pixels is wrong, or whose compression is
    neither byte offset nor none.
    """
    try:
        with opened(path) as stream:
            head, data = _head(stream, path)
            header = _header(head, path)
            size = int(header.binary.get("x-binary-size", 0))
            if not 0 < size < 1 << 33:
                raise SourceError(path, "X-Binary-Size above 0", str(size))
            if len(data) < size:
                data += stream.read(size - len(data))
    except UNREADABLE as error:
        raise SourceError(path, "a CBF file", reason(error), "check the file") from None
    if len(data) < size:
        raise SourceError(path, f"{size} bytes of counts", f"{len(data)}; the file ends early", "copy it again")
    data = data[:size]
    told = header.binary.get("content-md5")
    if told and base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode() != told:
        raise SourceError(path, f"counts with MD5 {told}", "others; the file is damaged", "copy it again")
    count = header.shape[0] * header.shape[1]
    kind = header.binary.get("conversions", "")
    if kind == "x-CBF_BYTE_OFFSET":
        from fabio.compression import decByteOffset

        # Every element takes a byte at least. Sixteen zero bytes behind the data keep the decoder inside them, and the
        # number of elements that come out says whether the data ended where the last pixel did.
        if count > size:
            raise SourceError(path, f"{count} pixels", f"{size} bytes, too few for them", "copy it again")
        small = header.dtype.itemsize <= 4
        values = np.asarray(decByteOffset(data + bytes(16), size=count + 17, dtype="int32" if small else "int64"))
        if len(values) != count + 16:
            raise SourceError(
                path, f"{count} pixels", "counts that end elsewhere; the file is damaged", "copy it again"
            )
        counts = values[:count].astype(header.dtype, copy=False)
    elif not kind:
        if size < count * header.dtype.itemsize:
            raise SourceError(path, f"{count} pixels of {header.dtype}", f"{size} bytes")
        counts = np.frombuffer(data, header.dtype, count)
        if "big" in header.binary.get("x-binary-element-byte-order", "").lower():
            counts = counts.view(header.dtype.newbyteorder(">"))
    else:
        raise SourceError(path, "compression x-CBF_BYTE_OFFSET or none", kind, "convert the file")
    return counts.reshape(header.shape), header


def _header(head: bytes, path) -> Header:
    text, _, section = head.decode("latin-1").partition(SECTION.decode())
    out = Header()
    for line in re.split(r"[\r\n;]+", section):
        key, colon, value = line.partition(":")
        if colon:
            out.binary[key.strip().lower()] = value.strip(' "\t')
        elif "conversions=" in line:
            out.binary["conversions"] = line.partition("=")[2].strip(' "\t')
    try:
        columns = int(out.binary["x-binary-size-fastest-dimension"])
        rows = int(out.binary["x-binary-size-second-dimension"])
    except (KeyError, ValueError):
        raise SourceError(
            path, "X-Binary-Size-Fastest-Dimension and -Second-Dimension", "a header without them"
        ) from None
    if not (0 < rows <= 1 << 20 and 0 < columns <= 1 << 20):
        raise SourceError(path, "1 to 1048576 rows and columns", f"{rows} and {columns}")
    out.shape = (rows, columns)
    element = out.binary.get("x-binary-element-type", "signed 32-bit integer")
    if element not in TYPES:
        raise SourceError(path, "integers of 8 to 64 bits", f"'{element}'")
    out.dtype = TYPES[element]
    try:
        pilatus_lines(text, out)
        _loops(text, out)
    except SourceError as error:
        raise SourceError(path, error.expected, error.found, error.next) from None
    return out


_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def _number(text: str | None, what: str) -> float | None:
    """The first number of a text, None for none of it."""
    if text is None:
        return None
    found = _NUMBER.search(text)
    if found is None:
        raise SourceError("", f"a number for {what}", f"'{text.strip()[:40]}'")
    return float(found.group())


def pilatus_lines(text: str, out: Header) -> None:
    """Read lines such as '# Start_angle 0.1000 deg.' into a header; CBF files and TIFF descriptions have them."""
    words = out.words
    for line in text.splitlines():
        parts = re.split(r"[\s:=,]+", line[1:].strip(), maxsplit=1) if line.startswith("#") else []
        if len(parts) == 2 and parts[0]:
            words.setdefault(parts[0].lower(), parts[1])
    out.exposure = _number(words.get("exposure_time"), "Exposure_time")
    out.cutoff = _number(words.get("count_cutoff"), "Count_cutoff")
    out.wavelength_angstrom = _number(words.get("wavelength"), "Wavelength")
    out.distance_m = _number(words.get("detector_distance"), "Detector_distance")
    if "pixel_size" in words:
        sizes = _NUMBER.findall(words["pixel_size"])
        if len(sizes) != 2:
            raise SourceError("", "two numbers for Pixel_size", f"'{words['pixel_size'][:40]}'")
        out.pixel_m = (float(sizes[1]), float(sizes[0]))  # the file says x, along the columns, first
    start, step = (_number(words.get(key), key) for key in ("start_angle", "angle_increment"))
    turned = re.split(r"[\s,]", words.get("oscillation_axis", "").strip())[0].lower()
    turned = turned.removesuffix(".cw").removesuffix(".ccw")
    if start is not None and step is not None:
        out.positions["oscillation"] = (start, start + step)
        if turned in MOTORS:
            out.positions[turned] = (start, start + step)
    moving = {}
    for motor in MOTORS:
        at = _number(words.get(motor), motor)
        if at is not None and motor not in out.positions:
            moving[motor] = (at, at + (_number(words.get(f"{motor}_increment"), f"{motor}_increment") or 0.0))
    if step and turned not in MOTORS and not any(abs(b - a - step) < 1e-6 for a, b in moving.values()):
        # Something turned, and no motor's line says that it was this one: none can be trusted to have stood still.
        return
    out.positions.update(moving)


#: a text between semicolons, a comment, a quoted word, a word
_CIF = re.compile(
    r"""^;.*?^;|\#[^\n]*|'(?:[^'\n]|'(?=\S))*'(?=\s|$)|"(?:[^"\n]|"(?=\S))*"(?=\s|$)|\S+""", re.MULTILINE | re.DOTALL
)


def _tokens(text: str):
    """The words of a CIF text, quotes and comments taken off, upper and lower case kept."""
    pattern = re.compile(
        r"""(?:^;.*?^;)|\#[^\n]*|'(?:[^'\n]|'(?=\S))*'(?=\s|$)|"(?:[^"\n]|"(?=\S))*"(?=\s|$)|\S+""", re.M | re.S
    )
    for found in pattern.finditer(text.replace("\r\n", "\n")):
        word = found.group()
        if word.startswith("#"):
            continue
        quoted = len(word) > 1 and word[0] == word[-1] and word[0] in "'\";"
        yield (word[1:-1] if quoted else word), quoted


def loops(text: str) -> dict[str, list[str]]:
    """The loops of a CIF text: name in lower case -> its column."""
    out: dict[str, list[str]] = {}
    names: list[str] = []
    state, row = "", 0
    for word, quoted in _tokens(text):
        if not quoted and word.lower() == "loop_":
            names, state, row = [], "names", 0
        elif not quoted and word.startswith("_"):
            if state == "names":
                names.append(word.lower())
                out.setdefault(names[-1], [])
            else:
                state = ""
        elif state and names and not (not quoted and word.lower().startswith("data_")):
            state = "rows"
            out[names[row % len(names)]].append(word)
            row += 1
    return out


def _loops(text: str, out: Header) -> None:
    """Read the axes of an imgCIF header: where each stood at the start of the frame and how far it turned."""
    if "_diffrn_scan_axis" not in text:
        return
    table = loops(text)

    def column(name, like):
        found = table.get(name, [])
        return found if len(found) == len(like) else [""] * len(like)

    def degrees(word, what):
        return None if word in ("", ".", "?") else _number(word, what)

    axes = table.get("_diffrn_scan_axis.axis_id", [])
    starts, steps = (column(f"_diffrn_scan_axis.angle_{key}", axes) for key in ("start", "increment"))
    kinds = dict(zip(table.get("_axis.id", []), column("_axis.type", table.get("_axis.id", []))))
    framed = table.get("_diffrn_scan_frame_axis.axis_id", [])
    at = dict(zip(framed, column("_diffrn_scan_frame_axis.angle", framed)))
    turned = dict(zip(framed, column("_diffrn_scan_frame_axis.angle_increment", framed)))
    for name, start, step in zip(axes, starts, steps):
        if kinds.get(name, "rotation").lower() != "rotation":
            continue
        first = degrees(at.get(name, ""), name)
        first = degrees(start, name) if first is None else first
        width = degrees(turned.get(name, ""), name)
        width = degrees(step, name) if width is None else width
        if first is not None and width is not None:
            out.positions[name.lower()] = (first, first + width)
    for name, target in (
        ("_diffrn_radiation_wavelength.wavelength", "wavelength_angstrom"),
        ("_diffrn_scan_frame.integration_time", "exposure"),
    ):
        if getattr(out, target) is None and len(table.get(name, [])) == 1:
            setattr(out, target, degrees(table[name][0], name))
    pixels = [degrees(word, "size") for word in table.get("_array_element_size.size", [])]
    if out.pixel_m is None and len(pixels) == 2 and None not in pixels:
        out.pixel_m = (pixels[1], pixels[0])  # index 1 runs along the columns
    undefined = table.get("_array_intensities.overload", [])
    if out.cutoff is None and len(undefined) == 1:
        out.cutoff = degrees(undefined[0], "overload")
