"""Memory structures: no model, no torch. The table below is how a saved store finds its class."""

from __future__ import annotations

STORES: dict[str, str] = {
    "suffix": "echodraft.stores.suffix:SuffixStore",
    "phrases": "echodraft.stores.phrases:PhrasePool",
    "adjacency": "echodraft.stores.adjacency:AdjacencyStore",
    "draft-adjacency": "echodraft.stores.adjacency:DraftAdjacency",
    "hidden": "echodraft.stores.hidden:HiddenStore",
    "outputs": "echodraft.stores.outputs:OutputStore",
}
