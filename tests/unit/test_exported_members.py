"""The public surface: small, sorted, and quick to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import echodraft


def test_the_public_names_are_sorted_and_there() -> None:
    assert echodraft.__all__ == sorted(echodraft.__all__)
    for name in echodraft.__all__:
        assert getattr(echodraft, name).__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = echodraft.nothing


@pytest.mark.parametrize(
    "code",
    [
        "import echodraft",
        "import echodraft.cli",
        "import echodraft.build, echodraft.decoder, echodraft.models",
        "from echodraft import load; print(load(backend='toy').generate('abc', max_new_tokens=5))",
    ],
)
def test_nothing_loads_torch_before_a_model_needs_it(code: str) -> None:
    check = f"{code}\nimport sys\nassert not {{'torch', 'transformers'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-W", "error", "-c", check], check=True)
