"""Between text and ids: prompts, chats, ends."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from echodraft.errors import UsageError
from echodraft.stores.folder import vocabulary
from echodraft.text.detokenize import Detokenizer
from echodraft.text.transcript import Transcript

log = logging.getLogger("echodraft")

Messages = Sequence[Mapping[str, Any]]
"""A chat: `{"role": "user", "content": "…"}` and so on, oldest first."""


class Text:
    """A tokenizer with the few things that decoding asks of it.

    tokenizer  a Hugging Face tokenizer, anything with `encode` and `decode`, or None: then prompts are ids and there is no text
    eos        ids that end an output; the tokenizer's own is added
    """

    def __init__(self, tokenizer: Any = None, eos: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer
        own = getattr(tokenizer, "eos_token_id", None)
        self.eos = frozenset(eos) | (frozenset() if own is None else {own})
        self._hugging_face = hasattr(tokenizer, "apply_chat_template")
        self._told = False

    @property
    def has_template(self) -> bool:
        """Whether the tokenizer knows how a chat is written."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    @cached_property
    def fingerprint(self) -> str:
        """Of the vocabulary; "" where it is not known."""
        return vocabulary(self.tokenizer)

    def encode(self, text: str) -> list[int]:
        """Ids of raw text to complete, with the begin token if the model wants one. Raises `UsageError` without a tokenizer."""
        return self._encode(text, {})

    def encode_chat(self, messages: Messages) -> list[int]:
        """Ids of a chat up to where the model's turn begins (or goes on, if the last message is the assistant's).

        Without a template the plain text stands in, and the user is told once. Raises `UsageError` where the template refuses.
        """
        for message in messages:
            if "role" not in message or "content" not in message:
                raise UsageError(f"A chat message needs 'role' and 'content', this one has {sorted(message)}.")
        if not messages:
            raise UsageError("The chat is empty. Give at least one message.")
        if not self.has_template:
            if not self._told and self._hugging_face:
                log.warning("The model has no chat template: it completes the plain text of the messages.")
            self._told = True
            return self.encode(plain(messages))
        goes_on = messages[-1]["role"] == "assistant"
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=not goes_on, continue_final_message=goes_on
            )
        except Exception as error:  # templates are programs; whatever they raise is about these messages
            raise UsageError(f"The model's chat template refuses these messages: {error}") from error
        # The template writes the special tokens itself.
        return self._encode(text, {"add_special_tokens": False})

    def _encode(self, text: str, options: dict[str, Any]) -> list[int]:
        if self.tokenizer is None:
            raise UsageError("There is no tokenizer, so prompts must be ids. Pass tokenizer= to load.")
        if self._hugging_face:
            options["verbose"] = False  # the engine says itself when a prompt is too long
        return list(self.tokenizer.encode(text, **options))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens."""
        if self.tokenizer is None:
            return ""
        if self._hugging_face:
            # Tidying spaces would change text after it was shown.
            return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        return str(self.tokenizer.decode(ids))

    def token(self, token: int) -> str:
        """One token by itself, special ones by their names. Empty without a tokenizer."""
        return self.spell([token])

    def split(self, text: str) -> list[int]:
        """Ids of text that goes on: no begin token; special tokens are recognised."""
        return self._encode(text, {"add_special_tokens": False} if self._hugging_face else {})

    def spell(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens written out."""
        if not self._hugging_face:
            return self.decode(ids)
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def same_ids(self, other: Text) -> bool:
        """Whether both tokenizers give every token that they share the same id, and share nearly all: one may have a few more.

        Where one of the two is unknown they are taken to be the same.
        """
        mine, theirs = (getattr(text.tokenizer, "get_vocab", None) for text in (self, other))
        if mine is None or theirs is None:
            return type(self.tokenizer) is type(other.tokenizer) or self.tokenizer is None or other.tokenizer is None
        fewer, more = sorted((mine(), theirs()), key=len)
        return 10 * len(fewer.items() & more.items()) >= 9 * len(more) and all(more.get(t, id) == id for t, id in fewer.items())

    def transcript(self, stops: Sequence[str] = (), context: Sequence[int] = ()) -> Transcript:
        """A new output's text; `context` is the raw prompt that it continues, empty in a chat."""
        return Transcript(Detokenizer(self.decode, context), stops)


def plain(messages: Messages) -> str:
    """A chat as text for a model that knows no chats: one user message alone is itself."""
    if len(messages) == 1:
        return str(messages[0]["content"])
    if [message["role"] for message in messages] == ["system", "user"]:
        return "\n\n".join(str(message["content"]) for message in messages)
    lines = [f"{message['role']}: {message['content']}" for message in messages]
    return "\n".join(lines if messages[-1]["role"] == "assistant" else [*lines, "assistant:"])
