"""Motors to angles: which axis of the data is which of alpha, omega, chi, phi, and where each exposure begins and ends.

Axes of the data are in degrees, angles of the kernel in radians; angle = sign · axis + offset.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from impl.mapping.geometry import exposure_bounds
from impl.mapping.sources import SourceError

#: the kernel's four angles, in the order of every array (frames, 4)
ANGLES = ("alpha", "omega", "chi", "phi")
#: two axis positions in degrees that differ by less are the same: encoders and headers keep four to six decimals
SAME_DEGREES = 1e-3


@dataclass(frozen=True)
class Motor:
    """One of the kernel's angles: sign · axis + offset_degrees, or offset_degrees alone where there is no axis.

    Attributes
    ----------
    axis : str                 the axis of the data or of the job's table [angles]; empty: the angle stands still
    sign : float               1 or -1
    offset_degrees : float
    """

    axis: str = ""
    sign: float = 1.0
    offset_degrees: float = 0.0


@dataclass(frozen=True)
class Given:
    """What the job says about one axis of the data, in degrees.

    Attributes
    ----------
    bounds : tuple of (start, end), or None    one a frame
    start, increment : float or None           frame i lies from start + i·increment to start + (i + 1)·increment
    centres : tuple of float, or None          one a frame; `exposure` then says what lies around them
    exposure : str                             '' (needed nowhere), 'midpoint' or 'stationary'
    file : Path or None                        one line a frame: start and end, or the centre
    invented : bool                            the job overrides angles that the data have
    """

    bounds: tuple[tuple[float, float], ...] | None = None
    start: float | None = None
    increment: float | None = None
    centres: tuple[float, ...] | None = None
    exposure: str = ""
    file: Path | None = None
    invented: bool = False

    @property
    def has_values(self) -> bool:
        """Whether it gives positions, and not only how to read the data's."""
        return any(value is not None for value in (self.bounds, self.start, self.centres, self.file))


@dataclass(frozen=True)
class Positions:
    """Where an axis of the data stood, degrees: start and end float64 (frames,), or centres alone.

    source says where that was read from.
    """

    start: np.ndarray | None
    end: np.ndarray | None
    source: str
    centres: np.ndarray | None = None


def _from_file(path: Path, frames: int) -> tuple[np.ndarray, np.ndarray] | np.ndarray:
    try:
        table = np.loadtxt(path, ndmin=2)
    except OSError as error:
        raise SourceError(path, "a list of angles", getattr(error, "strerror", None) or str(error)) from None
    except (ValueError, UnicodeDecodeError) as error:
        raise SourceError(path, "one or two numbers a line, in degrees", str(error)) from None
    if table.shape[1] not in (1, 2) or len(table) != frames:
        raise SourceError(
            path, f"{frames} lines of one or two numbers", f"{table.shape[0]} lines of {table.shape[1]} numbers"
        )
    return table[:, 0] if table.shape[1] == 1 else (table[:, 0], table[:, 1])


def _around(where, centres: np.ndarray, exposure: str) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of exposures of which only the centres are known; only as the job says."""
    if not exposure:
        raise SourceError(
            where,
            "where each exposure starts and ends",
            "only one angle a frame",
            "set exposure = 'midpoint' or 'stationary' for this axis in the job's [angles], or give bounds_degrees",
        )
    column = np.radians(centres)[:, None]
    if exposure == "midpoint" and len(centres) > 1:
        steps = np.diff(np.unwrap(column[:, 0]))
        typical = float(np.median(steps))
        uneven = np.flatnonzero(np.abs(steps - typical) > max(0.1 * abs(typical), np.radians(SAME_DEGREES)))
        if len(uneven):
            k = int(uneven[0])
            raise SourceError(
                where,
                f"even steps of about {np.degrees(typical):.6g} degrees for 'midpoint'",
                f"{np.degrees(steps[k]):.6g} degrees between frames {k} and {k + 1}",
                "a gap has no middle; give bounds_degrees or a file with start and end",
            )
    start, end = exposure_bounds(column, exposure)
    return np.degrees(start[:, 0]), np.degrees(end[:, 0])


def given_bounds(name: str, given: Given, frames: int, where) -> tuple[np.ndarray, np.ndarray]:
    """Start and end in degrees, float64 (frames,) each, of an axis whose positions the job gives."""
    place = f"{where}: angles.{name}"
    if given.file is not None:
        table = _from_file(given.file, frames)
        return _around(given.file, table, given.exposure) if isinstance(table, np.ndarray) else table
    if given.bounds is not None:
        if len(given.bounds) != frames:
            raise SourceError(f"{place}.bounds_degrees", f"{frames} pairs, one a frame", str(len(given.bounds)))
        table = np.array(given.bounds, float).reshape(frames, 2)
        return table[:, 0], table[:, 1]
    if given.centres is not None:
        if len(given.centres) != frames:
            raise SourceError(f"{place}.centres_degrees", f"{frames} numbers, one a frame", str(len(given.centres)))
        return _around(place, np.array(given.centres, float), given.exposure)
    edges = given.start + given.increment * np.arange(frames + 1)
    return edges[:-1], edges[1:]


def without_turns(start, end) -> tuple[np.ndarray, np.ndarray]:
    """Positions that go on where a motor's count went from 360 degrees to 0 (or from 180 to -180).

    start, end : float64 (frames,), degrees. A whole turn is added only where that makes an exposure as wide as the
    others are, or begin where the one before ended; rotations stay what they were, all else keeps its bits.
    """
    width = end - start
    usual = float(np.median(width))
    near = 0.02 * abs(usual) + SAME_DEGREES
    turns = np.round((usual - width) / 360)
    end = end + 360 * np.where(np.abs(width + 360 * turns - usual) <= near, turns, 0)
    gap = end[:-1] - start[1:]
    turns = np.round(gap / 360)
    shift = 360 * np.concatenate([[0], np.cumsum(np.where(np.abs(gap - 360 * turns) <= near, turns, 0))])
    return start + shift, end + shift


def _apart(one, other):
    """How far positions lie apart, degrees, whole turns aside."""
    return np.abs((one - other + 180) % 360 - 180)


def resolve(
    name: str, given: Given | None, positions: dict[str, Positions], frames: int, where, job: str = "the job"
) -> tuple[np.ndarray, np.ndarray, str]:
    """Start and end of one axis of the data in degrees, and where they come from.

    The data's own positions win; what the job gives instead is used where the data have none, or is refused unless the
    job calls it invented. Nothing is ever extrapolated.

    Raises SourceError for an axis that neither knows, for positions that contradict each other or are not finite.
    """
    read = positions.get(name)
    if given is None or not given.has_values:
        if read is None:
            known = ", ".join(f"'{key}'" for key in positions) or "none"
            raise SourceError(
                where,
                f"positions of the axis '{name}'",
                f"{known}",
                f"name another axis in the job's [goniometer] or give the positions in [angles.{name}]",
            )
        if read.centres is not None:
            start, end = _around(where, read.centres, given.exposure if given else "")
            source = f"centres from {read.source}, {given.exposure if given else ''}"
        else:
            start, end = without_turns(read.start, read.end)
            source = read.source
            if np.array_equal(start, end):
                source += "; the axis stood still" if np.ptp(start) == 0 else "; the axis stood still in each frame"
    else:
        start, end = given_bounds(name, given, frames, job)
        source = "given by the job"
        if read is not None:
            if read.centres is None:
                other = without_turns(read.start, read.end)
                far = np.maximum(_apart(start, other[0]), np.abs((end - start) - (other[1] - other[0])))
            else:
                other = (read.centres, read.centres)
                far = _apart((start + end) / 2, read.centres)
            agrees = bool((far <= SAME_DEGREES).all())
            if not agrees and not given.invented:
                k = int(np.argmax(far > SAME_DEGREES))
                found = (
                    f"{start[k]:.6g} to {end[k]:.6g} in the job and {other[0][k]:.6g} to {other[1][k]:.6g} in the data"
                )
                raise SourceError(
                    f"{job}: angles.{name}",
                    "positions that agree with the data",
                    f"{found} for frame {k}",
                    f"leave angles.{name} out, or set invented = true to say that these are not measured",
                )
            if not agrees:
                source = f"invented by the job, not measured ({read.source}: {other[0][0]:.6g} to {other[1][-1]:.6g})"
        elif given.invented:
            source = "invented by the job, not measured"
    start, end = np.asarray(start, float), np.asarray(end, float)
    if not (np.isfinite(start).all() and np.isfinite(end).all()):
        k = int(np.argmin(np.isfinite(start) & np.isfinite(end)))
        raise SourceError(where, f"finite positions of the axis '{name}'", f"{start[k]} to {end[k]} for frame {k}")
    return start, end, source


def angles(motors, given, positions, frames: int, where, job: str = "the job"):
    """The kernel's four angles at both ends of every exposure.

    Parameters
    ----------
    motors : dict of Motor           by ANGLES; one that is absent stands at 0
    given : dict of Given            by axis
    positions : dict of Positions    by axis, as the data have them
    frames : int

    Returns
    -------
    float64 (frames, 4), float64 (frames, 4), dict    start and end in radians; axis -> where its positions come from
    """
    start, end, notes = np.zeros((frames, 4)), np.zeros((frames, 4)), {}
    for column, angle in enumerate(ANGLES):
        motor = motors.get(angle, Motor())
        offset = np.radians(motor.offset_degrees)
        start[:, column] = end[:, column] = offset
        if motor.axis:
            low, high, source = resolve(motor.axis, given.get(motor.axis), positions, frames, where, job)
            start[:, column] = motor.sign * np.radians(low) + offset
            end[:, column] = motor.sign * np.radians(high) + offset
            notes[motor.axis] = source
    return start, end, notes


def breaks(start, end) -> tuple[int, ...]:
    """Frames that lie further from the one before than frames of this scan do: where a wedge or a part of it begins.

    start, end : float64 (frames, 4), radians. Further is more than one and a half times the median distance of the
    exposures' middles, in any angle; a scan in even steps has no break, whether its exposures fill the steps or not.
    """
    if len(start) < 2:
        return ()
    distance = np.abs(np.diff((start + end) / 2, axis=0))
    return tuple(int(k) + 1 for k in np.flatnonzero((distance > 1.5 * np.median(distance, axis=0) + 1e-9).any(axis=1)))
