"""Base classes of the configurations of algorithms, with hyperparameters that all algorithms share."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from episode_learners.algorithms.config_checks import check_fields, count, not_negative, positive

__all__ = ["AlgorithmConfig", "EpochConfig", "Settings"]

_SECTION = "Attributes:"


class Settings:
    """Base class of configuration dataclasses. It checks the values of fields, and adds the descriptions of inherited
    fields to the docstrings of subclasses.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self)

    def __init_subclass__(cls) -> None:
        """Add the descriptions of inherited fields to the docstring of a new subclass, so that `help()` shows all
        fields.
        """
        documented = _entries_of(cls.__doc__)
        inherited = {name: text for base in cls.__bases__ for name, text in _entries_of(base.__doc__).items()}
        missing = [text for name, text in inherited.items() if name not in documented]
        if missing:
            doc = inspect.cleandoc(cls.__doc__ or "")
            cls.__doc__ = "\n".join([doc if documented else f"{doc}\n\n{_SECTION}", *missing])


def _entries_of(doc: str | None) -> dict[str, str]:
    """Return the descriptions in the section `Attributes:` of a docstring, by name of the field."""
    _, _, section = inspect.cleandoc(doc or "").partition(_SECTION)
    entries = re.finditer(r"^    (\w+): .*(?:\n     .*)*", section, re.MULTILINE)
    return {entry[1]: entry[0] for entry in entries}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmConfig(Settings):
    """Hyperparameters common to all algorithms: learning rate and gradient clipping. A value out of range raises
    `InvalidArgument`, also in subclasses.

    Attributes:
        learning_rate: Step size of the Adam optimizers.
        max_gradient_norm: Gradients with a larger norm are scaled down to it. None: no limit.
    """

    learning_rate: float = positive(1e-3)
    max_gradient_norm: float | None = positive(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochConfig(AlgorithmConfig):
    """Hyperparameters of algorithms that learn from each train batch in several passes over minibatches.

    Attributes:
        num_epochs: Passes over a train batch.
        minibatch_size: Steps in a minibatch.
        entropy_coefficient: Weight of the entropy bonus in the loss.
    """

    num_epochs: int = count(1)
    minibatch_size: int = count(256)
    entropy_coefficient: float = not_negative(0.0)
