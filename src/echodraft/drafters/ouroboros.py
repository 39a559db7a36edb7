"""Ouroboros: phrases make the draft model's draft cheaper and longer, and come back from what was rejected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from time import perf_counter

from echodraft.core.backend import Need
from echodraft.core.budget import MOST_NODES, Budget, Fixed
from echodraft.core.common import common
from echodraft.core.draft import ANCHOR, EMPTY, Draft, sane, walk
from echodraft.core.draft_model import DraftEngine, DraftModel
from echodraft.core.drafter import Context, Drafter, Words
from echodraft.core.guess import Guess
from echodraft.core.step import Step
from echodraft.drafters import drafter_class, taken
from echodraft.drafters.none import NoDrafter
from echodraft.drafters.phrase_counts import Counts
from echodraft.drafters.phrase_tree import HOST, Branch, Phrases, PhraseTree, PhraseWindow, Recycled, branches, expected
from echodraft.drafters.suffix import Suffix
from echodraft.errors import UsageError
from echodraft.memory import Memory
from echodraft.stores.phrases import MOST_LENGTH, Phrase, PhrasePool, warm

START = 0.8
"""How likely the next token of a draft is, as long as nobody knows."""
ANY = 1 << 62
"""A vocabulary that holds every id: the engine knows the target's, and cuts what is not in it."""
FREE = 24
"""Nodes of what is guessed without the draft model."""


@dataclass(slots=True)
class Known:
    """What is kept of a session: its pool, how much of its text the pool has read, and what was drafted last.

    guessed what was guessed last without the draft model, and behind what
    host    what the host drafts behind the text, and how long that text is
    budget  of the last draft for which the draft model might be asked
    alone   the guesses are sure enough: the draft model is not asked for the next draft
    next    how likely the next token of a draft is, given those before: a running mean
    """

    pool: PhrasePool
    tenant: str
    read: int
    trunk: Sequence[int] = ()
    asked: dict[int, list[Phrase]] = field(default_factory=dict)
    guessed: tuple[tuple[int, ...], Draft] | None = None
    host: tuple[int, Branch] | None = None
    budget: Budget | None = None
    alone: bool = False
    next: float = START


class Ouroboros(Drafter):
    """A draft model drafts with phrases of a pool, phrases lengthen its draft, and what the target says of both feeds the pool.

    Source: Ouroboros (Zhao et al., arXiv 2402.13720). Each mechanism has its switch. (1) `phrases`: the pool drafts for the draft model,
    which accepts what it would have said itself, so the draft is the same for fewer forwards. (2) `k`: phrases that begin with the
    draft's last token follow it as branches of one tree. (3) `verify`: of a rejected tail the runs that the target would have said at
    their places become phrases, and so does what the target says behind the error; phrases that were offered and never right are replaced
    by what the target said, in truth or along them. (4) `history`: the pool is the tenant's and outlives the request. Unlike in the
    released code the bonus token behind a whole phrase is kept, nothing follows an end token, corrections work after rejections, too.
    Where the target samples, the draft model samples with the same noise. Beyond the paper: the pool is bounded (`stores/phrases.py`),
    `branch`, `output`, `texts`, `host`, `recycle`, `top_k`, `draft`; the draft model is asked where that pays, by what is guessed else.
    Needs: a draft model, the target's best ids, and what its host needs. As published: window=20, rows=239, branch=false, output=false,
    texts=false, host="", recycle=false, top_k=1 and a fixed budget of gamma + k (beta - 1).

    gamma    tokens of the draft model's draft at most, fewer where one more forward of it does not pay; 0 = as many as the budget
    beta     tokens of a phrase, its key included
    k        phrases of one token that lengthen a draft; 0 = nothing stands behind it
    phrases  the pool drafts for the draft model, if that has the target's tokenizer
    guesses  phrases of one token that the draft model checks, and
    rows     tokens of phrases in one of its forwards; 0 = as many as pay
    window   columns of a lookahead window on which the draft model iterates, which makes phrases of its own; 0 = the pool alone
    verify   phrases from verification
    history  the pool outlives requests; otherwise it lasts while a request of the tenant is open
    branch   phrases also beside the draft and behind each other, where their probability makes it worth it
    output   output becomes phrases as well; the paper takes what its window made of it
    texts    what followed longer ends of the text, in this text and in the tenant's outputs, is guessed as phrases are
    host     a drafter without a draft model: what it drafts behind the text is guessed for the draft model, and beside its draft; "" = none
    recycle  what the draft model held likely behind each token before is guessed for it, beside phrases (as `recycling` does for a target)
    top_k    candidates of the draft model for each token of its draft, the chosen one included; the others become siblings
    width    siblings behind which each of its forwards also goes on, where rows are cheap and nodes are left; not beside a window
    draft    use the draft model; without one the pool drafts for the target
    """

    name = "ouroboros"
    needs = frozenset({Need.MODEL, Need.TOP_K})
    top_k = 1

    def __init__(
        self,
        gamma: int = 12,
        beta: int = 7,
        k: int = 3,
        phrases: bool = True,
        guesses: int = 8,
        rows: int = 0,
        window: int = 0,
        verify: bool = True,
        history: bool = True,
        branch: bool = True,
        output: bool = True,
        texts: bool = True,
        host: str = "oilbird",
        recycle: bool = True,
        top_k: int = 3,
        width: int = 3,
        draft: bool = True,
        memory: Memory | None = None,
        text: Words | None = None,
        draft_model: DraftModel | None = None,
    ) -> None:
        for wrong, what in (
            (gamma < 0, f"gamma is a number of tokens, or 0 for as many as the budget has, not {gamma}"),
            (not 2 <= beta <= MOST_LENGTH + 1, f"beta lies between 2 and {MOST_LENGTH + 1}, not {beta}"),
            (k < 0, f"k is a number of phrases from 0 on, not {k}"),
            (guesses < 1, f"guesses is a number of phrases from 1 on, not {guesses}"),
            (window < 0 or window == 1, f"window is 0 or a number of columns from 2 on, not {window}"),
            (top_k < 1, f"top_k is 1 (no siblings) or more, not {top_k}"),
            (width < 0, f"width is a number of siblings from 0 on, not {width}"),
            (rows < 0, f"rows is a number of tokens, or 0 for as many as pay, not {rows}"),
        ):
            if wrong:
                raise UsageError(f"ouroboros: {what}.")
        self.gamma, self.beta, self.k, self.verify, self.branch, self.output = gamma, beta, k, verify, branch, output
        self.guesses, self.candidates = guesses, top_k
        self.memory = memory if history and memory is not None else Memory()
        self.window, self.history = window, history
        self._draft = draft
        kind = drafter_class(host) if host else None
        if kind is not None and Need.MODEL in kind.needs:
            raise UsageError(f"ouroboros: '{host}' needs a draft model of its own. Choose a host without one, such as suffix.")
        self.host = None if kind is None else kind(**taken(kind, {"memory": self.memory, "text": text}))
        self.ends: frozenset[int] = frozenset()
        self.inner: DraftEngine | None = None
        if draft and draft_model is not None:
            self.cost, same = draft_model.cost, draft_model.reading is None
            self.ends = draft_model.eos if same else frozenset()
            recycling = Recycled(memory=self.memory) if recycle and Need.TOP_K in draft_model.backend.offers else None
            drafter: Drafter = NoDrafter()
            if phrases and same:  # phrases are the target's ids
                drafter = PhraseWindow(window, beta, guesses, self.memory) if window else Phrases(self._inside, recycling)
            policy = Fixed(rows) if rows or not (phrases and same) else draft_model.make_policy(drafter)
            self.inner = DraftEngine(draft_model, drafter, policy, top_k, 0 if window else width)
        self.texts = (
            next((part for part in _parts(self.host) if isinstance(part, Suffix)), None) or Suffix(memory=self.memory) if texts else None
        )
        self._settle()
        self.guided = self.inner is not None and isinstance(self.inner.engine.drafter, Phrases)
        self.counts = Counts()
        self._known: dict[int, Known] = {}
        warm()

    def spare(self, missing: frozenset[Need]) -> bool:
        if missing & Ouroboros.needs or self.host is None:
            return False
        self.host = self.host if self.host.spare(missing) else None
        self._settle()
        return True

    def _settle(self) -> None:
        """What follows from the host: who else drafts, and what for."""
        own = None if self.texts in _parts(self.host) else self.texts
        self.others = tuple(other for other in (self.host, own) if other is not None)
        needs = Ouroboros.needs if self._draft else frozenset({Need.TOP_K})
        self.needs = needs.union(*(other.needs for other in self.others))
        self.top_k = max([1, *(other.top_k for other in self.others)])
        self.trusted = frozenset({HOST}) if self.host is not None and self.host.calibrated else frozenset()

    def open(self, session: Context) -> None:
        pool = self.memory.store(session.tenant, PhrasePool, lambda: PhrasePool(self.beta - 1))
        pool.reach(self.beta - 1)
        self._known[session.id] = Known(pool, session.tenant, len(session.tokens))
        for other in self.others:
            other.open(session)

    def price(self, session: Context) -> float:
        known = self._known[session.id]
        known.alone = known.budget is not None and self._enough(session, Guess(), known.budget)
        return 0.0 if self.inner is None or known.alone else self.inner.price(session)

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        start = perf_counter()
        guesses = [Guess() for _ in sessions]
        free: list[Draft | None] = [None for _ in sessions]
        if self.inner is not None:
            asked = (budget.floor > 0.0 and budget.forwards > 0 for budget in budgets)
            free = [self._free(session, ()) if may else None for session, may in zip(sessions, asked, strict=True)]
            guesses = self._guess(self.inner, sessions, budgets)
        guessed = perf_counter()
        drafts = [
            replace(self._lengthened(session, guess, budget), cost=guess.cost, free=without if guess.forwards else None)
            for session, guess, budget, without in zip(sessions, guesses, budgets, free, strict=True)
        ]
        self.counts.drafting += guessed - start
        self.counts.pooling += perf_counter() - guessed
        return drafts

    def _guess(self, inner: DraftEngine, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Guess]:
        """The draft model's drafts. A window reaches beyond their ends, so it is given room there."""
        most = [
            0
            if self._known[session.id].alone or self._enough(session, Guess(), budget)
            else min(budget.nodes, budget.depth, self.gamma or budget.nodes)
            for session, budget in zip(sessions, budgets, strict=True)
        ]
        for session, budget, n in zip(sessions, budgets, most, strict=True):
            known = self._known[session.id]
            if budget.forwards:
                known.budget = budget
            if not n:  # only a draft shows that the text has turned: where none is made, its mean drifts back, so that one is tried again
                known.next += 0.01 * (START - known.next)
        room = self.window + self.beta if self.window else 0
        guesses = inner.guess(
            sessions,
            [n + room if n else 0 for n in most],
            budgets,
            lambda i, guess: len(guess.claims) >= most[i] or self._enough(sessions[i], guess, budgets[i]),
        )
        for guess, n in zip(guesses, most, strict=True):
            guess.claims = guess.claims[:n]
        return guesses

    def _enough(self, session: Context, guess: Guess, budget: Budget) -> bool:
        """Whether one more forward of the draft model is not worth it.

        It says one token more than it confirms of what is guessed for it, and behind that the guesses go on. Without it the target reads
        the guesses here already. So where they are sure of themselves for long, as in a copy, the draft model is not asked.
        """
        if not budget.floor or guess.forwards >= budget.forwards:
            return bool(budget.floor)
        known, likely = self._known[session.id], [budget.estimate(self.name, p) for p in guess.probs]
        if likely:
            known.next += 0.05 * (likely[-1] - known.next)
        # Where no guesses go into its forwards (none can where its ids are others), it is not asked, or goes on as any draft model.
        weighed = self.k and (self.guided or not guess.claims)
        free = expected(self._free(session, guess.tokens), budget.estimate, FREE) if weighed else 0.0
        confirmed: float = known.next ** (1.0 + free if self.guided else 1.0)
        more = known.next * (1.0 - confirmed) / (1.0 - known.next) if known.next < 1.0 else 1.0 + free
        return prod(likely) * (more - (1.0 - confirmed) * free) < budget.floor

    def _inside(self, inner: Context) -> Draft:
        """What is guessed for the draft model, behind what it has drafted so far."""
        assert self.inner is not None
        return self._free(self.inner.outer(inner), inner.tokens[inner.prompt_length :])

    def _free(self, session: Context, more: Sequence[int]) -> Draft:
        """What pool and texts guess behind the session's text and `more`."""
        known, key = self._known[session.id], (len(session.tokens), *more)
        if known.guessed is None or known.guessed[0] != key:
            anchor = more[-1] if more else session.tokens[-1]
            known.guessed = key, self._tree(session, more, self.guesses).draft(anchor, Budget(FREE, FREE))
        return known.guessed[1]

    def _tree(self, session: Context, more: Sequence[int], k: int, guess: Guess | None = None) -> PhraseTree:
        """Guesses behind the session's text and `more`, or of the draft model and around it."""
        known = self._known[session.id]
        claims = [(ids[: self.candidates], probs[: self.candidates]) for ids, probs in guess.claims] if guess is not None else []
        trunk = [ids[0] for ids, _ in claims]
        text = (lambda at: self._behind(session, [*more, *trunk[:at]])) if self.others else None
        beside = guess.beside if guess is not None else {}
        return PhraseTree(known.pool, k, self.beta, claims, self.name, self.ends, self.branch, text, beside)

    def _behind(self, session: Context, more: Sequence[int]) -> Branch:
        """What the host expects behind the session's text and `more`, where it drafted that; else what texts say."""
        branch: Branch | None = self._of_host(session) if self.host is not None else None
        for token in more:
            branch = branch.behind(token) if branch is not None else None
        if branch is not None and (self.texts is None or not branch.bare):
            return branch
        return branches(EMPTY if self.texts is None else self.texts.behind(session, more, Budget(FREE, FREE)))

    def _of_host(self, session: Context) -> Branch:
        """The host's draft behind the text. It is asked once a step."""
        assert self.host is not None
        known, length = self._known[session.id], len(session.tokens)
        if known.host is None or known.host[0] != length:
            least = known.budget.least if known.budget is not None else ()
            (draft,) = self.host.propose([session], [Budget(MOST_NODES, MOST_NODES, least=least)])
            known.host = length, branches(sane(draft, ANY, MOST_NODES, MOST_NODES), HOST)  # a host, too, may be wrong in any way
        return known.host[1]

    def _lengthened(self, session: Context, guess: Guess, budget: Budget) -> Draft:
        """The draft model's draft with phrases."""
        known = self._known[session.id]
        known.trunk = guess.tokens
        tree = self._tree(session, (), self.k, guess)
        draft = tree.draft(session.tokens[-1], budget)
        known.asked = tree.asked
        self.counts.drafted(guess, tree)
        return draft

    def observe(self, steps: Sequence[Step]) -> None:
        start = perf_counter()
        for other in self.others:
            other.observe(steps)
        for step in steps:
            known = self._known[step.session.id]
            if not step.prefill:
                self._harvest(step, known)
                self._judge(step, known)
            known.trunk, known.asked = (), {}  # the next step may have no draft
            if self.output:
                self._read(step.session, known)
            self.counts.pool_phrases = len(known.pool)
        self.counts.pooling += perf_counter() - start

    def _judge(self, step: Step, known: Known) -> None:
        """Tell the pool how its phrases met the text, where they stood behind text that came true."""
        said = step.verdict.tokens
        right = common(known.trunk, said)
        for depth, phrases in known.asked.items():
            if depth <= right and depth < len(said):
                key = known.trunk[depth - 1] if depth else step.session.tokens[-len(said) - 1]
                came = said[depth:]
                for phrase in phrases:
                    kept = common(phrase.tokens, came)
                    known.pool.credit((key, *phrase.tokens), kept, min(kept + 1, len(phrase.tokens), len(came)))

    def _harvest(self, step: Step, known: Known) -> None:
        """Mechanism 3: what the forward says about all that was drafted, right or not."""
        assert step.top_k is not None
        said, best = step.verdict.tokens, step.top_k[:, 0].tolist()
        child = step.draft.child
        nodes = walk(child, ANCHOR, known.trunk)  # without what the budget cut off
        line = (step.session.tokens[-len(said) - 1], *known.trunk[: len(nodes)])
        right = common(line[1:], said)
        told = [best[node + 1] for node in (ANCHOR, *nodes)]  # behind every token of the line
        told[: len(said)] = said[: len(told)]
        self.counts.verified(right, sum(t == v for t, v in zip(line[1:], told, strict=False)), step, self.name)
        if not self.verify:
            return
        if right < len(nodes):
            for found in rescued(line, told, right, self.beta):
                known.pool.add(found)
        for depth, phrases in known.asked.items():
            if depth <= right:
                for phrase in phrases:
                    path = walk(child, nodes[depth - 1] if depth else ANCHOR, phrase.tokens)
                    along = (best[node + 1] for node in path)
                    better = [*said[depth:], *list(along)[len(said) - depth - 1 :]][: len(phrase.tokens)]
                    if len(better) == len(phrase.tokens) and min(better) >= 0:
                        known.pool.correct((line[depth], *phrase.tokens), (line[depth], *better))

    def _read(self, session: Context, known: Known) -> None:
        """What of the output is new makes phrases."""
        begin = max(known.read, session.prompt_length)
        start = max(session.prompt_length, begin - known.pool.length)
        known.pool.read(session.tokens[start:], begin - start)
        known.read = len(session.tokens)

    def rewind(self, session: Context, length: int) -> None:
        known = self._known[session.id]
        known.read, known.guessed, known.host = min(known.read, length), None, None
        for other in self.others:
            other.rewind(session, length)

    def close(self, session: Context) -> None:
        known = self._known.pop(session.id, None)
        if known is None:
            return
        if self.inner is not None:
            self.inner.close(session)
        for other in self.others:
            other.close(session)
        self.memory.settle(session.tenant)
        if not self.history and all(other.tenant != known.tenant for other in self._known.values()):
            self.memory.forget(known.tenant)

    def report(self) -> dict[str, float]:
        """Counts since the drafter was made; see docs/ouroboros.md."""
        return self.counts.report()


def _parts(host: Drafter | None) -> tuple[Drafter | None, ...]:
    """A host and the hosts that it has itself."""
    return (host, *getattr(host, "hosts", ()))


def rescued(line: Sequence[int], told: Sequence[int], right: int, beta: int) -> Iterator[Sequence[int]]:
    """Phrases from a rejected draft: `line` is the anchor and the draft, of which `right` tokens are right.

    `told[i]` is what the target says behind line[i]; a recording that does not know says -1. Runs of the tail that the target would have
    said at their places come first; then what it says from the error on, behind every token of that.
    """
    known = next((i for i, token in enumerate(told) if token < 0), len(told))
    start = right + 2
    for i in range(right + 2, len(line) + 1):
        if i == len(line) or line[i] != told[i - 1]:
            if i - start > 1:
                yield line[start : min(i, start + beta)]
            start = i + 1
    mended = [line[right], *told[right:known]]
    for i in range(len(mended) - 1):
        yield mended[i : i + beta]
