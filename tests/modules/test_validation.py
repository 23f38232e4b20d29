"""Checks of sentences."""

from __future__ import annotations

import pytest

from sbert_flow.modules.validation import check_sentences


def test_lone_surrogates_are_replaced_with_one_warning() -> None:
    broken = ["good", "a\ud800b", "\udc00", "a\udfffb", "a pair: \ud83d\ude00"]
    with pytest.warns(UserWarning, match=r"^4 of the sentences hold surrogates.*item 1, 'a\\ud800b'") as seen:
        mended = check_sentences(broken, least=1)
    assert len(seen) == 1
    assert mended == ["good", "a\ufffdb", "\ufffd", "a pair: \U0001f600"]
