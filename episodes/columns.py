"""Names of the columns in train and inference batches, equal to RLlib's names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from episodes.errors import TrackMismatch

DEFAULT_MODULE_ID: Final = "default_policy"
DEFAULT_AGENT_ID: Final = "default_agent"


class Columns:
    """Names of the columns in train and inference batches, as class attributes such as `Columns.OBS`.

    >>> Columns.NEXT_OBS
    'new_obs'
    """

    OBS: Final = "obs"
    NEXT_OBS: Final = "new_obs"
    ACTIONS: Final = "actions"
    ACTIONS_FOR_ENV: Final = "actions_for_env"
    REWARDS: Final = "rewards"
    TERMINATEDS: Final = "terminateds"
    TRUNCATEDS: Final = "truncateds"
    INFOS: Final = "infos"

    EPS_ID: Final = "eps_id"
    AGENT_ID: Final = "agent_id"
    MODULE_ID: Final = "module_id"
    T: Final = "t"
    IS_FIRST: Final = "is_first"
    POLICY_VERSION: Final = "policy_version"
    POLICY_AGE: Final = "policy_age"

    ACTION_DIST_INPUTS: Final = "action_dist_inputs"
    ACTION_LOGP: Final = "action_logp"
    ACTION_PROB: Final = "action_prob"
    VF_PREDS: Final = "vf_preds"
    STATE_IN: Final = "state_in"
    STATE_OUT: Final = "state_out"
    NEXT_STATE_IN: Final = "next_state_in"
    NEXT_STATE_OUT: Final = "next_state_out"
    EMBEDDINGS: Final = "embeddings"

    ADVANTAGES: Final = "advantages"
    VALUE_TARGETS: Final = "value_targets"
    VALUES_BOOTSTRAPPED: Final = "values_bootstrapped"
    INTRINSIC_REWARDS: Final = "intrinsic_rewards"
    RETURNS_TO_GO: Final = "returns_to_go"
    LOSS_MASK: Final = "loss_mask"
    SEQ_LENS: Final = "seq_lens"
    WEIGHTS: Final = "weights"
    N_STEP: Final = "n_step"


TRANSITION_KEYS = (
    Columns.OBS,
    Columns.NEXT_OBS,
    Columns.ACTIONS,
    Columns.REWARDS,
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
)
"""Columns of a sample of steps if no keys are given."""

MODEL_OUTPUTS: Final = frozenset(
    {
        Columns.ACTIONS_FOR_ENV,
        Columns.ACTION_DIST_INPUTS,
        Columns.ACTION_LOGP,
        Columns.ACTION_PROB,
        Columns.VF_PREDS,
        Columns.STATE_OUT,
        Columns.EMBEDDINGS,
        Columns.INTRINSIC_REWARDS,
    }
)
"""Column names that a policy's outputs may have: episodes store these columns, and nothing else writes them."""

RESERVED_COLUMNS: Final = frozenset(
    {name for key, name in vars(Columns).items() if key.isupper()} - MODEL_OUTPUTS | {"indices"}
)
"""Column names that this library writes itself. An extra model output cannot have one of them."""


def check_extra_output_names(names: Iterable[str], label: str) -> None:
    """Raise `TrackMismatch` if an extra model output has the name of a column that this library writes itself.

    Call it before outputs are stored and before they become columns of a batch: one of the two would overwrite the
    other.

    Args:
        names: the names of the extra model outputs.
        label: the first words of the error message, such as `"episode 3f2a"`.

    >>> check_extra_output_names(["action_logp", "my_output"], "policy")
    >>> check_extra_output_names(["loss_mask"], "policy")
    Traceback (most recent call last):
    episodes.errors.TrackMismatch: policy: extra model outputs ['loss_mask'] have names of columns ...
    """
    reserved = RESERVED_COLUMNS.intersection(names)
    if reserved:
        raise TrackMismatch(
            f"{label}: extra model outputs {sorted(reserved)} have names of columns that batches get anyway; one would "
            "overwrite the other, so rename these outputs"
        )
