"""Exponents are found in made-up curves, and the table of docs/speed.md is that of the committed curves."""

import json

import numpy as np
import pytest

from benchmarks.exponents import fit_growth
from benchmarks.growth import OUT, PAGE, SIZES, page_with
from tests.extract.tiny_decoders import make_tokenizer

SIZES_16 = [2.0**k for k in range(5, 11)]


def curve(exponent: float, *, fixed: float, factor: float = 0.01, noise: float = 0.0, seed: int = 0) -> list[float]:
    """Make a curve whose noise is a share of each cost."""
    shares = 1 + noise * np.random.default_rng(seed).standard_normal(len(SIZES_16))
    return [(fixed + factor * x**exponent) * float(share) for x, share in zip(SIZES_16, shares, strict=True)]


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("fixed", [0.0, 0.3, 5.0])
def test_a_known_exponent_is_found_whatever_is_fixed(exponent: float, fixed: float) -> None:
    found = fit_growth(SIZES_16, curve(exponent, fixed=fixed))
    assert found.exponent == pytest.approx(exponent, abs=0.01)
    assert found.fixed == pytest.approx(fixed, abs=0.01)
    assert found.factor == pytest.approx(0.01, rel=0.05)
    assert found.error is not None
    assert found.error < 0.01
    assert found.local <= exponent + 0.01, "a fixed part makes a plain slope smaller, never larger"


@pytest.mark.parametrize("exponent", [1.0, 2.0])
def test_noise_moves_an_exponent_by_about_its_error(exponent: float) -> None:
    """Of many noisy curves, most are within two standard errors, and the errors are as large as the scatter."""
    fits = [fit_growth(SIZES_16, curve(exponent, fixed=0.1, noise=0.05, seed=k)) for k in range(60)]
    errors = np.array([fit.error for fit in fits], dtype=float)
    off = np.array([fit.exponent for fit in fits], dtype=float) - exponent
    assert abs(np.median(off)) < 0.05
    assert np.mean(np.abs(off) < 2 * errors) > 0.7
    assert 0.5 < off.std() / np.median(errors) < 2.5


def test_scale_does_not_matter() -> None:
    costs = curve(1.5, fixed=0.2, noise=0.02)
    one, other = fit_growth(SIZES_16, costs), fit_growth(SIZES_16, [1e9 * cost for cost in costs])
    assert other.exponent == pytest.approx(one.exponent, abs=1e-3)
    assert other.fixed is not None
    assert one.fixed is not None
    assert other.fixed == pytest.approx(1e9 * one.fixed, rel=1e-2)


def test_what_does_not_grow_is_flat() -> None:
    found = fit_growth(SIZES_16, [1.0, 1.02, 0.98, 1.01, 1.03, 1.1])
    assert found.is_flat
    assert found.exponent is None
    assert found.ratio == pytest.approx(1.1 / 0.98)
    assert abs(found.local) < 0.2


def test_three_sizes_are_too_few() -> None:
    with pytest.raises(ValueError, match="a curve of 3 sizes; give at least 4"):
        fit_growth([1, 2, 4], [1, 2, 4])


def test_a_letter_is_a_token() -> None:
    text = "QXZJVKWYWKQQXZ" * 3
    assert len(make_tokenizer()(text, add_special_tokens=False)["input_ids"]) == len(text)


def test_the_page_has_the_committed_curves() -> None:
    curves = json.loads(OUT.read_text(encoding="utf-8"))["curves"]
    assert [(each["what"], each["variable"], each["values"]) for each in curves] == [
        (what, variable, list(values)) for what, (_, ranges) in SIZES.items() for variable, values in ranges.items()
    ]
    for each in curves:
        for side in ("seconds", "peak_bytes"):
            refitted = fit_growth(each["values"], each[side]).to_dict()
            assert refitted == pytest.approx(each[f"{side}_growth"], rel=1e-3, nan_ok=True)
    page = PAGE.read_text(encoding="utf-8")
    assert "<!-- table: growth -->" in page
    assert page_with(curves, page) == page
