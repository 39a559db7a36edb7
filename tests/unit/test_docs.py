"""The code of the documentation runs and does what the page says."""

import re
import sys
from pathlib import Path
from types import ModuleType

import echodraft

DOCS = Path(__file__).parents[2] / "docs"


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.S)


def test_the_drafter_of_the_tutorial_is_forty_lines_and_drafts_in_a_decoder():
    drafter, use = python_blocks("write-a-drafter.md")
    assert len([line for line in drafter.splitlines() if line.strip()]) <= 40
    module = ModuleType("my_module")
    sys.modules["my_module"] = module
    try:
        exec(drafter, vars(module))
        exec(use, vars(module))
        result = vars(module)["result"]
        assert result.stats.mean_accepted > 1.2
        for kind in (module.Bigram, "my_module:Bigram"):
            branchless = echodraft.load(drafter=kind, drafter_options={"branch": False}, backend="toy")
            assert branchless.generate("one two one two one", max_new_tokens=600).ids == result.ids
    finally:
        del sys.modules["my_module"]


def test_the_trace_of_the_page_is_written_and_read(tmp_path: Path, monkeypatch):
    from echodraft.metrics.traced import read

    monkeypatch.chdir(tmp_path)
    (code,) = python_blocks("traces.md")
    exec(code, {})
    assert read(tmp_path / "answer.trace").requests[0].emitted == 50
