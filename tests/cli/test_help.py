"""Help, lists and the doctor."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from echodraft import __version__
from echodraft.cli.table import COMMANDS, installed
from echodraft.drafters import DEFAULT
from outcome import Cli

NAMES = [name for name in COMMANDS if installed(name)]


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("name", ["", *NAMES, "ls drafters", "ls backends", "models list", "models pull", "models path"])
def test_every_help_opens_with_an_example(cli: Cli, name: str, flag: str) -> None:
    result = cli(*name.split(), flag)
    assert result.code == 0
    assert result.out.split("\n")[2].startswith(("  Example: echodraft ", "  Example: ls $(echodraft"))


def test_the_help_of_everything_lists_all_commands_and_loads_no_torch() -> None:
    check = (
        "import sys\nfrom echodraft.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    for args in (["--help"], ["run", "--help"], ["bench", "--help"], ["run", "abc", "--backend", "toy", "-n", "3"], ["ls", "drafters"]):
        if args[0] in (*NAMES, "--help"):
            done = subprocess.run([sys.executable, "-W", "error", "-c", check, *args], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            if args == ["--help"]:
                assert all(f"\n  {name} " in done.stdout for name in NAMES)


def test_the_version_is_told(cli: Cli) -> None:
    assert cli("--version").out == f"echodraft {__version__}\n"


def test_drafters_are_listed_with_needs_and_knobs(cli: Cli) -> None:
    found = {drafter["name"]: drafter for drafter in json.loads(cli("ls", "drafters", "--json").out)}
    assert found["prompt-lookup"]["options"]["longest"] == 8
    assert f"{DEFAULT} (default)" in cli("ls", "drafters").out
    assert all(drafter["about"] for drafter in found.values())


def test_backends_are_listed(cli: Cli) -> None:
    assert [backend["name"] for backend in json.loads(cli("ls", "backends", "--json").out)] == ["transformers", "toy"]
    assert "toy" in cli("ls", "backends").out


def test_the_embedded_model_is_listed_without_being_fetched(cli: Cli) -> None:
    assert json.loads(cli("models", "list", "--json").out)[0]["path"] is None
    assert "models pull" in cli("models", "list").out


def test_the_doctor_tells_versions_devices_and_kernels(cli: Cli) -> None:
    found = json.loads(cli("doctor", "--json").out)
    assert found["packages"]["torch"]
    assert found["devices"][0] == "cpu"
    assert isinstance(found["packed_kernels"], bool)
    assert found["embedded_model"]["path"] is None
    assert found["settings_file"] is None
    assert "threads" in cli("doctor").out
