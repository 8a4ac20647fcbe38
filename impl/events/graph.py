"""What an event graph is: node order, edge order and edge features, in plain NumPy.

Nodes stand in the order of the schema's collections, inside a collection in file order. Every node is joined to every
other; edges are source-major: source 0 with all destinations ascending, then source 1. These functions are the
reference that the C library (kernel.py) equals to the last bit.

Angles are in rad. d_phi lies in [-π, π) where π is the float32 nearest to it: a difference of exactly +π becomes -π,
so d_phi is antisymmetric except there.
"""

import numpy as np

#: the float32 nearest to π and to 2π; 2π is exactly twice π in float32
PI = np.float32(np.pi)
TWO_PI = np.float32(2 * np.pi)
EDGE_FEATURES = ("d_eta", "d_phi", "d_R")


def edge_index(nodes: int, self_loops: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Source and destination of every edge of one event with `nodes` nodes; int64 (E,), int64 (E,)."""
    if not self_loops:
        edge = np.arange(nodes * max(nodes - 1, 0), dtype=np.int64)
        src = edge // max(nodes - 1, 1)
        rest = edge - src * (nodes - 1)
        return src, rest + (rest >= src)
    edge = np.arange(nodes * nodes, dtype=np.int64)
    src = edge // max(nodes, 1)
    return src, edge - src * nodes


def wrap(d_phi: np.ndarray) -> np.ndarray:
    """Bring float32 differences of angles, |d_phi| ≤ 4π, into [-π, π) by exact subtractions of 2π."""
    d_phi = np.asarray(d_phi, np.float32)
    for _ in range(2):
        d_phi = np.where(d_phi >= PI, d_phi - TWO_PI, d_phi)
    for _ in range(2):
        d_phi = np.where(d_phi < -PI, d_phi + TWO_PI, d_phi)
    return d_phi


def edge_features(eta: np.ndarray, phi: np.ndarray, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Features of the edges src → dst.

    Parameters
    ----------
    eta, phi : float32 (n,)     pseudorapidity and azimuth of the nodes, |phi| ≤ 2π
    src, dst : int64 (E,)       rows of eta and phi

    Returns
    -------
    float32 (E, 3)              d_eta = eta_s - eta_d, d_phi in [-π, π), d_R = √(d_eta² + d_phi²), squares in float64
    """
    out = np.empty((len(src), 3), np.float32)
    out[:, 0] = eta[src] - eta[dst]
    out[:, 1] = wrap(phi[src] - phi[dst])
    wide = out[:, :2].astype(np.float64)
    out[:, 2] = np.sqrt(wide[:, 0] * wide[:, 0] + wide[:, 1] * wide[:, 1])
    return out
