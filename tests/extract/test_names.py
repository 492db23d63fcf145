"""Objects named by their place: imported when used, their options read from source until then."""

import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest

from extract.registry import later, option_names, parameter_names, resolve


@dataclass(frozen=True)
class Base:
    needed: int
    first: int = 1
    counted: ClassVar[int] = 0


@dataclass(frozen=True)
class Inherits(Base):
    second: str = "a"
    first: int = 2


class Builds:
    def __init__(self, n: int, /, width: int = 3, *, needed: int, depth: int = 4, **more: int) -> None: ...


class InheritsBuilds(Builds):
    pass


def function(a: int, b: int = 2, *, c: int = 3) -> int:
    return a + b + c


@pytest.mark.parametrize("name", ["Base", "Inherits", "Builds", "InheritsBuilds"])
def test_options_in_source_are_those_of_the_class(name: str) -> None:
    named = later(f"{__name__}:{name}")
    assert option_names(named) == option_names(resolve(named)) != ()


def test_a_function_is_called_with_what_is_bound_to_it() -> None:
    named = later(f"{__name__}:function", 10)
    assert named(1, c=2) == 13
    assert resolve(named) is function
    assert parameter_names(named) == parameter_names(function) == ("a", "b", "c")
    assert later("builtins:isinstance", 3)(later("builtins:int").value)
    assert resolve(function) is function


def test_naming_and_reading_options_import_nothing() -> None:
    code = (
        "import sys; from extract.registry import later, option_names\n"
        "print(option_names(later('probes.networks.pair_networks:SiameseCosine'))[0], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "bottleneck False\n"


def test_a_place_that_is_not_there_says_so() -> None:
    with pytest.raises(ModuleNotFoundError, match="no package 'nowhere'"):
        option_names(later("nowhere.at.all:Thing"))
    with pytest.raises(AttributeError, match="nothing"):
        later("extract.registry:nothing")()
