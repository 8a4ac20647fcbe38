"""The algebra follows from the metric, and the linear maps are all there are."""

import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

from impl.lgatr import algebra, primitives, symmetry  # noqa: E402


def product_tensor():
    return primitives._product(torch.device("cpu"), torch.float64)


def times(x, y):
    return torch.einsum("ijk,...j,...k->...i", product_tensor(), x, y)


def blade(*generators):
    x = torch.zeros(16)
    x[algebra.INDEX[sum(1 << g for g in generators)]] = 1.0
    return x


T, X, Y, Z = range(4)


def test_known_products():
    one, pseudoscalar = blade(), blade(T, X, Y, Z)
    assert torch.equal(times(blade(T), blade(T)), one)
    for space in (X, Y, Z):
        assert torch.equal(times(blade(space), blade(space)), -one)
    assert torch.equal(times(blade(T), blade(X)), blade(T, X))
    assert torch.equal(times(blade(X), blade(T)), -blade(T, X))
    assert torch.equal(times(blade(T, X), blade(T, X)), one)
    assert torch.equal(times(blade(X, Y), blade(X, Y)), -one)
    assert torch.equal(times(pseudoscalar, pseudoscalar), -one)
    assert torch.equal(times(pseudoscalar, blade(T)), -blade(X, Y, Z))


def test_product_is_associative_and_signed_permutations():
    x, y, z = torch.randn(3, 50, 16)
    assert torch.allclose(times(times(x, y), z), times(x, times(y, z)), atol=1e-12)
    terms = algebra.product_terms()
    assert len(terms) == 256
    assert {sign for *_, sign in terms} == {1, -1}
    assert len({(i, j) for i, j, *_ in terms}) == 256
    assert len({(i, k) for i, _, k, _ in terms}) == 256


def test_other_metric_would_be_noticed(monkeypatch):
    """The broken twin: with a Euclidean metric the squares of the space directions are +1."""
    monkeypatch.setattr(algebra, "METRIC", (1, 1, 1, 1))
    assert algebra.blade_product(2, 2) == (0, 1)
    monkeypatch.undo()
    assert algebra.blade_product(2, 2) == (0, -1)


def test_reverse_turns_products_round_and_involution_keeps_them():
    x, y = torch.randn(2, 50, 16)
    reverse, involute = primitives.reverse, primitives.grade_involute
    assert torch.allclose(reverse(times(x, y)), times(reverse(y), reverse(x)), atol=1e-12)
    assert torch.allclose(involute(times(x, y)), times(involute(x), involute(y)), atol=1e-12)


def test_dual_is_right_multiplication_by_the_pseudoscalar():
    x = torch.randn(50, 16)
    pseudoscalar = blade(T, X, Y, Z)
    assert torch.equal(primitives.dual(x), times(x, pseudoscalar))
    assert torch.equal(primitives.dual(primitives.dual(x)), -x)
    assert not torch.allclose(primitives.dual(x), times(pseudoscalar, x))


def test_inner_product_is_the_scalar_part_of_reverse_times():
    x, y = torch.randn(2, 50, 16)
    assert torch.allclose(primitives.inner_product(x, y)[:, 0], times(primitives.reverse(x), y)[:, 0], atol=1e-12)


@pytest.mark.parametrize(("subgroup", "count"), [(True, 10), (False, 5)])
def test_basis_spans_every_commuting_map(subgroup, count):
    """Whatever commutes with 30 transformations is a combination of the basis; one map less would be missed."""
    generator = torch.Generator().manual_seed(3)
    conditions = []
    for i in range(30):
        matrix = symmetry.random_transformation(generator, 0.5)
        if not subgroup and i % 3:
            matrix = matrix @ (symmetry.PARITY if i % 3 == 1 else symmetry.TIME_REVERSAL)
        wide = symmetry.on_multivectors(matrix)
        conditions.append(torch.kron(wide, torch.eye(16)) - torch.kron(torch.eye(16), wide.T.contiguous()))
    null = 256 - int(torch.linalg.matrix_rank(torch.cat(conditions), rtol=1e-9))
    basis = primitives._basis(subgroup, torch.device("cpu"), torch.float64)
    assert null == count == len(basis) == int(torch.linalg.matrix_rank(basis.flatten(1)))
    residual = torch.cat(conditions) @ basis.flatten(1).T
    assert residual.abs().max() < 1e-9


def test_multivector_transformations_respect_the_product():
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, 20, 16)
    for matrix in (symmetry.random_transformation(generator), symmetry.PARITY, symmetry.TIME_REVERSAL):
        wide = symmetry.on_multivectors(matrix)
        moved = times(symmetry.apply(wide, x), symmetry.apply(wide, y))
        assert torch.allclose(moved, symmetry.apply(wide, times(x, y)), atol=1e-11)


def test_share_of_zeros_by_count(capsys):
    """By count the lists are less sparse than 'over 90 %' (linear) and 'over 99 %' (product) suggest.

    Over 90 % comes out when the maps of a basis are counted one by one, or for the full group; over 99 % of the
    product's entries are zero by no count of terms: 256 of 4096 are there.
    """
    shares = algebra.zero_shares()
    basis = primitives._basis(True, torch.device("cpu"), torch.float64)
    full = primitives._basis(False, torch.device("cpu"), torch.float64)
    product = product_tensor()

    def counted(mask):
        return float((~mask).double().mean())

    assert shares["linear, subgroup"] == counted(basis.abs().sum(0) > 0) == 0.875
    assert shares["linear, full group"] == counted(full.abs().sum(0) > 0) == 0.9375
    assert shares["geometric product"] == counted(product != 0) == 0.9375
    assert shares["linear, subgroup, whole basis"] == counted(basis != 0) == 0.9875
    assert shares["linear, full group, whole basis"] == counted(full != 0) == 0.9875
    # What 'over 99 %' would need: the product as a map between all pairs of 16 x 16 numbers and 16 x 16 results.
    as_matrix = torch.einsum("ijk,lm->iljkm", product, torch.eye(16)) != 0
    assert counted(as_matrix) > 0.99
    with capsys.disabled():
        print()
        print("share of zeros by count                     found   documented")
        print(f"  linear map, subgroup (one block)         {shares['linear, subgroup']:8.2%}   'over 90 %'")
        print(f"  linear map, full group (one block)       {shares['linear, full group']:8.2%}   'over 90 %'")
        print(f"  linear map, each map of the basis alone  {shares['linear, subgroup, whole basis']:8.2%}")
        print(f"  geometric product (16 x 16 x 16)         {shares['geometric product']:8.2%}   'over 99 %'")
        print(f"  product beside a spectator of 16         {counted(as_matrix):8.2%}")
