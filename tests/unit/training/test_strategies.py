"""How a model computes: what is asked for is what is done."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headrace.errors import RecipeError
from headrace.recipe.train import TrainerSpec
from headrace.training.strategies import form


class Own(nn.Module):
    """A class of a user."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, values: Tensor) -> Tensor:
        return self.inner(values).relu()


@pytest.fixture(autouse=True)
def _compiler() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "part", [Own, lambda: nn.Linear(4, 4), lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Own())]
)
def test_every_part_of_a_model_is_compiled(part: Callable[[], nn.Module]) -> None:
    """Also one of a class of PyTorch's: `Module.compile` passes those over without a word."""
    graphs: list[Any] = []

    def backend(graph: Any, _: object) -> Any:
        graphs.append(graph)
        return graph.forward

    model = nn.Module()
    model.network = part()
    names, values = set(model.state_dict()), torch.rand(2, 4)
    plain = model.network(values)
    form(model, TrainerSpec(compile={"backend": backend}))
    assert torch.equal(model.network(values), plain)
    assert len(graphs) == 1
    assert set(model.state_dict()) == names
    other = copy.deepcopy(model.network)
    for weight in other.parameters():
        nn.init.ones_(weight)
    assert not torch.equal(other(values), plain)
    assert torch.equal(model.network(values), plain)


def test_a_class_that_the_model_has_not_is_refused() -> None:
    model = nn.Sequential(Own())
    form(model, TrainerSpec(activation_checkpointing=("Own",)))
    with pytest.raises(RecipeError, match="activation_checkpointing names Owm") as caught:
        form(model, TrainerSpec(activation_checkpointing=("Owm",)))
    assert "Did you mean 'Own'?" in caught.value.hint
