"""The code of the documentation runs and does what the page says."""

import re
import sys
from pathlib import Path
from types import ModuleType

import echodraft

PAGE = Path(__file__).parents[2] / "docs" / "write-a-drafter.md"


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)


def test_the_drafter_of_the_tutorial_is_forty_lines_and_drafts_in_a_decoder():
    drafter, use = python_blocks()
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
