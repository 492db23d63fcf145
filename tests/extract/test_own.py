"""What users add by name: the digest of its code changes with all that it runs, and only with that."""

import logging
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial, wraps
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from extract.errors import IcecoreError, InputError, UnknownNameError
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import KINDS, parse_kind, parse_plan, register_mask
from extract.masks.mask_rules import kind_matrix
from extract.poolings.pooling_table import (
    POOLINGS,
    WORD_POOLINGS,
    check_template,
    register_pooling,
    register_word_pooling,
    select_poolings,
)
from extract.poolings.poolings import index_batch, require_no_padding
from extract.registry import (
    ADDED,
    _parts,
    allow_code,
    describe_own,
    digest_code,
    digest_own,
    digest_source,
    first_sentence,
    import_own,
    require_own,
)


@pytest.fixture(autouse=True)
def added() -> Iterator[None]:
    """Take off what a test adds."""
    tables: list[dict[Any, Any]] = [ADDED, POOLINGS, WORD_POOLINGS, KINDS]
    before = [dict(table) for table in tables]
    modules = set(sys.modules)
    yield
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)
    for name in set(sys.modules) - modules:
        if name.startswith("mine"):
            del sys.modules[name]


def define(source: str, name: str = "pool") -> Any:
    """Run a source as a notebook does, and take a name of it."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(textwrap.dedent(source), space)  # the sources are below
    return space[name]


BASE = """
    WEIGHT = 2
    FLOOR = [1, {"a": 0.5}]

    def helper(x):
        return x * WEIGHT + FLOOR[0]

    class Scale:
        by = 3

        def __call__(self, x):
            return x * self.by

    scale = Scale()

    def pool(hidden, index):
        return [scale(helper(x)) for x in hidden]
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * WEIGHT", "x + WEIGHT"),
        ("WEIGHT = 2", "WEIGHT = 2.5"),
        ("0.5", "0.25"),
        ("by = 3", "by = 4"),
        ("x * self.by", "x / self.by"),
        ("for x in hidden", "for x in hidden if x"),
        ("scale = Scale()", "scale = Scale(); scale.by = 5"),
        ("hidden, index", "hidden, index, more=1"),
    ],
)
def test_every_edit_that_counts_changes_the_digest(old: str, new: str) -> None:
    assert BASE.count(old) == 1
    assert digest_code(define(BASE.replace(old, new))) != digest_code(define(BASE))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WEIGHT = 2", "# a remark\n    UNUSED = 7\n    WEIGHT = 2"),
        ("return x * WEIGHT", "\n        return (x * WEIGHT)"),
        ("by = 3", "by = 3  # why"),
    ],
)
def test_what_does_not_count_leaves_it(old: str, new: str) -> None:
    assert digest_code(define(BASE.replace(old, new, 1).replace("(x * WEIGHT) +", "(x * WEIGHT) +"))) == digest_code(
        define(BASE)
    )


EDITS = {
    "a decorator that keeps the name of what it wraps": """
        from functools import wraps
        def scaled(f):
            @wraps(f)
            def g(x):
                return f(x) * 2
            return g
        @scaled
        def pool(x):
            return x
    """,
    "one around a function of a package": """
        import textwrap
        from functools import wraps
        def scaled(f):
            @wraps(f)
            def g(x):
                return f(x) * 2
            return g
        dedent = scaled(textwrap.dedent)
        def pool(x):
            return dedent(x)
    """,
    "a decorator of a package": """
        import torch
        @torch.no_grad()
        def pool(x):
            return x * 2
    """,
    "a decorator that is a class": """
        from functools import update_wrapper
        class Scaled:
            def __init__(self, f):
                self.f = f
                update_wrapper(self, f)
            def __call__(self, x):
                return self.f(x) * 2
        @Scaled
        def pool(x):
            return x
    """,
    "a cached function": """
        from functools import lru_cache
        @lru_cache
        def weight(n):
            return n * 2
        def pool(x):
            return x * weight(3)
    """,
    "a function of numbers that takes arrays": """
        import numpy
        double = numpy.vectorize(lambda x: x * 2)
        def pool(x):
            return double(x)
    """,
    "a cached property": """
        from functools import cached_property
        class Pool:
            @cached_property
            def weight(self):
                return 2
            def __call__(self, x):
                return x * self.weight
        pool = Pool()
    """,
    "a cached method": """
        from functools import cache
        class Pool:
            @cache
            def weight(self):
                return 2
            def __call__(self, x):
                return x * self.weight()
        pool = Pool()
    """,
    "what sets a property": """
        class Pool:
            by = property(lambda self: self.k, lambda self, k: setattr(self, "k", k * 2))
            def __call__(self, x):
                self.by = x
                return self.by
        pool = Pool()
    """,
    "a tensor of a class": """
        import torch
        class Pool:
            weight = torch.full((3,), 2)
            def __call__(self, x):
                return x * self.weight
        pool = Pool()
    """,
    "a function of a class with an argument": """
        from functools import partial
        class Pool:
            weigh = partial(int, base=2)
            def __call__(self, x):
                return self.weigh(x)
        pool = Pool()
    """,
    "a slot": """
        class Pool:
            __slots__ = ("by",)
            def __call__(self, x):
                return x * self.by
        pool = Pool()
        pool.by = 2
    """,
    "a module without weights": """
        import torch
        net = torch.nn.Sequential(torch.nn.Softplus(2))
        def pool(x):
            return net(x)
    """,
    "a setting of a module that is no number": """
        import torch
        class Net(torch.nn.Module):
            by = (1, 1)
            def forward(self, x):
                return x * self.by[0]
        net = Net()
        net.by = (2, 1)
        def pool(x):
            return net(x)
    """,
    "a buffer that is not saved": """
        import torch
        net = torch.nn.Module()
        net.register_buffer("weight", torch.full((3,), 2), persistent=False)
        def pool(x):
            return x * net.weight
    """,
    "a tensor in bfloat16": """
        import torch
        weight = torch.full((3, 1), 2, dtype=torch.bfloat16)
        def pool(x):
            return x * weight
    """,
    "a number in a large frame": """
        import pandas
        frame = pandas.DataFrame({"a": range(1000), "b": "text"})
        frame.loc[500, "a"] = 2
        def pool(x):
            return x * frame.a
    """,
    "a time in a frame with two columns of one name": """
        import pandas
        frame = pandas.DataFrame([[pandas.Timestamp("2020-01-2", tz="UTC"), 1]], columns=["a", "a"])
        def pool(x):
            return x * frame.size
    """,
    "a time": """
        import pandas
        when = {"cut": pandas.Timestamp("2020-01-2")}
        def pool(x):
            return x * when["cut"].day
    """,
    "a number beside a property that fails": """
        class Scale:
            by = 2
            @property
            def func(self):
                raise RuntimeError
        scale = Scale()
        def pool(x):
            return x * scale.by
    """,
    "an array of objects": """
        import numpy
        values = numpy.array([float("2"), "a"], dtype=object)
        def pool(x):
            return x * values[0]
    """,
}


@pytest.mark.parametrize("source", EDITS.values(), ids=EDITS)
def test_an_edit_counts_wherever_it_is(source: str) -> None:
    edited = re.sub(r"\b2\b", "3", source)
    assert edited != source
    assert digest_code(define(source)) == digest_code(define(source))
    assert digest_code(define(source)) != digest_code(define(edited))


def test_what_python_adds_to_a_class_does_not_count() -> None:
    """Digests that earlier versions recorded stay what they were."""
    source = """
        from abc import ABC
        from dataclasses import dataclass
        from enum import Enum, IntEnum
        from typing import NamedTuple

        class Base(ABC):
            pass

        @dataclass(frozen=True)
        class Row(Base):
            width: int = 3

        class Color(Enum):
            RED = 1

        class Size(IntEnum):
            LARGE = 1

        class Pair(NamedTuple):
            one: int

        def pool(x):
            return Row(), Color.RED, Size.LARGE, Pair(1)
    """
    names = ("Row", "Color", "Size", "Pair", "Base")
    parts = {name: [*_parts(define(source, name), {})] for name in names}
    assert "_abc_impl" not in parts["Base"]
    assert "__dataclass_params__" not in parts["Row"]
    assert "RED" not in parts["Color"]
    assert "_new_member_" not in parts["Color"]
    assert "LARGE" in parts["Size"]
    assert "_tuplegetter" not in parts["Pair"]


def test_a_function_of_a_package_counts_by_its_name_whatever_wraps_it_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a checker of types does, which this suite has too."""
    source = "import textwrap\ndedent = textwrap.dedent\ndef pool(x):\n    return dedent(x)\n"
    before = digest_code(define(source))
    original = textwrap.dedent

    @wraps(original)
    def checked(text: str) -> str:
        return original(text)

    monkeypatch.setattr(textwrap, "dedent", checked)
    assert digest_code(define(source)) == before


def test_values_that_code_holds_count() -> None:
    def of(value: Any) -> str:
        return digest_code(lambda: value)

    pairs: list[tuple[Any, Any]] = [
        (torch.ones(3), torch.tensor([1.0, 1.0, 2.0])),
        (np.arange(3), np.arange(3.0)),
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
        (partial(int, base=2), partial(int, base=3)),
        ({"a", "b"}, {"a", "c"}),
        (Path("a"), Path("b")),
        (torch.float32, torch.float16),
        (torch.nn.functional.relu, torch.nn.functional.gelu),
    ]
    for one, other in pairs:
        assert of(one) == of(one), one
        assert of(one) != of(other), one
    assert of(logging.getLogger("a"))  # holds locks, which nobody can digest and nothing depends on


def test_modules_that_import_each_other_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_a.py").write_text("import mine_b\ndef f(x):\n    return mine_b.g(x)\n", encoding="utf-8")
    other = "import mine_a\ndef g(x):\n    return mine_a.f(x) + {}\n"
    digests = []
    for number in (1, 2):
        (tmp_path / "mine_b.py").write_text(other.format(number), encoding="utf-8")
        for name in ("mine_a", "mine_b"):
            sys.modules.pop(name, None)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        digests.append(digest_code(__import__("mine_a").f))
    assert digests[0] != digests[1]


def sums(hidden: torch.Tensor, index: Any) -> torch.Tensor:
    """Add up the tokens."""
    return torch.einsum("btd,bt->bd", hidden.float(), index.weights)


def test_names_of_the_library_stay_its_own() -> None:
    with pytest.raises(InputError, match="the pooling 'mean' is there already; give yours another name"):
        register_pooling("mean", sums)
    with pytest.raises(InputError, match="the name of a mask kind is 'Mine'; allowed: "):
        register_mask("Mine", lambda i, j, *_: i >= j)
    register_pooling("sums", sums)
    register_pooling("sums", sums)  # as when a notebook cell is run again
    assert POOLINGS["sums"][1] == "Add up the tokens"
    assert select_poolings(["sums", "mean"]) == ("sums", "mean")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda hidden, _: hidden[0, 0],
            r"returns \(4,\) for hidden states \(2, 7, 4\); allowed: a tensor \(2, 4\)",
        ),
        (lambda *_: None, r"returns NoneType"),
        (lambda hidden, _: hidden.nothing, r"fails on hidden states \(2, 7, 4\): AttributeError"),
        (lambda hidden, _: hidden.mean(1), r"gives a text another vector beside a longer one: it reads padding"),
    ],
)
def test_a_pooling_that_cannot_be_right_is_refused(function: Callable[..., Any], message: str) -> None:
    register_pooling("wrong", function)
    with pytest.raises(InputError, match=f"your pooling 'wrong' {message}"):
        require_no_padding({name: POOLINGS[name][0] for name in ("mean", "wrong")}, 4)


def test_one_that_leaves_padding_alone_is_taken() -> None:
    register_pooling("sums", sums)
    require_no_padding({"sums": POOLINGS["sums"][0]}, 4)
    assert POOLINGS["sums"][0](
        torch.ones(1, 3, 4), index_batch(*[torch.ones(1, 3, dtype=torch.bool)] * 2)
    ).tolist() == [[3.0] * 4]


def test_a_pooling_of_a_user_may_be_called_as_it_likes() -> None:
    register_pooling("echogram", sums)
    check_template(["echogram"], InputTemplate())
    with pytest.raises(InputError, match="the pooling 'echo-mean' reads a further copy"):
        check_template(["echo-mean"], InputTemplate())


def test_masks_of_a_user_are_plans_with_and_without_numbers() -> None:
    def allow_every(i: Any, j: Any, n: int, *_: object) -> Any:
        return (i - j) % n == 0

    register_mask("every", default=2)(allow_every)
    assert parse_plan("every3:2+every").text == "every3:2+every"
    assert kind_matrix(parse_kind("every3"), 4)[0].tolist() == [True, False, False, True]
    assert digest_own("mask kind", parse_plan("every:2+backward").kind_names).keys() == {"mask kind every"}
    assert allow_every is ADDED["mask kind", "every"].thing.rule


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda i, j, *_: j < i, "token 0 of 1 sees nothing, not even itself"),
        (lambda i, j, *_: i * j, r"must give a bool tensor \(T, T\)"),
        (lambda i, *_: i.nothing, "fails on 1 tokens: AttributeError"),
    ],
)
def test_a_mask_that_cannot_be_right_is_refused(rule: Callable[..., Any], message: str) -> None:
    with pytest.raises(InputError, match=f"your mask 'wrong' {message}"):
        register_mask("wrong", rule)
    assert "wrong" not in KINDS


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of a user, which can be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    source = """
        def sums(hidden, index):
            return (hidden.float() * index.weights.unsqueeze(-1)).sum(1)

        def diagonal(i, j, n, spans):
            return i == j
    """
    (tmp_path / "mine_too.py").write_text(textwrap.dedent(source), encoding="utf-8")
    return "mine_too"


def test_names_may_say_where_the_code_is(module: str) -> None:
    with allow_code(module):
        [name] = select_poolings(f"{module}:sums")
        parse_plan(f"{module}:diagonal")
    assert name == "mine_too:sums"
    assert describe_own([("pooling", name)])["pooling mine_too:sums"]["module"] == module
    plan = parse_plan(f"{module}:diagonal:2+backward@1-2".partition("+")[0])
    assert plan.text == "mine_too:diagonal:2"
    assert tuple(map(str, plan.kinds(3))) == ("causal", "mine_too:diagonal", "mine_too:diagonal")
    assert tuple(map(str, parse_plan(f"{module}:diagonal@1-2").kinds(3))) == (
        "mine_too:diagonal",
        "mine_too:diagonal",
        "causal",
    )


@pytest.mark.parametrize("name", ["no_such_module:f", "mine_too:nothing"])
def test_what_cannot_be_imported_is_one_sentence(name: str, module: str) -> None:
    for look in (select_poolings, parse_plan):
        with allow_code(name), pytest.raises(UnknownNameError, match=f"{name}' cannot be imported .* PYTHONPATH"):
            look(name)
    del module


def test_entry_points_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def points(*, group: str, name: str) -> list[EntryPoint]:
        values = {"theirs": f"{__name__}:sums", "broken": "no_such_module:f"}
        return [EntryPoint(name, values[name], group)] if group == "icecore.poolings" and name in values else []

    monkeypatch.setattr("importlib.metadata.entry_points", points)
    with allow_code(__name__):
        assert select_poolings("theirs") == ("theirs",)
    with pytest.raises(UnknownNameError, match="unknown pooling 'others'"):
        select_poolings("others")
    with (
        allow_code("no_such_module"),
        pytest.raises(UnknownNameError, match=r"the pooling 'broken' cannot be imported \(ModuleNotFoundError"),
    ):
        select_poolings("broken")


def test_a_record_names_what_is_missing_or_changed(module: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "run"
    elsewhere.mkdir()
    register_word_pooling("mine", sums)
    described = describe_own([("word pooling", "mine"), ("word pooling", "mean")])
    assert [*described] == ["word pooling mine"]
    import_own(described, folder=elsewhere)
    require_own(described, folder=elsewhere)
    register_word_pooling("mine", lambda hidden, index: sums(hidden, index) * 2)
    with pytest.raises(InputError, match="the word pooling 'mine' has other code than when"):
        require_own(described, folder=elsewhere)
    del ADDED["word pooling", "mine"]
    for where, reason in [
        ("gone", "cannot be imported"),
        ("__main__", "defined in a notebook"),
        (module, "adds no such"),
    ]:
        message = rf"the word pooling 'mine' of your module '{where}', which .*{reason}"
        with allow_code(where), pytest.raises(InputError, match=message):
            record = {"module": where, "sha256": "0", "source": digest_source(where)}
            import_own({"word pooling mine": record}, folder=elsewhere)


def test_a_package_without_a_file_in_a_run_folder_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, package = tmp_path / "mark", tmp_path / "mine_spaced"
    package.mkdir()  # without __init__.py, so without an origin
    (package / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(IcecoreError, match="it is in the run folder, whose code is not run"):
        import_own({"pooling x": {"module": "mine_spaced.evil", "sha256": "0"}}, folder=tmp_path)
    assert not mark.exists()


def test_a_docstring_may_be_blank() -> None:
    def blank() -> None:
        pass

    blank.__doc__ = "  "
    assert [first_sentence(thing) for thing in (blank, sums)] == ["registered by you", "Add up the tokens"]


def test_code_in_a_run_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "mine_evil.py").write_text(f"open({str(mark)!r}, 'w').close()\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    described = {"pooling x": {"module": "mine_evil", "sha256": "0"}}
    with pytest.raises(IcecoreError, match="it is in the run folder, whose code is not run"):
        import_own(described, folder=tmp_path)
    assert not mark.exists()
    for named in (
        {"pooling x": {"module": "antigravity", "sha256": "0"}},
        {"pooling os:remove": {"module": "os", "sha256": "0"}},
    ):
        with pytest.raises(IcecoreError, match="it belongs to Python"):
            import_own(named, folder=tmp_path)
    with pytest.raises(IcecoreError, match="cannot be what its name says"):
        import_own({"mask kind shutil:rmtree": {"module": "yaml", "sha256": "0"}}, folder=tmp_path)
    described["pooling x"]["source"] = digest_source("mine_evil")
    with allow_code("mine_evil"), pytest.raises(InputError, match="adds no such name"):
        import_own(described, folder=tmp_path / "other")
    assert mark.exists()  # the look would have seen it
