"""Physics in and out of multivectors: embedding, reading back, spurions, and sets of different length.

Four-vectors are (E, px, py, pz) in any one unit of energy; a multivector is (…, 16) in the order of `algebra.py`.
"""

import math

import torch

from . import algebra

_SCALAR, _VECTOR, _BIVECTOR, _AXIAL, _PSEUDOSCALAR = algebra.GRADE_SLICES


def _embed(values: torch.Tensor, part: slice) -> torch.Tensor:
    size = part.stop - part.start
    if values.shape[-1] != size:
        raise ValueError(f"embedding: expected {size} numbers in the last axis, found {values.shape[-1]}")
    out = values.new_zeros(*values.shape[:-1], 16)
    out[..., part] = values
    return out


def embed_scalar(scalars: torch.Tensor) -> torch.Tensor:
    """(…, 1) -> (…, 16)."""
    return _embed(scalars, _SCALAR)


def embed_vector(vectors: torch.Tensor) -> torch.Tensor:
    """(…, 4) as t, x, y, z -> (…, 16)."""
    return _embed(vectors, _VECTOR)


def embed_bivector(bivectors: torch.Tensor) -> torch.Tensor:
    """(…, 6) as tx, ty, tz, xy, xz, yz -> (…, 16)."""
    return _embed(bivectors, _BIVECTOR)


def embed_axialvector(axialvectors: torch.Tensor) -> torch.Tensor:
    """(…, 4) as t, x, y, z -> (…, 16); t is the blade xyz, z the blade txy."""
    return _embed(axialvectors.flip(-1), _AXIAL)


def embed_pseudoscalar(pseudoscalars: torch.Tensor) -> torch.Tensor:
    """(…, 1) -> (…, 16)."""
    return _embed(pseudoscalars, _PSEUDOSCALAR)


def extract_scalar(multivectors: torch.Tensor) -> torch.Tensor:
    """(…, 16) -> (…, 1)."""
    return multivectors[..., _SCALAR]


def extract_vector(multivectors: torch.Tensor) -> torch.Tensor:
    """(…, 16) -> (…, 4) as t, x, y, z."""
    return multivectors[..., _VECTOR]


def extract_bivector(multivectors: torch.Tensor) -> torch.Tensor:
    """(…, 16) -> (…, 6) as tx, ty, tz, xy, xz, yz."""
    return multivectors[..., _BIVECTOR]


def extract_axialvector(multivectors: torch.Tensor) -> torch.Tensor:
    """(…, 16) -> (…, 4) as t, x, y, z."""
    return multivectors[..., _AXIAL].flip(-1)


def extract_pseudoscalar(multivectors: torch.Tensor) -> torch.Tensor:
    """(…, 16) -> (…, 1)."""
    return multivectors[..., _PSEUDOSCALAR]


_BEAMS = {"lightlike": (1.0, 0.0, 0.0, 1.0), "timelike": (math.sqrt(2.0), 0.0, 0.0, 1.0), "spacelike": (0.0, 0, 0, 1)}


def get_num_spurions(beam_spurion: str | None = "xyplane", add_time_spurion: bool = True, beam_mirror: bool = True):
    """Number of multivectors that `get_spurions` returns for these arguments."""
    return len(get_spurions(beam_spurion, add_time_spurion, beam_mirror))


def get_spurions(
    beam_spurion: str | None = "xyplane",
    add_time_spurion: bool = True,
    beam_mirror: bool = True,
    device="cpu",
    dtype=torch.float32,
) -> torch.Tensor:
    """Fixed multivectors that tell the network what breaks the symmetry: the beam and the rest frame.

    Parameters
    ----------
    beam_spurion : str or None    "lightlike", "timelike" or "spacelike" vectors along z, or the bivector "xyplane"
    add_time_spurion : bool       also (1, 0, 0, 0), last
    beam_mirror : bool            beam vectors in both directions

    Returns
    -------
    (number, 16)

    Raises
    ------
    ValueError    an unknown beam
    """
    if beam_spurion not in (None, "xyplane", *_BEAMS):
        raise ValueError(f"beam_spurion: expected xyplane, {', '.join(_BEAMS)} or None, found {beam_spurion!r}")
    made = []
    if beam_spurion == "xyplane":
        bivector = torch.zeros(1, 6)
        bivector[0, algebra.INDEX[0b0110] - _BIVECTOR.start] = 1.0
        made.append(embed_bivector(bivector))
    elif beam_spurion is not None:
        beams = [_BEAMS[beam_spurion]]
        if beam_mirror:
            beams.append((*beams[0][:3], -1.0))
        made.append(embed_vector(torch.tensor(beams, dtype=torch.float64)))
    if add_time_spurion:
        made.append(embed_vector(torch.tensor([[1.0, 0.0, 0.0, 0.0]])))
    if not made:
        return torch.empty(0, 16, device=device, dtype=dtype)
    return torch.cat([part.to(device=device, dtype=dtype) for part in made])


# ------------------------------------------------------------------------------------------ sets of different length


def unpad(mask: torch.Tensor, *tensors: torch.Tensor) -> tuple[list[int], tuple[torch.Tensor, ...]]:
    """Leave padding out: the items of all sets one behind the other.

    Parameters
    ----------
    mask : bool (B, N)             True where there is an item
    tensors : (B, N, …)

    Returns
    -------
    lengths : B whole numbers, the `lengths` that the networks take
    tensors : (Σ lengths, …)
    """
    return mask.sum(-1).tolist(), tuple(tensor[mask] for tensor in tensors)


def pad(lengths: list[int], tensor: torch.Tensor, items: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverse of `unpad`: (Σ lengths, …) -> (B, N, …) with zeros, and the mask (B, N); N is `items` or the largest."""
    items = max(lengths, default=0) if items is None else items
    mask = torch.arange(items, device=tensor.device) < torch.tensor(lengths, device=tensor.device)[:, None]
    out = tensor.new_zeros(len(lengths), items, *tensor.shape[1:])
    out[mask] = tensor
    return out, mask


def attention_mask(mask: torch.Tensor) -> torch.Tensor:
    """bool (B, N) -> additive-free bool (B, 1, N, N) that lets an item see the items of its set.

    A padded item sees itself, so that its softmax is defined; its output means nothing.
    """
    seen = mask[:, None, :] | torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)
    return seen[:, None]


def jets(momenta: torch.Tensor, spurions: torch.Tensor | None = None) -> torch.Tensor:
    """Momenta (…, N, 4) -> multivectors (…, N, 1 + number of spurions, 16): the spurions are channels of every item."""
    mv = embed_vector(momenta).unsqueeze(-2)
    if spurions is None or len(spurions) == 0:
        return mv
    repeated = spurions.to(mv).expand(*mv.shape[:-2], *spurions.shape)
    return torch.cat([mv, repeated], dim=-2)
