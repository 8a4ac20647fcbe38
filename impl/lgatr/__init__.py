"""L-GATr and L-GATr-slim: Lorentz-equivariant transformers, compatible in weights with the package `lgatr`."""

from .embed import (
    embed_axialvector,
    embed_bivector,
    embed_pseudoscalar,
    embed_scalar,
    embed_vector,
    extract_axialvector,
    extract_bivector,
    extract_pseudoscalar,
    extract_scalar,
    extract_vector,
    get_num_spurions,
    get_spurions,
)
from .layers import CrossAttentionConfig, MLPConfig, SelfAttentionConfig
from .nets import ConditionalLGATr, LGATr
from .precision import minimum_autocast_precision, naive_amp
from .primitives import PrimitivesConfig
from .slim import ConditionalLGATrSlim, LGATrSlim

__all__ = [
    "ConditionalLGATr",
    "ConditionalLGATrSlim",
    "CrossAttentionConfig",
    "LGATr",
    "LGATrSlim",
    "MLPConfig",
    "PrimitivesConfig",
    "SelfAttentionConfig",
    "embed_axialvector",
    "embed_bivector",
    "embed_pseudoscalar",
    "embed_scalar",
    "embed_vector",
    "extract_axialvector",
    "extract_bivector",
    "extract_pseudoscalar",
    "extract_scalar",
    "extract_vector",
    "get_num_spurions",
    "get_spurions",
    "minimum_autocast_precision",
    "naive_amp",
]
