"""Draws one plane of reciprocal space: python -m impl.mapping.render --axis l --at 0 --out plane.png."""

import argparse
import sys
from pathlib import Path

import numpy as np

from impl.mapping import geometry, sources
from impl.mapping.grid import Grid
from impl.mapping.kernel import Kernel, MappingError, Options
from impl.mapping.records import Records, merge

#: the whole ruby scan, hkl of grain 0, 4.4e7 voxels
WHOLE = Grid((-6.025, -6.525, -17.525), (0.05, 0.05, 0.05), (241, 261, 701))


def map_recorded(folder, panel: str, grain: int = 0, grid: Grid = WHOLE) -> Records:
    """Map every recorded pixel of the ruby scan at depth 0, each frame at its middle.

    Absent pixels, which would only add weight, are left out: sum_intensity is that of the whole scan,
    sum_weight is not.
    """
    files = sources.ruby_files(folder, panel)
    instrument, one = sources.read_instrument(files["instrument"]), sources.read_grains(files["grains"])[grain]
    detector, cache = instrument.panels[panel], sources.FrameCache(files["frames"])
    batches = []
    try:
        with Kernel(grid, Options(depth=0)) as kernel:
            for frame in range(cache.frames):
                row, column, counts = cache.sparse(frame)
                if not len(row):
                    continue
                omega = float(cache.omega[frame].mean())
                origin = one.origin(instrument.chi, omega)
                # One row of pixels that do not touch: pixel k has corner columns 2k and 2k + 1, what lies between is
                # masked.
                rays = np.empty((2, 2 * len(row), 3))
                for low in (0, 1):
                    for left in (0, 1):
                        rays[low, left::2] = detector.rays(row + (low - 0.5), column + (left - 0.5), origin)
                values = np.zeros((1, 1, 2 * len(row) - 1))
                mask = np.ones(values.shape, bool)
                values[0, 0, ::2], mask[0, 0, ::2] = counts, False
                angles = sources.stage_angles(instrument.chi, np.array([omega]))
                tables, still = geometry.exposure_tables(angles, angles, 0, instrument.wave_number, "hkl", ub=one.ub())
                batches.append(kernel.map(values, values, rays, tables, still, mask=mask))
    finally:
        cache.close()
    return merge(batches)


def plane(records: Records, grid: Grid, axis: int, at: float, half_width: float = 0.075):
    """Intensity summed over a slab: float64, the two remaining axes in their order, voxel by voxel."""
    voxels = grid.indices(records.chunk, records.local)
    inside = np.abs(grid.centres(voxels)[:, axis] - at) <= half_width
    first, second = (k for k in range(3) if k != axis)
    image = np.zeros((grid.shape[first], grid.shape[second]))
    np.add.at(image, (voxels[inside, first], voxels[inside, second]), records.sum_intensity[inside])
    return image


#: what the axes of a grid are called, with their unit
NAMES = {"hkl": ("h", "k", "l")}


def axis_names(grid: Grid) -> tuple[tuple[str, str, str], str]:
    """Names of the three axes, and their unit."""
    return NAMES.get(grid.axes, ("q_x", "q_y", "q_z")), "r.l.u." if grid.axes == "hkl" else "1/Å"


def panel(axes, image, grid: Grid, axis: int, **how):
    """Show a plane across one axis, voxel by voxel; labels are the other two axes'. Returns the image.

    image : float64, the two remaining axes in their order; how goes to matplotlib's imshow.
    """
    first, second = (k for k in range(3) if k != axis)
    low, step = np.array(grid.minimum), np.array(grid.step)
    high = low + step * np.array(grid.shape)
    names, unit = axis_names(grid)
    shown = axes.imshow(
        image.T, origin="lower", extent=(low[first], high[first], low[second], high[second]), aspect="auto",
        interpolation="nearest", **how,
    )  # fmt: skip
    axes.set_xlabel(f"{names[first]} / {unit}")
    axes.set_ylabel(f"{names[second]} / {unit}")
    return shown


def draw(image, grid: Grid, axis: int, at: float, path) -> None:
    """Write the plane as a PNG: integer indices as grid lines, log of the intensity as grey."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    first, second = (k for k in range(3) if k != axis)
    low, step = np.array(grid.minimum), np.array(grid.step)
    high = low + step * np.array(grid.shape)
    figure = Figure(figsize=(9, 9 * (high[second] - low[second]) / (high[first] - low[first])), layout="constrained")
    figure.set_size_inches(9, min(18, max(6, figure.get_size_inches()[1])))
    axes = figure.add_subplot()
    panel(axes, np.log1p(image), grid, axis, cmap="Greys")
    axes.set_xticks(np.arange(np.ceil(low[first]), high[first]))
    axes.set_yticks(np.arange(np.ceil(low[second]), high[second]))
    axes.grid(linewidth=0.2)
    axes.set_title(f"{axis_names(grid)[0][axis]} = {at:g}, log of the summed intensity")
    FigureCanvasAgg(figure).print_png(path)


def main(argv=None) -> int:
    """Read the arguments, draw; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m impl.mapping.render", description=__doc__)
    parser.add_argument("--data", default="tests/data/xray", help="folder of the ruby scan (default %(default)s)")
    parser.add_argument("--panel", default="ff1", choices=("ff1", "ff2"))
    parser.add_argument("--axis", default="l", choices=("h", "k", "l"), help="the axis across the plane")
    parser.add_argument("--at", type=float, default=0.0, help="where along it")
    parser.add_argument("--out", required=True, help="the PNG to write")
    options = parser.parse_args(argv)
    axis = "hkl".index(options.axis)
    try:
        records = map_recorded(options.data, options.panel)
        image = plane(records, WHOLE, axis, options.at)
        if not image.any():
            print(f"error: plane {options.axis} = {options.at:g}: expected intensity, found none", file=sys.stderr)
            return 2
        with Path(options.out).open("wb") as file:
            draw(image, WHOLE, axis, options.at, file)
    except (sources.SourceError, MappingError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {options.out}: expected a file to write, found {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
