"""Text between ids and users: whole characters, right spaces, exact stops."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinychat as tiny
from echodraft.backends.toy import ToyTokenizer
from echodraft.errors import UsageError
from echodraft.text.detokenize import UNFINISHED, Detokenizer
from echodraft.text.tokenizer import Text, plain
from echodraft.text.transcript import Transcript


@cache
def text(family: str) -> Text:
    return Text({"bytes": tiny.byte_level, "pieces": tiny.sentencepiece}[family]())


def pushed(held: Text, ids: list[int], context: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(held.decode, context or [])
    return [detokenizer.push(token) for token in ids]


WRITING = st.text(st.sampled_from("the cat sat. aé北京🤦🏽\u200d♂️\n"), max_size=40)


@pytest.mark.parametrize("family", ["bytes", "pieces"])
@given(said=WRITING)
def test_pieces_join_to_the_decoded_text_and_never_show_half_a_character(family: str, said: str) -> None:
    held = text(family)
    ids = held.tokenizer.encode(said, add_special_tokens=False)
    pieces = pushed(held, ids)
    assert "".join(pieces) == held.decode(ids)
    assert not any(UNFINISHED in piece for piece in pieces)


@pytest.mark.parametrize("family", ["bytes", "pieces"])
@given(said=WRITING, cut=st.integers(0, 200))
def test_an_output_that_ends_inside_a_character_shows_only_whole_ones(family: str, said: str, cut: int) -> None:
    held = text(family)
    ids = held.tokenizer.encode(said, add_special_tokens=False)[:cut]
    shown = "".join(pushed(held, ids))
    assert UNFINISHED not in shown
    assert said.lstrip(" ").startswith(shown.lstrip(" "))


@pytest.mark.parametrize("family", ["bytes", "pieces"])
@given(said=WRITING, at=st.integers(0, 40))
def test_raw_text_continues_with_the_space_that_belongs_there(family: str, said: str, at: int) -> None:
    held = text(family)
    ids = held.tokenizer.encode("on " + said, add_special_tokens=False)
    prompt, rest = ids[: at + 2], ids[at + 2 :]
    if held.decode(prompt).endswith(UNFINISHED):
        return
    assert held.decode(prompt) + "".join(pushed(held, rest, prompt)) == held.decode(ids)


def test_a_first_word_has_its_space_behind_raw_text_and_none_in_a_chat() -> None:
    held = text("pieces")
    the, cat = held.tokenizer.convert_tokens_to_ids(["▁the", "▁cat"])
    assert pushed(held, [cat], [the]) == [" cat"]
    assert pushed(held, [cat]) == ["cat"]


def test_bytes_that_are_no_text_do_not_stop_the_stream() -> None:
    held = text("bytes")
    lone = held.tokenizer.encode("é", add_special_tokens=False)[0]
    shown = "".join(pushed(held, [lone] * 40))
    assert len(shown) >= 20
    assert set(shown) == {UNFINISHED}


def test_the_window_stays_short() -> None:
    lengths: list[int] = []
    held = text("bytes")

    def decode(ids: Any) -> str:
        lengths.append(len(ids))
        return held.decode(ids)

    detokenizer = Detokenizer(decode)
    for token in held.tokenizer.encode(tiny.SAMPLE * 20):
        detokenizer.push(token)
    assert max(lengths) < 24


def transcript(stops: list[str]) -> Transcript:
    return Text(ToyTokenizer()).transcript(stops)


def ids(said: str) -> list[int]:
    return ToyTokenizer().encode(said)


def test_the_earliest_stop_string_ends_the_text_and_is_cut_off() -> None:
    held = transcript(["cd", "bc"])
    found = [held.check(ids("abcd")[: n + 1], 0) for n in range(4)]
    assert found == [None, None, "stop", "stop"]
    assert held.text == "a"


def test_text_that_may_begin_a_stop_string_is_held_back_until_it_does_not() -> None:
    held = transcript(["</end>"])
    shown = []
    for n in range(1, len("a</en b") + 1):
        held.follow(ids("a</en b")[:n], 0)
        shown.append(held.ready())
    assert shown == [1, 1, 1, 1, 1, 6, 7]


def test_a_prompt_is_not_searched_for_stop_strings() -> None:
    held = transcript(["ab"])
    assert held.check(ids("ab" + "xb"), 2) is None


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="stop string is empty"):
        transcript(["a", ""])


def test_a_chat_goes_through_the_template_and_its_open_turn_goes_on() -> None:
    held = text("bytes")
    asked = held.encode_chat([{"role": "user", "content": "hi"}])
    assert held.decode(asked) == "<|user|>hi\n<|assistant|>"
    begun = held.encode_chat([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the"}])
    assert held.decode(begun) == "<|user|>hi\n<|assistant|>the"


def test_a_model_without_a_template_gets_plain_text_and_its_user_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    held = Text(tiny.byte_level(template=None))
    with caplog.at_level(logging.WARNING, "echodraft"):
        first = held.encode_chat([{"role": "user", "content": "the cat"}])
        held.encode_chat([{"role": "user", "content": "the cat"}])
    assert first == held.encode("the cat")
    assert [record.getMessage() for record in caplog.records] == [
        "The model has no chat template: it completes the plain text of the messages."
    ]


def test_plain_text_of_a_chat_keeps_roles_where_there_are_several_turns() -> None:
    say = [{"role": role, "content": content} for role, content in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    assert plain(say) == "user: a\nassistant: b\nuser: c\nassistant:"
    assert plain([{"role": "system", "content": "s"}, say[0]]) == "s\n\na"


def test_a_template_that_refuses_is_an_error_in_words() -> None:
    held = Text(tiny.byte_level("{{ raise_exception('no system here') }}"))
    with pytest.raises(UsageError, match="no system here"):
        held.encode_chat([{"role": "system", "content": "x"}])


@pytest.mark.parametrize("messages", [[{"role": "user"}], [{"content": "x"}]])
def test_a_message_without_role_or_content_is_an_error(messages: list[dict[str, str]]) -> None:
    with pytest.raises(UsageError, match="'role' and 'content'"):
        text("bytes").encode_chat(messages)


def test_the_tokenizers_own_end_is_among_the_ends() -> None:
    assert Text(ToyTokenizer(), [3]).eos == {3, 96}
