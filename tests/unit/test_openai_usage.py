"""What `usage_of` reads from replies of the OpenAI API, and what it makes of everything else."""

import logging
from decimal import Decimal
from types import SimpleNamespace

import pytest
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion

from singleflight_app.contrib.openai import Price, usage_of
from singleflight_app.domain.flight import Usage

PRICES = {"small-1": Price(input=Decimal("0.50"), output=Decimal(2), cached=Decimal("0.10"))}


def _chat(model: str = "small-1") -> ChatCompletion:
    usage = CompletionUsage(prompt_tokens=1000, completion_tokens=200, total_tokens=1200)
    return ChatCompletion(id="1", choices=[], created=0, model=model, object="chat.completion", usage=usage)


def test_a_chat_completion_tells_model_and_tokens() -> None:
    """Without a price the call counts its tokens and costs nothing."""
    usage = usage_of(_chat())

    assert usage == Usage("small-1", 1000, 200, Decimal(0))


def test_a_response_as_a_dict_tells_the_same() -> None:
    """The responses API names its tokens otherwise; a reply read from JSON is a dict."""
    usage = usage_of({"model": "small-1", "usage": {"input_tokens": 7, "output_tokens": 3}})

    assert usage == Usage("small-1", 7, 3)


def test_the_cost_follows_from_the_price_of_the_model() -> None:
    """Prices are per million tokens and exact."""
    usage = usage_of(_chat(), prices=PRICES)

    assert usage.cost == Decimal("0.0009")


def test_a_dated_snapshot_has_the_price_of_its_model() -> None:
    """A request for "small-1" is answered by "small-1-2026-05-01"."""
    usage = usage_of(_chat("small-1-2026-05-01"), prices=PRICES)

    assert usage.model == "small-1-2026-05-01"
    assert usage.cost == Decimal("0.0009")


def test_cached_input_has_its_own_price() -> None:
    """The provider counts cached tokens among the prompt's."""
    reply = {
        "model": "small-1",
        "usage": {
            "prompt_tokens": 1000,
            "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 400},
        },
    }

    assert usage_of(reply, prices=PRICES).cost == Decimal("0.00034")


def test_a_given_cost_is_taken_as_it_is() -> None:
    """A caller who knows better than a price table is believed."""
    assert usage_of(_chat(), cost=Decimal("1.5"), prices=PRICES).cost == Decimal("1.5")


def test_a_longer_name_is_another_model(caplog: pytest.LogCaptureFixture) -> None:
    """The name "small-1-pro" must not be billed as "small-1"; the missing price is said."""
    with caplog.at_level(logging.WARNING, "singleflight_app"):
        usage = usage_of(_chat("small-1-pro"), prices=PRICES)

    assert usage.cost == 0
    assert "no price is given for model 'small-1-pro'" in caplog.text


@pytest.mark.parametrize(
    "reply",
    [
        None,
        "text",
        {},
        SimpleNamespace(model=None, usage=None),
        {"model": 3, "usage": {"prompt_tokens": "many", "completion_tokens": None}},
        {"model": "m", "usage": ["odd"]},
    ],
)
def test_a_strange_reply_counts_as_nothing(reply: object) -> None:
    """The answer is paid for: reading its usage never fails the call."""
    usage = usage_of(reply, prices=PRICES)

    assert usage.tokens == 0
    assert usage.cost == 0
