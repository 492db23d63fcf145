"""Which formats figures are written in."""

import pytest

from extract.errors import ConfigError, UnknownNameError
from probes.runs.run_config import figure_formats


@pytest.mark.parametrize(
    ("wanted", "formats"),
    [
        ("png", ("png",)),
        ("svg, PDF,svg", ("svg", "pdf")),
        ("[svg, png]", ("svg", "png")),
        (["pdf", "png"], ("pdf", "png")),
    ],
)
def test_formats_are_read_from_a_text_or_a_list(wanted: str | list[str], formats: tuple[str, ...]) -> None:
    assert figure_formats(wanted) == formats
    assert figure_formats(formats) == formats


@pytest.mark.parametrize(
    ("wanted", "named"), [("png,jpg", "'jpg'"), ("svgz", "'svgz': did you mean 'svg'"), ("png,", "''")]
)
def test_another_format_is_refused_by_name(wanted: str | tuple[str, ...], named: str) -> None:
    with pytest.raises(
        UnknownNameError, match=rf"unknown format of figures {named}.* Allowed: png, svg, pdf\. Give one"
    ):
        figure_formats(wanted)


@pytest.mark.parametrize("wanted", [(), "", "[]"])
def test_no_format_at_all_is_refused(wanted: str | tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"figures names no format; allowed: png, svg, pdf\. Give one"):
        figure_formats(wanted)
