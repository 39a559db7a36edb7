"""What a user holds: an engine, the text around it, and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from echodraft.core.accept import Check, Stops
from echodraft.core.engine import Engine
from echodraft.core.sampling import Processor, Sampler
from echodraft.core.session import Session
from echodraft.core.step import Step
from echodraft.errors import Unsupported, UsageError
from echodraft.memory import Memory
from echodraft.metrics.stats import Stats
from echodraft.options import Options, at_least
from echodraft.stores.folder import Identity
from echodraft.text.tokenizer import Messages, Text
from echodraft.text.transcript import Transcript

Prompt = str | Sequence[int] | Messages
"""Raw text to complete, its ids, or a chat."""

Watcher = Callable[[Step], None]
"""Told of every step, such as a trace."""


@dataclass(frozen=True, slots=True)
class Result:
    """One answer.

    text           without special tokens, and without the stop string that ended it
    ids            output ids, the stopping token included
    finish_reason  "eos", "stop", "length", "criterion"; None while it is unfinished (interrupted)
    stats          what it cost
    seed           of the sampling, drawn if none was given; None for greedy decoding
    prompt_tokens  length of the prompt
    """

    text: str
    ids: list[int]
    finish_reason: str | None
    stats: Stats
    seed: int | None
    prompt_tokens: int

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Piece:
    """One output token as it is streamed: the text that it completes (mostly, not always, its own) and the drafter that guessed it.

    `source` is None where the token is the target's own: the last one of every step, and all of plain decoding.
    """

    text: str
    token: int
    source: str | None


class Answer:
    """One session while it runs: its text, statistics and sources. Counts only steps that are complete."""

    def __init__(self, session: Session, transcript: Transcript, seed: int | None, watchers: Sequence[Watcher] = ()) -> None:
        self.session, self.transcript, self.seed, self.watchers = session, transcript, seed, watchers
        self.stats = Stats()
        self.sources: list[str | None] = []
        self._told = 0

    def absorb(self, step: Step) -> None:
        """Take in a step of this session."""
        self.stats.add(step)
        path = [step.draft.source[node] for node in step.verdict.path]
        self.sources += [*path, *[None] * (len(step.verdict.tokens) - len(path))]
        self.transcript.follow(self.session.tokens, self.session.prompt_length)
        for watch in self.watchers:
            watch(step)

    def pieces(self) -> Iterator[Piece]:
        """What can be shown by now and was not."""
        ids = self.session.output
        ready = len(self.sources) if self.session.finish else min(self.transcript.ready(), len(self.sources))
        for i in range(self._told, ready):
            self._told += 1
            yield Piece(self.transcript.pieces[i], ids[i], self.sources[i])

    def result(self) -> Result:
        """The answer so far."""
        count, session = len(self.sources), self.session
        text = "".join(self.transcript.pieces[:count])
        return Result(text, session.output[:count], session.finish, self.stats, self.seed, session.prompt_length)


def _pieces(engine: Engine, answer: Answer) -> Iterator[Piece]:
    """Step until the session is finished. Holds no `Stream`, so that a forgotten one is freed at once."""
    try:
        while answer.session.finish is None:
            for step in engine.step([answer.session]):
                answer.absorb(step)
            yield from answer.pieces()
    finally:
        engine.close(answer.session)


class Stream:
    """An answer as it comes: iterate for `Piece`s; `result` is the answer so far, at any time.

    The end, an exception (Ctrl-C too), `close` or leaving a `with` block frees the session.
    """

    def __init__(self, engine: Engine, answer: Answer) -> None:
        self._engine, self._answer = engine, answer
        self._pieces = _pieces(engine, answer)

    @property
    def result(self) -> Result:
        return self._answer.result()

    def close(self) -> None:
        """Free the session; closing twice is harmless."""
        self._pieces.close()  # type: ignore[attr-defined]
        # A generator that was never begun runs no `finally`.
        self._engine.close(self._answer.session)

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        return next(self._pieces)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


class Decoder:
    """A model ready to answer; `echodraft.load` makes one.

    engine    the loop with its backend, drafter and budget
    text      the tokenizer; without one, prompts are ids and answers have no text
    name      what the model was loaded from
    memory    what its drafter remembers between requests, where one was given: `decoder.memory.save()` writes it to its folder
    draft     the draft model with its text, for drafters that use one
    identity  whose tokens a memory would hold, once that is known
    watchers  called with every step of every answer; append your own
    """

    def __init__(
        self, engine: Engine, text: Text | None = None, name: str = "", memory: Memory | None = None, draft: Decoder | None = None
    ) -> None:
        self.engine, self.text, self.name, self.memory, self.draft = engine, text or Text(), name, memory, draft
        self.watchers: list[Watcher] = []
        self.identity: Identity | None = None

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int | None = None,
        samples: int = 1,
        sampler: Literal["keyed", "torch"] = "keyed",
        stop: Sequence[str] = (),
        eos: Sequence[int] | None = None,
        min_new_tokens: int = 0,
        logits_processors: Sequence[Callable[..., Any]] = (),
        stopping_criteria: Sequence[Callable[..., Any]] = (),
        system: str | None = None,
        tenant: str = "",
    ) -> Any:
        """A `Result`; a list of them for a list of prompts (one batch) or for several samples (prompt by prompt).

        prompt             a str is raw text to complete, a list of ints its ids, a list of `{"role", "content"}` dicts a chat
        max_new_tokens     output tokens at most; the model's context also ends an output
        temperature        0 is greedy
        top_k              sample among the k best; 0 is off
        top_p              sample among the best that hold this much probability; 1 is off
        min_p              drop what is less likely than this share of the best; 0 is off
        seed               of the sampling; drawn and reported if None
        samples            independent answers to each prompt
        sampler            "keyed": noise by seed and position, so the output does not depend on drafts or batch.
                           "torch": one `torch.multinomial` a token, as `model.generate` draws under the same `torch.manual_seed`
        stop               strings that end the output
        eos                ids that end it; None = the model's own, () = none
        min_new_tokens     no eos before
        logits_processors  Hugging Face logits processors (`core.sampling.Processor`s for a backend without torch), called once per emitted
                           token on the true prefix, each session alone
        stopping_criteria  Hugging Face stopping criteria (`core.accept.Check`s without torch), called after every emitted token
        system             a system message in front of a chat
        tenant             whose memory a drafter may use

        Raises `UsageError` for arguments that cannot be right. Ctrl-C frees the sessions; use `stream` where a partial answer is wanted.
        """
        options = Options(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            samples=samples,
            sampler=sampler,
            stop=stop,
            eos=eos,
            min_new_tokens=min_new_tokens,
            logits_processors=logits_processors,
            stopping_criteria=stopping_criteria,
            system=system,
            tenant=tenant,
        )
        prompts, alone = as_batch(prompt)
        answers = self._open(prompts, options)
        live = {answer.session.id: answer for answer in answers}
        try:
            while live:
                for step in self.engine.step([answer.session for answer in live.values()]):
                    live[step.session.id].absorb(step)
                    if step.session.finish is not None:
                        # At once, so that the rows of those that go on stay together.
                        self.engine.close(live.pop(step.session.id).session)
        finally:
            for answer in answers:
                self.engine.close(answer.session)
        results = [answer.result() for answer in answers]
        return results[0] if alone and samples == 1 else results

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """The answer to one prompt as it comes; options as in `generate`, one sample."""
        asked = Options(**options)
        prompts, alone = as_batch(prompt)
        if not alone or asked.samples > 1:
            raise UsageError("A stream is one answer to one prompt. Use generate for several.")
        return Stream(self.engine, self._open(prompts, asked)[0])

    def _open(self, prompts: Sequence[Prompt], options: Options) -> list[Answer]:
        """A session for every sample of every prompt: all or none."""
        seed = options.drawn_seed()
        answers: list[Answer] = []
        try:
            for prompt in prompts:
                ids, context = self._ids(prompt, options.system)
                for sample in range(options.samples):
                    answers.append(self._open_one(ids, context, options, seed, sample))
        except BaseException:
            for answer in answers:
                self.engine.close(answer.session)
            raise
        return answers

    def _ids(self, prompt: Prompt, system: str | None) -> tuple[list[int], list[int]]:
        """Ids of a prompt, and those of them that the answer's text continues."""
        if is_chat(prompt):
            messages: list[Any] = [*([{"role": "system", "content": system}] if system else []), *prompt]
            ids = self.text.encode_chat(messages)
            return ids, [] if self.text.has_template else ids
        if system:
            raise UsageError("A system message needs a chat. Pass messages instead of raw text.")
        if isinstance(prompt, str):
            ids = self.text.encode(prompt)
        else:
            given: Any = prompt
            ids = [int(token) for token in given]
        return ids, ids

    def _open_one(self, ids: list[int], context: list[int], options: Options, seed: int | None, sample: int) -> Answer:
        eos = self.text.eos if options.eos is None else frozenset(options.eos)
        processors: tuple[Processor, ...] = ()
        checks: tuple[Check, ...] = tuple(options.stopping_criteria)
        extra: tuple[Processor, ...] = tuple(options.logits_processors)
        device = getattr(self.engine.backend, "device", None)
        if device is not None and (checks or extra):
            from echodraft.backends.transformers_sampling import hf_criteria, hf_processors

            checks, extra = hf_criteria(checks, device), hf_processors(extra, device)
        if options.min_new_tokens and eos:
            processors = (at_least(options.min_new_tokens, eos, len(ids)),)
        transcript = self.text.transcript(options.stop, context)
        if options.stop:
            checks = (transcript.check, *checks)
        stops = Stops(eos, options.max_new_tokens, checks=checks)
        if options.sampler == "torch" and not options.greedy and seed is not None:
            if device is None:
                raise Unsupported("sampler='torch' draws from torch scores, which this backend has not. Use sampler='keyed'.")
            from echodraft.backends.transformers_load import torch_sampler

            # Every session draws from a generator of its own, so that it equals its run alone.
            seed += sample
            chooser: Sampler = torch_sampler(options.rule(seed, 0), (*processors, *extra), device)
        else:
            chooser = Sampler(options.rule(seed, sample), (*processors, *extra))
        return Answer(self.engine.open(ids, chooser, stops, options.tenant), transcript, seed, self.watchers)


def is_chat(prompt: Any) -> bool:
    """Whether a prompt is a list of messages."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and len(prompt) > 0
        and all(isinstance(part, Mapping) for part in prompt)
    )


def as_batch(prompt: Any) -> tuple[list[Prompt], bool]:
    """The prompts in `prompt`, and whether it was a single one. Raises `UsageError` where it is none."""
    if isinstance(prompt, str) or is_chat(prompt):
        return [prompt], True
    if isinstance(prompt, Mapping | bytes):
        raise UsageError("A prompt is a str, a list of ids or a list of messages. Put a single message into a list.")
    try:
        parts = prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)
    except TypeError as error:
        raise UsageError(f"A prompt is a str, a list of ids or a list of messages, not {type(prompt).__name__}.") from error
    if not parts:
        raise UsageError("The prompt is empty. Give at least one token.")
    if all(hasattr(part, "__index__") and not hasattr(part, "__len__") for part in parts):
        return [parts], True
    for part in parts:
        if not as_batch(part)[1]:
            raise UsageError("A batch of prompts is a flat list of prompts.")
    return parts, False
