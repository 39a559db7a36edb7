"""Answers: whole, streamed, sampled, stopped, interrupted. Checked on a toy model that repeats itself, so that blocks are accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import tinychat
from echodraft.backends.toy import ToyBackend, ToyTokenizer
from echodraft.backends.transformers_support import make_backend
from echodraft.build import redraft
from echodraft.core.budget import Fixed
from echodraft.core.engine import Engine
from echodraft.decoder import Decoder, Piece
from echodraft.drafters.prompt_lookup import PromptLookup
from echodraft.errors import EchodraftError, Unsupported, UsageError
from echodraft.text.tokenizer import Text

PROMPT = "abc abd abe abc abd"


def toy(nodes: int = 12) -> Decoder:
    return Decoder(Engine(ToyBackend(copy=6.0), PromptLookup(), Fixed(nodes)), Text(ToyTokenizer()), "toy")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoModelForCausalLM

    folder = tinychat.save_model(tmp_path_factory.mktemp("model"))
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()


def real(model: Any) -> Decoder:
    backend, _ = make_backend(model, pack=False)
    return Decoder(Engine(backend, PromptLookup(), Fixed(6)), Text(tinychat.byte_level(), [299]), "tiny")


def test_a_stream_says_what_generate_says_and_names_who_guessed() -> None:
    decoder = toy()
    whole = decoder.generate(PROMPT, max_new_tokens=60, eos=())
    with decoder.stream(PROMPT, max_new_tokens=60, eos=()) as stream:
        pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == whole.text == stream.result.text
    assert [piece.token for piece in pieces] == whole.ids == stream.result.ids
    drafted = [piece for piece in pieces if piece.source == "prompt-lookup"]
    assert len(drafted) == whole.stats.accepted > 10
    assert max(whole.stats.histogram) > 3
    assert not decoder.engine.sessions


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_stop_string_ends_the_answer_wherever_it_lies(width: int) -> None:
    decoder = toy()
    pieces = list(decoder.stream(PROMPT, max_new_tokens=40, eos=()))
    said = [piece.text for piece in pieces]
    whole, tokens = "".join(said), [piece.token for piece in pieces]
    for start in range(len(said) - width + 1):
        stop = "".join(said[start : start + width])
        ends = next(n for n in range(1, len(said) + 1) if stop in "".join(said[:n]))
        with decoder.stream(PROMPT, max_new_tokens=40, eos=(), stop=[stop]) as stream:
            shown = "".join(piece.text for piece in stream)
        result = decoder.generate(PROMPT, max_new_tokens=40, eos=(), stop=[stop])
        assert shown == result.text == whole[: whole.find(stop)]
        assert result.ids == tokens[:ends]
        assert result.finish_reason == stream.result.finish_reason == "stop"
        assert result.stats.emitted == len(result.ids)


@pytest.mark.parametrize("inside", [slice(1, None), slice(None, -1), slice(1, -1)])
def test_a_stop_string_may_begin_and_end_inside_tokens(model: Any, inside: slice) -> None:
    decoder = real(model)
    whole = decoder.generate("the cat sat", max_new_tokens=30, eos=()).text
    said = [piece.text for piece in decoder.stream("the cat sat", max_new_tokens=30, eos=())]
    for start in range(len(said) - 2):
        stop = "".join(said[start : start + 3])[inside]
        if not stop:
            continue
        with decoder.stream("the cat sat", max_new_tokens=30, eos=(), stop=[stop]) as stream:
            shown = "".join(piece.text for piece in stream)
        assert shown == stream.result.text == whole[: whole.find(stop)]


def test_a_batch_gives_each_prompt_its_own_answer() -> None:
    decoder, prompts = toy(), [PROMPT, "x", "hello hello hel", PROMPT + "f"]
    alone = [decoder.generate(prompt, max_new_tokens=25) for prompt in prompts]
    together = decoder.generate(prompts, max_new_tokens=25)
    assert [result.ids for result in together] == [result.ids for result in alone]
    assert [result.text for result in together] == [result.text for result in alone]


def test_samples_differ_repeat_under_their_seed_and_do_not_depend_on_drafts() -> None:
    drafted, plain = toy(), redraft(toy(), "none")
    first = drafted.generate(PROMPT, max_new_tokens=20, temperature=1.0, samples=3)
    assert len({tuple(result.ids) for result in first}) == 3
    seed = first[0].seed
    assert seed is not None
    for decoder in (drafted, plain):
        again = decoder.generate(PROMPT, max_new_tokens=20, temperature=1.0, samples=3, seed=seed)
        assert [result.ids for result in again] == [result.ids for result in first]


def test_greedy_answers_report_no_seed() -> None:
    assert toy().generate(PROMPT, max_new_tokens=3, seed=7).seed is None


def test_ids_text_and_a_chat_without_template_are_one_prompt() -> None:
    decoder = toy()
    text = decoder.generate("abc abc", max_new_tokens=10)
    ids = decoder.generate(ToyTokenizer().encode("abc abc"), max_new_tokens=10)
    chat = decoder.generate([{"role": "user", "content": "abc abc"}], max_new_tokens=10)
    assert text.ids == ids.ids == chat.ids
    assert text.prompt_tokens == 7


def test_an_end_token_ends_the_answer_and_none_runs_on() -> None:
    decoder = toy()
    whole = decoder.generate(PROMPT, max_new_tokens=30, eos=())
    cut = decoder.generate(PROMPT, max_new_tokens=30, eos=[whole.ids[9]])
    first = whole.ids.index(whole.ids[9])
    assert cut.ids == whole.ids[: first + 1]
    assert (cut.finish_reason, whole.finish_reason) == ("eos", "length")


@pytest.mark.parametrize("sampler", [{}, {"temperature": 1.0, "seed": 5}])
def test_no_end_token_comes_before_the_least_number_of_tokens(model: Any, sampler: dict[str, Any]) -> None:
    for decoder in (toy(), real(model)):
        whole = decoder.generate("abc abc", max_new_tokens=30, eos=(), **sampler)
        eos = whole.ids[2]
        held = decoder.generate("abc abc", max_new_tokens=30, eos=[eos], min_new_tokens=12, **sampler)
        assert len(held.ids) >= 12
        assert eos not in held.ids[:12]


def test_a_closed_stream_frees_its_session_begun_or_not() -> None:
    decoder = toy()
    begun, fresh = decoder.stream(PROMPT), decoder.stream(PROMPT)
    next(begun)
    assert len(decoder.engine.sessions) == 2
    begun.close()
    fresh.close()
    fresh.close()
    assert not decoder.engine.sessions
    assert begun.result.ids
    assert begun.result.finish_reason is None
    assert fresh.result.ids == []


def test_a_forgotten_stream_frees_its_session() -> None:
    decoder = toy()
    for _ in decoder.stream(PROMPT):
        break
    decoder.stream(PROMPT)
    assert not decoder.engine.sessions


def failing(error: BaseException, after: int) -> Callable[[Sequence[int], int], str | None]:
    def check(tokens: Sequence[int], prompt_length: int) -> str | None:
        if len(tokens) - prompt_length > after:
            raise error
        return None

    return check


@pytest.mark.parametrize("error", [KeyboardInterrupt(), EchodraftError("x")])
def test_an_interrupted_stream_keeps_what_was_said_and_frees_its_session(error: BaseException) -> None:
    decoder = toy()
    whole = decoder.generate(PROMPT, max_new_tokens=40, eos=())
    stream = decoder.stream(PROMPT, max_new_tokens=40, eos=(), stopping_criteria=[failing(error, 15)])
    pieces: list[Piece] = []
    with pytest.raises(type(error)):
        pieces.extend(stream)  # keeps what came before the error
    part = stream.result
    shown = "".join(piece.text for piece in pieces)
    assert shown == part.text == whole.text[: len(shown)]
    assert 0 < len(part.ids) <= 15
    assert part.stats.emitted == len(part.ids)
    assert part.finish_reason is None
    assert not decoder.engine.sessions
    assert decoder.generate(PROMPT, max_new_tokens=40, eos=()).ids == whole.ids


def test_an_error_in_one_answer_frees_the_whole_batch() -> None:
    decoder = toy()
    with pytest.raises(KeyboardInterrupt):
        decoder.generate([PROMPT, "x"], stopping_criteria=[failing(KeyboardInterrupt(), 3)])
    with pytest.raises(UsageError, match="context"):
        decoder.generate([PROMPT, "a" * 5000])
    assert not decoder.engine.sessions


def test_the_torch_sampler_draws_as_generate_does_alone_and_in_a_batch(model: Any) -> None:
    decoder, prompts = real(model), [list(range(10, 30)), [5, 6, 7]]
    expected = []
    for ids in prompts:
        torch.manual_seed(11)
        given = torch.tensor([ids])
        out = model.generate(
            given, attention_mask=torch.ones_like(given), do_sample=True, max_new_tokens=20, temperature=0.8, top_k=40, pad_token_id=0
        )
        expected.append(out[0, len(ids) :].tolist())
    options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0.8, "top_k": 40, "seed": 11, "sampler": "torch"}
    assert [decoder.generate(ids, **options).ids for ids in prompts] == expected
    assert [result.ids for result in decoder.generate(prompts, **options)] == expected


def test_hugging_face_processors_and_criteria_see_the_true_prefix(model: Any) -> None:
    from transformers import RepetitionPenaltyLogitsProcessor, StoppingCriteria

    class AfterNine(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            return torch.tensor([input_ids.shape[1] >= len(ids) + 9])

    ids = list(range(10, 30))
    given = torch.tensor([ids])
    out = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=20, repetition_penalty=1.7, do_sample=False)
    decoder = real(model)
    penalty = RepetitionPenaltyLogitsProcessor(1.7)
    assert decoder.generate(ids, max_new_tokens=20, logits_processors=[penalty]).ids == out[0, len(ids) :].tolist()
    cut = decoder.generate(ids, max_new_tokens=20, logits_processors=[penalty], stopping_criteria=[AfterNine()])
    assert (cut.ids, cut.finish_reason) == (out[0, len(ids) : len(ids) + 9].tolist(), "criterion")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"samples": 0}, "samples"),
        ({"samples": 2}, "greedy"),
        ({"min_new_tokens": 300}, "min_new_tokens"),
        ({"stop": "abc"}, "list of strings"),
        ({"stop": [""]}, "stop string"),
        ({"sampler": "other"}, "sampler"),
        ({"system": "be kind"}, "chat"),
    ],
)
def test_an_option_that_cannot_be_right_is_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        toy().generate(PROMPT, **options)


@pytest.mark.parametrize("prompt", ["", [], [[]], [["a", ["b"]]], 5, [{"role": "user"}]])
def test_a_prompt_that_is_none_is_refused_in_words(prompt: Any) -> None:
    decoder = toy()
    with pytest.raises(UsageError):
        decoder.generate(prompt)
    assert not decoder.engine.sessions


def test_the_toy_model_has_no_torch_scores_to_draw_from() -> None:
    with pytest.raises(Unsupported, match="keyed"):
        toy().generate(PROMPT, temperature=1.0, sampler="torch")


def test_a_stream_is_one_answer_to_one_prompt() -> None:
    with pytest.raises(UsageError, match="one answer"):
        toy().stream(["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="one answer"):
        toy().stream("a", samples=2, temperature=1.0)


def test_without_a_tokenizer_prompts_are_ids() -> None:
    decoder = Decoder(Engine(ToyBackend(), PromptLookup(), Fixed(4)))
    assert len(decoder.generate([1, 2, 3], max_new_tokens=5).ids) == 5
    assert decoder.generate([1, 2, 3], max_new_tokens=5).text == ""
    with pytest.raises(UsageError, match="no tokenizer"):
        decoder.generate("abc")
