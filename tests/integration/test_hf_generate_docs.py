"""The code of docs/hugging-face.md runs, and does what the page says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from against_generate import batch

import echodraft
from models import tiny
from tinychat import byte_level

PAGE = Path(__file__).parents[2] / "docs" / "hugging-face.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)


def test_the_code_of_the_page_gives_what_generate_gives(capsys: pytest.CaptureFixture[str]) -> None:
    model, inputs = tiny("llama"), batch(9)
    expected = model.generate(**inputs, max_new_tokens=40)
    names: dict[str, Any] = {"model": model, "inputs": inputs, "questions": [batch(n) for n in (5, 7, 9)], "tokenizer": byte_level()}
    assert len(blocks()) == 5
    for block in blocks():
        names.pop("out", None)
        exec(block, names)
        assert torch.equal(names["out"], expected)
    assert "length" in capsys.readouterr().out


def test_every_argument_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in inspect.signature(echodraft.custom_generate).parameters:
        assert f"`{name}`" in page
