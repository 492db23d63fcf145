"""Axes and grids of sweeps: a point is the configuration that a run with its keys would have."""

import re
from dataclasses import replace
from typing import Any

import pytest

from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import ConfigError, DecoderError, FetchError, IcecoreError
from extract.masks.mask_plan import parse_plan
from extract.records import from_plain
from probes.runs.config_file import given_values, read_config, with_settings
from probes.runs.encoders import ENCODERS
from probes.runs.grid import encoder_settings, grid_of, make_grid, plan_grid, read_axes, split_values
from probes.runs.run_config import RunConfig

ENCODER = {
    "plain": {},
    "echo": {"template": {"name": "echo"}, "poolings": ["echo-mean"]},
    "eol": {"template": {"name": "prompt-eol"}, "poolings": ["last"]},
}


def config(**values: Any) -> RunConfig:
    return RunConfig(**{"task": "sts-sample", "extraction": {"template": {"bos": "force"}}, **values})


@pytest.mark.parametrize(
    "keys",
    [
        {"extraction.plan": "nosink-bidirectional:10"},
        {"extraction.template": {"name": "echo"}, "extraction.poolings": ["echo-mean"]},
        {"extraction.template.name": "prompt-eol", "extraction.poolings": "last"},
        {"heads.layer-cosine.transform": "none"},
        {"task": "class-sample", "heads": "logistic-probe"},
        {"decoder.name": "other", "seeds": "0,1"},
        {"protocol": "look-both-ways", "task": "class-sample", "heads": {"few-shot-probe": {}}},
    ],
)
def test_a_point_is_what_a_run_with_its_keys_typed_would_be(keys: dict[str, object]) -> None:
    typed = [("task.name", "sts-sample"), ("extraction.template.bos", "force"), ("heads", "{layer-cosine: {}}")]
    base = read_config(list(typed))
    spelled = [(key, value if isinstance(value, str) else str(value)) for key, value in keys.items()]
    merged = [(key, value) for key, value in typed if key != "heads" or not any(k.startswith("heads.") for k in keys)]
    assert with_settings(base, keys, "sweep").to_dict() == read_config([*merged, *spelled]).to_dict()


def test_what_a_template_decided_is_decided_again_by_another_one() -> None:
    base = config(extraction={"template": {"name": "prompt-eol", "bos": "force"}, "poolings": ["last"]})
    echo = with_settings(base, ENCODER_KEYS, "sweep").extraction.template
    assert (echo.suffix, echo.repeat, echo.bos, echo.last) == ("", 2, "force", "row")
    assert given_values(base)["extraction"] == {
        "template": {"name": "prompt-eol", "bos": "force"},
        "poolings": ["last"],
    }


ENCODER_KEYS: dict[str, object] = {"extraction.template": {"name": "echo"}, "extraction.poolings": ["echo-mean"]}


def test_heads_read_the_pooling_of_their_point() -> None:
    base = config(heads={"layer-cosine": {"pooling": "mean", "transform": "none"}})
    grid = grid_of(base, ["extraction.poolings=mean,last,[mean,last]"])
    pooling = {point.values["poolings"]: point.config.heads["layer-cosine"] for point in grid.points}
    assert pooling["mean"] == pooling["[mean,last]"] == {"pooling": "mean", "transform": "none"}
    assert pooling["last"] == {"transform": "none"}
    assert base.heads["layer-cosine"] == {"pooling": "mean", "transform": "none"}


def test_named_sets_and_keys_span_a_grid() -> None:
    base = config(sweep={"over": {"encoder": ENCODER}, "reference": {"encoder": "plain"}})
    grid = grid_of(base, ["extraction.plan=causal,nosink-bidirectional:10", "encoder=plain,echo,eol"])
    assert grid.axes == ("plan", "encoder")
    assert [point.label for point in grid.points][:2] == ["plan=causal, encoder=plain", "plan=causal, encoder=echo"]
    assert len(grid.points) == 6
    assert grid.reference == {"plan": "causal", "encoder": "plain"}
    assert {point.config.extraction.poolings for point in grid.points} == {("mean",), ("echo-mean",), ("last",)}
    only = grid_of(base, ["encoder"])
    assert [point.values for point in only.points] == [{"encoder": name} for name in ENCODER]


def test_a_list_names_whole_combinations() -> None:
    points = [{"plan": "causal", "encoder": "plain"}, {"plan": "backward:2", "encoder": "echo"}]
    grid = grid_of(config(sweep={"over": {"encoder": ENCODER}, "points": points}))
    assert [dict(point.values) for point in grid.points] == points
    assert grid.settings()["sweep"]["points"] == points  # type: ignore[index]
    whole = grid_of(config(sweep={"over": {"encoder": ENCODER}}))
    assert "points" not in whole.settings()["sweep"]  # type: ignore[operator]


def test_plans_and_ratios_are_axes() -> None:
    plans = [parse_plan("backward:1"), parse_plan("causal")]
    grid = plan_grid(config(), plans)
    assert grid.is_of_plans
    assert grid.reference == {"plan": "causal"}  # although it is not the first
    assert grid.settings() == {"plans": ["backward:1", "causal"]}  # as folders of earlier versions have it
    assert grid_of(config(sweep={"plans": ["backward:1", "causal"]})).settings() == grid.settings()
    merge = [{"name": "A", "weight": 0.5}, {"name": "B", "weight": 0.5}]
    merged = grid_of(config(decoder={"merge": merge}), ["ratio=0,0.1,1"])
    assert [point.config.decoder.name for point in merged.points] == ["1*A+0*B", "0.9*A+0.1*B", "0*A+1*B"]
    with pytest.raises(ConfigError, match="--ratios has 3 numbers, some of them the same to six digits"):
        grid_of(config(decoder={"merge": merge}), ["ratio=0,0.5,0.5000000001"])


def test_a_point_keeps_what_it_sets_also_where_the_sweep_has_the_same() -> None:
    """The ratio of the file itself, and options that another task shares."""
    merge = [{"name": "a", "weight": 0.5}, {"name": "b", "weight": 0.5}]
    grid = grid_of(config(decoder={"merge": merge}), ["ratio=0,0.5,1"])
    weights = [tuple(part.weight for part in point.config.decoder.merge) for point in grid.points]
    assert weights == [(1.0, 0.0), (0.5, 0.5), (0.0, 1.0)]
    plain = with_settings(config(decoder={"merge": merge}), {"decoder.name": "other"}, "sweep")
    assert (plain.decoder.name, plain.decoder.merge) == ("other", ())
    wide = with_settings(config(decoder={"merge": merge}), {"decoder.dtype": "float32"}, "sweep")
    assert (len(wide.decoder.merge), wide.decoder.dtype) == (2, "float32")
    short = with_settings(config(decoder={"merge": merge}), {"decoder": "other"}, "sweep")
    assert (short.decoder.name, short.decoder.merge) == ("other", ())
    options = {"files": "x.csv"}
    base = config(task={"name": "pair-files", "options": options})
    classes = {"name": "class-files", "options": options}
    same = with_settings(base, {"task": classes, "heads": "logistic-probe"}, "sweep")
    assert same.task.options == options
    assert with_settings(base, {"task.name": "sts-sample"}, "sweep").task.options == {}


VIEWS: dict[str, Any] = {"plain": {"poolings": ["mean"]}, "echo": {"template": "echo", "poolings": ["echo-mean"]}}


def test_a_key_of_a_view_is_an_axis_and_changes_that_view_alone() -> None:
    config = from_plain(RunConfig, {"views": VIEWS})
    grid = grid_of(config, ["views.echo.plan=causal,backward:3"])
    assert grid.axes == ("views.echo.plan",)
    plans = [[view.plan for view in point.config.extraction.readings.values()] for point in grid.points]
    assert plans == [["causal", "causal"], ["causal", "backward:3"]]
    with pytest.raises(ConfigError, match=r"unknown key 'views.echo.plann'. Did you mean 'views.echo.plan'\?"):
        grid_of(config, ["views.echo.plann=causal,backward:3"])


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        (
            "poolings=mean,last",
            "the points poolings=mean and poolings=last read the same, as the views plain, echo set",
        ),
        ("encoders=mean,last", r"an encoder reads a text one way, and there are views \(plain, echo\); leave them out"),
    ],
)
def test_what_the_views_set_for_themselves_is_no_axis(over: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        grid_of(from_plain(RunConfig, {"views": VIEWS}), [over])


def test_points_whose_shares_cannot_be_filled_in_say_so_and_not_that_they_are_alike() -> None:
    config = from_plain(RunConfig, {"decoder": "./nowhere", "views": VIEWS})
    grid = grid_of(config, ["plan=nosink-bidirectional:{third},nosink-bidirectional:{half}"])
    assert all("nowhere" in point.why_not for point in grid.points)


def test_tasks_are_an_axis_whose_options_do_not_spill_over() -> None:
    base = config(task={"name": "pair-files", "options": {"files": "x.csv"}, "pairs": 9})
    grid = grid_of(base, ["task=sts-sample,pair-files", "poolings=mean,last"])
    assert grid.task_axis == "task"
    options = {point.values["task"]: point.config.task for point in grid.points}
    assert options["sts-sample"].options == {}
    assert options["pair-files"].options == {"files": "x.csv"}
    assert {task.pairs for task in options.values()} == {9}
    both = {"one": {"task": "sts-sample"}, "two": {"task": "pair-files"}}
    with pytest.raises(ConfigError, match="the axes 'task' and 'set' both set task; make them one"):
        grid_of(config(sweep={"over": {"set": both}}), ["task=sts-sample,pair-files", "set"])


def test_tasks_of_an_axis_bring_their_heads() -> None:
    over = {"pairs": {"task": "stsb-hub"}, "classes": {"task": {"name": "class-sample"}, "heads": ["few-shot-probe"]}}
    grid = grid_of(config(sweep={"over": {"task": over}}))
    assert grid.task_axis == "task"
    points = {point.values["task"]: point.config for point in grid.points}
    assert {name: (point.task.name, *point.heads) for name, point in points.items()} == {
        "pairs": ("stsb-hub", "layer-cosine"),
        "classes": ("class-sample", "few-shot-probe"),
    }


def test_typed_values_are_split_at_commas_outside_brackets_and_quotes() -> None:
    assert split_values("[mean, last],{a: [1, 2]},x") == ["[mean, last]", "{a: [1, 2]}", "x"]
    assert split_values("' Read: a, b ', \"it's\" ,don't, \"a\" b,'c'") == [
        " Read: a, b ",
        "it's",
        "don't",
        '"a" b',
        "c",
    ]
    assert split_values("'', ' '") == ["", " "]
    grid = grid_of(
        config(), ["template.instruction='Read, then say: ',plain"], reference="instruction='Read, then say: '"
    )
    assert grid.reference == {"instruction": "Read, then say: "}
    none = grid_of(config(), ["template.instruction='','Read: '"], reference="instruction='Read: '")
    assert [point.config.extraction.template.instruction for point in none.points] == ["", "Read: "]
    assert none.reference == {"instruction": "Read: "}
    assert [point.config.extraction.template.instruction for point in grid.points] == ["Read, then say: ", "plain"]
    assert [axis.name for axis in read_axes(config(), ["heads.layer-cosine.transform=none,standardise"])] == [
        "transform"
    ]


def test_the_preset_has_every_encoder_and_fills_in_shares_of_the_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extract.decoders.decoder.read_n_blocks", lambda _: 30)
    grid = grid_of(config(), ["encoders"])
    assert [point.values["encoder"] for point in grid.points] == list(ENCODERS)
    assert grid.reference == {"encoder": "mean"}
    plans = {point.values["encoder"]: point.plan.text for point in grid.points}
    assert plans["kv-prefix"] == "causal~kv12-15"
    assert plans["token-prepending"] == "causal~tp1-6"
    assert plans["nosink-middle-third"] == "nosink-bidirectional@10-20"
    words = encoder_settings(config(task="odd-sample", heads="layer-odd"))
    assert "last" not in words
    assert words["echo-mean"]["extraction.words.poolings"] == ["echo"]
    plain = grid_of(config(extraction={"template": {"bos": "auto"}}), ["encoders"])  # as of a tokenizer without one
    assert {point.config.extraction.template.bos for point in plain.points} == {"auto"}
    assert {point.config.extraction.template.bos for point in grid_of(config(extraction={}), ["encoders"]).points} == {
        "force"
    }
    some = grid_of(config(), ["encoders=mean,echo-mean"])
    assert [point.values["encoder"] for point in some.points] == ["mean", "echo-mean"]


def test_shares_of_the_depth_are_filled_in_wherever_a_value_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extract.decoders.decoder.read_n_blocks", lambda _: 30)
    views = {"plain": {}, "masks": {"plan": "nosink-bidirectional:{third}"}}
    sets = {"nested": {"extraction": {"plan": "backward:{sixth}"}}, "views": {"views": views}}
    nested, viewed = grid_of(config(sweep={"over": {"set": sets}})).points
    assert nested.plan.text == "backward:5"
    assert viewed.config.views["masks"] == {"plan": "nosink-bidirectional:10"}


def test_points_over_plans_alone_are_named_by_their_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extract.decoders.decoder.read_n_blocks", lambda _: 30)
    plans = {"cc": "causal", "masks": "nosink-bidirectional:{third}"}
    grid = grid_of(config(sweep={"over": {"plan": plans}}), reference="masks")
    assert [dict(point.values) for point in grid.points] == [{"plan": "causal"}, {"plan": "nosink-bidirectional:10"}]
    assert grid.reference == {"plan": "nosink-bidirectional:10"}
    assert grid.settings() == {"reference": "nosink-bidirectional:10", "plans": ["causal", "nosink-bidirectional:10"]}
    assert "reference" not in grid_of(config(), ["plan=backward,causal"]).settings()
    with pytest.raises(ConfigError, match="the plan 'nosink-bidirectional:10' is given twice"):
        grid_of(config(), ["plan=nosink-bidirectional:10,nosink-bidirectional:{third}"])


def test_a_decoder_whose_depth_cannot_be_read_costs_its_own_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(spec: DecoderSpec) -> int:
        if spec.revision == "lost":
            raise FetchError("there is no revision 'lost'")
        return 30

    monkeypatch.setattr("extract.decoders.decoder.read_n_blocks", read)
    over = ["decoder.revision=here,lost", "plan=causal,nosink-bidirectional:{third}"]
    grid = grid_of(config(decoder="somebody/steps"), over)
    assert [point.plan.text for point in grid.points] == ["causal", "nosink-bidirectional:10", "causal", "causal"]
    assert grid.unread == {
        "revision=lost, plan=nosink-bidirectional:{third}": "FetchError: there is no revision 'lost'"
    }
    assert "points" not in grid.settings()["sweep"]  # type: ignore[operator]
    with pytest.raises(DecoderError, match="there is no revision 'lost'"):
        grid_of(config(decoder="somebody/steps"), ["decoder.revision=lost", over[1].replace("causal,", "")]).unread  # noqa: B018


@pytest.mark.parametrize(
    ("over", "sweep", "message"),
    [
        (["poolings="], {}, "axis 'poolings' has no value"),
        (["encodings"], {}, "unknown axis 'encodings': did you mean 'encoders'"),
        (["poolings"], {}, "the axis 'poolings' has no values; give them, as --over poolings=VALUE,VALUE."),
        (["temlpate.name=echo"], {}, "unknown axis 'temlpate.name': did you mean 'template.name'?"),
        (["extraction.plam=causal"], {}, "unknown axis 'extraction.plam': did you mean 'extraction.plan'?"),
        (["poolngs=mean"], {}, "unknown axis 'poolngs': did you mean 'poolings'?"),
        (["plan=causal,causal"], {}, "the value 'causal' of an axis is given twice"),
        (["plan=causal", "extraction.plan=backward"], {}, "the axis 'plan' is given twice; give all its values"),
        ([], {"over": {"plan": ["causal"], "extraction.plan": ["backward"]}}, "the axis 'plan' is given twice"),
        ([], {"over": {"plan": ["causal"]}, "plans": ["backward"]}, "the axis 'plan' is given twice"),
        ([], {"over": {"e": {"": {}, "a": {"plan": "backward"}}}}, "a value of the axis 'e' has no name"),
        (
            [],
            {"over": {"e": {"a": {}, "b": {"plan": "causal"}}}},
            "the points e=a and e=b read the same; leave one out",
        ),
        (
            [],
            {"points": [{"plan": "causal"}, {"plan": "causal"}]},
            "the point plan=causal is given twice; give it once",
        ),
        (["encoder=plain"], {}, "Allowed: mean, mean-standardised"),
        (["encoder=plain"], {}, "Name others in the section `sweep` of the config, as over: {encoder: {plain: KEYS}}."),
        (["poolings=mean,echo-mean"], {}, "the point poolings=echo-mean of the sweep: "),
        (["plan=causal,sideways"], {}, "the point plan=sideways of the sweep: unknown mask plan"),
        (["encoder=plane"], {"over": {"encoder": ENCODER}}, "unknown value of the axis 'encoder' 'plane'"),
        (["ratio=0,x"], {}, "--ratios is '0,x'; allowed: numbers"),
        (["ratio=0,1"], {}, "decoder.merge has 0 parts"),
        ([], {"over": {"encoder": {"plain": 3}}}, "encoder.plain is '3'; allowed: keys with values"),
        ([], {"over": ["x"]}, "sweep.over is \"['x']\"; allowed: axes with their values"),
        ([], {"points": [{"plan": "causal"}, {}]}, "a point of sweep.points has no 'plan'"),
        ([], {"points": "all"}, "sweep.points is 'all'; allowed: a list of points"),
        ([], {}, "the sweep does not say what it goes over"),
        (["plan=causal,backward"], {"reference": "plan=forward"}, "unknown value of the axis 'plan' 'forward'"),
        (["plan=causal,backward"], {"reference": "sideways"}, "unknown point 'sideways'"),
        (["heads=layer-cosine", "heads.layer-cosine.transform=none"], {}, "both set heads.layer-cosine.transform"),
        (["encoders", "template.name=echo"], {}, "both set extraction.template.name"),
        (["plan=nosink-bidirectional:{tenth}"], {}, "unknown share of the depth 'tenth'"),
        (["seeds=0,1"], {}, "seeds are no axis, as none of them may be chosen; --seeds 0,1,2"),
        ([], {"over": {"set": {"a": {"seeds": 0}, "b": {"seeds": 1, "poolings": "last"}}}}, "seeds are no axis"),
        (["bootstrap=10,20"], {}, "the axis 'bootstrap' sets bootstrap, which all points share"),
        ([], {"over": {"layer": {"a": {"poolings": "last"}}}}, "the axis 'layer' has the name of a column"),
        ([], {"over": {"set": {"a": {"runs": "x"}}}}, "the axis 'set' sets runs, which all points share"),
    ],
)
def test_axes_that_cannot_be_are_refused(
    over: list[str], sweep: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extract.decoders.decoder.read_n_blocks", lambda _: 30)
    with pytest.raises(IcecoreError, match=re.escape(message)):
        grid_of(config(sweep=sweep), over)


def test_an_unknown_key_of_the_section_is_refused() -> None:
    from probes.runs.config_file import as_config

    with pytest.raises(ConfigError, match=r"unknown key 'sweep.ovre'. Did you mean 'sweep.over'"):
        as_config({"task": "sts-sample", "sweep": {"ovre": {}}})


def test_a_reference_that_is_no_combination_is_refused() -> None:
    axes = read_axes(config(), ["plan=causal,backward", "poolings=mean,last"])
    points = [{"plan": "causal", "poolings": "mean"}, {"plan": "backward", "poolings": "last"}]
    with pytest.raises(ConfigError, match="the reference 'plan=causal, poolings=last' is no point of the sweep"):
        make_grid(config(), axes, points=points, reference="last")


def test_one_option_of_several_heads_is_an_axis_of_each() -> None:
    """Typed, in a file, as listed points, and as a sweep records itself."""
    heads: dict[str, object] = {"cosine-mlp": {}, "cosine-linear": {}}
    first, second = "heads.cosine-mlp.max_epochs", "heads.cosine-linear.max_epochs"
    short = ("cosine-mlp.max_epochs", "cosine-linear.max_epochs")

    def read(typed: list[str], **section: object) -> list[tuple[int, int]]:
        grid = grid_of(config(heads=heads, sweep=section), typed)
        assert grid.axes == short
        rerun = grid_of(config(heads=heads, **grid.settings()), [])
        assert [point.config.heads for point in rerun.points] == [point.config.heads for point in grid.points]
        return [tuple((point.config.heads[name] or {})["max_epochs"] for name in heads) for point in grid.points]

    whole = [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert read([f"{first}=1,2", f"{second}=3,4"]) == whole
    assert read([], over={first: [1, 2], second: [3, 4]}) == whole
    assert read([f"{first}=1", f"{second}=3,5"], over={first: [1, 2], second: [3, 4]}) == [(1, 3), (1, 5)]
    assert read([], points=[{first: 1, second: 3}, {first: 2, second: 4}]) == [(1, 3), (2, 4)]
    one = config(heads=heads, sweep={"over": {first: [1, 2]}})
    assert grid_of(one, [f"{second}=1,3"]).points[1].config.heads == {
        "cosine-mlp": {},
        "cosine-linear": {"max_epochs": 3},
    }
    section = {"over": {first: [1, 2], second: [3, 4]}, "reference": {first: 2}}
    assert grid_of(config(heads=heads, sweep=section)).reference == dict(zip(short, "23", strict=True))


def test_an_axis_that_comes_with_the_library_goes_by_its_own_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extract.decoders.decoder.read_n_blocks", lambda _: 30)
    names = [point.values for point in grid_of(config(), ["encoder=mean,echo-mean"]).points]
    assert names == [{"encoder": "mean"}, {"encoder": "echo-mean"}]
    assert grid_of(config(), ["encoder"]).settings() == grid_of(config(), ["encoders"]).settings()


ON_TASKS: dict[str, Any] = {
    "pairs": {"task": {"name": "sts-sample"}, "heads": {"layer-cosine": {}}},
    "words": {"task": {"name": "odd-sample"}, "heads": {"layer-odd": {}}},
}


def poolings_of(base: RunConfig, over: dict[str, Any], *typed: str) -> dict[str, tuple[str, ...]]:
    """Return what every point reads, of whole texts or of words as its task does."""
    grid = grid_of(replace(base, sweep={"over": over}), typed).check_heads()
    specs = {point.label: (point.config.task.name, point.config.extraction) for point in grid.points}
    return {
        label: spec.poolings_read(of_words=name == "odd-sample") + (spec.poolings if name == "odd-sample" else ())
        for label, (name, spec) in specs.items()
    }


@pytest.mark.parametrize("task", ["pairs", "words"])
def test_poolings_of_a_point_are_those_of_words_where_its_task_is_one_of_words(task: str) -> None:
    base = config(**ON_TASKS[task])
    encoders = {"plain": {"poolings": ["mean"]}, "echo": {"template": "echo", "poolings": "echo-mean"}}
    expected = {
        "task=pairs, encoder=plain": ("mean",),
        "task=pairs, encoder=echo": ("echo-mean",),
        "task=words, encoder=plain": ("mean", "mean"),
        "task=words, encoder=echo": ("echo", "mean"),  # nothing is read of the poolings of whole texts
    }
    assert poolings_of(base, {"task": ON_TASKS, "encoder": encoders}) == expected
    of_words = {"plain": {"words.poolings": "mean"}, "echo": {"template": "echo", "words.poolings": ["echo"]}}
    assert poolings_of(base, {"task": ON_TASKS, "encoder": of_words}) == expected
    both = {"first": {"poolings": "last", "words.poolings": "first"}}
    assert poolings_of(base, {"task": ON_TASKS, "by": both}) == {
        "task=pairs, by=first": ("last",),
        "task=words, by=first": ("first", "mean"),
    }
    heads: dict[str, Any] = {"pairs": {"siamese-cosine": {}}, "words": {"layer-odd": {}}}
    tasks = {name: {**ON_TASKS[name], "heads": heads[name]} for name in ON_TASKS}
    some = poolings_of(config(**tasks[task]), {"task": tasks}, "task", "encoders=mean,echo-mean")
    assert some["task=pairs, encoder=echo-mean"] == ("echo-mean",)
    assert some["task=words, encoder=echo-mean"] == ("echo", "mean")


def test_poolings_of_the_whole_sweep_fit_the_task_of_each_point_too() -> None:
    pairs = config(extraction={"template": "echo", "poolings": "echo-mean"}, **ON_TASKS["pairs"])
    words = config(extraction={"template": "echo", "words": {"poolings": "echo"}}, **ON_TASKS["words"])
    for base in (pairs, words):
        assert poolings_of(base, {"task": ON_TASKS}) == {"task=pairs": ("echo-mean",), "task=words": ("echo", "mean")}
    assert poolings_of(config(**ON_TASKS["pairs"]), {"task": ON_TASKS})["task=words"] == ("auto", "mean")


def test_poolings_that_words_do_not_have_are_refused() -> None:
    message = (
        "the point task=words, poolings=last of the sweep: extraction.poolings is [last], which pools whole texts, but "
        "task 'odd-sample' is one of words; allowed: mean, echo-mean, reba-mean, which words have too, or set "
        "extraction.words.poolings beside it."
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        poolings_of(config(**ON_TASKS["pairs"]), {"task": ON_TASKS, "poolings": ["last", "mean"]})
