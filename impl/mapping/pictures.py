"""Images that a job applies to every frame, such as masks: .npy, CBF, TIFF, EDF, or HDF5 with ::path."""

from pathlib import Path

import numpy as np

from impl.mapping.sources import DAMAGED, SourceError

#: how file names end that fabio's readers take
FABIO = {".cbf": "cbf", ".tif": "tiff", ".tiff": "tiff", ".edf": "edf"}
HDF5 = (".h5", ".hdf5", ".nxs", ".hdf", ".nx5")


def read_picture(given):
    """An image file as an array (rows, columns) of numbers or truth values; CBF and others as they lie in the file.

    given : str    a path; for an HDF5 file followed by '::' and the path of a data set

    Raises SourceError.
    """
    name, _, dataset = str(given).partition("::")
    path = Path(name)
    kinds = [suffix for suffix in map(str.lower, path.suffixes) if suffix not in (".gz", ".bz2")]
    kind = kinds[-1] if kinds else ""
    if not path.is_file():
        raise SourceError(path, "an image", "No such file or directory", "check the path")
    if kind == ".npy":
        picture = _npy(path)
    elif kind in HDF5:
        picture = _hdf5(path, dataset)
    elif kind in FABIO:
        from impl.mapping import images

        images.need_fabio(path)
        picture = images.read_one(path, FABIO[kind])
    else:
        raise SourceError(path, f"an image ({', '.join(['.npy', *FABIO, *HDF5])})", f"'{kind}'", "convert the file")
    if dataset and kind not in HDF5:
        raise SourceError(path, "'::' after an HDF5 file alone", f"'::{dataset}'")
    if picture.ndim == 3 and picture.shape[0] == 1:
        picture = picture[0]
    if picture.ndim != 2 or picture.dtype.kind not in "biuf":
        raise SourceError(given, "numbers in two dimensions", f"{picture.dtype} {picture.shape}")
    return picture


def _npy(path):
    try:
        return np.load(path, allow_pickle=False)
    except DAMAGED as error:
        raise SourceError(path, "an array (.npy)", f"none ({' '.join(str(error).split())})", "check the file") from None


def _hdf5(path, dataset):
    from impl.mapping.images import guarded
    from impl.mapping.nexus import need_h5py

    h5py = need_h5py(path)
    if not dataset:
        raise SourceError(path, "'::' and the path of a data set after the file", "nothing", f"write {path}::/path")
    with guarded(path, f"a data set '{dataset}'"), h5py.File(path, "r") as file:
        if not isinstance(file.get(dataset), h5py.Dataset):
            raise SourceError(path, f"a data set '{dataset}'", "none", "check the path")
        return np.asarray(file[dataset][()])
