"""Edits of a sentence's surface, for the surface map."""

from __future__ import annotations

from sbert_flow.views.edits import DropWords, Edit, InsertWords, ToggleFinalMark, repeat, shuffle_words, surface_edits
from sbert_flow.views.views import editable, make_views
from sbert_flow.views.words import bare, final_mark, function_words

__all__ = [
    "DropWords",
    "Edit",
    "InsertWords",
    "ToggleFinalMark",
    "bare",
    "editable",
    "final_mark",
    "function_words",
    "make_views",
    "repeat",
    "shuffle_words",
    "surface_edits",
]
