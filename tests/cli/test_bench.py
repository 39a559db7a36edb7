"""`echodraft bench` and `echodraft cost`, as commands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from echodraft.drafters import DEFAULT, WITH_DRAFT_MODEL
from outcome import Cli

FLOAT = ("--dtype", "float32")
PROMPTS = ["hello hello hello world", "one two one two", "a b c a b c a"]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite.jsonl"
    rows = [{"id": f"p{i}", "category": "odd" if i % 2 else "even", "prompt": prompt} for i, prompt in enumerate(PROMPTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


Stop = Callable[[int], AbstractContextManager[None]]


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Stop:
    """Ctrl-C while the answer behind this many is made."""
    from echodraft.bench.methods import Drafted

    @contextmanager
    def stopping(count: int) -> Iterator[None]:
        honest, calls = Drafted.answer, iter(range(count + 1))

        def answer(self: Drafted, *args: Any) -> Any:
            if next(calls) == count:
                raise KeyboardInterrupt
            return honest(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(Drafted, "answer", answer)
            yield

    return stopping


@pytest.fixture
def toy(cli: Cli, suite: Path) -> Cli:
    """The command on the toy model and the suite."""
    return lambda *args: cli("bench", "--backend", "toy", "--suite", suite, "-n", "60", *map(str, args))


def test_json_holds_counts_and_ratios_of_every_drafter_and_outputs_agree(toy: Cli) -> None:
    done = toy("--drafters", "prompt-lookup,prompt-lookup:longest=2:budget=4", "--json")
    assert done.code == 0, done.err
    results = {row["drafter"]: row for row in json.loads(done.out)["results"]}
    assert list(results) == ["none", "prompt-lookup", "prompt-lookup:longest=2:budget=4"]
    for row in results.values():
        assert row["identical"] == row["items"] == 3
        assert row["emitted"] == 180
        assert row["mean_accepted"] == pytest.approx((180 - 3) / row["steps"])
        assert row["accepted"] == 177 - row["steps"]
        assert row["accepted"] <= row["verified"] <= row["drafted"]
        assert row["tokens_per_second"] > 0
        assert row["decode_tokens_per_second"] > 0
    assert results["none"]["steps"] == 177
    assert results["none"]["speedup"] == 1.0


def test_two_runs_count_the_same(toy: Cli) -> None:
    keys = ("steps", "drafted", "verified", "accepted", "emitted")
    runs = [json.loads(toy("--json").out)["results"] for _ in range(2)]
    assert [[row[key] for key in keys] for row in runs[0]] == [[row[key] for key in keys] for row in runs[1]]


def test_limit_and_category_choose_requests(toy: Cli) -> None:
    done = toy("--category", "even", "--limit", 1, "--json")
    assert {row["items"] for row in json.loads(done.out)["results"]} == {1}


def test_a_finished_run_is_kept_and_not_overwritten(toy: Cli, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert toy("--out", out).code == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["settings"]["max_new_tokens"] == 60
    assert manifest["versions"]["echodraft"]
    assert manifest["finished"]
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for resume in ((), ("--resume",)):
        again = toy("--out", out, *resume)
        assert again.code == 2
        assert "finished" in again.err
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_an_unfinished_run_is_refused_without_resume_and_under_other_settings(toy: Cli, tmp_path: Path, stop_after: Stop) -> None:
    out = tmp_path / "run"
    with stop_after(3):
        assert toy("--out", out).code == 130
    refused = toy("--out", out)
    assert refused.code == 2
    assert "--resume" in refused.err
    other = toy("--out", out, "--resume", "--budget", 7)
    assert other.code == 2
    assert "budget" in other.err
    assert toy("--out", out, "--resume").code == 0


def test_resume_does_only_what_is_missing_even_after_half_a_line(toy: Cli, tmp_path: Path, stop_after: Stop) -> None:
    out = tmp_path / "run"
    with stop_after(4):
        assert toy("--out", out).code == 130
    lines = out / "measurements.jsonl"
    before = lines.read_text().splitlines()
    assert len(before) == 4
    lines.write_text("\n".join(before[:-1]) + "\n" + before[-1][:20])
    done = toy("--out", out, "--resume", "--json")
    assert done.code == 0, done.err
    after = lines.read_text().splitlines()
    assert after[:3] == before[:-1]
    assert len(after) == 6
    assert {row["items"] for row in json.loads(done.out)["results"]} == {3}


def test_resume_without_a_folder_is_refused(toy: Cli) -> None:
    assert "--out" in toy("--resume").err


def test_an_interrupt_keeps_what_is_done(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    args = [sys.executable, "-m", "echodraft", "bench", "--backend", "toy", "--suite", str(suite), "-n", "3000", "--out", str(out)]
    running = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = out / "measurements.jsonl"
    for _ in range(600):
        if lines.exists() and lines.read_text():
            break
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "--resume" in errors
    assert lines.read_text().endswith("\n")
    assert (out / "summary.json").exists()


def test_peers_run_beside_ours_with_the_same_tokens(cli: Cli, folder: Path, suite: Path) -> None:
    peers = "hf,hf-pld:tokens=4:ngram=3,hf:packed=true,hf-assisted"
    done = cli("bench", "-m", folder, "--suite", suite, "-n", "24", *FLOAT, "--peers", peers, "--draft-model", folder, "--json")
    assert done.code == 0, done.err
    results = {row["drafter"]: row for row in json.loads(done.out)["results"]}
    assert list(results) == ["none", WITH_DRAFT_MODEL, *peers.split(",")]
    assert all(row["identical"] == row["items"] == 3 for row in results.values())
    assert results["hf"]["mean_accepted"] is None


def test_stops_of_the_suite_cut_ours_and_peers_at_the_same_token(cli: Cli, folder: Path, tmp_path: Path) -> None:
    plain = cli("run", "--raw", "-m", folder, "-n", "24", *FLOAT, "--json", "the cat")
    text = json.loads(plain.out)["text"]
    path = tmp_path / "stops.jsonl"
    path.write_text(json.dumps({"prompt": "the cat", "stop": [text[6:8]]}) + "\n")
    done = cli("bench", "-m", folder, "--suite", path, "-n", "24", *FLOAT, "--peers", "hf,hf-pld", "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["results"]
    assert {row["identical"] for row in rows} == {1}
    assert len({row["emitted"] for row in rows}) == 1
    assert rows[0]["emitted"] < 24


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--suite", "nowhere.jsonl"], "no suite"),
        ([], "--suite"),
        (["--suite", "SUITE", "--drafters", "prompt-lokup"], "prompt-lookup"),
        (["--suite", "SUITE", "--peers", "hff"], "hf"),
        (["--suite", "SUITE", "--peers", "hf"], "toy"),
        (["--suite", "SUITE", "--category", "none-such"], "none-such"),
        (["--suite", "BROKEN"], "Line 1"),
    ],
)
def test_wrong_arguments_get_one_line_and_exit_code_two(args: list[str], said: str, cli: Cli, suite: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"id": 1}\n')
    names = {"SUITE": str(suite), "BROKEN": str(broken)}
    done = cli("bench", "--backend", "toy", *(names.get(arg, arg) for arg in args))
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1


def test_cost_is_measured_and_kept(cli: Cli, folder: Path, apart: Path) -> None:
    done = cli("cost", "-m", folder, "--contexts", "20,100", "--repeats", "1", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["contexts"] == [20, 100]
    assert all(len(line) == len(found["rows"]) and line[0] == 1.0 for line in found["cost"])
    assert Path(found["file"]).is_relative_to(apart)
    wrong = cli("cost", "-m", folder, "--contexts", "20,100000")
    assert wrong.code == 2
    assert "context" in wrong.err


def test_a_draft_model_in_int8_has_a_curve_of_its_own(cli: Cli, folder: Path) -> None:
    own, int8 = (cli("cost", "-m", folder, "--contexts", "20", "--repeats", "1", "--json", *more) for more in ((), ("--quantize", "int8")))
    if int8.code:
        assert "x86" in int8.err
        return
    assert json.loads(own.out)["file"] != json.loads(int8.out)["file"]
    assert "-int8-" in json.loads(int8.out)["file"]
    wrong = cli("cost", "-m", folder, "--contexts", "20", "--quantize", "int3")
    assert wrong.code == 2
    assert "int8 or int4" in wrong.err


def test_a_measurement_tells_counts_depths_phases_sources_and_text(toy: Cli, suite: Path, tmp_path: Path) -> None:
    with suite.open("a") as file:
        file.write(json.dumps({"id": "again", "prompt": PROMPTS[1]}) + "\n")
    assert toy("--out", tmp_path / "run", "--drafters", "suffix").code == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "measurements.jsonl").read_text().splitlines()]
    assert [row["repeated"] for row in rows if row["method"] == "none"] == [False, False, False, True]
    for row in rows:
        assert (row["repeat"], row["finish"], len(row["ids"])) == (0, "length", 60)
        assert sum(n for _, n in row["sources"]) == len(row["pieces"]) == 60
        guessed = {name: sum(n for source, n in row["sources"] if source == name) for name in row["by_source"]}
        assert guessed == row["by_source"]
        assert sum(row["histogram"].values()) == row["steps"]
        assert sum(int(n) * steps for n, steps in row["histogram"].items()) == sum(row["kept"]) == row["accepted"]
        assert all(kept <= reached for kept, reached in zip(row["kept"], row["reached"], strict=False))
        assert set(row["seconds"]) == {"prefill", "propose", "score", "accept", "commit"}
        assert row["prefill_seconds"] + row["decode_seconds"] == pytest.approx(sum(row["seconds"].values()))
        assert row["peak_memory"] > 1 << 20
    assert {row["prompt_tokens"] for row in rows} == {len(prompt) for prompt in PROMPTS}
    assert [row["accepted"] > 30 for row in rows if row["method"] == "suffix"][3]  # it had said all of that before


def test_sampled_answers_are_those_of_the_seed_whatever_drafts(toy: Cli, suite: Path, tmp_path: Path) -> None:
    with suite.open("a") as file:
        file.write(json.dumps({"id": "again", "prompt": PROMPTS[1]}) + "\n")
    said: dict[str, dict[str, list[int]]] = {}
    for out, flags in (
        ("greedy", ()),
        ("one", ("-t", 0.9, "--seed", 1)),
        ("two", ("-t", 0.9, "--seed", 2)),
        ("few", ("-t", 0.9, "--top-p", 0.01)),
    ):
        done = toy("--out", tmp_path / out, "--drafters", "suffix", *flags, "--json")
        assert done.code == 0, done.err
        rows = [json.loads(line) for line in (tmp_path / out / "measurements.jsonl").read_text().splitlines()]
        said[out] = {row["item"]: row["ids"] for row in rows if row["method"] == "none"}
        assert said[out] == {row["item"]: row["ids"] for row in rows if row["method"] == "suffix"}
        assert sum(row["accepted"] for row in rows) > 30
    assert said["few"] == said["greedy"]  # only the best is in so small a share
    assert len({str(said[out]) for out in ("greedy", "one", "two")}) == 3
    assert json.loads(done.out)["settings"]["decoding"] == {"temperature": 0.9, "top_p": 0.01, "seed": 0}


def test_peers_do_not_sample(cli: Cli, folder: Path, suite: Path) -> None:
    done = cli("bench", "-m", folder, "--suite", suite, "-t", "0.5", "--peers", "hf")
    assert done.code == 2
    assert "noise of their own" in done.err


def test_measurements_of_older_runs_are_still_read(tmp_path: Path) -> None:
    from echodraft.bench.result import read

    old = {"item": "a", "category": "", "method": "none", "ids": [1, 2], "prefill_seconds": 1.0, "decode_seconds": 2.0, "steps": 1}
    (tmp_path / "old.jsonl").write_text(json.dumps(old) + "\n")
    found = next(read(tmp_path / "old.jsonl"))
    assert (found.steps, found.repeat, found.pieces, found.reached) == (1, 0, [], [])


def counted(out: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """All that is not time or place of every measurement, by item, method and round; nor what drafters count since a run was resumed."""
    rows = [json.loads(line) for line in (out / "measurements.jsonl").read_text().splitlines()]
    for row in rows:
        for name in ("prefill_seconds", "decode_seconds", "seconds", "peak_memory", "report"):
            del row[name]
    return {(row["item"], row["method"], row["repeat"]): row for row in rows}


ALL = "suffix,recycling,sam,oilbird,prompt-lookup:budget=6,suffix:budget=8"


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """Prompts of which some come again, and a conversation."""
    path = tmp_path / "talk.jsonl"
    rows: list[dict[str, Any]] = [{"id": f"p{i}", "prompt": prompt} for i, prompt in enumerate([*PROMPTS, PROMPTS[0], PROMPTS[2]])]
    rows.append({"id": "t", "category": "chat", "turns": ["say it", "again", "and again"]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("memory", ["carry", "cold"])
@pytest.mark.parametrize("model", ["toy", "transformers"])
def test_two_runs_and_a_run_in_pieces_and_another_order_of_methods_count_the_same(
    cli: Cli, base: Path, talk: Path, stop_after: Stop, model: str, memory: str
) -> None:
    with_model = ("-m", base, *FLOAT) if model == "transformers" else ("--backend", "toy")
    options = ("--suite", talk, "-n", "24", "--memory", memory, *with_model)
    call = ("bench", *options, "--drafters", ALL)
    for name in ("one", "two"):
        done = cli(*call, "--out", name)
        assert done.code == 0, done.err
    one = counted(Path("one"))
    assert one == counted(Path("two"))
    for count in (5, 7, 12):
        with stop_after(count):
            assert cli(*call, "--out", "pieces", *(["--resume"] if Path("pieces").exists() else [])).code == 130
    assert cli(*call, "--out", "pieces", "--resume").code == 0
    assert one == counted(Path("pieces"))
    turned = ",".join(reversed(ALL.split(",")))
    assert cli("bench", *options, "--drafters", turned, "--out", "turned").code == 0
    assert one == counted(Path("turned"))
    assert sum(row["accepted"] for row in one.values()) > 0


def test_a_drafter_with_a_draft_model_counts_the_same_in_pieces(cli: Cli, base: Path, folder: Path, talk: Path, stop_after: Stop) -> None:
    call = ("bench", "-m", base, *FLOAT, "--draft-model", folder, "--suite", talk, "-n", "12", "--drafters", "speculative,ouroboros")
    assert cli(*call, "--out", "one").code == 0
    with stop_after(7):
        assert cli(*call, "--out", "pieces").code == 130
    assert cli(*call, "--out", "pieces", "--resume").code == 0
    assert counted(Path("one")) == counted(Path("pieces"))


def test_memory_is_carried_from_request_to_request_or_cold_or_begins_with_a_folder(cli: Cli, tmp_path: Path) -> None:
    suite = tmp_path / "suite.jsonl"
    suite.write_text("".join(json.dumps({"id": str(i), "prompt": "say it again"}) + "\n" for i in range(3)))

    def steps(*args: str) -> list[int]:
        out = f"out{len(list(tmp_path.glob('out*')))}"
        done = cli("bench", "--backend", "toy", "--suite", suite, "-n", "40", "--drafters", "suffix", "--out", out, *args)
        assert done.code == 0, done.err
        return [row["steps"] for row in counted(Path(out)).values() if row["method"] == "suffix"]

    carried = steps()
    assert carried[1] < carried[0]
    assert steps("--memory", "cold") == [carried[0]] * 3
    assert cli("run", "--backend", "toy", "--raw", "-n", "40", "-d", "suffix", "--memory", "held", "say it again").code == 0
    held = {path: path.read_bytes() for path in Path("held").rglob("*.safetensors")}
    assert held
    assert steps("--memory", "held")[0] < carried[0]
    assert {path: path.read_bytes() for path in Path("held").rglob("*.safetensors")} == held
    assert cli("bench", "--backend", "toy", "--suite", suite, "--memory", "nowhere").code == 2


def test_every_round_starts_from_the_same_memory_and_times_are_medians(toy: Cli, tmp_path: Path) -> None:
    done = toy("--drafters", "suffix,recycling", "--repeats", "3", "--out", "run", "--json")
    assert done.code == 0, done.err
    rows = counted(Path("run"))
    assert len(rows) == 3 * 3 * 3
    for (item, method, repeat), row in rows.items():
        assert {**row, "repeat": 0} == rows[item, method, 0], repeat
    for row in json.loads(done.out)["results"]:
        assert (row["items"], row["rounds"], row["emitted"]) == (3, 3, 180)
        assert row["speedup_interval"][0] <= row["speedup"] <= row["speedup_interval"][1]


def test_later_turns_follow_plain_answers_whatever_the_method(cli: Cli, base: Path, tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    path.write_text(json.dumps({"id": "t", "turns": ["the cat", "the dog", "on the mat"]}) + "\n")
    done = cli("bench", "-m", base, *FLOAT, "--suite", path, "-n", "6", "--peers", "hf", "--out", "run")
    assert done.code == 0, done.err
    rows = counted(Path("run"))
    assert {item for item, _, _ in rows} == {"t", "t/turn-2", "t/turn-3"}
    for item in ("t", "t/turn-2", "t/turn-3"):
        assert len({rows[item, method, 0]["prompt_tokens"] for method in ("none", DEFAULT, "hf")}) == 1
    answer = "".join(rows["t", "none", 0]["pieces"])
    from echodraft.build import load

    text = load(str(base), dtype="float32", drafter="none").text
    chat = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": answer}, {"role": "user", "content": "the dog"}]
    assert rows["t/turn-2", "none", 0]["prompt_tokens"] == len(text.encode_chat(chat))
    assert (
        json.loads(cli("bench", "-m", base, *FLOAT, "--suite", path, "-n", "6", "--limit", "2", "--json").out)["results"][0]["items"] == 2
    )


def test_a_prompt_that_fills_the_context_is_left_out_and_named(cli: Cli, base: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps({"id": f"p{n}", "prompt": "a b " * n}) + "\n" for n in (2, 200)))
    done = cli("bench", "-m", base, *FLOAT, "--suite", path, "-n", "6", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["left_out"] == ["p200"]
    assert "p200" in done.err


@pytest.mark.parametrize(("args", "tokens"), [((), [7, 128]), (("-n", "30"), [30, 30])])
def test_a_line_may_ask_for_fewer_tokens_unless_n_is_given(args: tuple[str, ...], tokens: list[int], cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "most.jsonl"
    path.write_text("".join(json.dumps({"id": str(n), "prompt": "abc", "max_new_tokens": n}) + "\n" for n in (7, 500)))
    assert cli("bench", "--backend", "toy", "--suite", path, "--out", "run", *args).code == 0
    assert [len(row["ids"]) for row in counted(Path("run")).values() if row["method"] == "none"] == tokens


def test_tables_fit_a_hundred_columns_and_tell_categories_and_repeated_prompts(cli: Cli, talk: Path) -> None:
    done = cli("bench", "--backend", "toy", "--suite", talk, "-n", "24", "--drafters", ALL, "--by", "category")
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 100
    assert "chat" in done.out
    assert "Without the 2 requests whose prompt had come before: suffix " in done.err
    assert cli("bench", "--backend", "toy", "--suite", talk, "--by", "colour").code == 2


def test_several_suites_are_told_apart(cli: Cli, talk: Path, suite: Path) -> None:
    done = cli("bench", "--backend", "toy", "--suite", f"{suite},{talk}", "-n", "8", "--limit", "2", "--json")
    assert done.code == 0, done.err
    row = json.loads(done.out)["results"][0]
    assert (row["items"], list(row["categories"])) == (4, ["suite/even", "suite/odd", "talk"])


def test_a_difference_is_told_with_its_place_and_gap(cli: Cli, base: Path, suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from echodraft.bench import methods

    honest = methods.cut

    def lying(*args: Any) -> Any:
        ids, finish, pieces = honest(*args)
        return [*ids[:3], (ids[3] + 1) % 300, *ids[4:]], finish, pieces

    monkeypatch.setattr(methods, "cut", lying)
    call = ("bench", "-m", base, *FLOAT, "--suite", suite, "-n", "8", "--peers", "hf")
    rows = {row["drafter"]: row for row in json.loads(cli(*call, "--json").out)["results"]}
    assert (rows["hf"]["identical"], rows[DEFAULT]["identical"], rows[DEFAULT]["differences"]) == (0, 3, [])
    assert [found["item"] for found in rows["hf"]["differences"]] == ["p0", "p1", "p2"]
    for found in rows["hf"]["differences"]:
        assert (found["index"], found["other"]) == (3, (found["plain"] + 1) % 300)
        assert found["gap"] > 0
    assert "hf left none in p0 at output token 3" in cli(*call).err


def test_what_a_drafter_counts_itself_is_measured_and_shown_beside_the_speed_up(cli: Cli, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "five.jsonl"
    path.write_text("".join(json.dumps({"id": str(i), "prompt": f"the cat sat on the {'cat ' * (i % 2)}"}) + "\n" for i in range(5)))
    call = ("bench", "-m", folder, "--suite", path, "-n", 12, *FLOAT, "--draft-model", folder, "--drafters", "ouroboros,suffix")
    shown = cli(*call, "--out", "run")
    assert shown.code == 0, shown.err
    assert "equation 6" in shown.out
    assert "measured ×" in shown.out
    assert "quarter 4" in shown.out
    rows = {row["drafter"]: row for row in json.loads(Path("run/summary.json").read_text())}
    assert rows["suffix"]["report"] == {}
    own = rows["ouroboros"]
    assert own["report"]["steps"] == own["steps"]
    assert own["report"]["tokens_per_step"] == pytest.approx(own["mean_accepted"])
    assert [part["items"] for part in own["growth"]] == [1, 1, 1, 2]
    pools = [part["report"]["pool_phrases"] for part in own["growth"]]
    assert pools[0] < min(pools[1:])  # another prompt, another text; later a correction may make two phrases one
    assert own["growth"][-1]["report"] == own["report"]
    cold = json.loads(cli(*call, "--memory", "cold", "--json").out)["results"][1]
    assert cold["report"]["steps"] < own["steps"]
