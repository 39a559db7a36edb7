"""Lookahead decoding: the target iterates on a window of guesses, and n-grams of what it said come back as drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from echodraft.core.backend import Need
from echodraft.core.budget import Budget
from echodraft.core.draft import ANCHOR, Draft, DraftBuilder
from echodraft.core.drafter import Context, Drafter
from echodraft.core.step import Step
from echodraft.errors import UsageError
from echodraft.memory import Memory
from echodraft.stores.phrases import MOST_LENGTH, PhrasePool, warm

SEEN, MADE, WINDOW = "lookahead-text", "lookahead", "lookahead-window"
"""Who guessed a node: an n-gram of the text, one that came from the window, the window itself."""
WEIGHT, WORTH = 500.0, 0.02
"""Nodes whose counts the assumed worth of a window node weighs as much as, and that worth, in tokens."""

Said = list[int | None]
"""What the target says behind each column of a window; None where it was not asked."""


@dataclass(slots=True)
class Window:
    """The Jacobi window of one request, aligned to the end of its text.

    levels[0]  tokens of columns 1, 2, …; column 0 is the anchor. They stand behind the anchor one after the other: the trunk
    levels[l]  what was said behind level l - 1, columns 0, 1, …; column i of it stands at depth i + l, behind its own column only

    width   columns once the window is full; while it fills there is one more for each level that is missing
    height  levels of a full window, N - 1: one less than an n-gram has tokens
    text    where tokens come from that nothing is known of
    """

    width: int
    height: int
    text: Sequence[int]
    levels: list[list[int]] = field(init=False)
    random: Random = field(default_factory=lambda: Random(10))

    def __post_init__(self) -> None:
        self.text = list(self.text)
        self.levels = [[self._any() for _ in range(self.columns(1) - 1)]]

    def _any(self) -> int:
        return self.random.choice(self.text)

    def columns(self, levels: int) -> int:
        return self.width + self.height - levels

    def column(self, i: int) -> list[int]:
        """Column i behind its trunk node."""
        return [level[i] for level in self.levels[1:]]

    def said(self, step: Step) -> Said:
        """The target's best token behind each column of the window as it was scored. Equal paths share a node, so paths are walked."""
        draft, best = step.draft, step.top_k
        assert best is not None
        child = draft.child
        out: Said = []
        trunk: int | None = ANCHOR
        for i in range(self.columns(len(self.levels))):
            trunk = child.get((trunk, self.levels[0][i - 1])) if i and trunk is not None else trunk
            node = trunk
            for token in self.column(i):
                node = child.get((node, token)) if node is not None else None
            out.append(None if node is None else int(best[node + 1, 0]))
        return out

    def ngrams(self, anchor: int, said: Said) -> list[list[int]]:
        """The n-grams that are complete with what was said: what stands above each column of a full window, key first."""
        if len(self.levels) < self.height:
            return []
        keys = [anchor, *self.levels[0]]
        return [[keys[i], *self.column(i), token] for i, token in enumerate(said) if token is not None]

    def advance(self, said: Said, emitted: int) -> None:
        """Take in what was said, and follow the anchor, which moved by `emitted` tokens."""
        newest = [self._any() if token is None else token for token in said]
        if len(self.levels) < self.height:
            self.levels.append(newest)
            self.levels = [level[emitted:] for level in self.levels]
        else:
            # The oldest level goes: every column moves on by one token, so the others are one column nearer to the anchor already.
            first, *others = [*self.levels[1:], newest]
            self.levels = [first[emitted:], *(level[emitted - 1 :] for level in others)]
        self._fit()

    def move(self, tokens: int) -> None:
        """Follow an anchor that moved on by so many tokens, or back, without a forward."""
        self.levels = [[self._any() for _ in range(-tokens)] + level[max(tokens, 0) :] for level in self.levels]
        self._fit()

    def _fit(self) -> None:
        columns = self.columns(len(self.levels))
        for i, level in enumerate(self.levels):
            size = columns - (i == 0)
            level[size:] = [self._any() for _ in range(size - len(level))]


@dataclass(slots=True)
class Known:
    """What is kept for a session.

    made    n-grams from the window, of earlier requests of the tenant too where they are carried
    seen    n-grams from the text
    length  tokens of the session that the window stands behind
    paid    window nodes that were scored, and
    earned  tokens that n-grams from the window brought, with what is assumed before there are counts
    """

    window: Window
    made: PhrasePool
    seen: PhrasePool
    length: int
    paid: float = WEIGHT
    earned: float = WEIGHT * WORTH


class Lookahead(Drafter):
    """The target writes ahead of itself: every step it also continues a window of guesses, and n-grams of that come back as drafts.

    Source: lookahead decoding (arXiv 2402.02057). A window of N - 1 levels and W columns is scored with every step; it begins as tokens
    of the prompt, fills in N - 2 steps, and every full step yields W n-grams, keyed by their first token. Up to G n-grams of the anchor,
    the latest first, are verified beside the window. Ours differs: n-grams of the text count too (`from_text`), what the window found is
    kept for later requests (`carry`), the window follows the anchor when several tokens are accepted, and a fully accepted n-gram keeps
    its bonus token. The window costs (N - 1) W - 1 nodes a step that are mostly wrong, so with `--budget auto` its nodes claim what they
    are worth: the tokens that its n-grams brought in this request for each node that was scored. It is scored where the cost curve says
    that this is more than the node costs, and where most of its columns find no place it is left out. Needs: the target's best id. As
    published: from_text=false, carry=false and a budget of (N - 1) (W + G) - 1 nodes, 55 for the defaults; W = G = 15 or 20 in the paper.

    window     W, columns
    level      N, tokens of an n-gram
    guesses    G, n-grams that are tried in a step and kept for a token
    from_text  n-grams of prompt and output too
    carry      keep n-grams of the window for the later requests of the tenant
    """

    name = "lookahead"
    needs = frozenset({Need.TOP_K})
    top_k = 1
    replay = "live"  # its n-grams are what the target said of nodes that were mostly rejected
    # Chance that the first token of an n-gram is right, by its rank, and of the others behind a right one: a prior for the budget.
    FIRST, NEXT = (0.3, 0.1, 0.05), 0.5

    def __init__(
        self, window: int = 7, level: int = 5, guesses: int = 7, from_text: bool = True, carry: bool = True, memory: Memory | None = None
    ) -> None:
        if window < 2 or guesses < 1 or not 2 <= level <= MOST_LENGTH:
            raise UsageError(
                f"lookahead: window is at least 2, guesses at least 1, level lies between 2 and {MOST_LENGTH}; not window={window}, "
                f"guesses={guesses}, level={level}."
            )
        self.window, self.level, self.guesses, self.from_text, self.carry = window, level, guesses, from_text, carry
        self.memory = Memory() if memory is None else memory
        self._known: dict[int, Known] = {}
        warm()

    def open(self, session: Context) -> None:
        made = self.memory.store(session.tenant, PhrasePool, self._pool) if self.carry else self._pool()
        made.reach(self.level - 1)
        self._begin(session, made)

    def _pool(self) -> PhrasePool:
        return PhrasePool(self.level - 1, self.guesses)

    def _begin(self, session: Context, made: PhrasePool) -> Known:
        """Forget all of the session but what its window made."""
        known = Known(Window(self.window, self.level - 1, session.tokens), made, self._pool(), len(session.tokens))
        if self.from_text:
            known.seen.read(session.tokens)
        self._known[session.id] = known
        return known

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._tree(session, budget) for session, budget in zip(sessions, budgets, strict=True)]

    def _tree(self, session: Context, budget: Budget) -> Draft:
        known = self._known[session.id]
        if known.length != len(session.tokens):  # more context came, which is not read yet
            known = self._moved(session, known)
        draft, anchor = DraftBuilder(), session.tokens[-1]
        found = [(phrase.tokens, SEEN) for phrase in known.seen.best(anchor, self.guesses)]
        found += [(phrase.tokens, MADE) for phrase in known.made.best(anchor, self.guesses - len(found))]
        for rank, (tokens, source) in enumerate(found):
            draft.chain(ANCHOR, tokens, self._claims(rank, len(tokens)), budget, source)
        self._add_window(draft, known, budget)
        return draft.build()

    @classmethod
    def _claims(cls, rank: int, n: int) -> list[float]:
        """Path probabilities of an n-gram."""
        first = cls.FIRST[min(rank, len(cls.FIRST) - 1)]
        return [first * cls.NEXT**i for i in range(n)]

    def _add_window(self, draft: DraftBuilder, known: Known, budget: Budget) -> None:
        """Whole columns, as many as there is room for, if those are most of them."""
        window, worth = known.window, min(1.0, known.earned / known.paid)
        most = window.columns(len(window.levels))
        columns = min(most, (budget.nodes - len(draft) + 1) // len(window.levels))
        if 2 * columns <= most:
            return
        trunk = window.levels[0][: columns - 1]
        for i, node in enumerate([ANCHOR, *draft.chain(ANCHOR, trunk, [worth] * len(trunk), budget, WINDOW, probe=True)]):
            column = window.column(i)
            draft.chain(node, column, [worth] * len(column), budget, WINDOW, probe=True)

    def observe(self, steps: Sequence[Step]) -> None:
        for step in steps:
            session, known = step.session, self._known[step.session.id]
            emitted = len(step.verdict.tokens)
            if step.prefill:
                self._moved(session, known)
                continue
            if self.from_text:
                known.seen.read(session.tokens, len(session.tokens) - emitted)
            known.length = len(session.tokens)
            if len(step.draft):
                self._learn(known, session.tokens[-emitted - 1], step)

    def _learn(self, known: Known, anchor: int, step: Step) -> None:
        """Counts, and what the target said of the window, if it was scored."""
        known.paid += int(step.draft.probe.sum())
        known.earned += sum(step.draft.source[node] in (MADE, WINDOW) for node in step.verdict.path)
        said = known.window.said(step)
        # Of less the window would lose more, by what is put in for what is not known, than it learns.
        if 2 * sum(token is not None for token in said) > len(said):
            for ngram in known.window.ngrams(anchor, said):
                known.made.add(ngram)
            known.window.advance(said, len(step.verdict.tokens))

    def rewind(self, session: Context, length: int) -> None:
        self._moved(session, self._known[session.id])

    def _moved(self, session: Context, known: Known) -> Known:
        """The text changed without a step."""
        return self._begin(session, known.made)

    def close(self, session: Context) -> None:
        if self._known.pop(session.id, None) is not None and self.carry:
            self.memory.settle(session.tenant)
