"""The page of a bench: its figures are those of the measurements, old folders render, and no text runs."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from echodraft.bench.report import gather
from echodraft.bench.result import Measurement
from echodraft.errors import UsageError
from echodraft.render.html import marks
from echodraft.render.html_report import page

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
HOSTILE = "</script><img src=x onerror=alert(1)>\"'{{ 7*7 }}"


def measured(item: str, method: str, decode: float, category: str = "code", **more: Any) -> Measurement:
    """Ten tokens in so many seconds."""
    ids = more.pop("ids", [*range(10)])
    return Measurement(item, category, method, ids, 1.0, decode, pieces=[f"t{i} " for i in ids], **more)


def drafted(item: str, seconds: float, category: str = "code", **more: Any) -> Measurement:
    """A method that kept two tokens of one source and one of another in six steps."""
    return measured(
        item,
        "suffix",
        seconds,
        category,
        steps=6,
        verified=8,
        accepted=3,
        by_source={"suffix": 2, "pool": 1},
        reached=[4, 2, 1],
        kept=[2, 1],
        seconds={"prefill": 1.0, "propose": 0.5, "score": seconds - 1.0, "accept": 0.25, "commit": 0.25},
        sources=[(None, 3), ("suffix", 2), (None, 3), ("pool", 1), (None, 1)],
        **more,
    )


def folder(path: Path, measurements: list[Measurement]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "manifest.json").write_text(
        json.dumps({"settings": {"model": "m", "budget": "auto"}, "revision": None, "machine": {"threads": 2}})
    )
    (path / "measurements.jsonl").write_text("".join(json.dumps(asdict(m)) + "\n" for m in measurements))
    return path


def pairs() -> list[Measurement]:
    """Two categories: twice as fast in one, half as fast in the other."""
    fast = [m for i in range(3) for m in (measured(f"a{i}", "none", 4.0, steps=9), drafted(f"a{i}", 2.0))]
    slow = [m for i in range(3) for m in (measured(f"b{i}", "none", 2.0, "prose", steps=9), drafted(f"b{i}", 4.0, "prose"))]
    return fast + slow


class Seen(HTMLParser):
    """Tags, and the text of a page as it is read, by lines of blocks."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += "\n" if tag in ("tr", "div", "h1", "h2", "h3", "p") else " " if tag in ("td", "th") else ""

    def handle_data(self, data: str) -> None:
        if self.tags[-1][0] != "style" if self.tags else True:
            self.text += " ".join(data.split("\n"))

    def row(self, *begins: str) -> str:
        """The first line that begins with these words, after the heading that is the first of them where there are two."""
        heading, name = begins if len(begins) == 2 else ("", begins[0])
        lines = [" ".join(line.split()) for line in self.text.split("\n")]
        start = next((i for i, line in enumerate(lines) if line.startswith(heading)), 0) if heading else 0
        return next(line for line in lines[start + 1 :] if line.startswith(name))


def test_every_category_has_its_bars_and_all_share_one_scale(tmp_path: Path) -> None:
    made = page("t", gather(folder(tmp_path / "run", pairs())))
    assert re.findall(r">(\d\.\d\d)×", made) == ["1.00", "2.00", "0.50"]
    widths = [float(w) for w in re.findall(r'width="([\d.]+)%" height="14"', made)]
    assert widths == pytest.approx([widths[0], 2 * widths[0], widths[0] / 2], rel=1e-3)
    assert max(widths) <= 100
    bases = {float(x) for x in re.findall(r'x1="([\d.]+)%" x2="\1%" y1="0"', made)}
    assert len(bases) == 1
    assert bases.pop() == pytest.approx(widths[0], rel=1e-3), "the line at 1× ends a bar of 1×"
    assert [name for name in ("all items", "code", "prose") if f"<h3>{name} " in made] == ["all items", "code", "prose"]
    assert made.count('class="slower"') == 1


def test_the_figures_of_each_section_are_those_of_the_measurements(tmp_path: Path) -> None:
    seen = Seen(page("t", gather(folder(tmp_path / "run", pairs()))))
    assert seen.row("Acceptance by position", "suffix") == "suffix 50%of 24 50%of 12 0%of 6"
    # 60 tokens; prefill 6 s, propose 3 s, score 12 s, accept and commit 1.5 s each
    assert seen.row("Where the time goes", "suffix").endswith("400.0 100.0 50.0 200.0 25.0 25.0 –")
    assert seen.row("Where the time goes", "none").endswith("400.0 100.0 – – – – 300.0")
    assert "suffix 20.0% pool 10.0% 70.0%" in seen.row("Who guessed the output", "suffix ")
    assert "18 / 48" in seen.row("Figures", "suffix")
    assert seen.row("settings.model") == "settings.model m"


def test_the_parts_of_a_bar_stand_one_behind_the_other(tmp_path: Path) -> None:
    made = page("t", gather(folder(tmp_path / "run", pairs())))
    bars = [re.findall(r'<rect x="([\d.]+)%" y="0" width="([\d.]+)%"', bar) for bar in re.findall(r"<svg.*?</svg>", made, flags=re.S)]
    stacked = [[(float(at), float(width)) for at, width in bar] for bar in bars if bar]
    assert len(stacked) == 3, "two methods have times, one has sources"
    for bar in stacked:
        for i, (at, _) in enumerate(bar):
            assert at == pytest.approx(sum(width for _, width in bar[:i]), abs=0.01)
        assert sum(width for _, width in bar) == pytest.approx(100, abs=0.01)


def test_an_output_that_leaves_plain_decoding_comes_first_and_shows_where(tmp_path: Path) -> None:
    other = [*range(5), 99, *range(6, 10)]
    runs = [*pairs()[:4], measured("z", "none", 2.0), drafted("z", 2.0, ids=other)]
    made = page("t", gather(folder(tmp_path / "run", runs)), samples=1)
    seen = Seen(made)
    assert seen.row("Sample outputs", "z ").startswith("z code")
    assert seen.row("Differs from") == "Differs from token 5: plain decoding said 't5 '."
    assert made.count(" parted") == 1
    assert made.count(' after"') == 4
    assert "a0" not in seen.text.partition("Sample outputs")[2]


def test_the_gap_of_a_difference_is_told_where_the_run_measured_it(tmp_path: Path) -> None:
    path = folder(tmp_path / "run", [measured("z", "none", 2.0), drafted("z", 2.0, ids=[7, 8])])
    (path / "summary.json").write_text(json.dumps([{"drafter": "suffix", "differences": [{"item": "z", "repeat": 0, "gap": 0.0125}]}]))
    assert "0.0125 above in the logits" in Seen(page("t", gather(path))).row("Differs from")


def test_tokens_are_marked_by_who_guessed_them(tmp_path: Path) -> None:
    made = page("t", gather(folder(tmp_path / "run", pairs()[:2])))
    assert re.findall(r'drafted hue(\d)" title="(\w+)">(t\d)', made) == [("0", "suffix", "t3"), ("0", "suffix", "t4"), ("1", "pool", "t8")]


def test_outputs_without_colours_of_their_own_are_named_and_not_repeated(tmp_path: Path) -> None:
    runs = [measured("z", "none", 2.0), measured("z", "hf", 2.0), drafted("z", 2.0, ids=[1, 2])]
    seen = Seen(page("t", gather(folder(tmp_path / "run", runs))))
    assert "as plain decoding: hf" in seen.row("Sample outputs", "z ")
    assert seen.text.partition("Sample outputs")[2].count("t9") == 1


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/")), ids=lambda path: path.name)
def test_every_folder_of_results_renders_with_what_it_has(path: Path) -> None:
    runs = gather(path)
    made = page(path.name, runs)
    seen = Seen(made)
    ours = seen.text.partition("Sample outputs")[0]  # what a model says may hold any word
    assert not re.findall(r"\b(?:None|nan|built-in|Undefined|object at)\b", ours)
    for run in runs:
        for row in run["rows"]:
            assert f"{row['identical']}/{row['items']}" in seen.text


def test_a_run_that_was_interrupted_renders(tmp_path: Path) -> None:
    path = folder(tmp_path / "run", pairs()[:3])
    with (path / "measurements.jsonl").open("a") as lines:
        lines.write('{"item": "a2", "meth')
    assert "1.00" in page("t", gather(path))
    (path / "manifest.json").unlink()
    assert page("t", gather(path))


def test_a_folder_of_folders_is_one_page(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder(tmp_path / name, pairs())
    (tmp_path / "notes").mkdir()
    runs = gather(tmp_path)
    assert [run["name"] for run in runs] == ["one", "two"]
    assert page("t", runs).count("<h2>Speed-up</h2>") == 2


def test_a_folder_without_a_run_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="echodraft bench"):
        gather(tmp_path)
    broken = folder(tmp_path / "run", pairs())
    (broken / "summary.json").write_text("[{")
    with pytest.raises(UsageError, match=r"summary\.json"):
        gather(broken)


def test_a_page_runs_no_text_and_fetches_nothing(tmp_path: Path) -> None:
    bad = Measurement(
        HOSTILE,
        HOSTILE,
        "none",
        [1, 2],
        1.0,
        1.0,
        pieces=[HOSTILE, HOSTILE],
        finish=HOSTILE,
        suite=HOSTILE,
        by_source={HOSTILE: 1},
        accepted=1,
    )
    other = Measurement(
        HOSTILE, HOSTILE, HOSTILE, [1, 3], 1.0, 1.0, pieces=[HOSTILE, HOSTILE], sources=[(HOSTILE, 2)], by_source={HOSTILE: 2}, accepted=2
    )
    path = folder(tmp_path / "run", [bad, other])
    (path / "manifest.json").write_text(json.dumps({HOSTILE: HOSTILE, "settings": {HOSTILE: [HOSTILE]}}))
    made = page(HOSTILE, gather(path))
    seen = Seen(made)
    assert seen.text.count(HOSTILE) >= 8
    assert not {"img", "script"} & {tag for tag, _ in seen.tags}
    assert not [value for _, values in seen.tags for key, value in values.items() if key.startswith("on") or key == "src"]
    assert all((values["href"] or "").startswith("#") for _, values in seen.tags if "href" in values)
    assert "script-src 'none'" in next(values["content"] or "" for _, values in seen.tags if values.get("http-equiv"))


def test_who_stands_side_by_side_has_another_colour_and_everybody_keeps_one() -> None:
    groups = [["a"], ["b", "a"], [f"c{i}" for i in range(5)] + ["a"], ["b", "d"]]
    hues = marks(groups)
    assert [len({hues[name] for name in group}) for group in groups] == [1, 2, 6, 2]
