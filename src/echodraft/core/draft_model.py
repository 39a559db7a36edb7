"""A second model inside a drafter: its engine, whose sessions follow those of the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from echodraft.core.accept import Stops, Verdict
from echodraft.core.backend import Backend, Need, Request, Shape
from echodraft.core.budget import CPU_CURVE, Budget, CostCurve, Policy
from echodraft.core.common import common
from echodraft.core.drafter import Context, Drafter
from echodraft.core.engine import Engine
from echodraft.core.guess import Guess, Path, as_tree, nodes_of, paths_of
from echodraft.core.retokenize import Claim
from echodraft.core.sampling import Rule, Sampler
from echodraft.core.scores import Scores
from echodraft.core.session import Session
from echodraft.core.step import Step, Times
from echodraft.errors import EchodraftError

BRINGS = 0.25
"""Tokens that a branch brings for its path probability, by counts: less than one, since what stands behind it must be right, too, and must
be scored by the target; and where the draft model is unsure it claims too much."""


class Reading(Protocol):
    """The draft model's view of one session of the target, whose tokens it may write with other ids."""

    shift: int | None
    """How many tokens longer the target's text is; None where its positions and noise mean nothing to the draft model."""

    def read(self, tokens: Sequence[int]) -> list[int]:
        """The target's `tokens` in the draft model's ids."""
        ...

    def write(self, tokens: Sequence[int], claims: Sequence[Claim]) -> Sequence[Claim]:
        """What the draft model says behind what it read last, which is the target's `tokens`, in the target's ids."""
        ...


@dataclass(slots=True)
class SameIds:
    """A draft model with the target's ids; those beyond its vocabulary it does not see."""

    vocab_size: int
    shift: int | None = 0

    def read(self, tokens: Sequence[int]) -> list[int]:
        known = [token for token in tokens if token < self.vocab_size]
        self.shift = len(tokens) - len(known)
        return known

    def write(self, tokens: Sequence[int], claims: Sequence[Claim]) -> Sequence[Claim]:
        return claims


@dataclass(frozen=True, slots=True)
class DraftModel:
    """What `build` hands to a drafter whose constructor has a parameter `draft_model`.

    backend       the second model, ready to score
    make_drafter  a drafter for the draft model by name: cascades are composition
    make_policy   the budget for such a drafter
    eos           ids, the draft model's own, behind which nothing is drafted
    cost          its forward of one row, in forwards of one row of the target
    curve         what more rows cost it, relative to one
    reading       how it reads a session of the target; None where it has the target's ids
    name          what it was loaded from
    """

    backend: Backend
    make_drafter: Callable[[str], Drafter]
    make_policy: Callable[[Drafter], Policy]
    eos: frozenset[int] = frozenset()
    cost: float = 0.25
    curve: CostCurve = CPU_CURVE
    reading: Callable[[], Reading] | None = None
    name: str = ""

    def price(self, rows: int, context: int) -> float:
        """A forward of `rows` rows, in plain steps of the target."""
        return self.cost * self.curve.price(rows, context) if rows > 1 else self.cost

    def price_read(self, tokens: int, context: int) -> float:
        """Reading `tokens` more tokens up to `context`, in plain steps of the target. The last one is the first row of a guess."""
        return self.cost * self.curve.reading(tokens, context) if tokens > 1 else self.cost


@dataclass(slots=True)
class Surely(Sampler):
    """The draft model's sampler: the target's rule with the target's noise. It notes how sure it is of what it chose.

    k       how many candidates are noted, the chosen one first
    shift   added to a position: the target's text may be longer
    claims  ids and probabilities of the candidates, one entry a token that was chosen
    """

    k: int = 1
    shift: int = 0
    claims: list[Claim] = field(default_factory=list)

    def choose(self, scores: Scores, row: int, prefix: Sequence[int]) -> int:
        claim = self.claim(scores, row, len(prefix))
        self.claims.append(claim)
        return claim[0][0]

    def claim(self, scores: Scores, row: int, position: int) -> Claim:
        """The candidates for one position."""
        try:
            claim = scores.best(row, self.rule, position + self.shift, self.k)
        except EchodraftError:
            claim = [], []
        if not claim[0] or claim[1][0] != claim[1][0]:
            return [0], [0.0]  # NaN, infinity: a draft model may be wrong in any way
        return claim


@dataclass(slots=True)
class Followed:
    """What is kept of a session of the target: how the draft model reads it, the draft model's own session, once there is one, how much of
    the target's text that has seen, and what it guessed behind."""

    reading: Reading
    inner: Session | None = None
    seen: int = 0
    guess: Sequence[int] = ()


class DraftEngine:
    """A second engine inside a drafter. Its sessions follow the target's: what was accepted stays cached, the rest is forgotten.

    Every forward serves all sessions that still want tokens. The first one of a call also takes in what the target said since the last
    (after full acceptance: the last guess and the bonus token). A session that is longer than the draft model's context is not served.

    model    the draft model
    drafter  drafts for the draft model (a cascade): its guesses are accepted by the draft model as the target accepts ours
    policy   of that drafter's drafts
    k        candidates that are noted for every token
    width    of them, not the chosen ones, behind which each forward goes on at most, where rows are cheap and nodes are left for them;
             such a forward is not told to `drafter`
    """

    def __init__(self, model: DraftModel, drafter: Drafter, policy: Policy, k: int = 1, width: int = 0) -> None:
        self.model, self.k = model, k
        tree = model.backend.shape == Shape.TREE and model.reading is None
        self.width = width if tree else 0
        self.engine = Engine(model.backend, drafter, policy)
        self._followed: dict[int, Followed] = {}
        self._outer: dict[int, Context] = {}  # by the id of the draft model's session

    def outer(self, inner: Context) -> Context:
        """The session of the target that a session of the draft model follows."""
        return self._outer[inner.id]

    def price(self, session: Context) -> float:
        """What the next guess costs beyond its own forwards, in plain steps of the target: reading what the draft model has not seen.

        That is the prompt at first, and later what was said since the last guess.
        """
        followed, length, limit = self._followed.get(session.id), len(session.tokens), self.model.backend.context
        new = length
        if followed is not None and followed.inner is not None:
            new -= followed.seen + common(followed.guess, session.tokens[followed.seen :])
        if new < 2 or (limit is not None and length >= limit):
            return 0.0
        return self.model.price_read(new, length) - self.model.cost

    def guess(
        self, sessions: Sequence[Context], most: Sequence[int], budgets: Sequence[Budget], enough: Callable[[int, Guess], bool]
    ) -> list[Guess]:
        """What the draft model says behind every session, at most `most[i]` tokens of session i, fewer near the end of its context.

        `enough(i, guess)` is asked after every forward that gave session i tokens: True ends its guess. A guess also ends behind an end
        token, which it holds, and where its forwards and branches cost as much as the forwards that `budgets[i]` allows.
        """
        guesses = [Guess() for _ in sessions]
        live: dict[int, tuple[int, Session]] = {}  # by the id of the draft model's session
        for i, (session, n) in enumerate(zip(sessions, most, strict=True)):
            inner = self._follow(session, n) if n else None
            if inner is not None:
                live[inner.id] = i, inner
        while live:
            going = [(inner, guesses[i]) for i, inner in live.values()]
            branches = [self._branches(*one, most[i], budgets[i], len(live)) for one, (i, _) in zip(going, live.values(), strict=True)]
            if any(branches):
                self._widen(going, branches)
            else:
                self._step(going)
            for i, inner in list(live.values()):
                if inner.finish is not None or enough(i, guesses[i]) or self._left(guesses[i], budgets[i]) < 1.0:
                    del live[inner.id]
        for session, guess in zip(sessions, guesses, strict=True):
            if guess.forwards:
                followed = self._followed[session.id]
                guess.claims = followed.reading.write(session.tokens, guess.claims)
                followed.seen, followed.guess = len(session.tokens), guess.tokens
        return guesses

    def _step(self, going: Sequence[tuple[Session, Guess]]) -> None:
        """A forward that says what comes behind every guess."""
        guesses = {inner.id: guess for inner, guess in going}
        steps = self.engine.step([inner for inner, _ in going])
        context = max(len(inner.tokens) for inner, _ in going)
        for step in steps:
            guess, sampler = guesses[step.session.id], step.session.sampler
            assert isinstance(sampler, Surely)
            guess.claims = [*guess.claims, *sampler.claims]
            sampler.claims.clear()
            guess.forwards += 1
            if step.prefill:
                guess.cost += self.model.price_read(step.fed, context)
            else:
                guess.cost += self.model.price(step.batch * (step.fed + len(step.draft)), context) / step.batch

    def _branches(self, inner: Session, guess: Guess, most: int, budget: Budget, batch: int) -> list[Path]:
        """The likeliest other paths, as far as what may come behind them pays for the rows that they add to the next forward.

        What they hang from is fed again: the chosen path from where they leave it, and all of the paths themselves.
        """
        found: list[Path] = []
        # A fixed budget has no floor: there a forward of the draft model is to bring a token, and the chosen path has its nodes first.
        width, floor = (self.width, budget.floor) if budget.floor else (min(self.width, budget.nodes - most), self.model.cost)
        if width < 1 or not guess.claims:
            return found

        def price(rows: int) -> float:
            return self.model.price(batch * rows, len(inner.tokens)) / batch

        rows = 1
        for prob, path in guess.open:
            worth = prob * BRINGS * self.model.cost
            if len(found) == width or prob <= 0.0 or worth < floor * (price(rows + 1) - price(rows)):  # those behind it are worth less
                break
            if len(path) < most and path[-1] not in self.model.eos and self._reaches(inner, guess, path):
                more = 1 + len(nodes_of(guess.tokens, [*found, path]))
                affordable = price(more) - price(1) <= (self._left(guess, budget) - 1.0) * self.model.cost
                if affordable and worth >= floor * (price(more) - price(rows)):
                    found, rows = [*found, path], more
        return found

    def _left(self, guess: Guess, budget: Budget) -> float:
        """How many more forwards the budget has."""
        return budget.forwards - guess.forwards - guess.wide / self.model.cost

    def _reaches(self, inner: Session, guess: Guess, path: Path) -> bool:
        """Whether the chosen path can be fed again from where `path` leaves it, all of it where positions are counted alike."""
        start = common(guess.tokens, path)
        return self.model.backend.room(inner.slot, inner.prompt_length + start) >= len(guess.tokens) - start

    def _widen(self, going: Sequence[tuple[Session, Guess]], branches: Sequence[Sequence[Path]]) -> None:
        """A forward that says what comes behind every guess, drafted for as ever, and behind the `branches` of each."""
        engine, backend, context = self.engine, self.model.backend, max(len(inner.tokens) for inner, _ in going)
        drafts = engine.draft([inner for inner, _ in going])[2]
        requests, rows, roots = list[Request](), list[dict[Path, int]](), list[int]()
        for (inner, guess), paths, draft in zip(going, branches, drafts, strict=True):
            nodes = nodes_of(guess.tokens, [*paths_of(tuple(guess.tokens), draft), *paths])
            rows.append({path: row for row, path in enumerate(nodes, 1)})
            root = inner.prompt_length + (len(nodes[0]) - 1 if nodes else len(guess.tokens))
            inner.cached = backend.rewind(inner.slot, min(inner.cached, root - 1))
            requests.append(Request(inner.slot, inner.tokens[inner.cached : root], as_tree(nodes)))
            roots.append(root)
        most = max(len(request.pending) + len(request.draft) for request in requests)
        cost = self.model.price(len(going) * most, context) / len(going)
        plain = self.model.price(len(going) * (1 + max(map(len, drafts))), context) / len(going)
        scores = backend.score(requests, engine.drafter.needs)
        verdicts, steps = [], []
        for (inner, guess), paths, row, said, request, root in zip(going, branches, rows, scores, requests, roots, strict=True):
            sampler, text = inner.sampler, inner.prompt_length
            assert isinstance(sampler, Surely)
            for path in paths:
                guess.beside[path] = sampler.claim(said, row[path], text + len(path))
            chosen, claims = tuple(guess.tokens), list[Claim]()
            while inner.finish is None and (not claims or chosen in row):
                claims.append(sampler.claim(said, row.get(chosen, 0), text + len(chosen)))
                chosen = (*chosen, claims[-1][0][0])
                inner.tokens.append(chosen[-1])
                inner.finish = inner.stops.reason(inner.tokens, text)
            kept = [row[chosen[:n]] - 1 for n in range(1, len(chosen)) if chosen[:n] in row]
            backend.commit(inner.slot, kept)
            inner.cached = len(inner.tokens) - 1
            right = [row[chosen[:n]] - 1 for n in range(len(guess.tokens) + 1, len(chosen) + 1) if chosen[:n] in row]
            verdicts.append(Verdict(tuple(ids[0] for ids, _ in claims), tuple(right), inner.finish))
            guess.claims, guess.cost, guess.forwards = [*guess.claims, *claims], guess.cost + cost, guess.forwards + 1
            guess.wide += max(0.0, cost - plain)
            came = Verdict(tuple(inner.tokens[root:]), tuple(kept), inner.finish)
            top_k = said.top_k(engine.drafter.top_k) if Need.TOP_K in engine.drafter.needs else None
            fed, times = len(request.pending), Times(0.0, 0.0, 0.0, 0.0)
            steps.append(Step(inner, len(request.draft), request.draft, came, fed, False, len(going), times, top_k=top_k))
        engine.policy.observe(drafts, verdicts, context)
        engine.drafter.observe(steps)

    def _follow(self, session: Context, most: int) -> Session | None:
        """The draft model's session, brought to where the target's is; None where there is no room for a guess."""
        followed = self._followed.get(session.id)
        if followed is None:
            followed = self._followed[session.id] = Followed(self._new_reading())
        reading = followed.reading
        # A tokenizer may know ids that its model does not.
        tokens = [token for token in reading.read(session.tokens) if token < self.model.backend.vocab_size]
        context = self.model.backend.context
        room = most if context is None else min(most, context - len(tokens))
        if room < 1 or not tokens:
            return None
        stops = Stops(self.model.eos, max_length=len(tokens) + room)
        sampler = Surely(Rule() if reading.shift is None else session.rule, k=self.k, shift=reading.shift or 0)
        if followed.inner is None:
            followed.inner = self.engine.open(tokens, sampler, stops, session.tenant)
            followed.inner.follows = len(tokens)
            self._outer[followed.inner.id] = session
        else:
            self.engine.follow(followed.inner, tokens, stops)
            followed.inner.sampler = sampler
        return followed.inner

    def _new_reading(self) -> Reading:
        return SameIds(self.model.backend.vocab_size) if self.model.reading is None else self.model.reading()

    def close(self, session: Context) -> None:
        """Forget a session of the target."""
        followed = self._followed.pop(session.id, None)
        if followed is not None and followed.inner is not None:
            self.engine.close(followed.inner)
            del self._outer[followed.inner.id]
